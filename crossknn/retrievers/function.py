"""A retriever that calls a function, such as a query to a search engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from crossknn._checks import invalid
from crossknn.errors import InputError, RetrieverError
from crossknn.retrievers.base import BaseRetriever
from crossknn.retrievers.simple import Candidates, read_list
from crossknn.types import EMPTY_PROPOSAL, Mask, Proposal, Retriever

if TYPE_CHECKING:
    from crossknn.items.items import Items

RetrieveFunction = Callable[[list[str], int], Sequence[Candidates]]
GROWTH: Final = 4  # how many times more are requested while a filter leaves too few


def function_retriever(function: RetrieveFunction, *, name: str = "function") -> Retriever:
    """A retriever that calls `function(queries, n)`, once for all queries of a search.

    The function returns a list for each query: at most `n` ids of items, best first, or (id, score) pairs, which are
    ordered by score. Without scores the estimate is 1/rank. More than `n` are cut. Under a filter, which the function
    does not know, more are requested until enough of them pass.
    """
    if not callable(function):
        raise invalid("function", "a function of a list of queries and a number", function)
    return _FunctionRetriever(function, name)


class _FunctionRetriever(BaseRetriever):
    def __init__(self, function: RetrieveFunction, name: str) -> None:
        super().__init__(name)
        self._function = function
        self._items: Items | None = None

    def fit(self, items: Items) -> Self:
        self._items, self.n_items = items, len(items)
        return self

    def _retrieve(self, queries: Sequence[str], n: int, allowed: Mask | None) -> list[Proposal]:
        if not len(queries) or n == 0 or (allowed is not None and not allowed.any()):
            return [EMPTY_PROPOSAL] * len(queries)
        size = n
        while True:
            found = self._call(list(queries), size)
            kept = [_within(proposal, allowed) for proposal in found]
            enough = [len(few) >= n or len(all_) < size for few, all_ in zip(kept, found, strict=True)]
            if all(enough) or size >= self._fitted_items:
                return [proposal.first(n) for proposal in kept]
            size = min(GROWTH * size, self._fitted_items)

    def _call(self, queries: list[str], n: int) -> list[Proposal]:
        """The function's lists as at most `n` rows for every query."""
        lists: Any = self._function(queries, n)
        if isinstance(lists, str | bytes) or not hasattr(lists, "__len__") or not hasattr(lists, "__getitem__"):
            raise RetrieverError(
                f"the function of the retriever {self.name!r} must return a list of ids for each query, "
                f"got an object of type {type(lists).__name__}."
            )
        if len(lists) != len(queries):
            raise RetrieverError(
                f"the function of the retriever {self.name!r} must return a list of ids for each query, "
                f"got {len(lists)} for {len(queries)} queries."
            )
        return [self._propose(query, lists[place], n) for place, query in enumerate(queries)]

    def _propose(self, query: str, listed: Any, n: int) -> Proposal:
        assert self._items is not None
        try:
            pairs = read_list(query, listed)[:n]
        except (InputError, TypeError) as error:
            raise RetrieverError(f"the function of the retriever {self.name!r}: {error}") from error
        rows = self._items.rows_of([id_ for id_, _ in pairs], missing="skip")
        if len(rows) != len(pairs):
            unknown = next(id_ for id_, _ in pairs if id_ not in self._items)
            raise RetrieverError(
                f"the function of the retriever {self.name!r} returned the id {unknown!r:.80} for the query "
                f"{query!r:.80}, and there is no such item."
            )
        return Proposal(np.asarray(rows, np.int64), np.array([estimate for _, estimate in pairs], np.float32))


def _within(proposal: Proposal, allowed: Mask | None) -> Proposal:
    if allowed is None:
        return proposal
    kept = allowed[proposal.rows]
    return Proposal(proposal.rows[kept], proposal.estimates[kept])
