"""Vector search over shards, each of which holds a range of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive
from crossknn.errors import InputError
from crossknn.types import AugmentableSearch, Mask, Proposal, Rows, Scores, Vectors, VectorSearch
from crossknn.vectors.base import AugmentedSearch, BaseSearch, Found, RowLists, map_in_threads, search_with_candidates
from crossknn.vectors.exact import BLOCK_ROWS, ExactSearch
from crossknn.vectors.ranking import order_rows

if TYPE_CHECKING:
    import torch

Result = TypeVar("Result")


class ShardedSearch(BaseSearch):
    """Several searches as one, with the same results as one search over all vectors.

    Args:
        parts: The searches; the rows of each follow those of the one before it.
        at_once: How many parts are searched at the same time, by one thread each. Default: all.
    """

    def __init__(self, parts: Sequence[VectorSearch], *, at_once: int | None = None) -> None:
        if not parts:
            raise InputError("`parts` must hold at least one search, got none.")
        if len({part.dim for part in parts}) > 1:
            raise InputError(f"`parts` must have the same dimension, got {[part.dim for part in parts]}.")
        if at_once is not None:
            check_positive("at_once", at_once)
        self.parts = tuple(parts)
        self.dim = parts[0].dim
        self._threads = min(at_once or len(parts), len(parts))
        self._starts = np.cumsum([0, *(len(part) for part in parts)])

    @classmethod
    def split(cls, vectors: NDArray[Any] | torch.Tensor, shards: int, *, device: str | None = None) -> ShardedSearch:
        """Exact search over `vectors`, memory-mapped or not, one shard after the other.

        Shards end where a block of exact search ends, so that every inner product is the same to the last bit.
        """
        check_positive("shards", shards)
        parts = [ExactSearch(vectors[start:stop], device=device) for start, stop in cut_rows(len(vectors), shards)]
        return cls(parts, at_once=1)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def with_columns(self, *columns: NDArray[Any]) -> ShardedSearch:
        """The same search with columns, each (items, width), appended to every vector."""
        self._check_columns(columns)
        parts = [
            part.with_columns(*mine) if isinstance(part, AugmentableSearch) else AugmentedSearch(part, *mine)
            for part, *mine in zip(self.parts, *(self._split(column) for column in columns), strict=True)
        ]
        return ShardedSearch(parts, at_once=self._threads)

    def close(self) -> None:
        """Close the parts that can be closed, such as remote ones; the search cannot be used any more."""
        for part in self.parts:
            if hasattr(part, "close"):
                part.close()

    def take(self, rows: Rows) -> Vectors:
        rows = np.asarray(rows, np.int64)
        vectors = np.empty((len(rows), self.dim), np.float32)
        for number, places in enumerate(self._places(rows)):
            if len(places):
                vectors[places] = self.parts[number].take(rows[places] - self._starts[number])
        return vectors

    def estimates(self, queries: NDArray[Any]) -> Scores:
        return np.concatenate(self._map(lambda number: self.parts[number].estimates(queries)), axis=1)

    def _search(self, queries: Vectors, n: int, candidates: RowLists, exclude: RowLists, allowed: Mask | None) -> Found:
        masks = [None] * len(self.parts) if allowed is None else self._split(allowed)

        def search_part(number: int) -> Found:
            mine, hidden = (self._rows_of(number, rows) for rows in (candidates, exclude))
            return search_with_candidates(self.parts[number], queries, n, mine, exclude=hidden, allowed=masks[number])

        results = self._map(search_part)
        products = [np.empty(len(rows), np.float32) for rows in candidates]
        places = [self._places(rows) for rows in candidates]
        for number, (_, part_products) in enumerate(results):
            for whole, where, values in zip(products, places, part_products, strict=True):
                whole[where[number]] = values
        return self._merge([found for found, _ in results], n), products

    def _map(self, function: Callable[[int], Result]) -> list[Result]:
        """`function` of every part's number."""
        return map_in_threads(function, range(len(self.parts)), self._threads)

    def _merge(self, proposals: Sequence[Sequence[Proposal]], n: int) -> list[Proposal]:
        """The best of all parts for every query."""
        merged = []
        for found in zip(*proposals, strict=True):
            rows = np.concatenate([one.rows + start for one, start in zip(found, self._starts[:-1], strict=True)])
            merged.append(order_rows(rows, np.concatenate([one.estimates for one in found])).first(n))
        return merged

    def _places(self, rows: Rows) -> list[Rows]:
        """For each part, the positions of its rows in `rows`."""
        owner = np.searchsorted(self._starts, rows, side="right") - 1
        return [np.flatnonzero(owner == number) for number in range(len(self.parts))]

    def _rows_of(self, number: int, rows: Sequence[Rows]) -> list[Rows]:
        """Of each query's rows those of one part, counted from its start."""
        start, stop = self._starts[number : number + 2]
        return [one[(one >= start) & (one < stop)] - start for one in (np.asarray(one, np.int64) for one in rows)]

    def _split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """An array with one row per item, by part."""
        return [values[start:stop] for start, stop in pairwise(self._starts)]


def cut_rows(rows: int, shards: int) -> list[tuple[int, int]]:
    """At most this many ranges of about the same length, each but the last a whole number of blocks."""
    blocks = -(-rows // BLOCK_ROWS)
    size = -(-blocks // min(shards, blocks)) * BLOCK_ROWS
    return [(start, min(start + size, rows)) for start in range(0, rows, size)]
