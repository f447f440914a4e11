"""What a strategy is, what it sees, and the driver that runs one.

A strategy is a generator: it yields the rows it wants scored for every query and is sent their
scores. Whoever drives it decides where scores come from: a model, a service that merges many
searches into one batch, or a matrix in a test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from crossknn.errors import StrategyError
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.posterior.prior import Prior
from crossknn.types import Mask, Proposal, Rows, Scores, Vectors, VectorSearch


class Stopwatch:
    """Adds up the time of what runs inside `with`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds += time.monotonic() - self._began


@dataclass(frozen=True)
class SearchContext:
    """What a strategy may look at: the sizes, the filter, and the sources of numbers.

    `propose(retriever, n)` gives the rows a named retriever proposes for every query (None: the
    searcher's default) and that retriever's name; `query_vectors()` the dual encoder's vectors of
    the queries (None where there is no encoder); `item_vectors()` the search over the items' vectors, and
    `item_profiles()` that over their profiles: the vectors with what the prior, if any, knows of an item beside them.
    `signals` names the retrievers whose evidence a model of the scores uses where `prior` names none, and `k` is how
    many items are wanted, where the search knows.
    A strategy that learns from scores does so inside `with space.solving:`, which takes the time of it, and one that
    knows keeps in `expected_recall` what share of each query's true top k it expects to have found so far.
    """

    queries: int
    items: int
    propose: Callable[[str | None, int], tuple[str, list[Proposal]]]
    query_vectors: Callable[[], Vectors] | None
    item_vectors: Callable[[], VectorSearch]
    item_profiles: Callable[[], VectorSearch]
    allowed: Mask | None = None
    normalization: Normalization | None = None
    prior: Prior | None = None
    signals: tuple[str, ...] = ("dense",)
    k: int | None = None
    solving: Stopwatch = field(default_factory=Stopwatch, compare=False)
    expected_recall: list[float] = field(default_factory=list, compare=False)

    @property
    def reachable(self) -> int:
        """How many items may be found."""
        return self.items if self.allowed is None else int(self.allowed.sum())

    @property
    def allowed_rows(self) -> Rows:
        return np.arange(self.items) if self.allowed is None else np.flatnonzero(self.allowed)


@dataclass(frozen=True, slots=True)
class Round:
    """One round: the rows to score for each query (none for a query that is done), and who proposed them.

    `proposed_by` is one name, or a name for each query.
    """

    proposals: list[Proposal]
    proposed_by: str | list[str]

    @property
    def proposers(self) -> list[str]:
        """The name for each query."""
        return [self.proposed_by] * len(self.proposals) if isinstance(self.proposed_by, str) else self.proposed_by


Requirement = Literal["query_vectors", "item_vectors", "cur_factors"]
"""What a strategy's class attribute `requires` may name: query vectors in the space of the item vectors, item vectors,
or the factors of a CUR index."""

Flow = Generator[Round, list[Scores], "list[Scores] | None"]
"""Yields asks, is sent scores, returns estimates of all items per query, or None where nobody wanted them."""


@runtime_checkable
class Strategy(Protocol):
    """How a search spends its budget; a value object that can be reused for any number of searches."""

    @property
    def budget(self) -> int | None:
        """The most calls one query may cost; None where there is no limit."""

    def flow(self, space: SearchContext) -> Flow:
        """The search of all queries of `space`, side by side, as a generator."""


@dataclass(frozen=True, slots=True)
class RoundScores:
    """Scores for an ask. Where time ran out they are a prefix of what was asked, and `stopped` says why."""

    scores: list[Scores]
    stopped: str | None = None


@dataclass(slots=True)
class QueryResult:
    """Everything one query's search scored, in the order it was asked for."""

    rows: list[Rows] = field(default_factory=list)  # one array per round
    scores: list[Scores] = field(default_factory=list)
    estimates: list[Scores] = field(default_factory=list)
    deviations: list[Scores] = field(default_factory=list)  # NaN where nobody knows
    proposed_by: list[str] = field(default_factory=list)
    all_estimates: Scores | None = None
    expected_recall: float | None = None
    stopped: str | None = None

    @property
    def calls(self) -> int:
        return sum(len(scores) for scores in self.scores)

    def record(self, proposal: Proposal, scores: Scores, proposed_by: str) -> None:
        scored = len(scores)  # a prefix of the proposal when time ran out
        self.rows.append(proposal.rows[:scored])
        self.estimates.append(proposal.estimates[:scored])
        known = proposal.deviations
        self.deviations.append(np.full(scored, np.nan, np.float32) if known is None else known[:scored])
        self.scores.append(scores)
        self.proposed_by.append(proposed_by)


