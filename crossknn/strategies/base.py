"""Strategy protocol, the context a strategy sees, the driver that runs one, and the base of multi-round strategies.

A strategy is a generator: it yields the rows it wants scored for every query and is sent their scores. Whoever drives
it decides where scores come from: a model, a service that merges many searches into one batch, or a matrix in a test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive, invalid
from crossknn.errors import StrategyError
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.posterior.calibration import RecallCalibration
from crossknn.strategies.posterior.prior import Prior
from crossknn.types import Mask, Proposal, Rows, Scores, Vectors, VectorSearch

DEFAULT_ROUNDS: Final = 10  # of strategies that name no number
MIN_NORMALIZATION_SCORES = 10  # a query's own α and β come from its first round, but from at least this many scores

Requirement = Literal["query_vectors", "item_vectors", "cur_factors"]
"""What a strategy's class attribute `requires` may name: query vectors in the space of the item vectors, item vectors,
or the factors of a CUR index."""

Grid = Mapping[str, Sequence[float | str]]
"""Values to try of each setting, defaults first: among candidates of equal recall, the first is chosen."""

RETRIEVERS: Final = ("fused", "bm25", "dense")  # the grid of a first-stage retriever, as far as there are such


class Stopwatch:
    """Adds up the wall time spent inside `with`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *error: object) -> None:
        self.seconds += time.monotonic() - self._started


@dataclass(frozen=True)
class SearchContext:
    """The sizes, the filter and the sources of numbers that a strategy may use.

    `propose(retriever, n)` returns the retriever's name and its `n` best rows for every query; None is the searcher's
    default retriever. A strategy that learns from scores does so inside `with context.solving:`, which measures it.
    """

    queries: int  # how many
    items: int  # how many
    propose: Callable[[str | None, int], tuple[str, list[Proposal]]]
    query_vectors: Callable[[], Vectors] | None  # the dual encoder's; None where there is no encoder
    item_vectors: Callable[[], VectorSearch]
    augmented_vectors: Callable[[], VectorSearch]  # item vectors extended by the prior's latent factors and bias
    allowed: Mask | None = None  # the filter
    own_rows: Rows | None = None  # (queries,) the allowed row that each query is itself, and must not find
    normalization: Normalization | None = None  # the paper's α and β
    prior: Prior | None = None  # of the index
    recall_calibration: RecallCalibration | None = None  # of the index
    signals: tuple[str, ...] = ("dense",)  # retrievers whose features a model uses where there is no prior
    k: int | None = None  # hits that will be returned, if known
    solving: Stopwatch = field(default_factory=Stopwatch, compare=False)
    retrieve_ahead: Callable[[Sequence[str], int], None] | None = None
    """Lets retrievers that `propose` will be asked for work side by side, where that is possible."""
    on_counts: Callable[[NDArray[np.float64]], None] | None = None
    """Called with the (queries, at most k) numbers of better unscored rows that each expected recall comes from."""

    @cached_property
    def reachable(self) -> int:
        """Number of items that a query may find: no search needs more rows of a query, whatever its budget."""
        allowed = self.items if self.allowed is None else int(self.allowed.sum())
        return allowed - (self.own_rows is not None)

    @property
    def allowed_rows(self) -> Rows:
        return np.arange(self.items) if self.allowed is None else np.flatnonzero(self.allowed)


@dataclass(frozen=True, slots=True)
class Round:
    """One round: the rows to score for each query, empty for a query that is done."""

    proposals: list[Proposal]
    proposed_by: str | list[str]  # name of the retriever or strategy that chose the rows, or one name per query
    expected_recall: list[float] | None = None  # of the rows scored before this round, if known

    @property
    def proposers(self) -> list[str]:
        """The name for each query."""
        return [self.proposed_by] * len(self.proposals) if isinstance(self.proposed_by, str) else self.proposed_by


class FlowResult(NamedTuple):
    """What a strategy knows at its end, one entry per query."""

    estimates: list[Scores] | None = None  # estimated scores of all items, where requested
    expected_recall: list[float] | None = None  # expected share of the true top k among the scored rows, if known


Flow = Generator[Round, list[Scores], FlowResult | None]
"""Yields rounds, is sent their scores, and returns what is known at the end."""


@runtime_checkable
class Strategy(Protocol):
    """How a search spends its budget; a value object that can be reused for any number of searches."""

    @property
    def budget(self) -> int | None:
        """Maximum number of calls per query; None where there is no limit."""

    def flow(self, context: SearchContext) -> Flow:
        """Search all queries of the context together, as a generator."""


