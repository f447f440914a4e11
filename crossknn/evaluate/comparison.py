"""A whole comparison: its results, what is known about how they came about, and answers to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from crossknn.errors import InputError
from crossknn.evaluate.compare import Quality, Result
from crossknn.evaluate.study_results import Studies
from crossknn.items.items import Items
from crossknn.scorers.timing import Speed
from crossknn.search.results import Hits


class Line(NamedTuple):
    """One item of an answer, and whether it is in the exact top."""

    text: str
    score: float
    in_truth: bool


@dataclass(frozen=True)
class Answer:
    """What several searches found for one query, to be shown side by side.

    relevant  what the query should find, where somebody knows
    columns   the best lines of each search, under its name
    """

    query: str
    relevant: str | None
    columns: Mapping[str, Sequence[Line]]


class Group(NamedTuple):
    """A strategy and the adaptive strategies that are measured against it."""

    baseline: str
    adaptive: list[str]


@dataclass(frozen=True)
class Comparison:
    """What a report is made of.

    title             what was compared, in a few words
    data              what to know about the run, by name: queries, scorer, encoder, machine, versions, seed, …
                      Numbers are printed as counts (2,024); give a year or a long seed as a string
    items             how many items were searched: the calls of one exact search
    results           as from `compare`
    exact_seconds     seconds per query of exact search, where they are known
    answers           sample answers, as from `show_answer`
    command           what to type to repeat it
    speed             where scores came from a cache: the speed that the scorer's seconds were computed with
    quality           how good what was found is by the judgments, where there are any
    studies           what else was measured, as from `run_studies`
    """

    title: str
    data: Mapping[str, str | int | float]
    items: int
    results: Sequence[Result]
    exact_seconds: float | None = None
    answers: Sequence[Answer] = ()
    command: str | None = None
    speed: Speed | None = None
    quality: Sequence[Quality] = ()
    studies: Studies | None = None

    def __post_init__(self) -> None:
        if not self.title.strip() or not self.results or len(self._found) != len(self.results):
            raise InputError("a comparison needs a title and results, one for each strategy, budget and k.")
        plain = {result.strategy for result in self.results if result.baseline is None and not result.oracle}
        for result in self.results:
            if result.baseline is not None and result.baseline not in plain:
                raise InputError(f"{result.strategy!r} has the baseline {result.baseline!r}, which has no results.")

    @cached_property
    def budgets(self) -> list[int]:
        return sorted({result.budget for result in self.results})

    @cached_property
    def ks(self) -> list[int]:
        return sorted({result.k for result in self.results})

    @cached_property
    def groups(self) -> list[Group]:
        """Every baseline with the strategies measured against it, in the order of the results."""
        groups = {result.strategy: Group(result.strategy, []) for result in self.results if result.baseline is None}
        for name, baseline in dict.fromkeys((result.strategy, result.baseline) for result in self.results):
            if baseline is not None:
                groups[baseline].adaptive.append(name)
        return list(groups.values())

    @cached_property
    def strategies(self) -> list[str]:
        """Every baseline, and after it those measured against it."""
        return [name for group in self.groups for name in (group.baseline, *group.adaptive)]

    @cached_property
    def attainable(self) -> Comparison:
        """The comparison without oracles, which were chosen on the very queries they are measured on."""
        return replace(self, results=[result for result in self.results if not result.oracle])

    @cached_property
    def _found(self) -> dict[tuple[str, int, int], Result]:
        return {(result.strategy, result.budget, result.k): result for result in self.results}

    def result(self, strategy: str | None, budget: int, k: int) -> Result | None:
        """None where this was not measured."""
        return None if strategy is None else self._found.get((strategy, budget, k))

    def cost(self, strategy: str, budget: int) -> Result | None:
        """A result to read calls and seconds from, which are the same for every k."""
        results = (self.result(strategy, budget, k) for k in self.ks)
        return next((result for result in results if result), None)

    def to_json(self) -> dict[str, Any]:
        """The results as `records`, quality and studies where there are any, and all else but answers as `header`."""
        known: dict[str, Any] = {}
        if self.quality:
            known["quality"] = [one.to_json() for one in self.quality]
        if self.studies is not None:
            known["studies"] = self.studies.to_json()
        return {
            "header": {
                "title": self.title,
                "items": self.items,
                "exact_seconds": self.exact_seconds,
                "speed": None if self.speed is None else asdict(self.speed),
                "command": self.command,
                "data": dict(self.data),
            },
            "records": [result.to_json() for result in self.results],
            **known,
        }


def show_answer(
    items: Items, truth: Hits, found: Mapping[str, Hits], *, lines: int = 5, relevant: str | None = None
) -> Answer:
    """The best `lines` of the exact search and of each other search for the same query, side by side."""
    best = {hit.row for hit in truth[:lines]}
    columns = {
        name: [Line(items.text(hit.row), hit.score, hit.row in best) for hit in hits[:lines]]
        for name, hits in {"Exact search": truth, **found}.items()
    }
    return Answer(truth.query, relevant, columns)
