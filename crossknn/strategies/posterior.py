"""Posterior search: a linear model of a query's scores, corrected by every score that is seen."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np

from crossknn.checks import check_share
from crossknn.errors import InputError
from crossknn.prior import DEPTH, Prior, columns_of
from crossknn.ranking import fuse
from crossknn.strategies.base import Ask, Flow, Settings, Space
from crossknn.strategies.belief import Belief
from crossknn.strategies.quest import Quest, add_deviations, best_rows
from crossknn.strategies.rounds import ask_in_rounds, check_rounds, share_of_round
from crossknn.types import NOTHING, Scores

NEAR: Final = 1_000  # of a retriever's best, that a general prior takes its scale from
HEDGE: Final = 0.1  # of every round but the first goes, with a fitted prior, to what retrievers find best:
BEST: Final = 10  # so many rows by reciprocal rank,
CONSTANT: Final = 60  # plus which a rank counts


@dataclass(frozen=True, repr=False)
class Posterior(Settings):
    """Takes the rows of largest expected score, given a prior and all scores of the query so far.

    The prior is that of an index built with `prior=True`, whose order the first round takes; a tenth of each later
    round goes to what retrievers find best together, should the prior have put it low. Without one, the first round is
    that of a retriever, and a general prior on the scale of the query's own scores takes over. Where a query's scores
    so far fit what retrievers say clearly better than they fit the model, its next round takes the best of the
    searcher's default retriever instead.

    budget      calls per query, spread evenly over the rounds
    rounds      how often the expectation is corrected
    first       without a prior, the name of the first round's retriever; None is the searcher's default
    estimates   also return the expected score of every item
    stop_at     a query's search ends as soon as so much of its true top k is expected to be found: 0.95 of it, say
    """

    budget: int = 100
    rounds: int = 10
    first: str | None = None
    estimates: bool = False
    stop_at: float | None = None

    def __post_init__(self) -> None:
        check_rounds(self.budget, self.rounds)
        if self.stop_at is not None:
            check_share("stop_at", self.stop_at)

    def flow(self, space: Space) -> Flow:
        if self.stop_at is not None and space.k is None:
            raise InputError("stop_at needs to know how many items are wanted: search with k.")
        first, quests = self._begin(space)

        def choose(number: int) -> Ask:
            expected = _expect(space, quests)
            if self.stop_at is not None:
                _expect_recall(space, quests, expected)
            return self._ask(space, quests, expected, [self._share(number, one) for one in quests])

        yield from ask_in_rounds(first, [one.scored for one in quests], self.rounds, choose)
        if not self.estimates and space.k is None:
            return None
        expected = _expect(space, quests)
        _expect_recall(space, quests, expected)
        return expected if self.estimates else None

    def _begin(self, space: Space) -> tuple[Ask, list[Quest]]:
        """The first round, and the search of each query with what is believed before it."""
        items, share = space.item_vectors(), share_of_round(1, budget=self.budget, rounds=self.rounds, spent=0)
        names = space.signals if space.prior is None else space.prior.signals
        said = list(zip(*(space.propose(name, min(DEPTH, space.items))[1] for name in names), strict=True))
        columns = [columns_of(proposals, space.items) for proposals in said]
        if space.prior is not None:
            beliefs = [Belief(space.prior, mine, items.dim) for mine in columns]
            best = [best_rows(belief.mean, NOTHING.rows, share, space.allowed) for belief in beliefs]
            first = [add_deviations(*both, items) for both in zip(best, beliefs, strict=True)]
            hedges = [fuse([one.first(NEAR) for one in mine], constant=CONSTANT).rows[:BEST] for mine in said]
            return Ask(first, "prior"), [Quest(*parts) for parts in zip(beliefs, first, hedges, strict=True)]
        name, proposals = space.propose(self.first, max(NEAR, share))
        priors = [Prior.general(names, mine, one.rows) for mine, one in zip(columns, proposals, strict=True)]
        beliefs = [Belief(prior, mine, items.dim) for prior, mine in zip(priors, columns, strict=True)]
        first = [proposal.first(share) for proposal in proposals]
        return Ask(first, name), [Quest(*both) for both in zip(beliefs, first, strict=True)]

    def _share(self, number: int, quest: Quest) -> int:
        """How many rows a round asks for: none where nothing was found before, or enough is expected to be."""
        spent = len(quest.scored.rows)
        enough = self.stop_at is not None and quest.recall is not None and quest.recall >= self.stop_at
        if enough or not spent:
            return 0
        return share_of_round(number, budget=self.budget, rounds=self.rounds, spent=spent)

    def _ask(self, space: Space, quests: list[Quest], expected: list[Scores], shares: list[int]) -> Ask:
        """The best of the model for every query, or of the default retriever where the model does not fit."""
        items, names, proposals = space.item_vectors(), [], []
        for number, (one, line, share) in enumerate(zip(quests, expected, shares, strict=True)):
            name, before = "posterior", one.hedge_with(ceil(HEDGE * share))
            if share and one.is_unfit():
                name, lists = space.propose(None, self.budget)
                before = lists[number].rows
            names.append(name)
            proposals.append(one.ask(line, share, items, space.allowed, before))
        return Ask(proposals, names)


def _expect(space: Space, quests: list[Quest]) -> list[Scores]:
    """The expected scores of all items for every query, after its scores so far."""
    items = space.item_vectors()
    with space.solving:
        for one in quests:
            fresh = one.scored.rows[len(one.belief) :]
            if len(fresh):
                one.belief.learn(fresh, items.take(fresh), one.scored.scores[len(one.belief) :])
    along = items.estimates(np.stack([one.belief.vector for one in quests]))
    if space.prior is not None:
        along += np.stack([one.belief.tastes for one in quests]) @ space.prior.traits.T
    return [one.belief.expect(line) for one, line in zip(quests, along, strict=True)]


def _expect_recall(space: Space, quests: list[Quest], expected: list[Scores]) -> None:
    """Tell the space how much of each query's top k is expected to be found, where it knows k."""
    k = space.k
    if k is not None:
        with space.solving:
            recalls = [one.expect_recall(space, k, line) for one, line in zip(quests, expected, strict=True)]
        space.expected_recall[:] = recalls
