"""Exact search round after round, for queries that each have rows apart, without leaving the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from crossknn.apart import FoundApart
from crossknn.types import Mask, Rows
from crossknn.vectors.pairs import Pairs

if TYPE_CHECKING:
    from crossknn.vectors.exact import ExactSearch

GROUP = 256  # queries that are searched together


class ExactApart:
    """`ExactSearch` among the rows that are not apart; what is apart is sorted once for all rounds."""

    def __init__(self, search: ExactSearch, rows: Sequence[Rows]) -> None:
        self._search = search
        self.device = search.device
        self._groups = [self._pairs(rows[start : start + GROUP]) for start in range(0, max(len(rows), 1), GROUP)]
        self._width = max((len(mine) for mine in rows), default=0)

    def search(self, queries: torch.Tensor, n: int, *, exclude: Sequence[Rows], allowed: Mask | None) -> FoundApart:
        """The `n` best rows of each query, and its products with the rows that are apart."""
        found = []
        for number, apart in enumerate(self._groups):
            part = slice(number * GROUP, (number + 1) * GROUP)
            hidden = self._pairs(exclude[part])
            rows, best, told = self._search.find(queries[part], n, apart=apart, hidden=hidden, allowed=allowed)
            missing = self._width - told.shape[1]
            found.append((rows, best, torch.nn.functional.pad(told, (0, missing))))
        return FoundApart(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    def take(self, rows: torch.Tensor) -> torch.Tensor:
        return self._search.take_tensor(rows)

    def _pairs(self, rows: Sequence[Rows]) -> Pairs:
        return Pairs(rows, block=self._search.block_rows(len(rows)), device=self.device)
