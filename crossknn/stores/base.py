"""Base class of searches in a store, and search on proposed rows where a store cannot hold further columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import CrossKnnError, StoreError
from crossknn.stores.items import StoreItems
from crossknn.types import EMPTY_PROPOSAL, Mask, Proposal, Rows, Scores, Vectors, VectorSearch
from crossknn.vectors.base import BaseSearch, Found, RowLists, candidate_products
from crossknn.vectors.ranking import order_rows, top_rows

READ_VECTORS: Final = 4_096  # vectors read at once
CACHE_BYTES: Final = 2**28  # of vectors that were read, which rounds need again
OVERSAMPLING: Final = 4  # rows that the store proposes for each row to find, where columns are not in the store
MIN_PROPOSED: Final = 500  # and at least this many
MAX_REASON: Final = 300  # characters of an engine's error message

NO_VECTORS: Final = (EMPTY_PROPOSAL.rows, np.empty((0, 0), np.float32))


class StoreSearch(BaseSearch):
    """Search over the items that a store had when it was opened: a `Store`.

    Row 0 is the first of these items in the store's order, and so on. Vectors that were read are kept in memory, up to
    `CACHE_BYTES`. Subclasses set `items` and `dim`. Several threads may use a search.
    """

    items: StoreItems

    def __init__(self) -> None:
        self._cache: tuple[Rows, Vectors] = NO_VECTORS  # ascending rows, and their vectors

    @abstractmethod
    def _nearest(self, queries: Vectors, n: int, exclude: RowLists, allowed: Mask | None) -> list[Proposal]:
        """For each query the `n` rows of largest inner product, in any order; n ≥ 1."""

    @abstractmethod
    def _read_vectors(self, rows: Rows) -> Vectors:
        """The vectors of distinct rows, at most `READ_VECTORS`, in their order."""

    def __len__(self) -> int:
        return len(self.items)

    def take(self, rows: Rows) -> Vectors:
        distinct, places = np.unique(np.asarray(rows, np.int64), return_inverse=True)
        known, vectors = self._cache
        new = np.setdiff1d(distinct, known, assume_unique=True)
        if len(new):
            read = np.concatenate([*self._read_blocks(new)])
            if 4 * self.dim * (len(known) + len(new)) > CACHE_BYTES:
                kept = np.isin(known, distinct)
                known, vectors = known[kept], vectors[kept]
            vectors = np.concatenate([vectors.reshape(-1, self.dim), read])
            order = np.argsort(known := np.concatenate([known, new]))
            known, vectors = known[order], vectors[order]
            if vectors.nbytes <= CACHE_BYTES:
                self._cache = known, vectors
        return vectors.reshape(-1, self.dim)[np.searchsorted(known, distinct)][places]

    def read_vectors(self, rows: Rows) -> Vectors:
        """`take` of distinct rows, of which nothing is kept in memory."""
        return np.concatenate([np.empty((0, self.dim), np.float32), *self._read_blocks(rows)])

    def estimates(self, queries: NDArray[Any]) -> Scores:
        """(queries, items) float32: the inner product with every item; reads all vectors."""
        vectors = self._check_queries(queries)
        blocks = self._read_blocks(np.arange(len(self)))
        return np.concatenate([vectors @ block.T for block in blocks], axis=1)

    def with_columns(self, *columns: NDArray[Any]) -> VectorSearch:
        """The same search with columns, each (items, width), appended to every vector.

        The store keeps its vectors as they are: rows are proposed by them, and by the columns, and ordered by both.
        """
        self._check_columns(columns)
        return ProposedRowsSearch(self, *columns)

    def _search(self, queries: Vectors, n: int, candidates: RowLists, exclude: RowLists, allowed: Mask | None) -> Found:
        products = candidate_products(self, queries, candidates)
        if n < 1 or not len(queries) or (allowed is not None and not allowed.any()):
            return [EMPTY_PROPOSAL for _ in queries], products
        hidden = [np.concatenate(rows) for rows in zip(candidates, exclude, strict=True)]
        found = self._nearest(queries, n, hidden, allowed)
        if allowed is not None:  # a store may compare values of another type otherwise
            found = [_keep(one, allowed[one.rows]) for one in found]
        return [order_rows(one.rows, one.estimates).first(n) for one in found], products

    def _read_blocks(self, rows: Rows) -> Iterator[Vectors]:
        for start in range(0, len(rows), READ_VECTORS):
            yield self._read_vectors(rows[start : start + READ_VECTORS])


class ProposedRowsSearch(BaseSearch):
    """Search with columns beside a store that does not hold them: the best of the rows proposed by either part.

    For n rows the store proposes `OVERSAMPLING` · n by its vectors, and the columns, which are in memory, propose as
    many; these rows are ordered by the whole inner product. Rows that neither proposes are missed.
    """

    def __init__(self, store: BaseSearch, *columns: NDArray[Any]) -> None:
        self._store = store
        self._columns = np.concatenate(columns, axis=1).astype(np.float32)
        self.dim = store.dim + self._columns.shape[1]

    def __len__(self) -> int:
        return len(self._store)

    def take(self, rows: Rows) -> Vectors:
        return np.concatenate([self._store.take(rows), self._columns[rows]], axis=1)

    def estimates(self, queries: NDArray[Any]) -> Scores:
        stored, rest = self._split(self._check_queries(queries))
        products: Scores = self._store.estimates(stored) + rest @ self._columns.T
        return products

    def _search(self, queries: Vectors, n: int, candidates: RowLists, exclude: RowLists, allowed: Mask | None) -> Found:
        stored, rest = self._split(queries)
        wanted = min(len(self), max(OVERSAMPLING * n, MIN_PROPOSED))
        hidden = [np.concatenate(rows) for rows in zip(candidates, exclude, strict=True)]
        proposed = self._store.search(stored, wanted, exclude=hidden, allowed=allowed)
        found = []
        for query, columns, rows, excluded in zip(queries, rest @ self._columns.T, proposed, hidden, strict=True):
            columns[excluded] = -np.inf
            both = np.union1d(rows.rows, top_rows(columns, wanted, allowed).rows)
            found.append(order_rows(both, self.take(both) @ query).first(n))
        return found, candidate_products(self, queries, candidates)

    def _split(self, queries: Vectors) -> tuple[Vectors, Vectors]:
        return queries[:, : self._store.dim], queries[:, self._store.dim :]


def _keep(found: Proposal, kept: NDArray[np.bool_]) -> Proposal:
    return found if kept.all() else Proposal(found.rows[kept], found.estimates[kept])


@contextmanager
def store_errors(engine: str, name: str) -> Iterator[None]:
    """Turn an engine's own errors into a `StoreError` of one sentence."""
    try:
        yield
    except (CrossKnnError, AttributeError, NameError):
        raise
    except Exception as error:  # engines and their network clients have no base class in common
        reason = " ".join(str(error).split())[:MAX_REASON].rstrip(".") or type(error).__name__
        raise StoreError(f"{engine} cannot answer for {name!r}: {reason}.") from error


def check_all_found(name: str, found: int, expected: int) -> None:
    """Raise `StoreError` where items are gone."""
    if found < expected:
        raise StoreError(f"{expected - found} items of {name!r} were removed since it was opened. Open it again.")
