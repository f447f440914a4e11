"""Posterior search of one query: what is believed about its scores, what was asked for, and what was scored."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from crossknn.ranking import order_rows, top_rows
from crossknn.strategies.belief import Array, Belief
from crossknn.strategies.expected_recall import expected_recall, scale_errors
from crossknn.strategies.fit import order_worse
from crossknn.strategies.rounds import Scored
from crossknn.types import NOTHING, Proposal, Rows, Scores, VectorSearch

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
    first: Proposal = NOTHING
    hedge: Rows = field(default_factory=lambda: NOTHING.rows)
    asked: list[Proposal] = field(default_factory=list)
    scored: Scored = field(default_factory=Scored)
    recall: float | None = None
    _known: int = -1  # scores that `recall` was expected from

    def learn(self, profiles: VectorSearch) -> None:
        """Correct what is believed by what was scored since."""
        known = len(self.belief)
        rows = self.scored.rows[known:]
        if len(rows):
            self.belief.learn(rows, profiles.take(rows), self.scored.scores[known:])

    def expect(self, others: Proposal, products: Scores) -> Expected:
        """From the best products of all rows that retrievers do not propose, and those of all that they do."""
        proposed = Proposal(self.belief.rows, self.belief.expect_proposed(products))
        return Expected(proposed, Proposal(others.rows, self.belief.expect_others(others.estimates)))

    def ask(self, expected: Expected, n: int, profiles: VectorSearch, before: Rows = NOTHING.rows) -> Proposal:
        """The `n` best rows that are not scored yet: first those `before` the others, then by what is expected."""
        rows = before[~np.isin(before, self.scored.rows)][:n]
        front = Proposal(rows, self.belief.expect(rows, profiles.take(rows)))
        others = expected.best(n - len(front), without=np.concatenate([self.scored.rows, rows]))
        rows = np.concatenate([front.rows, others.rows])
        asked = Proposal(rows, np.concatenate([front.estimates, others.estimates]))
        self.asked.append(add_deviations(asked, self.belief, profiles))
        return self.asked[-1]

    def hedge_with(self, n: int) -> Rows:
        """The first `n` rows of the hedge that are not scored yet."""
        return self.hedge[~np.isin(self.hedge, self.scored.rows)][:n]

    def is_unfit(self) -> bool:
        """Whether retrievers alone explain the scores better than the model, or order them better than it did."""
        if self.belief.advantage() < UNFIT and self.belief.agrees():
            return True
        scores = self.scored.scores[len(self.first) :]
        estimates = np.concatenate([NOTHING.estimates, *(proposal.estimates for proposal in self.asked)])
        return order_worse(estimates, self.belief.means[len(self.first) :], scores) > WORSE

    def expect_recall(self, k: int, reachable: int, expected: Expected, profiles: VectorSearch) -> float:
        """The expected share of the top `k` among the scored rows; computed once for the same scores."""
        if self.recall is None or self._known != len(self.scored.rows):
            self._known, wanted = len(self.scored.rows), min(k, reachable)
            found = wanted and self._known
            self.recall = self._expect_recall(wanted, expected, profiles) if found else float(not wanted)
        return self.recall

    def _expect_recall(self, wanted: int, expected: Expected, profiles: VectorSearch) -> float:
        each = each_of(wanted)
        left = expected.best(shortlist(wanted), without=self.scored.rows)
        rows = left.rows[::each]
        plain = self.belief.deviations(rows, profiles.take(rows))
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


@dataclass(frozen=True)
class Expected:
    """What is expected of a query's scores: of all rows that retrievers propose, and of the best of all others."""

    proposed: Proposal  # by row
    others: Proposal

    def best(self, n: int, *, without: Rows) -> Proposal:
        """The `n` rows of largest expectation but for these; where `n` is more than was asked for, maybe not all."""
        left = self.proposed.estimates.copy()
        left[np.isin(self.proposed.rows, without)] = -np.inf
        near = top_rows(left, n)
        others = ~np.isin(self.others.rows, without)
        rows = np.concatenate([self.proposed.rows[near.rows], self.others.rows[others]])
        return order_rows(rows, np.concatenate([near.estimates, self.others.estimates[others]])).first(n)


def shortlist(wanted: int) -> int:
    """How many of the rows not scored are looked at, to expect how many of the `wanted` best they are."""
    return each_of(wanted) * SHORTLIST


def each_of(wanted: int) -> int:
    """How many rows each of those stands for that are looked at."""
    return -(-PER_WANTED * wanted // SHORTLIST)


def add_deviations(proposal: Proposal, belief: Belief, profiles: VectorSearch) -> Proposal:
    return replace(proposal, deviations=belief.deviations(proposal.rows, profiles.take(proposal.rows)))
