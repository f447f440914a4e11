"""The words of the project as types: arrays, proposals, and the protocols that users implement."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from crossknn.items.items import Items

Rows = NDArray[np.int64]  # positions of items, 0 ≤ row < len(items)
Scores = NDArray[np.float32]  # the scorer's raw logits, or estimates of them
Vectors = NDArray[np.float32]  # (n, dim)
Mask = NDArray[np.bool_]  # (items,), True where an item may be found

Progress = Callable[[str, int, int], None]
"""Called as `progress(step, done, total)` while long work runs; the library itself never prints."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Rows proposed for one query, best first, each with the proposer's own estimate.

    `deviations` says how far each score is expected from its estimate, where the proposer knows.
    """

    rows: Rows
    estimates: Scores
    deviations: Scores | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def first(self, n: int) -> Proposal:
        """The best `n` rows."""
        return Proposal(self.rows[:n], self.estimates[:n], None if self.deviations is None else self.deviations[:n])


EMPTY_PROPOSAL = Proposal(np.empty(0, np.int64), np.empty(0, np.float32))


@runtime_checkable
class Scorer(Protocol):
    """A cross-encoder as a black box. `crossknn.testing.check_scorer` holds an implementation to this."""

    @property
    def fingerprint(self) -> str:
        """Equal for two scorers if and only if they give the same score to every pair."""

    def score(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        """One raw logit per pair `(queries[i], items[i])`: float32, finite, in the order given."""


@runtime_checkable
class SharedScorer(Protocol):
    """A scorer that merges the calls of many threads itself: a searcher does not call it by one thread at a time."""

    def for_caller(self, cancelled: threading.Event | None = None, ends: float | None = None) -> Scorer:
        """The scorer of one caller.

        What it asked for is given up with an error once `cancelled` is set, and with `TooLate` where it does not come
        soon after `ends`, by `time.monotonic`.
        """


@runtime_checkable
class Encoder(Protocol):
    """A dual encoder. `crossknn.testing.check_encoder` holds an implementation to this."""

    @property
    def fingerprint(self) -> str:
        """Equal for two encoders if and only if they give the same vector to every text."""

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """(texts, dim) float32."""

    def encode_items(self, texts: Sequence[str]) -> Vectors:
        """(texts, dim) float32, in the same space as the queries."""


@runtime_checkable
class Retriever(Protocol):
    """Proposes rows before any call. `crossknn.testing.check_retriever` holds an implementation to this."""

    @property
    def name(self) -> str:
        """How strategies and hits refer to it."""

    def fit(self, items: Items) -> Self:
        """Learn what is needed from the items; returns itself. Called once, before `retrieve`."""

    def retrieve(self, queries: Sequence[str], n: int, *, allowed: Mask | None = None) -> list[Proposal]:
        """For each query at most `n` distinct rows, best first, all of them `allowed`."""


@runtime_checkable
class VectorSearch(Protocol):
    """Top rows by inner product. `crossknn.testing.check_vector_search` holds an implementation to this."""

    dim: int

    def __len__(self) -> int:
        """How many vectors there are; row `i` is the vector of item `i`."""

    def search(
        self,
        queries: NDArray[Any],
        n: int,
        *,
        exclude: Sequence[Rows] | None = None,
        allowed: Mask | None = None,
    ) -> list[Proposal]:
        """For each query vector the `n` rows of largest inner product; ties go to the lower row.

        `exclude` holds one array of rows per query. Fewer than `n` rows come back where fewer are left.
        """

    def take(self, rows: Rows) -> Vectors:
        """(rows, dim) float32: the vectors of these rows."""

    def estimates(self, queries: NDArray[Any]) -> Scores:
        """(queries, items) float32: the inner product with every item."""


@runtime_checkable
class CandidateSearch(VectorSearch, Protocol):
    """A search that looks at all vectors, and can tell the inner products of some in the same pass."""

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


@runtime_checkable
class AugmentableSearch(VectorSearch, Protocol):
    """A search that can have further columns beside its vectors."""

    def beside(self, *columns: NDArray[Any]) -> VectorSearch:
        """The same search where every vector goes on with these columns, each (items, some)."""


Job = tuple[int, tuple[Any, ...]]
"""Its number, and what a function is called with beside the model."""

Model = TypeVar("Model", bound=Scorer | Encoder)
Result = TypeVar("Result")


@runtime_checkable
class Engine(Protocol):
    """Where the models of a build run. `crossknn.testing.check_engine` holds an implementation to this."""

    def check(self, *models: Scorer | Encoder) -> None:
        """An error if these models cannot run there; called before anything is paid for."""

    def run(
        self, function: Callable[..., Result], model: Model, jobs: Iterable[Job]
    ) -> Generator[tuple[int, Result], None, None]:
        """The number and the result of `function(model, *arguments)` of every job, as they are done, in any order.

        Jobs are taken as there is room for them, so they may be made as they are asked for. An error of the function
        is raised as it is, after the results that have come by then. Closing the generator ends all work.
        """
