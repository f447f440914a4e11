"""Several strategies on the same queries and budgets, measured against exact search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from crossknn._checks import check_positive
from crossknn.errors import InputError
from crossknn.evaluate.measures import bootstrap_interval, top_k_recall
from crossknn.scorers.timing import Speed
from crossknn.search.results import Hits
from crossknn.search.searcher import Searcher
from crossknn.strategies.base import Strategy
from crossknn.strategies.exact import Exact
from crossknn.types import Progress, Rows

PARTS: Final = ("scorer", "solve", "search")  # of a search's time
TOGETHER: Final = 64  # queries that are searched side by side


@dataclass(frozen=True)
class Contender:
    """A strategy that takes part in a comparison, at every budget of it.

    name      how it is shown, such as "Axn, dense first"
    make      the strategy for a budget, such as `lambda budget: Axn(budget, first="dense")`
    baseline  for an adaptive strategy, the name of the contender that it is always shown beside
    """

    name: str
    make: Callable[[int], Strategy]
    baseline: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise InputError(f"a contender's name must be a string with something in it. Got {self.name!r} instead.")
        if not callable(self.make):
            raise InputError(f"make must be a function from a budget to a strategy. Got {self.make!r} instead.")

    @property
    def adaptive(self) -> bool:
        """Whether it has a baseline to be measured against."""
        return self.baseline is not None


@dataclass(frozen=True)
class Result:
    """What one contender found of the true top `k` within one budget; means over the queries.

    recall     the share found, between 0 and 1, with `low` and `high` as its 95 % interval
    calls      calls per query
    seconds    per query: in the "scorer", in what the strategy makes of the scores to go on ("solve"), and in
               everything else ("search"); a part that nobody knows is left out
    settings   of a tuned strategy those that were chosen
    oracle     whether they were chosen on these very queries, for this budget and k alone: not attainable
    """

    strategy: str
    baseline: str | None
    budget: int
    k: int
    recall: float
    low: float
    high: float
    calls: float
    seconds: dict[str, float]
    settings: Mapping[str, Any] | None = None
    oracle: bool = False

    @property
    def total_seconds(self) -> float | None:
        """Seconds per query altogether; None where a part is not known."""
        return sum(self.seconds[part] for part in PARTS) if self.seconds.keys() >= set(PARTS) else None

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON can hold them; the last two where something was tuned."""
        fields = {**vars(self), "seconds": dict(self.seconds)}
        if self.settings is None:
            del fields["settings"], fields["oracle"]
        else:
            fields["settings"] = dict(self.settings)
        return fields


