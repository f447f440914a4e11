"""Posterior search: a linear model of the scores, fitted offline, corrected by every score that is seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossknn.errors import InputError
from crossknn.prior import DEPTH, Columns, Prior, columns_of
from crossknn.ranking import top_rows
from crossknn.strategies.base import Ask, Flow, Settings, Space
from crossknn.strategies.rounds import Scored, ask_in_rounds, check_rounds, share_of_round
from crossknn.types import Mask, Proposal, Rows, Scores, Vectors


@dataclass(frozen=True, repr=False)
class Posterior(Settings):
    """Takes the rows of largest expected score, given the prior and all scores of the query so far.

    Needs an index with a prior: `Index.build(…, prior=True)`. With one round it reranks the prior's own order.

    budget      calls per query, spread evenly over the rounds
    rounds      how often the expectation is corrected
    estimates   also return the expected score of every item
    """

    budget: int = 100
    rounds: int = 10
    estimates: bool = False

    def __post_init__(self) -> None:
        check_rounds(self.budget, self.rounds)

    def flow(self, space: Space) -> Flow:
        beliefs = _begin(space)
        scored = [Scored() for _ in beliefs]

        def choose(number: int, expected: list[Scores]) -> list[Proposal]:
            return [
                _best(line, one.rows, self._share(number, one), space.allowed)
                for line, one in zip(expected, scored, strict=True)
            ]

        first = Ask(choose(1, [belief.mean for belief in beliefs]), "prior")
        yield from ask_in_rounds(
            first, scored, self.rounds, lambda number: Ask(choose(number, _expect(space, beliefs, scored)), "posterior")
        )
        return _expect(space, beliefs, scored) if self.estimates else None

    def _share(self, number: int, scored: Scored) -> int:
        return share_of_round(number, budget=self.budget, rounds=self.rounds, spent=len(scored.rows))


def _begin(space: Space) -> list[Belief]:
    """What the prior believes about each query."""
    prior = space.prior
    if prior is None:
        raise InputError(
            "posterior search needs an index with a prior: Index.build(…, prior=True), or crossknn build --prior."
        )
    lists = [space.propose(name, min(DEPTH, space.items))[1] for name in prior.signals]
    dim = space.item_vectors().dim
    return [Belief(prior, columns_of(proposals, space.items), dim) for proposals in zip(*lists, strict=True)]


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
        self._residuals = np.empty(0)  # r

    def __len__(self) -> int:
        """How many scores it knows."""
        return len(self._known)

    def learn(self, rows: Rows, vectors: Vectors, scores: Scores) -> None:
        """Correct it by the scores of these rows."""
        fresh = np.concatenate([self._scale * vectors, self._features[rows]], axis=1).astype(np.float64)
        self._factor.append(self._known @ fresh.T, fresh @ fresh.T + self._noise * np.eye(len(rows)))
        self._known = np.concatenate([self._known, fresh])
        residuals = (scores - self.mean[rows]) / self._deviation[rows]
        self._residuals = np.concatenate([self._residuals, residuals])
        weights = self._factor.solve(self._residuals) @ self._known
        dim = len(self.vector)
        self.vector = (self._scale * weights[:dim]).astype(np.float32)
        self._weights = weights[dim:].astype(np.float32)

    def expect(self, along: Scores) -> Scores:
        """(items,) the posterior mean, given every item vector's product with `vector`."""
        expected: Scores = self.mean + self._deviation * (along + self._features @ self._weights)
        return expected


def _best(expected: Scores, scored: Rows, n: int, allowed: Mask | None) -> Proposal:
    """The `n` allowed rows of largest expectation that are not scored yet."""
    left = expected.copy()
    left[scored] = -np.inf
    return top_rows(left, n, allowed)
