"""Exhaustive search over vectors with appended columns, for searches that cannot append them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossknn.types import Mask, Proposal, Rows, Scores, Vectors, VectorSearch
from crossknn.vectors.base import BaseSearch, candidate_products
from crossknn.vectors.ranking import top_rows


class AugmentedSearch(BaseSearch):
    """`search` with columns, each (items, width), appended to every vector; computes all inner products."""

    def __init__(self, search: VectorSearch, *columns: NDArray[Any]) -> None:
        self._items = search
        self._columns = np.concatenate(columns, axis=1).astype(np.float32)
        self.dim = search.dim + self._columns.shape[1]

    def __len__(self) -> int:
        return len(self._items)

    def take(self, rows: Rows) -> Vectors:
        return np.concatenate([self._items.take(rows), self._columns[rows]], axis=1)

    def estimates(self, queries: NDArray[Any]) -> Scores:
        narrow, rest = np.split(np.asarray(queries, np.float32), [self._items.dim], axis=1)
        products: Scores = self._items.estimates(narrow) + rest @ self._columns.T
        return products

    def _search(
        self, queries: Vectors, n: int, candidates: Sequence[Rows], exclude: Sequence[Rows], allowed: Mask | None
    ) -> tuple[list[Proposal], list[Scores]]:
        products = self.estimates(queries)
        for values, *hidden in zip(products, candidates, exclude, strict=True):
            values[np.concatenate(hidden)] = -np.inf
        found = [top_rows(values, n, allowed) for values in products]
        return found, candidate_products(self, queries, candidates)