class Settings:
    """Base of strategy dataclasses. The repr, which is the strategy's name in reports, omits default settings.

    What a benchmark has to know of a strategy stands in its class.

    Attributes:
        requires: What a search must provide.
        by_default: Whether a benchmark runs it where no strategies are named, and the search page offers it.
        variants: The settings that a benchmark runs it with where none are given, such as "loss=ce".
        uses_signals: Whether it needs candidates of all signal retrievers.
        uses_prior: Whether it also runs with an index that has a prior.
        search_space: What `--tune` tries; empty where nothing is tuned.
    """

    requires: ClassVar[frozenset[Requirement]] = frozenset()
    by_default: ClassVar[bool] = True
    variants: ClassVar[tuple[str, ...]] = ("",)
    uses_signals: ClassVar[bool] = False
    uses_prior: ClassVar[bool] = False
    search_space: ClassVar[Grid] = {}

    @classmethod
    def grid(cls, given: Mapping[str, Any]) -> Grid:  # noqa: ARG003 - for classes whose search space depends on it
        """The search space for a name that gives these settings."""
        return cls.search_space

    def __repr__(self) -> str:
        values = {f.name: (getattr(self, f.name), f.default) for f in fields(self)}  # type: ignore[arg-type]
        given = (
            f"{name}={value!r}" for name, (value, default) in values.items() if value != default or name == "budget"
        )
        return f"{type(self).__name__}({', '.join(given)})"


@dataclass(frozen=True, slots=True)
class RoundScores:
    """Scores of a round; where the search was stopped a prefix of each proposal's, and `stopped` is the reason."""

    scores: list[Scores]
    stopped: str | None = None


@dataclass(slots=True)
class QueryResult:
    """Everything scored for one query, in the order of the calls; one list entry per round."""

    rows: list[Rows] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)
    estimates: list[Scores] = field(default_factory=list)
    deviations: list[Scores] = field(default_factory=list)  # NaN where the proposer gave none
    proposed_by: list[str] = field(default_factory=list)
    all_estimates: Scores | None = None
    expected_recall: float | None = None
    stopped: str | None = None
    cut: Proposal | None = None  # what the round in which the search was stopped proposed and did not score

    @property
    def calls(self) -> int:
        return sum(len(scores) for scores in self.scores)

    def record(self, proposal: Proposal, scores: Scores, proposed_by: str) -> None:
        """Append one round; `scores` may be those of a prefix of the proposal."""
        count = len(scores)
        self.rows.append(proposal.rows[:count])
        self.estimates.append(proposal.estimates[:count])
        known = proposal.deviations
        self.deviations.append(np.full(count, np.nan, np.float32) if known is None else known[:count])
        self.scores.append(scores)
        self.proposed_by.append(proposed_by)
        if count < len(proposal):
            self.cut = Proposal(proposal.rows[count:], proposal.estimates[count:])


