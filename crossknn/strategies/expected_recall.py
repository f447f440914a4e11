"""How much of a query's true top k is expected among the rows that were scored."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from crossknn.types import Scores

STEEP: Final = np.pi / np.sqrt(3)  # of a logistic curve of deviation 1
LEVELS: Final = 32  # scores at which rows above them are counted; between them counts are interpolated
PAST: Final = 0.7  # what a round's errors count, of those of the round after it
DOUBT: Final = 20.0  # errors as expected that every query begins with
TINY: Final = 1e-30  # the least deviation

Array = NDArray[np.float64]


def expected_recall(best: Scores, wanted: int, means: Array, deviations: Array, *, each: int = 1) -> float:
    """The expected share of the `wanted` best of all rows that is among those scored.

    `best` are the highest scores, at most `wanted` of them, highest first; `means` and `deviations` belong to the rows
    that were not scored, and `each` of these stands for so many. The r-th of `best` is in the top if at most
    `wanted` − r of the others are above it. How many are is taken as Poisson distributed; each of them is above with a
    chance that has heavier tails than the normal distribution's, as scores have.
    """
    room = wanted - 1 - np.arange(len(best))
    above = each * _count_above(best.astype(np.float64), means, deviations)
    return float(_poisson(room, above).sum() / wanted)


def _count_above(scores: Array, means: Array, deviations: Array) -> Array:
    """How many of the others are expected above each of these scores, which fall."""
    places = np.unique(np.linspace(0, len(scores) - 1, LEVELS).astype(np.int64))
    levels = scores[places]
    off = np.clip(STEEP * (levels[:, None] - means) / np.maximum(deviations, TINY), -500, 500)
    counts: Array = np.interp(np.arange(len(scores)), places, (1 / (1 + np.exp(off))).sum(1))
    return counts


def _poisson(most: NDArray[np.int64], counts: Array) -> Array:
    """The chance of at most `most`, where `counts` are expected."""
    import torch

    chances: Array = torch.special.gammaincc(torch.from_numpy(most + 1.0), torch.from_numpy(counts)).numpy()
    return chances


def scale_errors(rounds: list[Array]) -> float:
    """By how much errors are larger than expected, from the standardised ones of each round; later ones count more."""
    squares, count = DOUBT, DOUBT
    for age, errors in enumerate(reversed(rounds)):
        squares += PAST**age * float(errors @ errors)
        count += PAST**age * len(errors)
    return float(np.sqrt(squares / count))
