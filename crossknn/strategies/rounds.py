"""What strategies of several rounds share: their part of the budget, what was scored so far, and the loop."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import numpy as np

from crossknn._checks import check_positive
from crossknn.errors import InputError
from crossknn.strategies.base import Round, SearchContext
from crossknn.types import Proposal, Rows, Scores, Vectors

EARLY = 10  # a query's own α and β come from its first round, but from at least so many scores


def check_rounds(budget: int, rounds: int) -> None:
    """An error unless every round can have a call."""
    check_positive("budget", budget)
    check_positive("rounds", rounds)
    if rounds > budget:
        raise InputError(f"rounds must be between 1 and budget ({budget}). Got {rounds} instead.")


def share_of_round(number: int, *, budget: int, rounds: int, spent: int) -> int:
    """How many rows round `number` asks for; what a round left over goes to those after it."""
    return -(-(budget - spent) // (rounds - number + 1))


@dataclass(slots=True)
class Observations:
    """What one query has scored so far: the paper's A_r and a_r."""

    rows: Rows = field(default_factory=lambda: np.empty(0, np.int64))
    scores: Scores = field(default_factory=lambda: np.empty(0, np.float32))
    before: int = 0  # how many of them were there before the last round

    def add(self, rows: Rows, scores: Scores) -> None:
        self.before = len(self.rows)
        self.rows = np.concatenate([self.rows, rows])
        self.scores = np.concatenate([self.scores, scores])


def run_rounds(
    first: Round, scored: list[Observations], rounds: int, next_rows: Callable[[int], Round]
) -> Generator[Round, list[Scores], None]:
    """Ask for `first`, then for `next_rows(number)` in rounds 2, 3, …; `scored` is kept up to date.

    It ends after `rounds` rounds, or with the first that has nothing to ask for.
    """
    ask = first
    for number in range(1, rounds + 1):
        answered = yield ask
        for one, proposal, scores in zip(scored, ask.proposals, answered, strict=True):
            one.add(proposal.rows, scores)
        if number < rounds:
            ask = next_rows(number + 1)
            if not any(len(proposal) for proposal in ask.proposals):
                return


def search_unscored(
    space: SearchContext, vectors: Vectors, scored: list[Observations], wanted: list[int]
) -> list[Proposal]:
    """For each query the `wanted` rows of largest `u·v` among those that are allowed and not yet scored."""
    found = space.item_vectors().search(
        vectors, max(wanted), exclude=[one.rows for one in scored], allowed=space.allowed
    )
    return [proposal.first(n) for proposal, n in zip(found, wanted, strict=True)]
