"""How much of each query's true top k is expected among the rows that were scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from crossknn.vectors.device import to_device

STEEP: Final = torch.pi / 3**0.5  # of a logistic curve of deviation 1
LEVELS: Final = 32  # scores at which rows above them are counted; between them counts are interpolated
PAST: Final = 0.7  # what a round's errors count, of those of the round after it
DOUBT: Final = 20.0  # errors as expected that every query begins with
TINY: Final = 1e-30  # the least deviation


def expected_recall(best: Tensor, wanted: int, means: Tensor, deviations: Tensor, *, each: int = 1) -> Tensor:
    """(queries,) the expected share of the `wanted` best of all rows that is among those scored.

    `best` (queries, at most `wanted`) are the highest scores, highest first, −∞ behind the last; `means`, −∞ behind the
    last, and `deviations` (queries, others) belong to the rows that were not scored, each of which stands for `each`.
    The r-th of `best` is in the top if at most `wanted` − r of the others are above it. How many are is taken as
    Poisson distributed; each of them is above with a chance that has heavier tails than the normal distribution's, as
    scores have.
    """
    found = torch.isfinite(best)
    room = (wanted - torch.arange(best.shape[1], device=best.device)).double().expand(best.shape)
    above = each * _count_above(best.double(), found.sum(1), means, deviations)
    chances: Tensor = torch.special.gammaincc(
        room, above.clamp(min=0)
    )  # of at most room − 1, of Poisson distributed ones
    return chances.masked_fill(~found, 0).sum(1) / wanted


def _count_above(scores: Tensor, counts: Tensor, means: Tensor, deviations: Tensor) -> Tensor:
    """How many of the others are expected above each of these scores, which fall; only the first `counts` are there."""
    steps = torch.linspace(0, 1, LEVELS, dtype=torch.float64, device=scores.device)
    places = (steps * (counts[:, None] - 1).clamp(min=0)).floor().long()
    levels = scores.gather(1, places)[:, :, None]
    off = STEEP * (levels - means[:, None, :]) / deviations[:, None, :].clamp(min=TINY)
    above = torch.sigmoid(-off).nan_to_num(0).sum(2)
    return _interpolate(places, above, scores.shape[1])


def _interpolate(places: Tensor, values: Tensor, width: int) -> Tensor:
    """(lines, width) these values at their places, which rise, and what is between them in proportion."""
    wanted = torch.arange(width, device=places.device).expand(len(places), width).contiguous()
    after = torch.searchsorted(places, wanted, right=True).clamp(max=places.shape[1] - 1)
    before = (after - 1).clamp(min=0)
    (left, low), (right, high) = ((places.gather(1, index), values.gather(1, index)) for index in (before, after))
    share = ((wanted - left) / (right - left).clamp(min=1)).clamp(0, 1)
    return low + share * (high - low)


def scale_errors(errors: Tensor, known: Tensor, rounds: Sequence[int]) -> Tensor:
    """(queries, 1) by how much errors are larger than expected; those of a query's later rounds count more.

    Errors are standardised, (queries, lines); of those `known` so many lines belong to each of the rounds.
    """
    of_round = to_device(np.repeat(np.eye(len(rounds)), rounds, axis=0), errors.device)  # (lines, rounds)
    squares, counts = errors.masked_fill(~known, 0).square() @ of_round, known.double() @ of_round
    there = (counts > 0).double()
    weights = PAST ** (there.sum(1, keepdim=True) - there.cumsum(1))  # by how many rounds with errors are later
    scale = (DOUBT + (weights * squares).sum(1, keepdim=True)) / (DOUBT + (weights * counts).sum(1, keepdim=True))
    return scale.sqrt()
