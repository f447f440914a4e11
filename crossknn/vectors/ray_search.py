"""Shards of vectors that actors of a Ray cluster hold and search."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive
from crossknn.engines.ray import RayEngine
from crossknn.engines.ray_workers import first_line
from crossknn.errors import EngineError, InputError
from crossknn.types import Mask, Proposal, Rows, Scores, Vectors
from crossknn.vectors.exact import ExactSearch
from crossknn.vectors.sharded import ShardedSearch, cut_rows

if TYPE_CHECKING:
    import torch

Open = Callable[[], "NDArray[Any] | torch.Tensor"]
"""Gives all vectors, as `functools.partial(load_vectors, "vectors.npy")` does: called on the node of every shard."""
RESTARTS = 3  # of an actor, on any node that has room, before its shard is lost


def ray_shards(
    open_vectors: Open, *, shards: int, engine: RayEngine | None = None, device: str | None = None
) -> ShardedSearch:
    """Exact search over vectors that Ray actors hold, one shard each, until it is closed.

    `open_vectors` is sent to every node, so it must find the same vectors there. Memory-mapped files are read as far as
    the shard reaches. An actor that is lost is started again, and what it was asked for is asked again.
    """
    check_positive("shards", shards)
    engine = engine or RayEngine()
    ray, room = engine.connect()
    options = {"num_cpus": room.cpus, "num_gpus": room.gpus if device else 0, "scheduling_strategy": "SPREAD"}
    hire = ray.remote(Shard).options(**options, max_restarts=RESTARTS, max_task_retries=RESTARTS).remote
    rows, dim = open_vectors().shape
    parts = [
        RemoteShard(ray, hire(open_vectors, start, stop, device), stop - start, dim)
        for start, stop in cut_rows(rows, shards)
    ]
    for part in parts:
        part.check(rows, dim)
    return ShardedSearch(parts)


class Shard:
    """What runs in an actor's process: exact search over some of the rows."""

    def __init__(self, open_vectors: Open, start: int, stop: int, device: str | None) -> None:
        vectors = open_vectors()
        self._size = tuple(vectors.shape)
        self._narrow = ExactSearch(vectors[start:stop], device=device)
        self._wide: tuple[Any, ExactSearch] | None = None  # by what was put beside the vectors last

    def call(self, beside: list[Any], name: str, *arguments: Any, **options: Any) -> Any:
        """A method of the search, over the vectors with these columns beside them."""
        return getattr(self._search(beside), name)(*arguments, **options)

    def size(self) -> tuple[int, ...]:
        """Of all vectors, as they are on this node."""
        return self._size

    def process(self) -> int:
        """Its number on this node."""
        return os.getpid()

    def _search(self, beside: list[Any]) -> ExactSearch:
        import ray

        if not beside:
            return self._narrow
        if self._wide is None or self._wide[0] != beside:
            self._wide = beside, self._narrow.beside(*ray.get(beside))
        return self._wide[1]


class RemoteShard:
    """A `VectorSearch` whose vectors are with an actor."""

    def __init__(self, ray: Any, actor: Any, rows: int, dim: int, beside: Sequence[Any] = ()) -> None:
        self._ray = ray
        self._actor = actor
        self._rows = rows
        self._beside = list(beside)  # references: an actor that was started again gets them anew
        self.dim = dim

    def __len__(self) -> int:
        return self._rows

    def beside(self, *columns: NDArray[Any]) -> RemoteShard:
        """The same where every vector goes on with these columns."""
        wide = [column for column in columns if column.shape[1]]
        dim = self.dim + sum(column.shape[1] for column in wide)
        references = [self._ray.put(np.ascontiguousarray(column)) for column in wide]
        return RemoteShard(self._ray, self._actor, self._rows, dim, [*self._beside, *references])

    def take(self, rows: Rows) -> Vectors:
        vectors: Vectors = self._call("take", rows)
        return vectors

    def estimates(self, queries: NDArray[Any]) -> Scores:
        products: Scores = self._call("estimates", queries)
        return products

    def search(
        self,
        queries: NDArray[Any],
        n: int,
        *,
        exclude: Sequence[Rows] | None = None,
        allowed: Mask | None = None,
    ) -> list[Proposal]:
        found: list[Proposal] = self._call("search", queries, n, exclude=exclude, allowed=allowed)
        return found

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
        found: tuple[list[Proposal], list[Scores]] = self._call(
            "search_apart", queries, n, apart, exclude=exclude, allowed=allowed
        )
        return found

    def check(self, rows: int, dim: int) -> None:
        """An error unless the actor has vectors of this shape before it."""
        found = self._get(self._actor.size.remote())
        if found != (rows, dim):
            raise InputError(f"the node of a shard must find the vectors of shape {(rows, dim)}. It found {found}.")

    def close(self) -> None:
        """End the actor."""
        self._ray.kill(self._actor)

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        return self._get(self._actor.call.remote(self._beside, name, *arguments, **options))

    def _get(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            raise EngineError(
                f"a shard of the vectors was lost, and could not be opened again {RESTARTS} times "
                f"({first_line(error)}). Make the search anew when the cluster has room for it."
            ) from error
