"""Exact search round after round, for queries that each have rows apart, without leaving the device."""

from __future__ import annotations

import torch
from torch import Tensor

from crossknn.types import Mask
from crossknn.vectors import exact
from crossknn.vectors.device import CandidateSearchResult
from crossknn.vectors.row_blocks import Pairs


class ExactCandidateSearch:
    """`ExactSearch` among the rows that are not apart; what is apart is sorted once for all rounds."""

    def __init__(self, search: exact.ExactSearch, rows: Tensor) -> None:
        self._search = search
        self._groups = [self._pairs(some) for some in torch.split(rows.to(search.device), exact.BLOCK_QUERIES)]

    def search(self, queries: Tensor, n: int, *, exclude: Tensor, allowed: Mask | None) -> CandidateSearchResult:
        """The `n` best rows of each query, and its products with the rows that are apart."""
        found = [
            self._search.find(mine, n, apart=apart, hidden=hidden, allowed=allowed)
            for mine, hidden, apart in zip(
                *(torch.split(one, exact.BLOCK_QUERIES) for one in (queries, exclude)), self._groups, strict=True
            )
        ]
        return CandidateSearchResult(
            *(torch.cat(parts) for parts in zip(*found, strict=True)) if len(found) > 1 else found[0]
        )

    def _pairs(self, rows: Tensor) -> Pairs:
        return Pairs(rows, items=len(self._search), block=self._search.block_rows(len(rows)))
