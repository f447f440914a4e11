"""Comparison of strategies with exact search, on the same queries and budgets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from crossknn._checks import check_positive, invalid
from crossknn._progress import choose_progress
from crossknn.errors import InputError
from crossknn.evaluate.measures import Difference, bootstrap_interval, paired_difference, top_k_recall
from crossknn.evaluate.quality import Quality, changes
from crossknn.evaluate.report import findings
from crossknn.evaluate.report.advice import Advice, advise
from crossknn.items.items import Items
from crossknn.scorers.timing import Speed
from crossknn.search.results import Hits
from crossknn.search.searcher import Searcher
from crossknn.strategies.base import Strategy
from crossknn.strategies.exact import Exact
from crossknn.strategies.posterior.calibration import ReliabilityBin
from crossknn.types import Progress, Rows

if TYPE_CHECKING:
    from crossknn.evaluate.studies import Studies

QUERY_BATCH: Final = 64  # queries that are searched together where their times do not matter
TIME_PARTS: Final = ("scorer", "solve", "search")


@dataclass(frozen=True)
class Contender:
    """A strategy in a comparison.

    Args:
        name: Its name in tables and figures, such as "Axn, dense first".
        make: Returns the strategy for a budget, such as `lambda budget: Axn(budget, first="dense")`.
        baseline: The name of the contender that an adaptive strategy is compared with.
    """

    name: str
    make: Callable[[int], Strategy]
    baseline: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise invalid("name", "a nonempty string", self.name)
        if not callable(self.make):
            raise invalid("make", "a function from a budget to a strategy", self.make)


@dataclass(frozen=True)
class Result:
    """The recall of one strategy for one budget and k, and its cost; means over the queries.

    `seconds` are those in the "scorer", in the strategy's own computation ("solve") and in everything else ("search");
    parts that are unknown are left out.
    """

    strategy: str
    baseline: str | None
    budget: int
    k: int
    recall: float  # share of the true top `k` among the scored items
    low: float  # with `high`, its 95 % confidence interval
    high: float
    calls: float
    seconds: dict[str, float]
    settings: Mapping[str, Any] | None = None  # the chosen ones of a tuned strategy
    oracle: bool = False  # whether they were chosen on the test queries, for this budget and k alone
    rounds: float | None = None  # that its searches took
    per_query: tuple[float, ...] = field(default=(), repr=False, compare=False)  # the recall of each query

    @property
    def total_seconds(self) -> float | None:
        """Seconds per query in total; None where a part is unknown."""
        return sum(self.seconds[part] for part in TIME_PARTS) if self.seconds.keys() >= set(TIME_PARTS) else None

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON can hold them, without values per query; settings and oracle only if it was tuned."""
        fields = asdict(self)
        del fields["per_query"]
        if self.settings is None:
            del fields["settings"], fields["oracle"]
        return fields


