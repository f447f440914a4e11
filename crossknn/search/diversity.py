"""Maximal marginal relevance (Carbonell and Goldstein, 1998): hits that are relevant and unlike each other."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from crossknn.types import Rows, Vectors

POOL, POOL_PER_HIT = 1_000, 10  # how many of the most relevant items are looked at: the larger of both limits
MIN_NORM: Final = 1e-12


def pool_size(k: int) -> int:
    """How many of the most relevant items are candidates for `k` hits."""
    return max(POOL, POOL_PER_HIT * k)


def diversify(relevance: NDArray[Any], vectors: Vectors, k: int, diversity: float) -> Rows:
    """Positions of `k` items, most relevant first, then greedily the largest marginal relevance.

    That of item i is `(1 − diversity) · r_i − diversity · max_j cos(v_i, v_j)` over the chosen items j, with the
    relevance r scaled to between 0 and 1. Ties go to the item that comes first.
    """
    wide = np.asarray(relevance, np.float64)
    spread = np.ptp(wide) if len(wide) else 0.0
    scaled = (wide - wide.min()) / spread if spread > 0 else np.zeros(len(wide))
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), MIN_NORM)
    chosen: list[int] = []
    similarity = np.full(len(wide), -np.inf)  # to the most similar item that was chosen
    open_ = np.ones(len(wide), np.bool_)
    for _ in range(min(k, len(wide))):
        marginal = (1 - diversity) * scaled - diversity * similarity if chosen else scaled
        chosen.append(int(np.argmax(np.where(open_, marginal, -np.inf))))
        open_[chosen[-1]] = False
        similarity = np.maximum(similarity, units @ units[chosen[-1]])
    return np.array(chosen, np.int64)
