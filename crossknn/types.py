"""Shared types: arrays, proposals, and the protocols that users implement."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from crossknn.items.items import Items

Rows = NDArray[np.int64]  # positions of items, 0 ≤ row < len(items)
Scores = NDArray[np.float32]  # the scorer's raw logits, or estimates of them
Vectors = NDArray[np.float32]  # (n, dim)
Mask = NDArray[np.bool_]  # (items,), True where an item is allowed

Filter = Mapping[str, Any] | Collection[str | int] | Callable[[str], bool]
"""Which items may be found: conditions on their fields, their ids, or a predicate on ids. It holds in every round."""

Progress = Callable[[str, int, int], None]
"""Called as `progress(step, done, total)` during long work."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Rows proposed for one query, best first.

    Attributes:
        rows: (n,) the proposed rows.
        estimates: (n,) the proposer's estimate of each row's score.
        deviations: (n,) the standard deviation of each score around its estimate, where the proposer knows it.
    """

    rows: Rows
    estimates: Scores
    deviations: Scores | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def first(self, n: int) -> Proposal:
        """The best `n` rows."""
        return Proposal(self.rows[:n], self.estimates[:n], None if self.deviations is None else self.deviations[:n])

    def without(self, row: int) -> Proposal:
        """The proposal without one row."""
        kept = self.rows != row
        return Proposal(
            self.rows[kept], self.estimates[kept], None if self.deviations is None else self.deviations[kept]
        )


EMPTY_PROPOSAL = Proposal(np.empty(0, np.int64), np.empty(0, np.float32))


@runtime_checkable
class Scorer(Protocol):
    """A cross-encoder as a black box. `crossknn.testing.check_scorer` checks an implementation."""

    @property
    def fingerprint(self) -> str:
        """Equal for two scorers if and only if they give the same score to every pair."""

    def score(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        """One raw logit per pair `(queries[i], items[i])`: float32, finite, in the order given."""


@runtime_checkable
class AsyncScorer(Scorer, Protocol):
    """A scorer that waits for its scores elsewhere, such as on a server."""

    async def ascore(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        """What `score` returns. Searches on one event loop await it at the same time, without a thread each."""


@runtime_checkable
class SharedScorer(Protocol):
    """A scorer that batches the calls of many threads itself, so that a searcher need not serialize them."""

    def for_caller(self, cancelled: threading.Event | None = None, ends: float | None = None) -> Scorer:
        """The scorer of one caller, whose pending calls end with an error once `cancelled` is set.

        Soon after the time `ends`, by `time.monotonic`, they end with `TooLate`.
        """


@runtime_checkable
class Encoder(Protocol):
    """A dual encoder. `crossknn.testing.check_encoder` checks an implementation."""

    @property
    def fingerprint(self) -> str:
        """Equal for two encoders if and only if they give the same vector to every text."""

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """(texts, dim) float32."""

    def encode_items(self, texts: Sequence[str]) -> Vectors:
        """(texts, dim) float32, in the same space as the queries."""


@runtime_checkable
class Retriever(Protocol):
    """Proposes rows before any call. `crossknn.testing.check_retriever` checks an implementation."""

    @property
    def name(self) -> str:
        """The name by which strategies and hits refer to it."""

    def fit(self, items: Items) -> Self:
        """Learn from the items and return itself. Called once, before `retrieve`."""

    def retrieve(self, queries: Sequence[str], n: int, *, allowed: Mask | None = None) -> list[Proposal]:
        """For each query at most `n` distinct rows, best first, all of them `allowed`."""


@runtime_checkable
class VectorSearch(Protocol):
    """Top-k by inner product. `crossknn.testing.check_vector_search` checks an implementation."""

    dim: int

    def __len__(self) -> int:
        """The number of vectors; row `i` is the vector of item `i`."""

    def search(
        self, queries: NDArray[Any], n: int, *, exclude: Sequence[Rows] | None = None, allowed: Mask | None = None
    ) -> list[Proposal]:
        """For each query vector the `n` rows of largest inner product, or all that are left; ties go to the lower row.

        `exclude` has one array of rows per query that must not be found, `allowed` is True for rows that may be.
        """

    def take(self, rows: Rows) -> Vectors:
        """(rows, dim) float32: the vectors of these rows."""

    def estimates(self, queries: NDArray[Any]) -> Scores:
        """(queries, items) float32: the inner product with every item."""


@runtime_checkable
class CandidateSearch(VectorSearch, Protocol):
    """A search that also returns the inner products of given candidates, in the same pass."""

    def search_with_candidates(
        self,
        queries: NDArray[Any],
        n: int,
        candidates: Sequence[Rows] | None,
        *,
        exclude: Sequence[Rows] | None = None,
        allowed: Mask | None = None,
    ) -> tuple[list[Proposal], list[Scores]]:
        """`search` among the rows that are not candidates, and each query's inner products with its candidates.

        `candidates` holds one array of rows per query, which need not be allowed.
        """


@runtime_checkable
class AugmentableSearch(VectorSearch, Protocol):
    """A search that can append columns to its vectors."""

    def with_columns(self, *columns: NDArray[Any]) -> VectorSearch:
        """The same search with columns, each (items, width), appended to every vector."""


@runtime_checkable
class Store(VectorSearch, Protocol):
    """A collection of items with vectors in a database. `crossknn.testing.check_store` checks an implementation.

    Its rows are those of `items`, and stay the same whatever is added to the collection. `items.mask(filter)` gives a
    `ConditionMask`, which holds the conditions on fields: a store applies them itself where it can express them.
    Where it cannot hold further columns (`AugmentableSearch`), the posterior mean orders the rows that it proposes.
    """

    @property
    def items(self) -> Items:
        """The ids of the rows, with texts and fields, which may be read when they are needed."""


Job = tuple[int, tuple[Any, ...]]
"""A job's number, and the arguments of its function after the model."""

Model = TypeVar("Model", bound=Scorer | Encoder)
Result = TypeVar("Result")


@runtime_checkable
class Engine(Protocol):
    """Where the models of a build run. `crossknn.testing.check_engine` checks an implementation."""

    def check(self, *models: Scorer | Encoder) -> None:
        """Raise an error if these models cannot run there; called before any costly work."""

    def run(
        self, function: Callable[..., Result], model: Model, jobs: Iterable[Job]
    ) -> Generator[tuple[int, Result], None, None]:
        """The number and the result of `function(model, *arguments)` of every job, in order of completion.

        Jobs are consumed lazily, as there is room for them. An error of the function is raised unchanged, after the
        results that came before it. Closing the generator ends all work.
        """
