"""A search over vectors that go on with further columns, where the search itself cannot have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossknn.types import Mask, Proposal, Rows, Scores, Vectors, VectorSearch
from crossknn.vectors.ranking import top_rows


class AugmentedSearch:
    """`search` with these columns, each (items, some), behind every vector. It looks at every item."""

    def __init__(self, search: VectorSearch, *columns: NDArray[Any]) -> None:
        self._search = search
        self._columns = np.concatenate(columns, axis=1).astype(np.float32)
        self.dim = search.dim + self._columns.shape[1]

    def __len__(self) -> int:
        return len(self._search)

    def take(self, rows: Rows) -> Vectors:
        return np.concatenate([self._search.take(rows), self._columns[rows]], axis=1)

    def estimates(self, queries: NDArray[Any]) -> Scores:
        narrow, rest = np.split(np.asarray(queries, np.float32), [self._search.dim], axis=1)
        products: Scores = self._search.estimates(narrow) + rest @ self._columns.T
        return products

    def search(
        self,
        queries: NDArray[Any],
        n: int,
        *,
        exclude: Sequence[Rows] | None = None,
        allowed: Mask | None = None,
    ) -> list[Proposal]:
        products = self.estimates(queries)
        for line, rows in zip(products, exclude or (), strict=False):
            line[rows] = -np.inf
        return [top_rows(line, n, allowed) for line in products]
