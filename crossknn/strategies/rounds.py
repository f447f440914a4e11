"""Multi-round strategies: equal shares of the budget, the scores observed so far, and the loop over rounds."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import numpy as np

from crossknn._checks import check_positive, invalid
from crossknn.strategies.base import Round, SearchContext, Settings
from crossknn.strategies.normalization import Normalization
from crossknn.types import Proposal, Rows, Scores, Vectors

MIN_NORMALIZATION_SCORES = 10  # a query's own α and β come from its first round, but from at least this many scores


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
    """Base of strategies that spread their budget evenly over several rounds."""

    budget: int = 100
    rounds: int = 10

    def __post_init__(self) -> None:
        check_positive("budget", self.budget)
        check_positive("rounds", self.rounds)
        if self.rounds > self.budget:
            raise invalid("rounds", f"between 1 and `budget` ({self.budget})", self.rounds)

    def _share(self, number: int, spent: int) -> int:
        return share_of_round(number, budget=self.budget, rounds=self.rounds, spent=spent)

    def _normalization(
        self, context: SearchContext, observed: Observations, query_vector: Vectors | None
    ) -> Normalization:
        """α and β of the context, or else from the query's own earliest scores."""
        if context.normalization is not None:
            return context.normalization
        early = max(self._share(1, 0), MIN_NORMALIZATION_SCORES)
        estimates = None if query_vector is None else context.item_vectors().take(observed.rows[:early]) @ query_vector
        return Normalization.fit_query(observed.scores[:early], estimates)


def run_rounds(
    first: Round, observations: list[Observations], rounds: int, next_round: Callable[[int], Round]
) -> Generator[Round, list[Scores], None]:
    """Yield `first`, then `next_round(number)` for rounds 2, 3, …, and add their scores to `observations`.

    Ends after `rounds` rounds, or when a round has no rows.
    """
    step = first
    for number in range(1, rounds + 1):
        scored = yield step
        for observed, proposal, scores in zip(observations, step.proposals, scored, strict=True):
            observed.add(proposal.rows, scores)
        if number < rounds:
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
