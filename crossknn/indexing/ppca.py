"""What the scores of train queries tell about items beside their biases: traits, which queries like more or less."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from crossknn.indexing.factorization.trainer import blocks
from crossknn.strategies.posterior.prior import LATENT_FACTORS

ITEMS: Final = 20_000  # that the tastes of queries are learned from,
SCORES: Final = 64  # by so many scores of each
STEPS: Final = 12
BLOCK: Final = 2**17  # scores whose tastes are in memory at once
BEGIN: Final = 0.7  # of the variance is noise, to begin with

Array = NDArray[np.float64]
Numbers = NDArray[Any]  # whole ones


@dataclass(frozen=True)
class ItemScores:
    """Scores of train queries, those of one item side by side."""

    queries: Numbers
    values: Array
    starts: Numbers  # (items + 1,) where each item's begin

    @classmethod
    def of(cls, queries: Numbers, rows: Numbers, values: Array, n_items: int) -> Self:
        order = np.argsort(rows, kind="stable")
        return cls(queries[order], values[order], np.searchsorted(rows[order], np.arange(n_items + 1)))

    def some(self, rng: np.random.Generator) -> Self:
        """Some of the items that have scores, of each at most `SCORES` of them."""
        counts = np.diff(self.starts)
        rows = np.sort(rng.permutation(np.flatnonzero(counts))[:ITEMS])
        places = np.concatenate(
            [np.sort(rng.permutation(self.starts[row] + np.arange(counts[row]))[:SCORES]) for row in rows]
        )
        starts = np.concatenate([[0], np.cumsum(np.minimum(counts[rows], SCORES))])
        return type(self)(self.queries[places], self.values[places], starts)

    def blocks(self, rows: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
        """(places in `rows`, (those, count) places of their scores): all items of a block have as many scores."""
        counts = np.diff(self.starts)[rows]
        for count in np.unique(counts):
            mine = np.flatnonzero(counts == count)
            for block in blocks(len(mine), max(1, BLOCK // max(int(count), 1))):
                part = mine[block]
                yield part, self.starts[rows[part], None] + np.arange(count)


@dataclass(frozen=True)
class ProbabilisticPca:
    """How train queries differ in what they like: `value(q, i) = taste(q) · trait(i) + noise`, with traits ~ N(0, I).

    Probabilistic principal components of a matrix with gaps, fitted by expectation–maximisation.
    """

    scores: ItemScores
    matrix: Array  # (queries, LATENT_FACTORS)
    noise: float

    @classmethod
    def fit(cls, queries: Numbers, rows: Numbers, values: Array, *, n_items: int, seed: int = 0) -> Self:
        rng = np.random.default_rng(seed)
        numbers, places = np.unique(queries, return_inverse=True)
        scores = ItemScores.of(places, rows, values, n_items)
        spread = float(np.sqrt(max(values.var(), 1e-12)))
        begin = spread * rng.normal(size=(len(numbers), LATENT_FACTORS)) / np.sqrt(LATENT_FACTORS)
        tastes = cls(scores.some(rng), begin, BEGIN * spread**2)
        for _ in range(STEPS):
            tastes = tastes._improve()
        return cls(scores, tastes.matrix, tastes.noise)

    def features(self, rows: Numbers) -> Array:
        """(rows, factors) what is expected of their factors, turned and scaled so that a query's taste is ~ N(0, I)."""
        sizes, axes = np.linalg.eigh(self.matrix.T @ self.matrix / len(self.matrix))
        turn, features = axes * np.sqrt(np.maximum(sizes, 0)), np.empty((len(rows), LATENT_FACTORS))
        for part, means, _, _ in self._expect(rows):
            features[part] = means @ turn
        return features

    def _expect(self, rows: Numbers) -> Iterator[tuple[Numbers, Array, Array, Array]]:
        """For blocks of these items: places in `rows`, the means of their traits, what those were made by, and tastes.

        The covariance of traits is I less the product of the last two.
        """
        for part, places in self.scores.blocks(rows):
            tastes = self.matrix[self.scores.queries[places]]  # (items, scores, LATENT_FACTORS)
            gain = _gain(tastes, self.noise)
            yield part, (gain @ self.scores.values[places][:, :, None])[:, :, 0], gain, tastes

    def _improve(self) -> Self:
        """One step: traits as these tastes let expect them, then the tastes and the noise that fit them best."""
        scores, count = self.scores, len(self.scores.starts) - 1
        means, known = np.empty((count, LATENT_FACTORS)), np.empty((count, LATENT_FACTORS * LATENT_FACTORS))
        for part, mine, gain, tastes in self._expect(np.arange(count)):
            means[part] = mine
            known[part] = (gain @ tastes).reshape(len(mine), -1)
        items = np.repeat(np.arange(count), np.diff(scores.starts))
        order = np.argsort(scores.queries, kind="stable")
        starts = np.searchsorted(scores.queries[order], np.arange(len(self.matrix) + 1))
        matrix, explained = np.zeros_like(self.matrix), 0.0
        for number in np.flatnonzero(np.diff(starts)):
            places = order[starts[number] : starts[number + 1]]
            mine = means[items[places]]
            liked = scores.values[places] @ mine
            doubts = len(places) * np.eye(LATENT_FACTORS) - known[items[places]].sum(0).reshape(LATENT_FACTORS, -1)
            summed = doubts + mine.T @ mine
            matrix[number] = np.linalg.solve(summed, liked)
            explained += float(matrix[number] @ liked)
        noise = max(float(scores.values @ scores.values) - explained, 1e-12) / len(scores.values)
        return type(self)(scores, matrix, noise)


def _gain(tastes: Array, noise: float) -> Array:
    """(items, factors, scores) what values are multiplied by for factors; the smaller of two systems is solved."""
    turned = tastes.swapaxes(1, 2)
    if tastes.shape[1] < LATENT_FACTORS:
        small: Array = np.linalg.inv(tastes @ turned + noise * np.eye(tastes.shape[1])).astype(np.float64)
        return turned @ small
    large: Array = np.linalg.inv(turned @ tastes + noise * np.eye(LATENT_FACTORS)).astype(np.float64)
    return large @ turned
