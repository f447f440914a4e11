"""Batches of texts of like length, for models that pad them to the longest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from crossknn.types import Rows


def cut_alike(lengths: NDArray[np.int64], batch_tokens: int, *, least: int = 1) -> Iterator[Rows]:
    """Positions, longest first: rows × longest ≤ `batch_tokens`, but at least `least` rows where there are so many."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        rows = max(least, batch_tokens // max(1, int(lengths[order[start]])))
        yield order[start : start + rows]
        start += rows
