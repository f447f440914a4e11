"""Base class of vector searches, and what works with any search: appended columns, candidates, recall."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive, invalid
from crossknn.errors import InputError
from crossknn.types import EMPTY_PROPOSAL, CandidateSearch, Mask, Proposal, Rows, Scores, Vectors, VectorSearch
from crossknn.vectors.ranking import top_rows

RowLists = Sequence[Rows]  # one array of rows per query
Found = tuple[list[Proposal], list[Scores]]  # of each query: the best rows, and the inner products with its candidates


class BaseSearch(ABC):
    """A `CandidateSearch` whose subclasses implement `_search` on checked arguments."""

    dim: int

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, rows: Rows) -> Vectors:
        """(rows, dim) float32: the vectors of these rows."""

    @abstractmethod
    def estimates(self, queries: NDArray[Any]) -> Scores:
        """(queries, items) float32: the inner product with every item."""

    @abstractmethod
    def _search(self, queries: Vectors, n: int, candidates: RowLists, exclude: RowLists, allowed: Mask | None) -> Found:
        """`search_with_candidates` with checked arguments."""

    def search(
        self, queries: NDArray[Any], n: int, *, exclude: RowLists | None = None, allowed: Mask | None = None
    ) -> list[Proposal]:
        """For each query vector the `n` rows of largest inner product; ties go to the lower row."""
        return self.search_with_candidates(queries, n, None, exclude=exclude, allowed=allowed)[0]

    def search_with_candidates(
        self,
        queries: NDArray[Any],
        n: int,
        candidates: RowLists | None,
        *,
        exclude: RowLists | None = None,
        allowed: Mask | None = None,
    ) -> Found:
        """`search` among the rows that are not candidates, and each query's inner products with its candidates."""
        vectors = self._check_queries(queries)
        for name, rows in (("candidates", candidates), ("exclude", exclude)):
            if rows is not None and len(rows) != len(vectors):
                raise InputError(f"`{name}` must hold one array of rows per query ({len(vectors)}), got {len(rows)}.")
        if allowed is not None and len(allowed) != len(self):
            raise InputError(f"`allowed` must hold one value per item ({len(self)}), got {len(allowed)}.")
        no_rows = [EMPTY_PROPOSAL.rows] * len(vectors)
        candidates, exclude = (no_rows if rows is None else rows for rows in (candidates, exclude))
        return self._search(vectors, min(n, len(self)), candidates, exclude, allowed)

    def _check_queries(self, queries: NDArray[Any]) -> Vectors:
        """(queries, dim) float32."""
        vectors = np.ascontiguousarray(queries, np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self.dim:
            raise InputError(f"`queries` must have shape (queries, {self.dim}), got {vectors.shape}.")
        if not np.isfinite(vectors).all():
            raise InputError("`queries` must be finite, but the query vectors hold NaN or infinity.")
        return vectors

    def _check_columns(self, columns: Sequence[NDArray[Any]]) -> None:
        for column in columns:
            if column.ndim != 2 or len(column) != len(self):
                raise invalid("columns", f"arrays with one row per item ({len(self)})", column.shape)


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

    def _search(self, queries: Vectors, n: int, candidates: RowLists, exclude: RowLists, allowed: Mask | None) -> Found:
        products = self.estimates(queries)
        for values, *hidden in zip(products, candidates, exclude, strict=True):
            values[np.concatenate(hidden)] = -np.inf
        found = [top_rows(values, n, allowed) for values in products]
        return found, candidate_products(self, queries, candidates)


def search_with_candidates(
    items: VectorSearch, queries: Vectors, n: int, candidates: RowLists, *, exclude: RowLists, allowed: Mask | None
) -> Found:
    """`CandidateSearch.search_with_candidates`, for any search."""
    if isinstance(items, CandidateSearch):
        return items.search_with_candidates(queries, n, candidates, exclude=exclude, allowed=allowed)
    hidden = [np.concatenate(rows) for rows in zip(candidates, exclude, strict=True)]
    return items.search(queries, n, exclude=hidden, allowed=allowed), candidate_products(items, queries, candidates)


def candidate_products(items: VectorSearch, queries: Vectors, candidates: RowLists) -> list[Scores]:
    """The inner products of each query with its candidates."""
    return [
        items.take(rows) @ query if len(rows) else EMPTY_PROPOSAL.estimates
        for rows, query in zip(candidates, queries, strict=True)
    ]


def recall_against_exact(
    search: VectorSearch, exact: VectorSearch, queries: NDArray[Any], n: int
) -> NDArray[np.float64]:
    """(queries,) the fraction of the `n` rows that `exact` finds that `search` finds, too."""
    check_positive("n", n)
    both = zip(search.search(queries, n), exact.search(queries, n), strict=True)
    return np.array([np.isin(true.rows, found.rows).mean() for found, true in both])
