"""Pairs of queries and rows, in the order in which blocks of rows are looked at."""

from __future__ import annotations

import torch
from torch import Tensor


class Pairs:
    """The rows of each query, sorted by the block of `block` rows that they are in, on their device.

    rows  (queries, width); lines are filled up with `items`, the number of items
    """

    def __init__(self, rows: Tensor, *, items: int, block: int) -> None:
        self.width = rows.shape[1]
        queries, columns = torch.nonzero(rows < items, as_tuple=True)
        flat = rows[queries, columns]
        number, order = (flat // block).sort(stable=True)
        self.queries, self.rows = queries[order], flat[order]
        self.places = (queries * self.width + columns)[order]  # in an array of (queries, width) that is flattened
        self._block = block
        self._ends = number.bincount(minlength=1).cumsum(0).tolist()

    def within(self, start: int) -> slice:
        """Which of the pairs have a row in the block that begins with this row."""
        number = start // self._block
        if number >= len(self._ends):
            return slice(0, 0)
        return slice(self._ends[number - 1] if number else 0, self._ends[number])
