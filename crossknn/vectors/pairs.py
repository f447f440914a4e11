"""Pairs of queries and rows, in the order in which blocks of rows are looked at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from crossknn.types import Rows


class Pairs:
    """The rows of each query, sorted by the block of `block` rows that they are in, on a device.

    width    the most rows that a query has
    queries  (pairs,) and `rows`
    places   (pairs,) where a pair is in an array of (queries, width) that is flattened
    """

    def __init__(self, rows: Sequence[Rows], *, block: int, device: torch.device) -> None:
        counts = np.array([len(mine) for mine in rows], np.int64)
        self.width = int(counts.max(initial=0))
        flat = np.concatenate([np.empty(0, np.int64), *rows]).astype(np.int64, copy=False)
        lines = np.repeat(np.arange(len(rows)), counts)
        places = np.arange(len(flat)) + np.repeat(
            np.arange(len(rows)) * self.width - np.cumsum(counts) + counts, counts
        )
        order = np.argsort(flat // block, kind="stable")
        self._block = block
        self._ends = np.cumsum(np.bincount(flat // block)) if len(flat) else np.empty(0, np.int64)
        self.queries, self.rows, self.places = (
            torch.from_numpy(array[order]).to(device) for array in (lines, flat, places)
        )

    def within(self, start: int) -> slice:
        """Which of the pairs have a row in the block that begins with this row."""
        number = start // self._block
        if number >= len(self._ends):
            return slice(0, 0)
        return slice(int(self._ends[number - 1]) if number else 0, int(self._ends[number]))
