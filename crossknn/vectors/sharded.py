"""Vector search over shards, each of which holds a range of the rows, in this process or in actors of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive
from crossknn._threads import map_in_threads
from crossknn.engines.ray import RayEngine, first_line
from crossknn.errors import EngineError, InputError
from crossknn.types import AugmentableSearch, Mask, Proposal, Rows, Scores, Vectors, VectorSearch
from crossknn.vectors.base import AugmentedSearch, BaseSearch, Found, RowLists, search_with_candidates
from crossknn.vectors.exact import BLOCK_ROWS, ExactSearch
from crossknn.vectors.ranking import order_rows

if TYPE_CHECKING:
    import torch

Open = Callable[[], "NDArray[Any] | torch.Tensor"]
"""Returns all vectors, as `functools.partial(load_vectors, "vectors.npy")` does; called on the node of every shard."""
MAX_RESTARTS: Final = 3  # of an actor, on any node that has room, before its shard is lost


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
        return np.concatenate(map_in_threads(lambda part: part.estimates(queries), self.parts, self._threads), axis=1)

    def _search(self, queries: Vectors, n: int, candidates: RowLists, exclude: RowLists, allowed: Mask | None) -> Found:
        masks = [None] * len(self.parts) if allowed is None else self._split(allowed)

        def search_part(number: int) -> Found:
            mine, hidden = (self._rows_of(number, rows) for rows in (candidates, exclude))
            return search_with_candidates(self.parts[number], queries, n, mine, exclude=hidden, allowed=masks[number])

        results = map_in_threads(search_part, range(len(self.parts)), self._threads)
        products = [np.empty(len(rows), np.float32) for rows in candidates]
        places = [self._places(rows) for rows in candidates]
        for number, (_, part_products) in enumerate(results):
            for whole, where, values in zip(products, places, part_products, strict=True):
                whole[where[number]] = values
        return self._merge([found for found, _ in results], n), products

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


def ray_shards(
    open_vectors: Open, *, shards: int, engine: RayEngine | None = None, device: str | None = None
) -> ShardedSearch:
    """Exact search over vectors that Ray actors hold, one shard each, until it is closed.

    An actor that is lost is started again, and its pending calls are repeated.

    Args:
        open_vectors: Called on every node, where it must find the same vectors. Of memory-mapped files each actor
            reads only its shard.
        shards: How many actors at most.
        engine: The cluster. Default: `RayEngine()`.
        device: The torch device of every actor. Default: "cpu".
    """
    check_positive("shards", shards)
    engine = engine or RayEngine()
    ray, room = engine.connect()
    options = {"num_cpus": room.cpus, "num_gpus": room.gpus if device else 0, "scheduling_strategy": "SPREAD"}
    start_actor = ray.remote(Shard).options(**options, max_restarts=MAX_RESTARTS, max_task_retries=MAX_RESTARTS).remote
    rows, dim = open_vectors().shape
    parts = [
        RemoteShard(ray, start_actor(open_vectors, start, stop, device), stop - start, dim)
        for start, stop in cut_rows(rows, shards)
    ]
    for part in parts:
        part.check(rows, dim)
    return ShardedSearch(parts)


class Shard:
    """Exact search over some of the rows, in an actor's process."""

    def __init__(self, open_vectors: Open, start: int, stop: int, device: str | None) -> None:
        vectors = open_vectors()
        self._shape = tuple(vectors.shape)
        self._plain = ExactSearch(vectors[start:stop], device=device)
        self._augmented: tuple[Any, ExactSearch] | None = None  # by the columns appended last

    def call(self, columns: list[Any], method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the search over the vectors with these columns."""
        return getattr(self._search(columns), method)(*arguments, **options)

    def shape(self) -> tuple[int, ...]:
        """The shape of all vectors, as this node finds them."""
        return self._shape

    def _search(self, columns: list[Any]) -> ExactSearch:
        import ray

        if not columns:
            return self._plain
        if self._augmented is None or self._augmented[0] != columns:
            self._augmented = columns, self._plain.with_columns(*ray.get(columns))
        return self._augmented[1]


class RemoteShard(BaseSearch):
    """The search of a shard that an actor holds."""

    def __init__(self, ray: Any, actor: Any, rows: int, dim: int, columns: Sequence[Any] = ()) -> None:
        self._ray = ray
        self._actor = actor
        self._rows = rows
        self._columns = list(columns)  # references, which a restarted actor resolves again
        self.dim = dim

    def __len__(self) -> int:
        return self._rows

    def with_columns(self, *columns: NDArray[Any]) -> RemoteShard:
        dim = self.dim + sum(column.shape[1] for column in columns)
        references = [self._ray.put(np.ascontiguousarray(column)) for column in columns]
        return RemoteShard(self._ray, self._actor, self._rows, dim, [*self._columns, *references])

    def take(self, rows: Rows) -> Vectors:
        vectors: Vectors = self._call("take", rows)
        return vectors

    def estimates(self, queries: NDArray[Any]) -> Scores:
        products: Scores = self._call("estimates", queries)
        return products

    def _search(self, queries: Vectors, n: int, candidates: RowLists, exclude: RowLists, allowed: Mask | None) -> Found:
        found: Found = self._call("search_with_candidates", queries, n, candidates, exclude=exclude, allowed=allowed)
        return found

    def check(self, rows: int, dim: int) -> None:
        """Raise `InputError` unless the actor's node finds vectors of this shape."""
        found = self._get(self._actor.shape.remote())
        if found != (rows, dim):
            raise InputError(f"`open_vectors` must return shape {(rows, dim)} on every node, got {found} on one.")

    def close(self) -> None:
        """End the actor."""
        self._ray.kill(self._actor)

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._get(self._actor.call.remote(self._columns, method, *arguments, **options))

    def _get(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            raise EngineError(
                f"A shard of the vectors was lost and could not be restored in {MAX_RESTARTS} restarts "
                f"({first_line(error)}). Create the search again when the cluster has room for it."
            ) from error
