"""Diagnostics of the posterior: the model check, and expected recall.

The model check is a marginal-likelihood ratio against a retriever-only model, and a test of rank correlations. Both
come down to a few sums per query, accumulated on the device of the model. The rest is numpy, which is faster for so few
numbers than torch or a GPU. Expected recall is the share of each query's true top k among the scored rows, by a Poisson
tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossknn.strategies.posterior.calibration import RecallCalibration
from crossknn.vectors.device import to_device

Array = NDArray[np.float64]

MIN_SCORES: Final = 10  # for the test of rank correlations
MAX_CORRELATION: Final = 1 - 1e-6  # keeps Fisher's z finite
MIN_MEAN_SQUARE: Final = 1e-12  # of residuals
TARGETS: Final = 3  # the regression targets 1/γ, a/γ and m/γ, of which the residual is a linear combination
LOGISTIC_SLOPE: Final = torch.pi / 3**0.5  # of a logistic distribution with standard deviation 1
LEVELS: Final = 32  # scores at which the rows above are counted; counts between them are interpolated
ROUND_DECAY: Final = 0.7  # weight of a round's errors relative to the next round's
PRIOR_ERRORS: Final = 20.0  # pseudo-observations of errors as large as predicted
MIN_STD: Final = 1e-30


class ModelEvidence:
    """Sufficient statistics of the model check, accumulated over the scores of each query.

    A score a with prior mean m and scale γ has the residual r = c·t, with the targets t = (1, a, m) / γ and
    coefficients c: (0, 1, −1) for a fitted prior, and others where scores are standardized. F are the retriever
    features (signals and constant), Φ all features, and K = Φ Φᵀ + noise I. All attributes are views of one tensor.

    Attributes:
        moments: (queries, n, n) sums of outer products of (F, t, (1, a, m)).
        whitened_targets: (queries, 3, 3) tᵀ K⁻¹ t.
        coefficients: (queries, 3) c.
        feature_trace, log_det: (queries, 1) tr(Φ Φᵀ) and log |K|.
        count, score_sum, mean_sum: (queries, 1) number of scores, sum of a, sum of m.
    """

    def __init__(self, numbers: Any, signal_features: int, noise: float) -> None:
        self._numbers, self._noise = numbers, noise
        self._signals = slice(0, signal_features)
        self._targets = slice(signal_features, signal_features + TARGETS)
        side = signal_features + 2 * TARGETS
        ends = np.cumsum([0, *self._sizes(signal_features)]).tolist()
        moments, whitened, self.coefficients, self.feature_trace, self.log_det = (
            numbers[:, start:end] for start, end in pairwise(ends)
        )
        self.moments = moments.reshape(-1, side, side)
        self.whitened_targets = whitened.reshape(-1, TARGETS, TARGETS)
        self._plain = self.moments[:, -3:, -3:]  # of (1, a, m)
        first = self._plain[:, 0]
        self.count, self.score_sum, self.mean_sum = first[:, 0:1], first[:, 1:2], first[:, 2:3]

    @classmethod
    def empty(cls, queries: int, *, signal_features: int, noise: float, device: torch.device) -> ModelEvidence:
        """Before the first score, with the coefficients of r = (a − m) / γ; tensors."""
        size = sum(cls._sizes(signal_features))
        evidence = cls(torch.zeros((queries, size), dtype=torch.float64, device=device), signal_features, noise)
        evidence.coefficients[:, 1], evidence.coefficients[:, 2] = 1, -1
        return evidence

    @staticmethod
    def _sizes(signal_features: int) -> list[int]:
        return [(signal_features + 2 * TARGETS) ** 2, TARGETS**2, TARGETS, 1, 1]

    def to_numpy(self) -> ModelEvidence:
        """The same as numpy arrays, copied from the device at once."""
        return ModelEvidence(self._numbers.cpu().numpy(), self._signals.stop, self._noise)

    def log_likelihood_ratio(self) -> Array:
        """(queries,) log marginal likelihood of the model minus that of the retriever-only model; numpy only.

        Maximized over a common scale of the covariance, −2 log p(r) = n log(rᵀ K⁻¹ r / n) + log |K| + const. The
        retriever-only model has the features F; the mean variance of the other features becomes noise.
        """
        gram = self.moments[:, self._signals, self._signals]  # Fᵀ F
        projected = self.moments[:, self._signals, self._targets]  # Fᵀ t
        targets = self.moments[:, self._targets, self._targets]  # tᵀ t
        c, count = self.coefficients[:, :, None], np.maximum(self.count, 1)
        noise = self._noise + (self.feature_trace - np.trace(gram, axis1=1, axis2=2)[:, None]) / count
        full, square = ((c.transpose(0, 2, 1) @ sums @ c)[:, 0] for sums in (self.whitened_targets, targets))
        narrow, log_det = _woodbury(gram, projected @ c, noise, square, self.count)
        full, narrow = (np.log(np.maximum(value / count, MIN_MEAN_SQUARE)) for value in (full, narrow))
        ratio: Array = 0.5 * (self.count * (narrow - full) + log_det - self.log_det)
        return ratio[:, 0]

    def correlates_with_prior(self) -> NDArray[np.bool_]:
        """(queries,) whether scores and prior means have a positive covariance; numpy only."""
        cross = self._plain[:, 1, 2:3]  # sum of a·m
        positive: NDArray[np.bool_] = self.count * cross > self.score_sum * self.mean_sum
        return positive[:, 0]


def _woodbury(gram: Array, projected: Array, noise: Array, square: Array, count: Array) -> tuple[Array, Array]:
    """(queries, 1) rᵀ K⁻¹ r and log |K| of K = F Fᵀ + noise I with few columns in F, by the Woodbury identity.

    `gram` is Fᵀ F, `projected` Fᵀ r, `square` rᵀ r, and `count` the number of rows of F.
    """
    width = gram.shape[1]
    factor = np.linalg.cholesky(gram + noise[:, :, None] * np.eye(width))
    solved = np.linalg.solve(factor, projected)
    quadratic = (square - np.square(solved).sum(1)) / noise
    log_det = 2 * np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(1, keepdims=True)
    return quadratic, log_det + (count - width) * np.log(noise)


def order_deficit(estimates: Tensor, baseline: Tensor, scores: Tensor, valid: Tensor) -> Array:
    """(queries,) by how many standard errors `estimates` correlate less with the scores than `baseline` does.

    The difference of Fisher's z of the rank correlations; 0 for fewer than `MIN_SCORES` scores.
    """
    products = _rank_products([baseline, estimates, scores], valid)
    higher, lower = np.arctanh(np.clip(_correlate(products), -MAX_CORRELATION, MAX_CORRELATION))
    count = products[:, -1, -1]
    errors: Array = (higher - lower) * np.sqrt(np.maximum(count - 3, 0) / 2)
    return np.where(count < MIN_SCORES, 0, errors)


def _rank_products(variables: Sequence[Tensor], valid: Tensor) -> Array:
    """(queries, n + 1, n + 1) sums of products of the ranks of any two variables; the last variable is constant 1."""
    values = torch.stack([*variables], 1).masked_fill_(~valid[:, None], torch.inf)
    ranks = torch.cat([_dense_ranks(values) * valid[:, None], valid[:, None]], 1).double()
    return np.asarray(torch.bmm(ranks, ranks.mT).cpu().numpy())


def _correlate(products: Array) -> Array:
    """(n − 1, queries) rank correlations of each variable but the last with the last; 0 where one is constant."""
    sums, count = products[:, :-1, -1:], np.maximum(products[:, -1:, -1:], 1)
    covariance = products[:, :-1, :-1] - sums * sums.transpose(0, 2, 1) / count  # integers, so no digit is lost
    variances = np.diagonal(covariance, axis1=1, axis2=2)
    scales = np.maximum(np.sqrt(variances[:, :-1] * variances[:, -1:]), 1)
    correlations: Array = covariance[:, :-1, -1] / scales
    return correlations.T


def _dense_ranks(values: Tensor) -> Tensor:
    """Dense ranks along the last dimension, from 0: equal values share a rank and none is skipped."""
    ascending, order = values.sort(dim=-1)
    steps = (ascending[..., 1:] > ascending[..., :-1]).cumsum(-1)
    return torch.zeros_like(order).scatter_(-1, order[..., 1:], steps)


def expected_recall(above: Tensor, best: Tensor, k: int, calibration: RecallCalibration | None = None) -> Tensor:
    """(queries,) the expected share of the true top k among the scored rows, from `count_above`.

    The r-th best score (from 1) is in the top k if at most k − r unscored rows are above it. Their number is taken as
    Poisson distributed; a calibration maps its mean to a chance instead.
    """
    valid = torch.isfinite(best)
    room = (k - torch.arange(best.shape[1], device=best.device)).double().expand(best.shape)
    if calibration is None:
        # P(Poisson(above) ≤ room − 1) = Q(room, above), the regularized upper incomplete gamma function
        chances: Tensor = torch.special.gammaincc(room, above)
    else:
        chances = torch.sigmoid(calibration.log_odds(room.log() - above.log()))
    return chances.masked_fill(~valid, 0).sum(1) / k


def count_above(best: Tensor, means: Tensor, std: Tensor, *, stride: int = 1) -> Tensor:
    """(queries, n) the expected number of unscored rows above each of the best scores: Σ P(score > best_r).

    Each score is logistic, whose tails are heavier than a normal distribution's, as those of scores are. `best`
    (queries, n) are the highest scores, descending; `means` and `std` (queries, m) belong to unscored rows, each of
    which stands for `stride` rows. Padding is −∞.
    """
    counts = torch.isfinite(best).sum(1)
    return stride * _count_above(best.double(), counts, means, std).clamp(min=0)


def _count_above(scores: Tensor, counts: Tensor, means: Tensor, std: Tensor) -> Tensor:
    """The expected number of unscored rows above each of the descending scores; the first `counts` are valid."""
    fractions = torch.linspace(0, 1, LEVELS, dtype=torch.float64, device=scores.device)
    positions = (fractions * (counts[:, None] - 1).clamp(min=0)).floor().long()
    levels = scores.gather(1, positions)[:, :, None]
    above = score_above(levels, means[:, None, :], std[:, None, :]).sum(2)
    return _interpolate(positions, above, scores.shape[1])


def score_above(levels: Tensor, means: Tensor, std: Tensor) -> Tensor:
    """The chance of a score above a level, element by element; 0 in the padding."""
    z = LOGISTIC_SLOPE * (levels - means) / std.clamp(min=MIN_STD)
    return torch.sigmoid(-z).nan_to_num(0)


def _interpolate(positions: Tensor, values: Tensor, width: int) -> Tensor:
    """(queries, width) linear interpolation of values at ascending positions."""
    target = torch.arange(width, device=positions.device).expand(len(positions), width).contiguous()
    after = torch.searchsorted(positions, target, right=True).clamp(max=positions.shape[1] - 1)
    before = (after - 1).clamp(min=0)
    (left, low), (right, high) = ((positions.gather(1, index), values.gather(1, index)) for index in (before, after))
    share = ((target - left) / (right - left).clamp(min=1)).clamp(0, 1)
    return low + share * (high - low)


def error_scale(errors: Tensor, valid: Tensor, round_sizes: Sequence[int]) -> Tensor:
    """(queries, 1) root mean square of the standardized errors, (queries, n), with later rounds weighted more."""
    of_round = to_device(np.repeat(np.eye(len(round_sizes)), round_sizes, axis=0), errors.device)  # (n, rounds)
    squares, counts = errors.masked_fill(~valid, 0).square() @ of_round, valid.double() @ of_round
    nonempty = (counts > 0).double()
    weights = ROUND_DECAY ** (nonempty.sum(1, keepdim=True) - nonempty.cumsum(1))  # by the number of later rounds
    squared_error = PRIOR_ERRORS + (weights * squares).sum(1, keepdim=True)
    return (squared_error / (PRIOR_ERRORS + (weights * counts).sum(1, keepdim=True))).sqrt()
