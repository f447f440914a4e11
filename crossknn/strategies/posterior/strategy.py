"""Posterior search: a Bayesian linear model of each query's scores, with greedy batches by posterior mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING, Final

import numpy as np

from crossknn._checks import check_fraction
from crossknn.errors import InputError
from crossknn.strategies.base import Flow, FlowResult, MultiRound, Round, SearchContext
from crossknn.strategies.posterior.prior import RETRIEVER_DEPTH, Prior
from crossknn.types import EMPTY_PROPOSAL

if TYPE_CHECKING:
    from crossknn.strategies.posterior.session import PosteriorMeans, PosteriorSession

STANDARDIZATION_DEPTH: Final = 1_000  # first rows of a retriever that standardize the signal features without an index
HEDGE_SHARE: Final = 0.1  # of the calls after the first round, with a fitted prior, for the best rows by
HEDGE_ROWS: Final = 10  # reciprocal rank fusion: this many,
HEDGE_DEPTH: Final = 1_000  # from the first rows of each retriever,
RANK_CONSTANT: Final = 60  # with this constant


@dataclass(frozen=True, repr=False)
class Posterior(MultiRound):
    """Bayesian linear regression of each query's scores; every round takes the rows of largest posterior mean.

    This is pure exploitation. The prior is that of an index built with `prior=True`: the first round follows its mean,
    and a tenth of the later calls hedges with the reciprocal rank fusion of the retrievers. Without one, the first
    round is a retriever's, and a weakly informative prior on the scale of the query's own scores takes over. Where
    retrievers alone explain a query's scores clearly better than the model, its next round falls back to the searcher's
    default retriever.

    Args:
        budget: Calls per query, spread evenly over the rounds.
        rounds: How often the posterior is updated. None: 10, or fewer where a searcher has measured slow rounds.
        first: Without a fitted prior, the name of the first round's retriever; None is the searcher's default.
        estimates: Also return the posterior mean of every item.
        stop_at: Stop a query's search as soon as its expected recall reaches this, such as 0.95.
    """

    requires = frozenset({"query_vectors"})
    uses_signals = True
    uses_prior = True

    first: str | None = None
    estimates: bool = False
    stop_at: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop_at is not None:
            check_fraction("stop_at", self.stop_at)

    def flow(self, context: SearchContext) -> Flow:
        if self.stop_at is not None and context.k is None:
            raise InputError("`stop_at` needs the number of hits: search with `k`.")
        first, session = self._start(context)

        def next_round(number: int) -> Round:
            if session.exhausted:  # a model of all scores, whose size is quadratic in their number, would tell nothing
                return Round([EMPTY_PROPOSAL] * context.queries, "posterior")
            n = 2 * max(self._counts(context, number, session))
            last = number == self.round_count
            means = session.posterior_means(n, recall=self.stop_at is not None, last=last)
            return self._choose_rows(context, session, means, self._counts(context, number, session))

        yield from self._run_rounds(first, session.observations, next_round)
        if context.k is not None:
            session.update_recall()
        return FlowResult(session.all_posterior_means() if self.estimates else None, session.expected_recall)

    def _start(self, context: SearchContext) -> tuple[Round, PosteriorSession]:
        """The first round, and the session with the prior."""
        from crossknn.strategies.posterior.session import PosteriorSession  # imports torch

        share = self._share(context, 1, 0)
        names = context.signals if context.prior is None else context.prior.signals
        depth = min(RETRIEVER_DEPTH, context.reachable)
        if context.retrieve_ahead is not None:
            context.retrieve_ahead(names, depth)
        lists = [context.propose(name, depth)[1] for name in names]
        if context.prior is not None:
            session = PosteriorSession(context, lists, context.prior)
            session.hedge_rows = session.model.retrieved.reciprocal_rank_fusion(
                HEDGE_ROWS, depth=HEDGE_DEPTH, constant=RANK_CONSTANT
            )
            return Round(session.propose_first(session.posterior_means(share), share), "prior"), session
        name, found = context.propose(self.first, min(max(STANDARDIZATION_DEPTH, share), context.reachable))
        first = Round([proposal.first(share) for proposal in found], name)
        return first, PosteriorSession(context, lists, Prior.weakly_informative(names), near=found)

    def _counts(self, context: SearchContext, number: int, session: PosteriorSession) -> list[int]:
        """Rows per query in this round: none where the first round found nothing, or `stop_at` is reached."""
        counts = [self._share(context, number, len(one.rows)) if len(one.rows) else 0 for one in session.observations]
        recall, stop_at = session.expected_recall, self.stop_at
        if recall is None or stop_at is None:
            return counts
        return [0 if value >= stop_at else count for value, count in zip(recall, counts, strict=True)]

    def _choose_rows(
        self, context: SearchContext, session: PosteriorSession, means: PosteriorMeans, counts: list[int]
    ) -> Round:
        """The best rows of the model for every query, or of the default retriever where the model does not fit."""
        names, before = self._rows_before(context, session, counts)
        return Round(session.propose(means, counts, before), names, session.expected_recall)

    def _rows_before(
        self, context: SearchContext, session: PosteriorSession, counts: list[int]
    ) -> tuple[list[str], list[list[int]]]:
        """Who proposes for each query, and the rows that come before the model's: hedges, or a retriever's list."""
        names = ["posterior"] * len(session)
        before = session.unscored_hedge_rows(hedge_counts([len(one.rows) for one in session.observations], counts))
        misfits = np.flatnonzero(session.misfits() & (np.array(counts) > 0))
        if len(misfits):
            name, lists = context.propose(None, min(self.budget, context.reachable))
            for query in misfits.tolist():
                names[query], before[query] = name, lists[query].rows.tolist()
        return names, before


def hedge_counts(spent: Sequence[int], counts: Sequence[int]) -> list[int]:
    """How many of the next calls of each query are hedges: the share of all calls so far, without fractions.

    Small rounds have a hedge now and then: one in each would be a third of a budget of 25, and all of one of 10.
    """
    return [floor(HEDGE_SHARE * (n + count)) - floor(HEDGE_SHARE * n) for n, count in zip(spent, counts, strict=True)]
