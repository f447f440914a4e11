"""Expected recall: the share of each query's true top k among the scored rows, by a Poisson tail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from crossknn.vectors.device import to_device

LOGISTIC_SLOPE: Final = torch.pi / 3**0.5  # of a logistic distribution with standard deviation 1
LEVELS: Final = 32  # scores at which the rows above are counted; counts between them are interpolated
ROUND_DECAY: Final = 0.7  # weight of a round's errors relative to the next round's
PRIOR_ERRORS: Final = 20.0  # pseudo-observations of errors as large as predicted
MIN_STD: Final = 1e-30


def expected_recall(best: Tensor, k: int, means: Tensor, std: Tensor, *, stride: int = 1) -> Tensor:
    """(queries,) the expected share of the true top k that is among the scored rows.

    The r-th best score (from 1) is in the top k if at most k − r unscored rows are above it. Their number is taken as
    Poisson distributed, with mean Σ P(score > best_r). Each score is logistic, whose tails are heavier than a normal
    distribution's, as those of scores are. `best` (queries, at most k) are the highest scores, descending; `means` and
    `std` (queries, n) belong to unscored rows, each of which stands for `stride` rows. Padding is −∞.
    """
    valid = torch.isfinite(best)
    room = (k - torch.arange(best.shape[1], device=best.device)).double().expand(best.shape)
    above = stride * _count_above(best.double(), valid.sum(1), means, std)
    # P(Poisson(above) ≤ room − 1) = Q(room, above), the regularized upper incomplete gamma function
    chances: Tensor = torch.special.gammaincc(room, above.clamp(min=0))
    return chances.masked_fill(~valid, 0).sum(1) / k


def _count_above(scores: Tensor, counts: Tensor, means: Tensor, std: Tensor) -> Tensor:
    """The expected number of unscored rows above each of the descending scores; the first `counts` are valid."""
    fractions = torch.linspace(0, 1, LEVELS, dtype=torch.float64, device=scores.device)
    positions = (fractions * (counts[:, None] - 1).clamp(min=0)).floor().long()
    levels = scores.gather(1, positions)[:, :, None]
    z = LOGISTIC_SLOPE * (levels - means[:, None, :]) / std[:, None, :].clamp(min=MIN_STD)
    above = torch.sigmoid(-z).nan_to_num(0).sum(2)
    return _interpolate(positions, above, scores.shape[1])


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