@dataclass(frozen=True)
class Quality:
    """How good what a strategy found within a budget is: means over the queries, by measure."""

    strategy: str
    budget: int | None  # None for exact search
    values: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON can hold them."""
        return {"strategy": self.strategy, "budget": self.budget, **self.values}


def exact_truth(searcher: Searcher, queries: Sequence[str], *, k: int, progress: Progress | None = None) -> list[Hits]:
    """The true `k` best items of each query: queries × items calls.

    Nothing is kept between runs; give the searcher a `Cached` scorer, and an interrupted run goes on.
    """
    truth = []
    for done, query in enumerate(queries, start=1):
        truth.append(searcher.search(query, k=k, strategy=Exact()))
        if progress:
            progress("exact search", done * len(searcher.items), len(queries) * len(searcher.items))
    return truth


def compare(
    searcher: Searcher,
    queries: Sequence[str],
    truth: Sequence[Hits],
    contenders: Sequence[Contender],
    *,
    budgets: Sequence[int],
    ks: Sequence[int],
    speed: Speed | None = None,
    progress: Progress | None = None,
    on_found: Callable[[str, int, list[Hits]], None] | None = None,
) -> list[Result]:
    """One result for every contender, budget (smallest first) and k, in this order.

    Queries are searched one at a time, so that times are those of a single query. Before a contender is
    measured it searches once, within the smallest budget, to fit its retrievers and load its models.
    `speed` is for scores that come from a cache: the scorer's time is then what it says of each search's rounds.
    `progress` counts searches; `on_found` is called with a contender's name, a budget and the hits of all queries.
    """
    if not contenders:
        raise InputError("there must be at least one contender. Got none.")
    _check_queries(queries, truth, wanted=min(max(_check_sizes("ks", ks)), len(searcher.items)))
    plan = list(_plan(contenders, sorted(_check_sizes("budgets", budgets))))
    rows, results = [rows_of(hits) for hits in truth], []
    for number, (contender, strategy, budget, first) in enumerate(plan):
        if first:
            # The last query: the searcher remembers the vector of the query it saw last.
            searcher.search(queries[-1], k=budget, strategy=strategy)
        found = []
        for done, query in enumerate(queries, start=1):
            found.append(searcher.search(query, k=budget, strategy=strategy))
            if progress:
                progress(f"comparing: {contender.name}", number * len(queries) + done, len(plan) * len(queries))
        if on_found:
            on_found(contender.name, budget, found)
        results += [_measure(contender, budget, k, rows, found, speed) for k in ks]
    return results


def search_together(searcher: Searcher, queries: Sequence[str], strategy: Strategy, *, k: int) -> Iterator[list[Hits]]:
    """The hits of some queries after the other, where nobody needs the time of each."""
    for start in range(0, len(queries), TOGETHER):
        yield searcher.search_many(queries[start : start + TOGETHER], k=k, strategy=strategy)


def _plan(contenders: Sequence[Contender], budgets: Sequence[int]) -> Iterator[tuple[Contender, Strategy, int, bool]]:
    """Every search to make, with whether its contender is new; all strategies are made before the first call."""
    seen: dict[str, Contender] = {}
    for contender in contenders:
        if contender.name in seen:
            raise InputError(f"contenders must have different names. {contender.name!r} comes twice.")
        if contender.baseline is not None and (contender.baseline not in seen or seen[contender.baseline].adaptive):
            raise InputError(
                f"the baseline of {contender.name!r} must be a contender before it that has no baseline itself."
                f" Got {contender.baseline!r} instead."
            )
        seen[contender.name] = contender
        for budget in budgets:
            yield contender, _make(contender, budget), budget, budget == budgets[0]


def _make(contender: Contender, budget: int) -> Strategy:
    strategy = contender.make(budget)
    if not isinstance(strategy, Strategy) or strategy.budget != budget:
        raise InputError(
            f"make of {contender.name!r} must give a strategy with the budget asked for ({budget}). Got {strategy!r}."
        )
    return strategy


def _check_sizes(name: str, sizes: Sequence[int]) -> Sequence[int]:
    if not len(sizes) or len(set(sizes)) != len(sizes):
        raise InputError(f"{name} must be different whole numbers, at least one. Got {list(sizes)} instead.")
    for size in sizes:
        check_positive(f"each of {name}", size)
    return sizes


def _check_queries(queries: Sequence[str], truth: Sequence[Hits], *, wanted: int) -> None:
    if isinstance(queries, str) or not len(queries):
        raise InputError(f"queries must be a list with at least one query. Got {queries!r} instead.")
    if [hits.query for hits in truth] != list(queries):
        raise InputError("truth must be the exact hits of these queries in their order, as from exact_truth.")
    shortest = min(len(hits) for hits in truth)
    if shortest < wanted:
        raise InputError(
            f"truth must have the {wanted} best items of every query: exact_truth(…, k={wanted})."
            f" Got {shortest} instead."
        )


def _measure(
    contender: Contender, budget: int, k: int, truth: list[Rows], found: list[Hits], speed: Speed | None
) -> Result:
    recall = top_k_recall(truth, [rows_of(hits) for hits in found], k)
    low, high = bootstrap_interval(recall)
    calls = float(np.mean([hits.calls for hits in found]))
    return Result(
        strategy=contender.name,
        baseline=contender.baseline,
        budget=budget,
        k=k,
        recall=float(recall.mean()),
        low=low,
        high=high,
        calls=calls,
        seconds=_seconds(found, speed),
    )


def _seconds(found: list[Hits], speed: Speed | None) -> dict[str, float]:
    """The mean over queries of each part."""
    times = [(hits.score_seconds, hits.solve_seconds, hits.seconds) for hits in found]
    scorer, solve, total = (float(seconds) for seconds in np.mean(times, axis=0))
    search = total - scorer - solve
    return {"scorer": scorer if speed is None else _scorer_seconds(found, speed), "solve": solve, "search": search}


def _scorer_seconds(found: list[Hits], speed: Speed) -> float:
    """The mean over queries; every scored item is among the hits, with its round."""
    rounds = [Counter(hit.round for hit in hits).values() for hits in found]
    return float(np.mean([speed.seconds(sizes) for sizes in rounds]))


def rows_of(hits: Hits) -> Rows:
    """The rows of the hits, best first."""
    return np.array([hit.row for hit in hits], np.int64)
