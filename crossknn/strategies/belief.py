"""What posterior search believes about one query's scores: their means and how sure it is, corrected by every score."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from crossknn.normalization import varies
from crossknn.prior import Prior, Said
from crossknn.types import Rows, Scores, Vectors

FLAT: Final = 1e-3  # the least slope of means that a general prior expects
TINY: Final = 1e-12  # the least mean square of residuals

Array = NDArray[np.float64]


class Belief:
    """What is believed about one query's scores: the prior's mean and features, corrected by what was scored.

    With Φ the features of the scored rows, K = Φ Φᵀ + noise and r = (a − m) / γ their residuals, the posterior mean is
    `m + γ φ Φᵀ K⁻¹ r`, and a score is expected off it with the variance `γ² (φ φᵀ − φ Φᵀ K⁻¹ Φ φᵀ + noise)`.

    What retrievers say is known of the rows they propose; of all others they say the same, so that the posterior mean
    of these is a constant plus γ times an inner product: that of `query` with an item's profile, which is its vector
    and, where there is a fitted prior, its traits and its bias.
    """

    def __init__(self, prior: Prior, said: Said, dim: int) -> None:
        from crossknn.strategies.cholesky import Cholesky  # imports torch

        self.rows = said.rows  # what retrievers propose
        self.means: Scores = np.empty(0, np.float32)  # m of the scored rows
        self._said = said
        self._prior = prior
        self._base = prior.say(said.columns)
        self._deviation = prior.deviation(self._base)
        self._shown = prior.show(said.columns)
        self._bias = prior.bias[said.rows] if prior.fitted else np.float32(0)  # of what they propose
        self._scale = np.sqrt(prior.vector_variance)
        self._sizes = dim, self._shown.shape[1], 1, 1, prior.traits.shape[1]
        self._weights = self._split(np.zeros(sum(self._sizes)))
        self._factor = Cholesky()
        self._known = np.empty((0, sum(self._sizes)))  # Φ
        self._gamma = np.empty(0)  # γ of the scored rows
        self._level, self._spread = 0.0, 1.0  # of scores that are 0 and 1 to the prior
        self._scores: Scores = np.empty(0, np.float32)

    def __len__(self) -> int:
        """How many scores it knows."""
        return len(self._known)

    def learn(self, rows: Rows, profiles: Vectors, scores: Scores) -> None:
        """Correct it by the scores of these rows."""
        fresh = self._features(rows, profiles)
        noise = self._prior.noise * np.eye(len(rows))
        self._factor.append(self._known @ fresh.T, fresh @ fresh.T + noise)
        self._known = np.concatenate([self._known, fresh])
        self.means = np.concatenate([self.means, self._mean(rows, profiles)])
        self._gamma = np.concatenate([self._gamma, self._deviation[self._said.places(rows)]])
        self._scores = np.concatenate([self._scores, scores])
        self._weights = self._split(self._factor.solve(self._residuals()) @ self._known)

    def _split(self, weights: Array) -> list[Scores]:
        """Weights of the vector, of what retrievers say, of the bias, of the constant, of the traits."""
        return np.split(weights.astype(np.float32), np.cumsum(self._sizes)[:-1])

    def _residuals(self) -> Array:
        """r, on the prior's scale; one that is general takes it from all scores so far."""
        mean, scores = self.means.astype(np.float64), self._scores.astype(np.float64)
        if not self._prior.fitted:
            self._spread = float(scores.std()) if varies(scores) else 1.0
            self._level = float(scores.mean()) - self._spread * float(mean.mean())
        residuals: Array = ((scores - self._level) / self._spread - mean) / self._gamma
        return residuals

    @property
    def query(self) -> Scores:
        """What an item's profile is multiplied with, to tell the posterior mean of what retrievers do not propose."""
        vector, _, bias, _, traits = self._weights
        parts = [np.float32(self._scale) * vector]
        if self._prior.fitted:
            parts += [traits, bias * np.float32(self._prior.bias_scale) + 1 / self._deviation[-1:]]
        return np.concatenate(parts)

    def expect_others(self, products: Scores) -> Scores:
        """The posterior mean of rows that no retriever proposes, from the products of `query` and their profiles."""
        return self._expect(-1, products, np.float32(0))

    def expect_proposed(self, products: Scores) -> Scores:
        """The same of `rows`."""
        return self._expect(slice(-1), products, self._bias)

    def expect(self, rows: Rows, profiles: Vectors) -> Scores:
        """The same of any rows."""
        bias = profiles[:, -1] if self._prior.fitted else np.float32(0)
        return self._expect(self._said.places(rows), profiles @ self.query, bias)

    def _expect(self, places: Any, products: Scores, bias: Any) -> Scores:
        """A product has the bias over the γ of others in it: here it counts once, whatever γ is."""
        deviation = self._deviation[places]
        _, said, _, constant, _ = self._weights
        said = self._shown[places] @ said + constant * np.float32(self._prior.constant)
        expected = self._base[places] + deviation * (products + said) + bias * (1 - deviation / self._deviation[-1])
        scaled: Scores = expected * np.float32(self._spread) + np.float32(self._level)
        return scaled

    def deviations(self, rows: Rows, profiles: Vectors) -> Scores:
        """How far the scores of these rows are expected off their posterior means; rows that it knows stay unsure."""
        features = self._features(rows, profiles)
        known = self._factor.explain(self._known @ features.T)
        left = np.maximum(np.einsum("ij,ij->i", features, features) - known, 0) + self._prior.noise
        deviation = self._deviation[self._said.places(rows)]
        deviations: Scores = (self._spread * deviation * np.sqrt(left)).astype(np.float32)
        return deviations

    def temper(self, means: Scores, deviations: Scores) -> tuple[Array, Array]:
        """Means and deviations as they are believed far from what was scored, too.

        A general prior does not know how low scores go. Most items have about the lowest score that was seen, and those
        vary less: means fall towards it ever more slowly, and variances with their slope.
        """
        if self._prior.fitted:
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
        dim, columns = self._sizes[:2]
        said = self._known[:, [*range(dim, dim + columns), dim + columns + 1]]  # what retrievers say, and the constant
        rest = self._prior.noise + float(np.mean(np.sum(self._known**2, 1) - np.sum(said**2, 1)))
        plain = _log_likelihood(*_solve_narrow(said, rest, residuals), len(self))
        return _log_likelihood(float(square), volume, len(self)) - plain

    def agrees(self) -> bool:
        """Whether scores rise with what was expected before any was seen."""
        mean = self.means.astype(np.float64)
        return bool((mean - mean.mean()) @ (self._scores - self._scores.mean(dtype=np.float64)) > 0)

    def _mean(self, rows: Rows, profiles: Vectors) -> Scores:
        mean: Scores = self._base[self._said.places(rows)]
        return mean + profiles[:, -1] if self._prior.fitted else mean

    def _features(self, rows: Rows, profiles: Vectors) -> Array:
        """(rows, features) φ: the vector, what retrievers say, the bias, the constant, the traits."""
        dim, ones = self._sizes[0], np.ones((len(rows), 1))
        bias = profiles[:, -1:] if self._prior.fitted else 0 * ones
        traits = profiles[:, dim:-1] if self._prior.fitted else ones[:, :0]
        said = self._shown[self._said.places(rows)]
        parts = [
            self._scale * profiles[:, :dim],
            said,
            self._prior.bias_scale * bias,
            self._prior.constant * ones,
            traits,
        ]
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
