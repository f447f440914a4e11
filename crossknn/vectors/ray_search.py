"""Shards of vectors held and searched by actors of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive
from crossknn.engines.ray import RayEngine
from crossknn.engines.ray_workers import first_line
from crossknn.errors import EngineError, InputError
from crossknn.types import Mask, Rows, Scores, Vectors
from crossknn.vectors.base import BaseSearch, Found, RowLists
from crossknn.vectors.exact import ExactSearch
from crossknn.vectors.sharded import ShardedSearch, cut_rows

if TYPE_CHECKING:
    import torch

Open = Callable[[], "NDArray[Any] | torch.Tensor"]
"""Returns all vectors, as `functools.partial(load_vectors, "vectors.npy")` does; called on the node of every shard."""
MAX_RESTARTS: Final = 3  # of an actor, on any node that has room, before its shard is lost


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

    def process(self) -> int:
        """The process id."""
        return os.getpid()

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
        """The same search with columns, each (items, width), appended to every vector."""
        self._check_columns(columns)
        nonempty = [column for column in columns if column.shape[1]]
        dim = self.dim + sum(column.shape[1] for column in nonempty)
        references = [self._ray.put(np.ascontiguousarray(column)) for column in nonempty]
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
