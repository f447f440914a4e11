"""Batches of texts with a limit on their tokens: length buckets for padded models, runs for padding-free ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from crossknn.types import Rows


def length_buckets(lengths: NDArray[np.int64], batch_tokens: int, *, min_rows: int = 1) -> Iterator[Rows]:
    """Positions sorted by length, longest first: rows × longest ≤ `batch_tokens`, but at least `min_rows` rows."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        rows = max(min_rows, batch_tokens // max(1, int(lengths[order[start]])))
        yield order[start : start + rows]
        start += rows


def batches_in_order(lengths: NDArray[np.int64], batch_tokens: int) -> Iterator[slice]:
    """Batches in the order given, whose lengths sum to at most `batch_tokens` or which have one row."""
    ends = np.cumsum(lengths)
    start = 0
    while start < len(ends):
        previous = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, previous + batch_tokens, side="right")))
        yield slice(start, end)
        start = end
