"""Posterior search: a linear model of a query's scores, corrected by every score that is seen."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np

from crossknn.apart import search_apart
from crossknn.checks import check_share
from crossknn.errors import InputError
from crossknn.prior import DEPTH, Prior, Said
from crossknn.ranking import fuse
from crossknn.strategies.base import Ask, Flow, Settings, Space
from crossknn.strategies.belief import Belief
from crossknn.strategies.quest import Expected, Quest, add_deviations, shortlist
from crossknn.strategies.rounds import ask_in_rounds, check_rounds, share_of_round
from crossknn.types import NOTHING, Scores, Vectors

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
            most = max(self._share(number, one) for one in quests)
            expected = _expect(space, quests, 2 * most, recall=self.stop_at is not None)
            return self._ask(space, quests, expected, [self._share(number, one) for one in quests])

        yield from ask_in_rounds(first, [one.scored for one in quests], self.rounds, choose)
        if space.k is not None:
            _expect(space, quests, 0, recall=True)
        return _expect_all(space, quests) if self.estimates else None

    def _begin(self, space: Space) -> tuple[Ask, list[Quest]]:
        """The first round, and the search of each query with what is believed before it."""
        dim, share = space.item_vectors().dim, share_of_round(1, budget=self.budget, rounds=self.rounds, spent=0)
        names = space.signals if space.prior is None else space.prior.signals
        lists = list(zip(*(space.propose(name, min(DEPTH, space.items))[1] for name in names), strict=True))
        said = [Said.of(proposals) for proposals in lists]
        if space.prior is not None:
            quests = [Quest(Belief(space.prior, one, dim)) for one in said]
            expected = _expect(space, quests, share)
            for quest, mine, proposals in zip(quests, expected, lists, strict=True):
                best = mine.best(share, without=NOTHING.rows)
                quest.first = add_deviations(best, quest.belief, space.item_profiles())
                quest.hedge = fuse([one.first(NEAR) for one in proposals], constant=CONSTANT).rows[:BEST]
            return Ask([quest.first for quest in quests], "prior"), quests
        name, found = space.propose(self.first, max(NEAR, share))
        priors = [Prior.general(names, one, proposal.rows) for one, proposal in zip(said, found, strict=True)]
        beliefs = [Belief(prior, one, dim) for prior, one in zip(priors, said, strict=True)]
        first = [proposal.first(share) for proposal in found]
        return Ask(first, name), [Quest(*both) for both in zip(beliefs, first, strict=True)]

    def _share(self, number: int, quest: Quest) -> int:
        """How many rows a round asks for: none where nothing was found before, or enough is expected to be."""
        spent = len(quest.scored.rows)
        enough = self.stop_at is not None and quest.recall is not None and quest.recall >= self.stop_at
        if enough or not spent:
            return 0
        return share_of_round(number, budget=self.budget, rounds=self.rounds, spent=spent)

    def _ask(self, space: Space, quests: list[Quest], expected: list[Expected], shares: list[int]) -> Ask:
        """The best of the model for every query, or of the default retriever where the model does not fit."""
        profiles, names, proposals = space.item_profiles(), [], []
        for number, (one, mine, share) in enumerate(zip(quests, expected, shares, strict=True)):
            name, before = "posterior", one.hedge_with(ceil(HEDGE * share))
            if share and one.is_unfit():
                name, lists = space.propose(None, self.budget)
                before = lists[number].rows
            names.append(name)
            proposals.append(one.ask(mine, share, profiles, before))
        return Ask(proposals, names)


def _expect(space: Space, quests: list[Quest], n: int, *, recall: bool = False) -> list[Expected]:
    """What is expected of every query's scores, after those so far: of the best `n` rows at least.

    With `recall` the space is told how much of each query's top k is expected to be found.
    """
    profiles, queries = space.item_profiles(), _learn(space, quests)
    if recall and space.k is not None:
        n = max(n, shortlist(min(space.k, space.reachable)))
    others, products = search_apart(
        profiles,
        queries,
        n,
        [one.belief.rows for one in quests],
        exclude=[one.scored.rows for one in quests],
        allowed=space.allowed,
    )
    expected = [one.expect(best, mine) for one, best, mine in zip(quests, others, products, strict=True)]
    if recall and space.k is not None:
        with space.solving:
            space.expected_recall[:] = [
                one.expect_recall(space.k, space.reachable, mine, profiles)
                for one, mine in zip(quests, expected, strict=True)
            ]
    return expected


def _learn(space: Space, quests: list[Quest]) -> Vectors:
    """(queries, dim) what items' profiles are multiplied with, after what each query was told so far."""
    profiles = space.item_profiles()
    with space.solving:
        for one in quests:
            one.learn(profiles)
    return np.stack([one.belief.query for one in quests])


def _expect_all(space: Space, quests: list[Quest]) -> list[Scores]:
    """The expected scores of all items for every query."""
    products = space.item_profiles().estimates(_learn(space, quests))
    for one, line in zip(quests, products, strict=True):
        proposed = one.belief.expect_proposed(line[one.belief.rows])
        line[:] = one.belief.expect_others(line)
        line[one.belief.rows] = proposed
    return list(products)
