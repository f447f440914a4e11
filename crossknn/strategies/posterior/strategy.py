"""Posterior search: a linear model of a query's scores, corrected by every score that is seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from crossknn._checks import check_fraction
from crossknn.errors import InputError
from crossknn.strategies.base import Flow, Requirement, Round, SearchContext, Settings
from crossknn.strategies.posterior.prior import DEPTH, Prior
from crossknn.strategies.rounds import check_rounds, run_rounds, share_of_round
from crossknn.types import Proposal, Scores
from crossknn.vectors.device import as_device_search

if TYPE_CHECKING:
    from crossknn.strategies.posterior.session import Expected, PosteriorSession

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

    requires: ClassVar[frozenset[Requirement]] = frozenset({"query_vectors"})

    budget: int = 100
    rounds: int = 10
    first: str | None = None
    estimates: bool = False
    stop_at: float | None = None

    def __post_init__(self) -> None:
        check_rounds(self.budget, self.rounds)
        if self.stop_at is not None:
            check_fraction("stop_at", self.stop_at)

    def flow(self, space: SearchContext) -> Flow:
        if self.stop_at is not None and space.k is None:
            raise InputError("stop_at needs to know how many items are wanted: search with k.")
        first, quests = self._begin(space)

        def choose(number: int) -> Round:
            shares = self._shares(number, quests)
            expected = _expect(space, quests, 2 * max(shares), recall=self.stop_at is not None)
            return self._ask(space, quests, expected, self._shares(number, quests))

        yield from run_rounds(first, quests.scored, self.rounds, choose)
        if space.k is not None:
            _expect(space, quests, 0, recall=True)
        return _expect_all(space, quests) if self.estimates else None

    def _begin(self, space: SearchContext) -> tuple[Round, PosteriorSession]:
        """The first round, and the searches with what is believed before it."""
        share = share_of_round(1, budget=self.budget, rounds=self.rounds, spent=0)
        names = space.signals if space.prior is None else space.prior.signals
        lists = [space.propose(name, min(DEPTH, space.items))[1] for name in names]
        if space.prior is not None:
            quests = _make_quests(space, lists, space.prior)
            quests.hedge = quests.beliefs.heard.best_together(BEST, near=NEAR, constant=CONSTANT)
            return Round(quests.begin(_expect(space, quests, share), share), "prior"), quests
        name, found = space.propose(self.first, max(NEAR, share))
        first = Round([proposal.first(share) for proposal in found], name)
        return first, _make_quests(space, lists, Prior.general(names), near=found)

    def _shares(self, number: int, quests: PosteriorSession) -> list[int]:
        """How many rows a round asks for: none where nothing was found before, or enough is expected to be."""
        enough = quests.recall is not None and self.stop_at is not None and quests.recall >= self.stop_at
        done = np.broadcast_to(enough, len(quests)).tolist()
        spent = [len(one.rows) for one in quests.scored]
        return [
            0 if not calls or stop else share_of_round(number, budget=self.budget, rounds=self.rounds, spent=calls)
            for calls, stop in zip(spent, done, strict=True)
        ]

    def _ask(self, space: SearchContext, quests: PosteriorSession, expected: Expected, shares: list[int]) -> Round:
        """The best of the model for every query, or of the default retriever where the model does not fit."""
        names, before = ["posterior"] * len(quests), quests.hedge_with([ceil(HEDGE * share) for share in shares])
        unfit = np.flatnonzero(quests.unfit() & (np.array(shares) > 0))
        if len(unfit):
            name, lists = space.propose(None, self.budget)
            for line in unfit.tolist():
                names[line], before[line] = name, lists[line].rows.tolist()
        return Round(quests.ask(expected, shares, before), names)


def _make_quests(
    space: SearchContext, lists: list[list[Proposal]], prior: Prior, near: Sequence[Proposal] = ()
) -> PosteriorSession:
    from crossknn.strategies.posterior.features import RetrieverFeatures
    from crossknn.strategies.posterior.model import BayesianLinearModel  # import torch
    from crossknn.strategies.posterior.session import PosteriorSession

    items = as_device_search(space.item_profiles())
    heard = RetrieverFeatures(lists, prior, items=space.items, device=items.device, near=near)
    return PosteriorSession(BayesianLinearModel(prior, heard, space.item_vectors().dim), items)


def _expect(space: SearchContext, quests: PosteriorSession, n: int, *, recall: bool = False) -> Expected:
    """What is expected of every query's scores, after those so far: of the best `n` rows at least.

    With `recall` the space is told how much of each query's top k is expected to be found.
    """
    from crossknn.strategies.posterior.session import shortlist  # imports torch

    with space.solving:
        quests.learn()
    if recall and space.k is not None:
        n = max(n, shortlist(min(space.k, space.reachable)))
    expected = quests.expect(n, space.allowed)
    if recall and space.k is not None:
        with space.solving:
            space.expected_recall[:] = quests.expect_recall(space.k, space.reachable, expected).tolist()
    return expected


def _expect_all(space: SearchContext, quests: PosteriorSession) -> list[Scores]:
    """The expected scores of all items for every query."""
    import torch

    with space.solving:
        quests.learn()
    beliefs = quests.beliefs
    products = torch.from_numpy(space.item_profiles().estimates(beliefs.query.cpu().numpy())).to(quests.items.device)
    rows = beliefs.heard.rows.clamp(max=space.items - 1)
    proposed = beliefs.expect_proposed(products.gather(1, rows))
    expected = beliefs.expect_others(products)
    for line, mine, told, filled in zip(expected, rows, proposed, beliefs.heard.filled, strict=True):
        line[mine[~filled]] = told[~filled]
    return list(expected.cpu().numpy())