@dataclass(frozen=True)
class Reliability:
    """Expected beside measured recall of the true top `k`, over all queries and budgets of at least `k`."""

    strategy: str
    k: int
    error: float  # expected calibration error
    bins: Sequence[ReliabilityBin]

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON can hold them."""
        return {**asdict(self), "bins": [one._asdict() for one in self.bins]}


class Line(NamedTuple):
    """One item of a sample answer, and whether it is in the exact top."""

    text: str
    score: float
    in_truth: bool


@dataclass(frozen=True)
class Answer:
    """The results of several searches for one query, side by side."""

    query: str
    relevant: str | None  # the relevant item's text, if it is known
    columns: Mapping[str, Sequence[Line]]  # the best items of each search, by its name


class Group(NamedTuple):
    """A baseline and the adaptive strategies that are compared with it."""

    baseline: str
    adaptive: list[str]


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison with all that a report shows.

    Args:
        data: Facts about the run by name: queries, scorer, encoder, machine, versions, seed, …
            Numbers are printed as counts (2,024); pass a year or a long seed as a string.
        items: Number of items, which is the number of calls of an exact search.
        results: As returned by `compare`.
        exact_seconds: Seconds per query of exact search, if known.
        answers: Sample answers, as returned by `show_answer`.
        command: The command that repeats the run.
        speed: The speed of the scorer that its seconds were computed with, if scores came from a cache.
        quality: Relevance by judgments, if there are any, of first stages (0 calls), strategies and exact search.
        reliability: Of the strategies that expect a recall.
        studies: As returned by `run_studies`.
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
    reliability: Sequence[Reliability] = ()
    studies: Studies | None = None

    def __post_init__(self) -> None:
        if not self.title.strip() or not self.results or len(self._by_cell) != len(self.results):
            raise InputError("a comparison needs a title and results, one for each strategy, budget and k.")
        baselines = {result.strategy for result in self.results if result.baseline is None and not result.oracle}
        for result in self.results:
            if result.baseline is not None and result.baseline not in baselines:
                raise InputError(f"{result.strategy!r} has the baseline {result.baseline!r}, which has no results.")

    @cached_property
    def budgets(self) -> list[int]:
        return sorted({result.budget for result in self.results})

    @cached_property
    def ks(self) -> list[int]:
        return sorted({result.k for result in self.results})

    @cached_property
    def groups(self) -> list[Group]:
        """Every baseline with its adaptive strategies, in the order of the results."""
        groups = {result.strategy: Group(result.strategy, []) for result in self.results if result.baseline is None}
        for name, baseline in dict.fromkeys((result.strategy, result.baseline) for result in self.results):
            if baseline is not None:
                groups[baseline].adaptive.append(name)
        return list(groups.values())

    @cached_property
    def strategies(self) -> list[str]:
        """Every baseline, followed by its adaptive strategies."""
        return [name for group in self.groups for name in (group.baseline, *group.adaptive)]

    @cached_property
    def attainable(self) -> Comparison:
        """The comparison without oracles."""
        return replace(self, results=[result for result in self.results if not result.oracle])

    @cached_property
    def _by_cell(self) -> dict[tuple[str, int, int], Result]:
        return {(result.strategy, result.budget, result.k): result for result in self.results}

    def result(self, strategy: str | None, budget: int, k: int) -> Result | None:
        """The result of a strategy; None where it was not measured."""
        return None if strategy is None else self._by_cell.get((strategy, budget, k))

    def difference(self, strategy: str, other: str | None, budget: int, k: int) -> Difference | None:
        """The paired difference in recall of one strategy to another; None where values per query are unknown."""
        key = (strategy, other, budget, k)
        if key not in self._differences:
            results = self.result(strategy, budget, k), self.result(other, budget, k)
            ours, theirs = (result.per_query if result else () for result in results)
            known = ours and len(ours) == len(theirs)
            self._differences[key] = paired_difference(ours, theirs) if known else None
        return self._differences[key]

    @cached_property
    def _differences(self) -> dict[tuple[str, str | None, int, int], Difference | None]:
        return {}

    @cached_property
    def findings(self) -> list[str]:
        """What was found, in sentences, the most important one first."""
        return findings.sentences(self)

    @cached_property
    def advice(self) -> Advice:
        """The strategy, calls and rounds for these data, with the reasons, as far as the data allow any."""
        return advise(self)

    def __str__(self) -> str:
        return "\n".join([self.title, *self.findings, str(self.advice)])

    def _repr_html_(self) -> str:
        title, *lines = (escape(line) for line in str(self).splitlines())
        return f"<h4>{title}</h4>" + "".join(f"<p>{line}</p>" for line in lines)

    def cost(self, strategy: str, budget: int) -> Result | None:
        """Any result of a strategy within a budget: calls and seconds do not depend on k."""
        results = (self.result(strategy, budget, k) for k in self.ks)
        return next((result for result in results if result), None)

    def to_json(self) -> dict[str, Any]:
        """The results as `records`, what else was measured, if anything, and all else but answers as `header`."""
        header = {
            "title": self.title,
            "items": self.items,
            "exact_seconds": self.exact_seconds,
            "speed": None if self.speed is None else asdict(self.speed),
            "command": self.command,
            "data": dict(self.data),
        }
        content: dict[str, Any] = {
            "header": header,
            "findings": self.findings,
            "advice": self.advice.to_json(),
            "records": [self._record(result) for result in self.results],
        }
        if self.quality:
            content["quality"] = [quality.to_json() for quality in self.quality]
            content["quality changes"] = [change.to_json() for change in changes(self.quality)]
        if self.reliability:
            content["reliability"] = [one.to_json() for one in self.reliability]
        if self.studies is not None:
            content["studies"] = self.studies.to_json()
        return content

    def _record(self, result: Result) -> dict[str, Any]:
        """The fields of a result, and its difference to its baseline."""
        difference = self.difference(result.strategy, result.baseline, result.budget, result.k)
        return {**result.to_json(), "difference": None if difference is None else difference.to_json()}


def show_answer(
    items: Items, truth: Hits, found: Mapping[str, Hits], *, lines: int = 5, relevant: str | None = None
) -> Answer:
    """The best `lines` items of the exact search and of other searches for the same query."""
    best = {hit.row for hit in truth[:lines]}
    columns = {
        name: [Line(items.text(hit.row), hit.score, hit.row in best) for hit in hits[:lines]]
        for name, hits in {"Exact search": truth, **found}.items()
    }
    return Answer(truth.query, relevant, columns)


def exact_truth(
    searcher: Searcher, queries: Sequence[str], *, k: int, progress: Progress | bool | None = None
) -> list[Hits]:
    """The true `k` best items of each query: queries × items calls.

    Nothing is kept between runs; with a `Cached` scorer, an interrupted run is resumed.
    """
    truth, progress = [], choose_progress(progress)
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
    progress: Progress | bool | None = None,
    on_hits: Callable[[str, int, list[Hits]], None] | None = None,
) -> list[Result]:
    """Measure every contender at every budget.

    Queries are searched one at a time, so that times are those of a single query. Before a contender is measured, it
    searches once within the smallest budget, to fit its retrievers and load its models.

    Args:
        truth: The exact hits of the queries, as returned by `exact_truth`.
        contenders: The strategies; a baseline comes before the strategies that name it.
        ks: Recall is that of the true top k, for each of these.
        speed: The scorer's speed, if scores come from a cache: its time is computed from each search's rounds.
        progress: As of `Searcher`.
        on_hits: Called with a contender's name, a budget and the hits of all queries.

    Returns:
        One result for every contender, budget (smallest first) and k, in this order.
    """
    if not contenders:
        raise InputError("`contenders` must not be empty.")
    progress = choose_progress(progress)
    _check_truth(queries, truth, depth=min(max(_check_sizes("ks", ks)), len(searcher.items)))
    plan = list(_plan_searches(contenders, sorted(_check_sizes("budgets", budgets))))
    true_rows, results = [rows_of(hits) for hits in truth], []
    for number, (contender, strategy, budget) in enumerate(plan):
        if budget == min(budgets):
            # The last query, because the searcher caches the vector of the most recent one.
            searcher.search(queries[-1], k=budget, strategy=strategy)
        found = []
        for done, query in enumerate(queries, start=1):
            found.append(searcher.search(query, k=budget, strategy=strategy))
            if progress:
                progress(f"comparing: {contender.name}", number * len(queries) + done, len(plan) * len(queries))
        if on_hits:
            on_hits(contender.name, budget, found)
        results += [_measure(contender, budget, k, true_rows, found, speed) for k in ks]
    return results


def search_in_batches(
    searcher: Searcher, queries: Sequence[str], strategy: Strategy, *, k: int
) -> Iterator[list[Hits]]:
    """The hits of the queries, in batches, where the time of each does not matter."""
    for start in range(0, len(queries), QUERY_BATCH):
        yield searcher.search_many(queries[start : start + QUERY_BATCH], k=k, strategy=strategy)


def rows_of(hits: Hits) -> Rows:
    """The rows of the hits, best first."""
    return np.array([hit.row for hit in hits], np.int64)


def _plan_searches(
    contenders: Sequence[Contender], budgets: Sequence[int]
) -> Iterator[tuple[Contender, Strategy, int]]:
    """Every strategy to run, checked, with its budget."""
    seen: dict[str, Contender] = {}
    for contender in contenders:
        name, baseline = contender.name, contender.baseline
        if name in seen:
            raise InputError(f"contenders must have distinct names, got {name!r} twice.")
        if baseline is not None and (baseline not in seen or seen[baseline].baseline is not None):
            raise InputError(
                f"the baseline of {name!r} must be an earlier contender without a baseline itself, got {baseline!r}."
            )
        seen[name] = contender
        for budget in budgets:
            strategy = contender.make(budget)
            if not isinstance(strategy, Strategy) or strategy.budget != budget:
                raise InputError(
                    f"`make` of {name!r} must return a strategy with the given budget ({budget}), got {strategy!r}."
                )
            yield contender, strategy, budget


def _check_sizes(name: str, sizes: Sequence[int]) -> Sequence[int]:
    if not len(sizes) or len(set(sizes)) != len(sizes):
        raise invalid(name, "a nonempty list of distinct integers", list(sizes))
    for size in sizes:
        check_positive(name, size)
    return sizes


def _check_truth(queries: Sequence[str], truth: Sequence[Hits], *, depth: int) -> None:
    if isinstance(queries, str) or not len(queries):
        raise invalid("queries", "a nonempty list of strings", queries)
    if [hits.query for hits in truth] != list(queries):
        raise InputError("`truth` must be the exact hits of these queries in their order, as from `exact_truth`.")
    shortest = min(len(hits) for hits in truth)
    if shortest < depth:
        raise InputError(
            f"`truth` must hold the {depth} best items of every query, got {shortest}. Use exact_truth(…, k={depth})."
        )


def _measure(
    contender: Contender, budget: int, k: int, truth: list[Rows], found: list[Hits], speed: Speed | None
) -> Result:
    recall = top_k_recall(truth, [rows_of(hits) for hits in found], k)
    low, high = bootstrap_interval(recall)
    return Result(
        strategy=contender.name,
        baseline=contender.baseline,
        budget=budget,
        k=k,
        recall=float(recall.mean()),
        low=low,
        high=high,
        calls=float(np.mean([hits.calls for hits in found])),
        seconds=_mean_seconds(found, speed),
        rounds=float(np.mean([hits.rounds for hits in found])),
        per_query=tuple(recall.tolist()),
    )


def _mean_seconds(found: list[Hits], speed: Speed | None) -> dict[str, float]:
    """The mean over queries of each part; with a speed, the scorer's is computed from the sizes of the rounds."""
    times = [(hits.score_seconds, hits.solve_seconds, hits.seconds) for hits in found]
    scorer, solve, total = (float(seconds) for seconds in np.mean(times, axis=0))
    search = total - scorer - solve
    if speed is not None:  # all scored items are among the hits
        rounds = [Counter(hit.round for hit in hits).values() for hits in found]
        scorer = float(np.mean([speed.seconds(sizes) for sizes in rounds]))
    return {"scorer": scorer, "solve": solve, "search": search}
