"""What posterior search believes about one query's scores: their means and how sure it is, corrected by every score."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from crossknn.normalization import varies
from crossknn.prior import Columns, Prior
from crossknn.types import Rows, Scores, Vectors

FLAT: Final = 1e-3  # the least slope of means that a general prior expects
TINY: Final = 1e-12  # the least mean square of residuals

Array = NDArray[np.float64]


class Belief:
    """What is believed about one query's scores: the prior's mean and features, corrected by what was scored.

    With Φ the features of the scored rows, K = Φ Φᵀ + noise and r = (a − m) / γ their residuals, the posterior mean is
    `m + γ φ Φᵀ K⁻¹ r`, and a score is expected off it with the variance `γ² (φ φᵀ − φ Φᵀ K⁻¹ Φ φᵀ + noise)`.
    """

    def __init__(self, prior: Prior, columns: Columns, dim: int) -> None:
        from crossknn.strategies.cholesky import Cholesky  # imports torch

        self.mean, self._deviation = prior.expect(columns)
        self.vector = np.zeros(dim, np.float32)  # along which item vectors scores are expected off the mean
        self.tastes = np.zeros(prior.traits.shape[1], np.float32)  # the same along their traits
        self._traits = prior.traits
        self._features = prior.features(columns)
        self._weights = np.zeros(self._features.shape[1], np.float32)
        self._scale = np.sqrt(prior.vector_variance)
        self._noise = prior.noise
        self._factor = Cholesky()
        self._known = np.empty((0, dim + self._features.shape[1] + len(self.tastes)))  # Φ
        constant = dim + self._features.shape[1] - 1
        self._said = [*range(dim, dim + columns.shape[1]), constant]  # features: what retrievers say, and the constant
        self._fitted = prior.fitted
        self._level, self._spread = 0.0, 1.0  # of scores that are 0 and 1 to the prior
        self._rows: Rows = np.empty(0, np.int64)
        self._scores: Scores = np.empty(0, np.float32)

    def __len__(self) -> int:
        """How many scores it knows."""
        return len(self._known)

    def learn(self, rows: Rows, vectors: Vectors, scores: Scores) -> None:
        """Correct it by the scores of these rows."""
        fresh = self._all_features(rows, vectors)
        self._factor.append(self._known @ fresh.T, fresh @ fresh.T + self._noise * np.eye(len(rows)))
        self._known = np.concatenate([self._known, fresh])
        self._rows = np.concatenate([self._rows, rows])
        self._scores = np.concatenate([self._scores, scores])
        weights = self._factor.solve(self._residuals()) @ self._known
        ends = len(self.vector), len(self.vector) + len(self._weights)
        vector, self._weights, self.tastes = np.split(weights.astype(np.float32), ends)
        self.vector = np.float32(self._scale) * vector

    def _residuals(self) -> Array:
        """r, on the prior's scale; one that is general takes it from all scores so far."""
        mean, scores = self.mean[self._rows].astype(np.float64), self._scores.astype(np.float64)
        if not self._fitted:
            self._spread = float(scores.std()) if varies(scores) else 1.0
            self._level = float(scores.mean()) - self._spread * float(mean.mean())
        residuals: Array = ((scores - self._level) / self._spread - mean) / self._deviation[self._rows]
        return residuals

    def expect(self, along: Scores) -> Scores:
        """(items,) the posterior mean, given every item's product with `vector` and `tastes`."""
        expected: Scores = self.mean + self._deviation * (along + self._features @ self._weights)
        return expected if self._fitted else expected * np.float32(self._spread) + np.float32(self._level)

    def deviations(self, rows: Rows, vectors: Vectors) -> Scores:
        """How far the scores of these rows are expected off their posterior means; rows that it knows stay unsure."""
        features = self._all_features(rows, vectors)
        known = self._factor.explain(self._known @ features.T)
        left = np.maximum(np.einsum("ij,ij->i", features, features) - known, 0) + self._noise
        deviations: Scores = (self._spread * self._deviation[rows] * np.sqrt(left)).astype(np.float32)
        return deviations

    def temper(self, means: Scores, deviations: Scores) -> tuple[Array, Array]:
        """Means and deviations as they are believed far from what was scored, too.

        A general prior does not know how low scores go. Most items have about the lowest score that was seen, and those
        vary less: means fall towards it ever more slowly, and variances with their slope.
        """
        if self._fitted:
            return means.astype(np.float64), deviations.astype(np.float64)
        low = float(self._scores.min())
        above = (means.astype(np.float64) - low) / self._spread
        slope = np.maximum(1 / (1 + np.exp(np.clip(-above, -500, 500))), FLAT)
        return low + self._spread * np.logaddexp(0, above), np.sqrt(slope) * deviations

    def advantage(self) -> float:
        """How much better the scores fit than with retrievers alone: the logarithm of the ratio of their likelihoods.

        Each of the two models is taken on the scale that suits it best.
        """
        residuals = self._residuals()
        square, volume = self._factor.explain(residuals[:, None])[0], self._factor.log_determinant()
        said = self._known[:, self._said]
        rest = self._noise + float(np.mean(np.sum(self._known**2, 1) - np.sum(said**2, 1)))
        plain = _log_likelihood(*_solve_narrow(said, rest, residuals), len(self))
        return _log_likelihood(float(square), volume, len(self)) - plain

    def agrees(self) -> bool:
        """Whether scores rise with what was expected before any was seen."""
        mean = self.mean[self._rows].astype(np.float64)
        return bool((mean - mean.mean()) @ (self._scores - self._scores.mean(dtype=np.float64)) > 0)

    def _all_features(self, rows: Rows, vectors: Vectors) -> Array:
        """(rows, dim + columns + 2 + traits) φ, item vectors first."""
        parts = [self._scale * vectors, self._features[rows], self._traits[rows]]
        return np.concatenate(parts, axis=1).astype(np.float64)


def _solve_narrow(features: Array, noise: float, goal: Array) -> tuple[float, float]:
    """goalᵀ K⁻¹ goal and the logarithm of |K|, of K = features featuresᵀ + noise with few features."""
    width = features.shape[1]
    inner = features.T @ features + noise * np.eye(width)
    along = features.T @ goal
    square = (goal @ goal - along @ np.linalg.solve(inner, along)) / noise
    return float(square), float(np.linalg.slogdet(inner)[1] + (len(goal) - width) * np.log(noise))


def _log_likelihood(square: float, volume: float, count: int) -> float:
    """Of `count` values under a normal distribution on its best scale, but for a constant."""
    return float(-0.5 * (count * np.log(max(square / count, TINY)) + volume))