def join_rounds(rounds: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The arrays of all rounds as one."""
    return np.concatenate(rounds) if rounds else np.empty(0, np.int64)


class Driver:
    """Runs a strategy round by round; its owner has the rows of each round scored, now or later, here or elsewhere.

    Attributes:
        results: What was scored so far, one entry per query.
        rows: The rows of each query to score now; None before `start` and at the end.
    """

    def __init__(self, strategy: Strategy, context: SearchContext) -> None:
        self.results = [QueryResult() for _ in range(context.queries)]
        self.rows: list[Rows] | None = None
        self._budget = strategy.budget
        self._context = context
        self._flow = strategy.flow(context)
        self._scored_rows: list[set[int]] = [set() for _ in self.results]

    def start(self) -> None:
        """Find the rows of the first round.

        Raises:
            StrategyError: If a round scores a row twice, leaves the filter, or exceeds the budget.
        """
        if self.results:
            self._take(_advance(self._flow, None))

    def advance(self, scored: RoundScores) -> None:
        """Record the scores of the round, and find the rows of the next one; raises what `start` does."""
        step = self._round
        for result, proposal, scores, name in zip(
            self.results, step.proposals, scored.scores, step.proposers, strict=True
        ):
            result.record(proposal, scores, name)
            result.stopped = scored.stopped if len(proposal) else None  # a query with no rows was already done
        if scored.stopped:
            self.rows = None
            self._flow.close()
        else:
            self._take(_advance(self._flow, scored.scores))

    def _take(self, step: Round | FlowResult | None) -> None:
        if isinstance(step, Round):
            _check_round(step, self._scored_rows, self._budget, self._context)
            _set_expected_recall(self.results, step.expected_recall)
            self._round, self.rows = step, [proposal.rows for proposal in step.proposals]
            return
        self.rows = None
        if step is None:
            return
        _set_expected_recall(self.results, step.expected_recall)
        if step.estimates is not None:
            for result, estimates in zip(self.results, step.estimates, strict=True):
                result.all_estimates = estimates


def drive(
    strategy: Strategy, context: SearchContext, score_round: Callable[[list[Rows]], RoundScores]
) -> list[QueryResult]:
    """Run a strategy to its end; `score_round` is called once per round, with the rows of all queries.

    Raises:
        StrategyError: If a round scores a row twice, leaves the filter, or exceeds the budget.
    """
    driver = Driver(strategy, context)
    driver.start()
    while driver.rows is not None:
        driver.advance(score_round(driver.rows))
    return driver.results


def _set_expected_recall(results: list[QueryResult], values: list[float] | None) -> None:
    if values is not None:
        for result, value in zip(results, values, strict=True):
            result.expected_recall = value


def _advance(flow: Flow, scores: list[Scores] | None) -> Round | FlowResult | None:
    """The flow's next round, or its return value.

    Only the flow's own end is caught: a `StopIteration` from a user's scorer must not pass for it.
    """
    try:
        return next(flow) if scores is None else flow.send(scores)
    except StopIteration as end:
        result: FlowResult | None = end.value
        return result


def _check_round(step: Round, scored_rows: list[set[int]], budget: int | None, context: SearchContext) -> None:
    """Reject a round that breaks the strategy protocol, before it costs a call; its rows are added to `scored_rows`."""
    if len(step.proposals) != context.queries:
        raise StrategyError(f"a round must have {context.queries} proposals, one per query, got {len(step.proposals)}.")
    for query, (proposal, name) in enumerate(zip(step.proposals, step.proposers, strict=True)):
        rows, scored = proposal.rows, scored_rows[query]
        if len(rows) and (rows.min() < 0 or rows.max() >= context.items):
            raise StrategyError(
                f"rows must be between 0 and {context.items - 1}, {name!r} proposed {rows.min()} to {rows.max()}."
            )
        if len(rows) and context.allowed is not None and not context.allowed[rows].all():
            raise StrategyError(f"{name!r} proposed a row outside the filter.")
        if context.own_rows is not None and (rows == context.own_rows[query]).any():
            raise StrategyError(f"{name!r} proposed query {query} itself.")
        calls = len(scored) + len(rows)
        scored.update(rows.tolist())
        if len(scored) != calls:
            raise StrategyError(f"{name!r} proposed a row of query {query} twice.")
        if budget is not None and calls > budget:
            raise StrategyError(f"{name!r} exceeded the budget of query {query} ({budget}): {calls} calls.")


def share_of_round(number: int, *, budget: int, rounds: int, spent: int) -> int:
    """Number of rows in round `number` (from 1): the remaining budget over the remaining rounds, rounded up."""
    return -(-(budget - spent) // (rounds - number + 1))


@dataclass(slots=True)
class Observations:
    """The rows and scores of one query so far: the paper's A_r and a_r."""

    rows: Rows = field(default_factory=lambda: np.empty(0, np.int64))
    scores: Scores = field(default_factory=lambda: np.empty(0, np.float32))
    before: int = 0  # how many there were before the last round

    def add(self, rows: Rows, scores: Scores) -> None:
        self.before = len(self.rows)
        self.rows = np.concatenate([self.rows, rows])
        self.scores = np.concatenate([self.scores, scores])


@dataclass(frozen=True, repr=False)
class MultiRound(Settings):
    """Base of strategies that spread their budget, the calls per query, evenly over several rounds.

    Without a number of rounds there are 10, or as many as a smaller budget; a searcher may choose fewer.
    """

    budget: int = 100
    rounds: int | None = None

    def __post_init__(self) -> None:
        check_positive("budget", self.budget)
        if self.rounds is None:
            return
        check_positive("rounds", self.rounds)
        if self.rounds > self.budget:
            raise invalid("rounds", f"between 1 and `budget` ({self.budget})", self.rounds)

    @property
    def round_count(self) -> int:
        """`rounds`, or the default."""
        return min(DEFAULT_ROUNDS, self.budget) if self.rounds is None else self.rounds

    def _share(self, context: SearchContext, number: int, spent: int) -> int:
        """Number of rows of a query in round `number` (from 1), of those that are left."""
        share = share_of_round(number, budget=self.budget, rounds=self.round_count, spent=spent)
        return min(share, context.reachable - spent)

    def _normalization(
        self, context: SearchContext, observed: Observations, query_vector: Vectors | None
    ) -> Normalization:
        """α and β of the context, or else from the query's own earliest scores."""
        if context.normalization is not None:
            return context.normalization
        early = max(self._share(context, 1, 0), MIN_NORMALIZATION_SCORES)
        estimates = None if query_vector is None else context.item_vectors().take(observed.rows[:early]) @ query_vector
        return Normalization.fit_query(observed.scores[:early], estimates)

    def _run_rounds(
        self, first: Round, observations: list[Observations], next_round: Callable[[int], Round]
    ) -> Generator[Round, list[Scores], None]:
        """Yield `first`, then `next_round(number)` for rounds 2, 3, …, and add their scores to `observations`.

        Ends after `round_count` rounds, or when a round has no rows.
        """
        step = first
        for number in range(1, self.round_count + 1):
            scored = yield step
            for observed, proposal, scores in zip(observations, step.proposals, scored, strict=True):
                observed.add(proposal.rows, scores)
            if number < self.round_count:
                step = next_round(number + 1)
                if not any(len(proposal) for proposal in step.proposals):
                    return


def search_unscored(
    context: SearchContext, query_vectors: Vectors, observations: list[Observations], counts: list[int]
) -> list[Proposal]:
    """For each query the `counts` allowed rows of largest `u·v` that are not scored yet."""
    found = context.item_vectors().search(
        query_vectors, max(counts), exclude=[observed.rows for observed in observations], allowed=context.allowed
    )
    return [proposal.first(count) for proposal, count in zip(found, counts, strict=True)]
