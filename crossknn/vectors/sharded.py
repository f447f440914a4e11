"""A search over vectors in several places: each part holds a range of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive
from crossknn.errors import InputError
from crossknn.types import EMPTY_PROPOSAL, AugmentableSearch, Mask, Proposal, Rows, Scores, Vectors, VectorSearch
from crossknn.vectors.augmented import AugmentedSearch
from crossknn.vectors.base import check_limits
from crossknn.vectors.device import search_with_candidates
from crossknn.vectors.exact import BLOCK_ROWS, ExactSearch
from crossknn.vectors.ranking import order_rows

if TYPE_CHECKING:
    import torch

Found = TypeVar("Found")


class ShardedSearch:
    """Several searches as one: the rows of a part follow those of the part before it.

    What is found is what one search over all vectors finds. Parts are asked at the same time, each by a thread of its
    own, or with `at_once=1` one after the other.
    """

    def __init__(self, parts: Sequence[VectorSearch], *, at_once: int | None = None) -> None:
        if not parts:
            raise InputError("parts must hold at least one search.")
        if len({part.dim for part in parts}) > 1:
            raise InputError(f"all parts must have the same dimension. Got {[part.dim for part in parts]} instead.")
        if at_once is not None:
            check_positive("at_once", at_once)
        self.parts = tuple(parts)
        self.dim = parts[0].dim
        self._at_once = min(at_once or len(parts), len(parts))
        self._starts = np.cumsum([0, *(len(part) for part in parts)])

    @classmethod
    def split(cls, vectors: NDArray[Any] | torch.Tensor, shards: int, *, device: str | None = None) -> ShardedSearch:
        """Exact search over `vectors`, memory-mapped or not, shard by shard.

        Shards end where a block of exact search ends, so that every inner product is the same to the last bit.
        """
        check_positive("shards", shards)
        parts = [ExactSearch(vectors[start:stop], device=device) for start, stop in cut_rows(len(vectors), shards)]
        return cls(parts, at_once=1)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def beside(self, *columns: NDArray[Any]) -> ShardedSearch:
        """The same search where every vector goes on with these columns, each (items, some)."""
        if any(len(column) != len(self) for column in columns):
            raise InputError(f"columns beside the vectors must have a line for every item ({len(self)}).")
        wider = [
            part.beside(*mine) if isinstance(part, AugmentableSearch) else AugmentedSearch(part, *mine)
            for part, *mine in zip(self.parts, *(self._split(column) for column in columns), strict=True)
        ]
        return ShardedSearch(wider, at_once=self._at_once)

    def close(self) -> None:
        """End what parts that are elsewhere have begun there; nothing can be searched any more."""
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
        return np.concatenate(self._ask(lambda part, _: part.estimates(queries)), axis=1)

    def search(
        self,
        queries: NDArray[Any],
        n: int,
        *,
        exclude: Sequence[Rows] | None = None,
        allowed: Mask | None = None,
    ) -> list[Proposal]:
        check_limits(self, len(queries), allowed=allowed, exclude=exclude)

        def ask(part: VectorSearch, number: int) -> list[Proposal]:
            hidden = None if exclude is None else self._mine(exclude, number)
            return part.search(queries, n, exclude=hidden, allowed=self._split(allowed)[number])

        return self._merge(self._ask(ask), n)

    def search_with_candidates(
        self,
        queries: NDArray[Any],
        n: int,
        apart: Sequence[Rows] | None,
        *,
        exclude: Sequence[Rows] | None = None,
        allowed: Mask | None = None,
    ) -> tuple[list[Proposal], list[Scores]]:
        """`search` among the rows that are not `apart`, and each query's inner products with those that are."""
        check_limits(self, len(queries), allowed=allowed, exclude=exclude, apart=apart)
        nothing = [EMPTY_PROPOSAL.rows] * len(queries)
        places = [self._places(rows) for rows in apart or nothing]

        def ask(part: VectorSearch, number: int) -> tuple[list[Proposal], list[Scores]]:
            mine, hidden = (self._mine(rows or nothing, number) for rows in (apart, exclude))
            return search_with_candidates(part, queries, n, mine, exclude=hidden, allowed=self._split(allowed)[number])

        answers = self._ask(ask)
        products = [np.empty(len(rows), np.float32) for rows in apart or nothing]
        for number, (_, told) in enumerate(answers):
            for line, where, values in zip(products, places, told, strict=True):
                line[where[number]] = values
        return self._merge([found for found, _ in answers], n), products

    def _ask(self, ask: Callable[[Any, int], Found]) -> list[Found]:
        """What every part answers, given its number."""
        numbers = range(len(self.parts))
        if self._at_once == 1:
            return [ask(part, number) for part, number in zip(self.parts, numbers, strict=True)]
        with ThreadPoolExecutor(self._at_once) as threads:
            return list(threads.map(ask, self.parts, numbers))

    def _merge(self, answers: Sequence[Sequence[Proposal]], n: int) -> list[Proposal]:
        """The best of all parts for every query."""
        merged = []
        for found in zip(*answers, strict=True):
            rows = np.concatenate([one.rows + start for one, start in zip(found, self._starts[:-1], strict=True)])
            merged.append(order_rows(rows, np.concatenate([one.estimates for one in found])).first(n))
        return merged

    def _places(self, rows: Rows) -> list[Rows]:
        """For each part the places of its rows among these."""
        owner = np.searchsorted(self._starts, rows, side="right") - 1
        return [np.flatnonzero(owner == number) for number in range(len(self.parts))]

    def _mine(self, rows: Sequence[Rows], number: int) -> list[Rows]:
        """Of each query's rows those of a part, as it counts them."""
        start, stop = self._starts[number : number + 2]
        return [one[(one >= start) & (one < stop)] - start for one in (np.asarray(one, np.int64) for one in rows)]

    def _split(self, values: Any) -> list[Any]:
        """What has a line for every item, cut by part."""
        if values is None:
            return [None] * len(self.parts)
        return [values[start:stop] for start, stop in pairwise(self._starts)]


def cut_rows(rows: int, shards: int) -> list[tuple[int, int]]:
    """At most so many ranges of about the same length, each but the last a whole number of blocks."""
    blocks = -(-rows // BLOCK_ROWS)
    size = -(-blocks // min(shards, blocks)) * BLOCK_ROWS
    return [(start, min(start + size, rows)) for start in range(0, rows, size)]
