"""Scorers and retrievers that look up precomputed scores, and a retriever that several searchers share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import numpy as np

from crossknn.errors import InputError
from crossknn.items.items import Items
from crossknn.retrievers.base import check_fitted, check_request
from crossknn.testing import MatrixScorer
from crossknn.types import Mask, Proposal, Retriever, Scores
from crossknn.vectors.ranking import top_rows


def precomputed_scorer(
    scores: Scores, *, queries: Iterable[str], items: Iterable[str], fingerprint: str
) -> MatrixScorer:
    """The scorer of `fingerprint` that looks up its scores (queries, items); equal texts have equal scores."""
    rows = {text: row for row, text in enumerate(queries)}
    columns = {text: column for column, text in enumerate(items)}
    if (len(rows), len(columns)) != scores.shape:
        scores = scores[np.ix_(list(rows.values()), list(columns.values()))]
    return MatrixScorer(scores, queries=list(rows), items=list(columns), fingerprint=fingerprint, record=False)


class PrecomputedRetriever:
    """A retriever that ranks by known scores: one per item, for each query's text."""

    def __init__(self, scores: Mapping[str, Scores], *, name: str) -> None:
        self.name = name
        self.n_items: int | None = None
        self._scores = scores

    def fit(self, items: Items) -> Self:
        for query, scores in self._scores.items():
            if len(scores) != len(items):
                raise InputError(f"{self.name}: {query!r} must have {len(items)} scores, got {len(scores)}.")
        self.n_items = len(items)
        return self

    def retrieve(self, queries: Sequence[str], n: int, *, allowed: Mask | None = None) -> list[Proposal]:
        check_request(check_fitted(self.n_items, self.name), queries, n, allowed)
        for query in queries:
            if query not in self._scores:
                raise InputError(f"{self.name}: there are no scores for the query {query!r}.")
        return [top_rows(self._scores[query], n, allowed) for query in queries]


class SharedRetriever:
    """A retriever that several searchers share: only the first of them fits it.

    Args:
        retriever: What is shared.
        texts: The text of each query, if searchers know queries by other names than the retriever.
    """

    def __init__(self, retriever: Retriever, *, texts: Mapping[str, str] | None = None) -> None:
        self.name = retriever.name
        self.n_items: int | None = None
        self._retriever = retriever
        self._texts = texts

    def fit(self, items: Items) -> Self:
        if self.n_items is None:
            self._retriever.fit(items)
            self.n_items = len(items)
        return self

    def retrieve(self, queries: Sequence[str], n: int, *, allowed: Mask | None = None) -> list[Proposal]:
        texts = list(queries) if self._texts is None else [self._texts[query] for query in queries]
        return self._retriever.retrieve(texts, n, allowed=allowed)
