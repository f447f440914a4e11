"""Relevance of hits by judgments, with the cross-encoder and by first stages alone, and which of the two is better."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from crossknn.evaluate.measures import Difference, measure_quality, paired_difference
from crossknn.evaluate.splits import Split

QUALITY_MEASURES: Final = ("nDCG@10", "MRR@10", "accuracy")  # verdicts and advice are by the first one
QUALITY_DEPTH: Final = 10  # hits that these measures look at


@dataclass(frozen=True)
class Quality:
    """Relevance of hits within a budget, by measure; means over the queries.

    `budget` is None for exact search, and 0 for the order of a first-stage retriever, without the cross-encoder.
    """

    strategy: str
    budget: int | None
    values: Mapping[str, float]
    first_stage: str | None = None  # the retriever that the strategy reranks, if it does nothing else
    per_query: Mapping[str, tuple[float, ...]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of_hits(
        cls,
        judged: Split,
        found: Sequence[Sequence[str]],
        *,
        strategy: str,
        budget: int | None,
        first_stage: str | None = None,
    ) -> Quality:
        """The quality of each query's hits, given by their ids, best first."""
        measured = measure_quality(judged, [ids[:QUALITY_DEPTH] for ids in found], measures=QUALITY_MEASURES)
        return cls(
            strategy,
            budget,
            {name: float(values.mean()) for name, values in measured.items()},
            first_stage,
            {name: tuple(values.tolist()) for name, values in measured.items()},
        )

    @property
    def main(self) -> float:
        """The value of the measure that verdicts are by."""
        return self.values[main_measure([self])]

    def minus(self, other: Quality) -> Difference | None:
        """The paired difference of the main measure to another quality; None without values per query."""
        measure = main_measure([self])
        ours, theirs = self.per_query.get(measure), other.per_query.get(measure)
        return paired_difference(ours, theirs) if ours and theirs and len(ours) == len(theirs) else None

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON can hold them, without the values per query."""
        first = {} if self.first_stage is None else {"first_stage": self.first_stage}
        return {"strategy": self.strategy, "budget": self.budget, **first, **self.values}


class Change(NamedTuple):
    """What more calls of the cross-encoder do to the quality, for one pair of rankings."""

    fewer: Quality  # calls
    more: Quality
    difference: Difference  # more − fewer

    def to_json(self) -> dict[str, Any]:
        """Both rankings by strategy and budget, and the difference."""
        sides = {name: [one.strategy, one.budget] for name, one in (("fewer", self.fewer), ("more", self.more))}
        return {**sides, "measure": main_measure([self.more]), **self.difference.to_json()}


def main_measure(levels: Sequence[Quality]) -> str:
    """The measure that verdicts and advice are by: nDCG@10 if it is known, else the first one."""
    known = levels[0].values
    return QUALITY_MEASURES[0] if QUALITY_MEASURES[0] in known else next(iter(known))


def best_first_stage(levels: Sequence[Quality]) -> Quality | None:
    """The best ranking without the cross-encoder."""
    return max((one for one in levels if one.budget == 0), key=lambda one: one.main, default=None)


def exact_quality(levels: Sequence[Quality]) -> Quality | None:
    """The quality of exact search, where the cross-encoder ranks all items."""
    return next((one for one in levels if one.budget is None), None)


def changes(levels: Sequence[Quality]) -> list[Change]:
    """The pairs of rankings that say what the cross-encoder does to the quality, the most telling first.

    Exact search against the best first stage; reranking within the most calls against its own first stage; then exact
    search, and reranking within the most calls, against reranking within the fewest.
    """
    pairs = [(fewer, more, more.minus(fewer)) for fewer, more in _pairs(levels)]
    return [Change(fewer, more, difference) for fewer, more, difference in pairs if difference is not None]


def gains(levels: Sequence[Quality]) -> list[tuple[Quality, Difference | None]]:
    """Every ranking, by its number of calls, with its difference to the best first stage alone."""
    first = best_first_stage(levels)
    ordered = sorted(levels, key=lambda one: (one.budget is None, one.budget))
    return [(one, None if first is None or one is first else one.minus(first)) for one in ordered]


def verdict(levels: Sequence[Quality]) -> Change | None:
    """The first of the changes in which the cross-encoder is shown to make the hits worse; None if there is none."""
    return next((change for change in changes(levels) if change.difference.sign < 0), None)


def _pairs(levels: Sequence[Quality]) -> Iterator[tuple[Quality, Quality]]:
    """Rankings with fewer and with more calls."""
    first_stages = {one.strategy: one for one in levels if one.budget == 0}
    reranked: dict[str, list[Quality]] = {}
    for one in sorted((one for one in levels if one.first_stage and one.budget), key=lambda one: one.budget or 0):
        reranked.setdefault(one.strategy, []).append(one)
    best, exact = best_first_stage(levels), exact_quality(levels)
    if best is not None and exact is not None:
        yield best, exact
    for found in reranked.values():
        first = first_stages.get(found[-1].first_stage or "")
        if first is not None:
            yield first, found[-1]
    for found in reranked.values():
        if exact is not None:
            yield found[0], exact
        if len(found) > 1:
            yield found[0], found[-1]
