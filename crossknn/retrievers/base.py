"""Base classes of retrievers: argument checks, and top-k over all items in parallel over queries."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from crossknn._checks import invalid
from crossknn._threads import map_in_threads
from crossknn.errors import InputError
from crossknn.types import Mask, Proposal, Scores
from crossknn.vectors.ranking import top_rows

if TYPE_CHECKING:
    from crossknn.items.items import Items

TEXT_BLOCK: Final = 10_000  # texts read at once
MIN_PARALLEL_SCORES: Final = 1 << 20  # scores of all queries together from which threads pay off
MAX_THREADS: Final = 8  # more wait for each other


class BaseRetriever(ABC):
    """A `Retriever` whose subclasses set `n_items` in `fit` and implement `_retrieve` on checked arguments."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise invalid("name", "a nonempty string", name)
        self.name = name
        self.n_items: int | None = None

    @abstractmethod
    def fit(self, items: Items) -> Self: ...

    @abstractmethod
    def _retrieve(self, queries: Sequence[str], n: int, allowed: Mask | None) -> list[Proposal]: ...

    def retrieve(self, queries: Sequence[str], n: int, *, allowed: Mask | None = None) -> list[Proposal]:
        """For each query at most `n` distinct rows, best first, all of them `allowed`."""
        check_request(self._fitted_items, queries, n, allowed)
        return self._retrieve(queries, min(n, self._fitted_items), allowed)

    @property
    def _fitted_items(self) -> int:
        return check_fitted(self.n_items, self.name)


class ScoringRetriever(BaseRetriever):
    """A retriever that scores every item, mostly within numpy: in threads where they pay off."""

    @abstractmethod
    def scores(self, query: str) -> Scores:
        """(items,) float32: the query's score with every item."""

    def _retrieve(self, queries: Sequence[str], n: int, allowed: Mask | None) -> list[Proposal]:
        def retrieve(query: str) -> Proposal:
            return top_rows(self.scores(query), n, allowed)

        threads = min(_cores(), MAX_THREADS) if self._fitted_items * len(queries) >= MIN_PARALLEL_SCORES else 1
        first = [retrieve(query) for query in queries[:1]]  # alone: creates lazy state, such as a vocabulary, only once
        return first + map_in_threads(retrieve, queries[1:], threads)


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_fitted(n_items: int | None, name: str) -> int:
    """The number of items that the retriever was fitted on; an error if it was not."""
    if n_items is None:
        raise InputError(f"The retriever {name!r} is not fitted: call fit(items) first.")
    return n_items


def check_request(n_items: int, queries: Sequence[str], n: int, allowed: Mask | None) -> None:
    """Raise `InputError` unless these are valid arguments of `retrieve`."""
    if isinstance(queries, str):
        raise invalid("queries", "a list of strings", queries)
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0:
        raise invalid("n", "a nonnegative integer", n)
    if allowed is None:
        return
    if not isinstance(allowed, np.ndarray) or allowed.dtype != np.bool_ or allowed.shape != (n_items,):
        found = f"{allowed.dtype} {allowed.shape}" if isinstance(allowed, np.ndarray) else type(allowed).__name__
        raise InputError(f"`allowed` must be a boolean array of shape ({n_items},), one per item, got {found}.")
