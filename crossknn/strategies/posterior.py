"""Posterior search: a linear model of a query's scores, corrected by every score that is seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossknn.normalization import varies
from crossknn.prior import DEPTH, Columns, Prior, columns_of
from crossknn.ranking import top_rows
from crossknn.strategies.base import Ask, Flow, Settings, Space
from crossknn.strategies.rounds import Scored, ask_in_rounds, check_rounds, share_of_round
from crossknn.types import NOTHING, Mask, Proposal, Rows, Scores, Vectors

NEAR = 1_000  # of a retriever's best, that a general prior takes its scale from


@dataclass(frozen=True, repr=False)
class Posterior(Settings):
    """Takes the rows of largest expected score, given a prior and all scores of the query so far.

    The prior is that of an index built with `prior=True`, whose order the first round takes. Without one, the first
    round is that of a retriever, and a general prior on the scale of the query's own scores takes over.

    budget      calls per query, spread evenly over the rounds
    rounds      how often the expectation is corrected
    first       without a prior, the name of the first round's retriever; None is the searcher's default
    estimates   also return the expected score of every item
    """

    budget: int = 100
    rounds: int = 10
    first: str | None = None
    estimates: bool = False

    def __post_init__(self) -> None:
        check_rounds(self.budget, self.rounds)

    def flow(self, space: Space) -> Flow:
        first, beliefs = self._begin(space)
        scored = [Scored() for _ in beliefs]

        def choose(number: int) -> Ask:
            expected = _expect(space, beliefs, scored)
            shares = [self._share(number, one) if len(one.rows) else 0 for one in scored]
            rows = zip(expected, scored, shares, strict=True)
            return Ask([_best(line, one.rows, share, space.allowed) for line, one, share in rows], "posterior")

        yield from ask_in_rounds(first, scored, self.rounds, choose)
        return _expect(space, beliefs, scored) if self.estimates else None

    def _begin(self, space: Space) -> tuple[Ask, list[Belief]]:
        """The first round, and what is believed about each query before it."""
        share, dim = self._share(1, Scored()), space.item_vectors().dim
        names = space.signals if space.prior is None else space.prior.signals
        lists = [space.propose(name, min(DEPTH, space.items))[1] for name in names]
        columns = [columns_of(proposals, space.items) for proposals in zip(*lists, strict=True)]
        if space.prior is not None:
            beliefs = [Belief(space.prior, mine, dim) for mine in columns]
            best = [_best(belief.mean, NOTHING.rows, share, space.allowed) for belief in beliefs]
            return Ask(best, "prior"), beliefs
        name, proposals = space.propose(self.first, max(NEAR, share))
        priors = [Prior.general(names, mine, one.rows) for mine, one in zip(columns, proposals, strict=True)]
        beliefs = [Belief(prior, mine, dim) for prior, mine in zip(priors, columns, strict=True)]
        return Ask([proposal.first(share) for proposal in proposals], name), beliefs

    def _share(self, number: int, scored: Scored) -> int:
        return share_of_round(number, budget=self.budget, rounds=self.rounds, spent=len(scored.rows))


def _expect(space: Space, beliefs: list[Belief], scored: list[Scored]) -> list[Scores]:
    """The expected scores of all items for every query, after its scores so far."""
    items = space.item_vectors()
    with space.solving:
        for belief, one in zip(beliefs, scored, strict=True):
            fresh = one.rows[len(belief) :]
            if len(fresh):
                belief.learn(fresh, items.take(fresh), one.scores[len(belief) :])
    along = items.estimates(np.stack([belief.vector for belief in beliefs]))
    return [belief.expect(line) for belief, line in zip(beliefs, along, strict=True)]


class Belief:
    """What is believed about one query's scores: the prior's mean and features, corrected by what was scored.

    With Φ the features of the scored rows, K = Φ Φᵀ + noise and r = (a − m) / γ their residuals, the posterior mean is
    `m + γ φ Φᵀ K⁻¹ r`.
    """

    def __init__(self, prior: Prior, columns: Columns, dim: int) -> None:
        from crossknn.strategies.cholesky import Cholesky  # imports torch

        self.mean, self._deviation = prior.expect(columns)
        self.vector = np.zeros(dim, np.float32)  # along which item vectors scores are expected off the mean
        self._features = prior.features(columns)
        self._weights = np.zeros(self._features.shape[1], np.float32)
        self._scale = np.sqrt(prior.vector_variance)
        self._noise = prior.noise
        self._factor = Cholesky()
        self._known = np.empty((0, dim + self._features.shape[1]))  # Φ
        self._fitted = prior.fitted
        self._level, self._spread = 0.0, 1.0  # of scores that are 0 and 1 to the prior
        self._rows: Rows = np.empty(0, np.int64)
        self._scores: Scores = np.empty(0, np.float32)

    def __len__(self) -> int:
        """How many scores it knows."""
        return len(self._known)

    def learn(self, rows: Rows, vectors: Vectors, scores: Scores) -> None:
        """Correct it by the scores of these rows."""
        fresh = np.concatenate([self._scale * vectors, self._features[rows]], axis=1).astype(np.float64)
        self._factor.append(self._known @ fresh.T, fresh @ fresh.T + self._noise * np.eye(len(rows)))
        self._known = np.concatenate([self._known, fresh])
        self._rows = np.concatenate([self._rows, rows])
        self._scores = np.concatenate([self._scores, scores])
        weights = self._factor.solve(self._residuals()) @ self._known
        dim = len(self.vector)
        self.vector = (self._scale * weights[:dim]).astype(np.float32)
        self._weights = weights[dim:].astype(np.float32)

    def _residuals(self) -> NDArray[np.float64]:
        """r, on the prior's scale; one that is general takes it from all scores so far."""
        mean, scores = self.mean[self._rows].astype(np.float64), self._scores.astype(np.float64)
        if not self._fitted:
            self._spread = float(scores.std()) if varies(scores) else 1.0
            self._level = float(scores.mean()) - self._spread * float(mean.mean())
        residuals: NDArray[np.float64] = ((scores - self._level) / self._spread - mean) / self._deviation[self._rows]
        return residuals

    def expect(self, along: Scores) -> Scores:
        """(items,) the posterior mean, given every item vector's product with `vector`."""
        expected: Scores = self.mean + self._deviation * (along + self._features @ self._weights)
        return expected if self._fitted else expected * np.float32(self._spread) + np.float32(self._level)


def _best(expected: Scores, scored: Rows, n: int, allowed: Mask | None) -> Proposal:
    """The `n` allowed rows of largest expectation that are not scored yet."""
    left = expected.copy()
    left[scored] = -np.inf
    return top_rows(left, n, allowed)
