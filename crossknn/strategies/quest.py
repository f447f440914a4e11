"""Posterior search of one query: what is believed about its scores, what was asked for, and what was scored."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from crossknn.ranking import top_rows
from crossknn.strategies.base import Space
from crossknn.strategies.belief import Array, Belief
from crossknn.strategies.expected_recall import expected_recall, scale_errors
from crossknn.strategies.fit import order_worse
from crossknn.strategies.rounds import Scored
from crossknn.types import NOTHING, Mask, Proposal, Rows, Scores, VectorSearch

SHORTLIST: Final = 1_000  # of the rows not scored, that are looked at to expect recall,
PER_WANTED: Final = 5  # out of so many for every item that is wanted, where that is more
UNFIT: Final = -2.5  # the model's advantage over retrievers alone below which it does not fit,
WORSE: Final = 3.0  # and by how many standard errors its order of the scores may be worse than theirs


@dataclass
class Quest:
    """The search of one query.

    first   what its first round asked for, and `asked` each round after it
    hedge   rows that are to be scored whatever the model says, a few in every round
    recall  the expected share of its top k among what was scored, when it was last asked for
    """

    belief: Belief
    first: Proposal
    hedge: Rows = field(default_factory=lambda: NOTHING.rows)
    asked: list[Proposal] = field(default_factory=list)
    scored: Scored = field(default_factory=Scored)
    recall: float | None = None
    _known: int = -1  # scores that `recall` was expected from

    def ask(
        self, expected: Scores, n: int, items: VectorSearch, allowed: Mask | None, before: Rows = NOTHING.rows
    ) -> Proposal:
        """The `n` best rows that are not scored yet: first those `before` the others, then by what is expected."""
        front = before[~np.isin(before, self.scored.rows)][:n]
        others = best_rows(expected, np.concatenate([self.scored.rows, front]), n - len(front), allowed)
        rows = np.concatenate([front, others.rows])
        self.asked.append(add_deviations(Proposal(rows, expected[rows]), self.belief, items))
        return self.asked[-1]

    def hedge_with(self, n: int) -> Rows:
        """The first `n` rows of the hedge that are not scored yet."""
        return self.hedge[~np.isin(self.hedge, self.scored.rows)][:n]

    def is_unfit(self) -> bool:
        """Whether retrievers alone explain the scores better than the model, or order them better than it did."""
        if self.belief.advantage() < UNFIT and self.belief.agrees():
            return True
        rows, scores = self.scored.rows[len(self.first) :], self.scored.scores[len(self.first) :]
        estimates = np.concatenate([NOTHING.estimates, *(proposal.estimates for proposal in self.asked)])
        return order_worse(estimates, self.belief.mean[rows], scores) > WORSE

    def expect_recall(self, space: Space, k: int, expected: Scores) -> float:
        """The expected share of the top `k` among the scored rows; computed once for the same scores."""
        if self.recall is None or self._known != len(self.scored.rows):
            self._known, wanted = len(self.scored.rows), min(k, space.reachable)
            found = wanted and self._known
            self.recall = self._expect_recall(space, wanted, expected) if found else float(not wanted)
        return self.recall

    def _expect_recall(self, space: Space, wanted: int, expected: Scores) -> float:
        each = -(-PER_WANTED * wanted // SHORTLIST)
        left = best_rows(expected, self.scored.rows, each * SHORTLIST, space.allowed)
        rows = left.rows[::each]
        plain = self.belief.deviations(rows, space.item_vectors().take(rows))
        means, deviations = self.belief.temper(left.estimates[::each], plain)
        best = np.sort(self.scored.scores)[::-1][:wanted]
        return expected_recall(best, wanted, means, scale_errors(self._errors()) * deviations, each=each)

    def _errors(self) -> list[Array]:
        """For each round after the first how far scores were from what was expected, in expected deviations."""
        errors, start = [], len(self.first)
        for proposal in self.asked:
            assert proposal.deviations is not None
            scores = self.scored.scores[start : start + len(proposal)]
            start += len(proposal)
            means, deviations = self.belief.temper(proposal.estimates, proposal.deviations)
            errors.append((scores - means) / deviations)
        return errors


def best_rows(expected: Scores, scored: Rows, n: int, allowed: Mask | None) -> Proposal:
    """The `n` allowed rows of largest expectation that are not scored yet."""
    left = expected.copy()
    left[scored] = -np.inf
    return top_rows(left, n, allowed)


def add_deviations(proposal: Proposal, belief: Belief, items: VectorSearch) -> Proposal:
    return replace(proposal, deviations=belief.deviations(proposal.rows, items.take(proposal.rows)))