def drive(strategy: Strategy, space: SearchContext, answer: Callable[[list[Rows]], RoundScores]) -> list[QueryResult]:
    """Run a strategy to its end: one `answer` per round for all queries, and never a call past the budget."""
    found = [QueryResult() for _ in range(space.queries)]
    if not space.queries:
        return found
    gate = _Gate(strategy.budget, space)
    flow = strategy.flow(space)
    step = _advance(flow, None)
    while isinstance(step, Round):
        gate.check(step)
        answered = answer([proposal.rows for proposal in step.proposals])
        for one, proposal, scores, name in zip(found, step.proposals, answered.scores, step.proposers, strict=True):
            one.record(proposal, scores, name)
            one.stopped = answered.stopped if len(proposal) else None  # one that is done came to its end
        if answered.stopped:
            flow.close()
            step = None
        else:
            step = _advance(flow, answered.scores)
    if step is not None:
        for one, estimates in zip(found, step, strict=True):
            one.all_estimates = estimates
    if space.expected_recall:
        for one, recall in zip(found, space.expected_recall, strict=True):
            one.expected_recall = recall
    return found


def _advance(flow: Flow, scores: list[Scores] | None) -> Round | list[Scores] | None:
    """The flow's next ask, or what it returned at its end.

    Only the flow's own end is caught: a `StopIteration` from a user's scorer must not pass for it.
    """
    try:
        return next(flow) if scores is None else flow.send(scores)
    except StopIteration as end:
        estimates: list[Scores] | None = end.value
        return estimates


class _Gate:
    """Refuses an ask that breaks a promise of the strategy, before it costs a call."""

    def __init__(self, budget: int | None, space: SearchContext) -> None:
        self._budget = budget
        self._space = space
        self._asked: list[set[int]] = [set() for _ in range(space.queries)]

    def check(self, ask: Round) -> None:
        if len(ask.proposals) != self._space.queries:
            raise StrategyError(
                f"a round must ask for {self._space.queries} queries. Got {len(ask.proposals)} instead."
            )
        self._check_rows(ask)
        for query, (proposal, asked) in enumerate(zip(ask.proposals, self._asked, strict=True)):
            calls = len(asked) + len(proposal)
            asked.update(proposal.rows.tolist())
            if len(asked) != calls:
                raise StrategyError(f"{ask.proposers[query]!r} asked to score a row of query {query} twice.")
            if self._budget is not None and calls > self._budget:
                raise StrategyError(
                    f"{ask.proposers[query]!r} asked for call {calls} of query {query}; its budget is {self._budget}."
                )

    def _check_rows(self, ask: Round) -> None:
        """All at once; the query that is to blame is looked for where there is one."""
        if self._are_there(np.concatenate([proposal.rows for proposal in ask.proposals])):
            return
        for proposal, name in zip(ask.proposals, ask.proposers, strict=True):
            rows = proposal.rows
            if not self._are_there(rows):
                if rows.min() >= 0 and rows.max() < self._space.items:
                    raise StrategyError(f"{name!r} asked for a row outside the filter.")
                raise StrategyError(
                    f"rows must be between 0 and {self._space.items - 1}."
                    f" {name!r} asked for {rows.min()} to {rows.max()} instead."
                )

    def _are_there(self, rows: Rows) -> bool:
        if not len(rows):
            return True
        allowed = self._space.allowed
        inside = rows.min() >= 0 and rows.max() < self._space.items
        return bool(inside and (allowed is None or allowed[rows].all()))


class Settings:
    """A strategy's repr is its name in reports: the settings that are not the defaults."""

    def __repr__(self) -> str:
        values = {f.name: (getattr(self, f.name), f.default) for f in fields(self)}  # type: ignore[arg-type]
        given = (
            f"{name}={value!r}" for name, (value, default) in values.items() if value != default or name == "budget"
        )
        return f"{type(self).__name__}({', '.join(given)})"
