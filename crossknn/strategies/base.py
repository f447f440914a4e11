"""Strategy protocol, the context a strategy sees, and the driver that runs one.

A strategy is a generator: it yields the rows it wants scored for every query and is sent their scores. Whoever drives
it decides where scores come from: a model, a service that merges many searches into one batch, or a matrix in a test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from crossknn.errors import StrategyError
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.posterior.prior import Prior
from crossknn.types import Mask, Proposal, Rows, Scores, Vectors, VectorSearch

Requirement = Literal["query_vectors", "item_vectors", "cur_factors"]
"""What a strategy's class attribute `requires` may name: query vectors in the space of the item vectors, item vectors,
or the factors of a CUR index."""


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

    Attributes:
        queries: Number of queries.
        items: Number of items.
        propose: `propose(retriever, n)` returns the retriever's name and its `n` best rows for every query; None is
            the searcher's default retriever.
        query_vectors: The dual encoder's query vectors; None where there is no encoder.
        item_vectors: Search over the item vectors.
        augmented_vectors: Search over the item vectors extended by the prior's latent factors and bias, if any.
        allowed: The filter; None allows every item.
        normalization: The paper's α and β.
        prior: The fitted prior of an index.
        signals: Retrievers whose features a model of the scores uses where `prior` names none.
        k: Number of hits that will be returned, if known.
        solving: Measures the time a strategy spends learning from scores: `with context.solving:`.
    """

    queries: int
    items: int
    propose: Callable[[str | None, int], tuple[str, list[Proposal]]]
    query_vectors: Callable[[], Vectors] | None
    item_vectors: Callable[[], VectorSearch]
    augmented_vectors: Callable[[], VectorSearch]
    allowed: Mask | None = None
    normalization: Normalization | None = None
    prior: Prior | None = None
    signals: tuple[str, ...] = ("dense",)
    k: int | None = None
    solving: Stopwatch = field(default_factory=Stopwatch, compare=False)

    @property
    def reachable(self) -> int:
        """Number of items that the filter allows."""
        return self.items if self.allowed is None else int(self.allowed.sum())

    @property
    def allowed_rows(self) -> Rows:
        return np.arange(self.items) if self.allowed is None else np.flatnonzero(self.allowed)


@dataclass(frozen=True, slots=True)
class Round:
    """One round: the rows to score for each query, empty for a query that is done.

    Attributes:
        proposals: One per query.
        proposed_by: Name of the retriever or strategy that chose them; one name, or one per query.
        expected_recall: Share of each query's true top k expected among the rows scored before this round, if known.
    """

    proposals: list[Proposal]
    proposed_by: str | list[str]
    expected_recall: list[float] | None = None

    @property
    def proposers(self) -> list[str]:
        """The name for each query."""
        return [self.proposed_by] * len(self.proposals) if isinstance(self.proposed_by, str) else self.proposed_by


class FlowResult(NamedTuple):
    """What a strategy knows at its end, one entry per query.

    Attributes:
        estimates: Estimated scores of all items, where they were asked for.
        expected_recall: Share of the true top k expected among the scored rows, where the strategy can tell.
    """

    estimates: list[Scores] | None = None
    expected_recall: list[float] | None = None


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
    """Base of strategy dataclasses. The repr, which is the strategy's name in reports, omits default settings."""

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


def drive(
    strategy: Strategy, context: SearchContext, score_round: Callable[[list[Rows]], RoundScores]
) -> list[QueryResult]:
    """Run a strategy to its end.

    Args:
        strategy: What chooses the rows.
        context: What the strategy sees.
        score_round: Scores the rows of all queries; called once per round.

    Raises:
        StrategyError: If a round scores a row twice, leaves the filter, or exceeds the budget.
    """
    results = [QueryResult() for _ in range(context.queries)]
    if not context.queries:
        return results
    checker = _RoundChecker(strategy.budget, context)
    flow = strategy.flow(context)
    step = _advance(flow, None)
    while isinstance(step, Round):
        checker.check(step)
        _set_expected_recall(results, step.expected_recall)
        scored = score_round([proposal.rows for proposal in step.proposals])
        for result, proposal, scores, name in zip(results, step.proposals, scored.scores, step.proposers, strict=True):
            result.record(proposal, scores, name)
            result.stopped = scored.stopped if len(proposal) else None  # a query with no rows was already done
        if scored.stopped:
            flow.close()
            return results
        step = _advance(flow, scored.scores)
    if step is not None:
        _set_expected_recall(results, step.expected_recall)
        for result, estimates in zip(results, step.estimates or [None] * len(results), strict=True):
            result.all_estimates = estimates
    return results


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


class _RoundChecker:
    """Rejects a round that breaks the strategy protocol, before it costs a call."""

    def __init__(self, budget: int | None, context: SearchContext) -> None:
        self._budget = budget
        self._context = context
        self._scored: list[set[int]] = [set() for _ in range(context.queries)]

    def check(self, step: Round) -> None:
        if len(step.proposals) != self._context.queries:
            raise StrategyError(
                f"a round must have {self._context.queries} proposals, one per query, got {len(step.proposals)}."
            )
        self._check_rows(step)
        for query, (proposal, scored) in enumerate(zip(step.proposals, self._scored, strict=True)):
            calls = len(scored) + len(proposal)
            scored.update(proposal.rows.tolist())
            if len(scored) != calls:
                raise StrategyError(f"{step.proposers[query]!r} proposed a row of query {query} twice.")
            if self._budget is not None and calls > self._budget:
                raise StrategyError(
                    f"{step.proposers[query]!r} exceeded the budget of query {query} ({self._budget}) with {calls} "
                    "calls."
                )

    def _check_rows(self, step: Round) -> None:
        if self._are_valid(np.concatenate([proposal.rows for proposal in step.proposals])):
            return
        for proposal, name in zip(step.proposals, step.proposers, strict=True):
            rows = proposal.rows
            if not self._are_valid(rows):
                if rows.min() >= 0 and rows.max() < self._context.items:
                    raise StrategyError(f"{name!r} proposed a row outside the filter.")
                raise StrategyError(
                    f"rows must be between 0 and {self._context.items - 1}, "
                    f"{name!r} proposed {rows.min()} to {rows.max()}."
                )

    def _are_valid(self, rows: Rows) -> bool:
        if not len(rows):
            return True
        allowed = self._context.allowed
        inside = rows.min() >= 0 and rows.max() < self._context.items
        return bool(inside and (allowed is None or allowed[rows].all()))
