"""Pairs of queries and rows, in the order in which blocks of rows are looked at."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Part(NamedTuple):
    """The pairs of a block.

    spots   of each pair in the block's products, (queries, rows of the block), flattened
    places  in an array of (queries, width), flattened
    """

    spots: Tensor
    places: Tensor


class Pairs:
    """The rows of each query, sorted by the block of `block` rows that they are in, on their device.

    rows  (queries, width); lines are filled up with `items`, the number of items
    """

    def __init__(self, rows: Tensor, *, items: int, block: int) -> None:
        self.width = rows.shape[1]
        self._block = block
        nothing = Part(*rows.new_empty((2, 0)))
        self._parts = self._cut(rows, items) if self.width else [nothing] * -(-items // block)

    def _cut(self, rows: Tensor, items: int) -> list[Part]:
        queries, columns = torch.nonzero(rows < items, as_tuple=True)
        flat = rows[queries, columns]
        number = flat // self._block
        widths = (items - number * self._block).clamp(max=self._block)
        whole = Part(queries * widths + flat % self._block, queries * self.width + columns)
        if items <= self._block:
            return [whole]
        order = number.sort(stable=True).indices
        counts = number.bincount(minlength=-(-items // self._block)).tolist()
        return [Part(*part) for part in zip(*(torch.split(one[order], counts) for one in whole), strict=True)]

    def within(self, start: int) -> Part:
        """Those that have a row in the block that begins with this row."""
        return self._parts[start // self._block]
