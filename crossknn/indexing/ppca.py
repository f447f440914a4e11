"""Probabilistic PCA of a score matrix with missing entries, fitted by expectation–maximization."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from crossknn.indexing.factorization.trainer import batches
from crossknn.strategies.posterior.prior import LATENT_FACTORS

MAX_ITEMS: Final = 20_000  # that the loadings are fitted to
SCORES_PER_ITEM: Final = 64  # at most, of these items
EM_STEPS: Final = 12
BATCH_SCORES: Final = 2**17  # whose loadings are in memory together
INITIAL_NOISE: Final = 0.7  # share of the variance

Array = NDArray[np.float64]
Integers = NDArray[Any]


@dataclass(frozen=True)
class ItemScores:
    """Scores grouped by item."""

    queries: Integers  # (scores,)
    values: Array  # (scores,)
    starts: Integers  # (items + 1,) item i has the scores starts[i] to starts[i + 1]

    @classmethod
    def group(cls, queries: Integers, rows: Integers, values: Array, n_items: int) -> Self:
        order = np.argsort(rows, kind="stable")
        return cls(queries[order], values[order], np.searchsorted(rows[order], np.arange(n_items + 1)))

    def sample(self, rng: np.random.Generator) -> Self:
        """At most `MAX_ITEMS` scored items with at most `SCORES_PER_ITEM` scores each."""
        counts = np.diff(self.starts)
        rows = np.sort(rng.permutation(np.flatnonzero(counts))[:MAX_ITEMS])
        chosen = np.concatenate(
            [np.sort(rng.permutation(self.starts[row] + np.arange(counts[row]))[:SCORES_PER_ITEM]) for row in rows]
        )
        starts = np.concatenate([[0], np.cumsum(np.minimum(counts[rows], SCORES_PER_ITEM))])
        return type(self)(self.queries[chosen], self.values[chosen], starts)

    def batches(self, rows: Integers) -> Iterator[tuple[Integers, Integers]]:
        """(positions in `rows`, (positions, count) their scores), for items with the same number of scores."""
        counts = np.diff(self.starts)[rows]
        for count in np.unique(counts):
            members = np.flatnonzero(counts == count)
            for batch in batches(len(members), max(1, BATCH_SCORES // max(int(count), 1))):
                part = members[batch]
                yield part, self.starts[rows[part], None] + np.arange(count)


@dataclass(frozen=True)
class ProbabilisticPca:
    """`value(q, i) = loadings(q) · z(i) + noise` with latent factors z(i) ~ N(0, I) of every item."""

    scores: ItemScores
    loadings: Array  # (queries, factors)
    noise: float  # variance

    @classmethod
    def fit(cls, queries: Integers, rows: Integers, values: Array, *, n_items: int, seed: int = 0) -> Self:
        rng = np.random.default_rng(seed)
        distinct, numbers = np.unique(queries, return_inverse=True)
        scores = ItemScores.group(numbers, rows, values, n_items)
        deviation = float(np.sqrt(max(values.var(), 1e-12)))
        loadings = deviation * rng.normal(size=(len(distinct), LATENT_FACTORS)) / np.sqrt(LATENT_FACTORS)
        model = cls(scores.sample(rng), loadings, INITIAL_NOISE * deviation**2)
        for _ in range(EM_STEPS):
            model = model._em_step()
        return cls(scores, model.loadings, model.noise)

    def features(self, rows: Integers) -> Array:
        """(rows, factors) posterior means of z, rotated and scaled so that a query's loadings are ~ N(0, I)."""
        eigenvalues, axes = np.linalg.eigh(self.loadings.T @ self.loadings / len(self.loadings))
        rotation, features = axes * np.sqrt(np.maximum(eigenvalues, 0)), np.empty((len(rows), LATENT_FACTORS))
        for part, means, _, _ in self._posterior(rows):
            features[part] = means @ rotation
        return features

    def _posterior(self, rows: Integers) -> Iterator[tuple[Integers, Array, Array, Array]]:
        """Batches of (positions in `rows`, posterior means of z, gain, loadings); covariance I − gain·loadings."""
        for part, entries in self.scores.batches(rows):
            loadings = self.loadings[self.scores.queries[entries]]  # (items, scores, factors)
            gain = _gain(loadings, self.noise)
            yield part, (gain @ self.scores.values[entries][:, :, None])[:, :, 0], gain, loadings

    def _em_step(self) -> Self:
        """E step: posterior of every z. M step: least squares for the loadings and the noise."""
        scores, count = self.scores, len(self.scores.starts) - 1
        means, reduction = np.empty((count, LATENT_FACTORS)), np.empty((count, LATENT_FACTORS * LATENT_FACTORS))
        for part, own, gain, tall in self._posterior(np.arange(count)):
            means[part] = own
            reduction[part] = (gain @ tall).reshape(len(own), -1)  # of the variance
        items = np.repeat(np.arange(count), np.diff(scores.starts))
        order = np.argsort(scores.queries, kind="stable")
        starts = np.searchsorted(scores.queries[order], np.arange(len(self.loadings) + 1))
        loadings, explained = np.zeros_like(self.loadings), 0.0
        for query in np.flatnonzero(np.diff(starts)):
            entries = order[starts[query] : starts[query + 1]]
            own = means[items[entries]]
            right = scores.values[entries] @ own
            covariance = len(entries) * np.eye(LATENT_FACTORS) - reduction[items[entries]].sum(0).reshape(
                LATENT_FACTORS, LATENT_FACTORS
            )
            loadings[query] = np.linalg.solve(covariance + own.T @ own, right)
            explained += float(loadings[query] @ right)
        noise = max(float(scores.values @ scores.values) - explained, 1e-12) / len(scores.values)
        return type(self)(scores, loadings, noise)


def _gain(loadings: Array, noise: float) -> Array:
    """(items, factors, scores): maps values to posterior means, by the smaller of two equivalent linear systems."""
    transposed = loadings.swapaxes(1, 2)
    if loadings.shape[1] < LATENT_FACTORS:
        small: Array = np.linalg.inv(loadings @ transposed + noise * np.eye(loadings.shape[1])).astype(np.float64)
        return transposed @ small
    large: Array = np.linalg.inv(transposed @ loadings + noise * np.eye(LATENT_FACTORS)).astype(np.float64)
    return large @ transposed
