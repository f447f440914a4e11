"""A scorer and retrievers that look up what was computed before, so that a benchmark needs no model for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import numpy as np

from crossknn.errors import InputError
from crossknn.items.items import Items
from crossknn.retrievers.base import check_fitted, check_request
from crossknn.types import Mask, Proposal, Retriever, Scores
from crossknn.vectors.ranking import top_rows


class KnownScores:
    """The scorer of `fingerprint`, with all its scores of some queries looked up by the texts of the pair."""

    def __init__(self, lines: Mapping[str, Scores], items: Iterable[str], *, fingerprint: str) -> None:
        # Views of plain arrays: numbers of a mapped file are slow to take one by one.
        self._lines = {query: np.asarray(line) for query, line in lines.items()}
        self._rows = {text: row for row, text in enumerate(items)}
        self.fingerprint = fingerprint

    def score(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        """The scores of the pairs; those of other queries or items are not known."""
        try:
            found = [self._lines[query][self._rows[item]] for query, item in zip(queries, items, strict=True)]
        except KeyError as error:
            raise InputError(f"no scores are known for the text {error.args[0]!r}.") from None
        return np.array(found, np.float32)


class KnownRanking:
    """A retriever of which every score is known: for each query's text a line of one score per item."""

    def __init__(self, lines: Mapping[str, Scores], *, name: str) -> None:
        self.name = name
        self.n_items: int | None = None
        self._lines = lines

    def fit(self, items: Items) -> Self:
        for query, line in self._lines.items():
            if len(line) != len(items):
                raise InputError(f"{self.name}: wanted {len(items)} scores for {query!r}, got {len(line)}.")
        self.n_items = len(items)
        return self

    def retrieve(self, queries: Sequence[str], n: int, *, allowed: Mask | None = None) -> list[Proposal]:
        check_request(check_fitted(self.n_items, self.name), queries, n, allowed)
        for query in queries:
            if query not in self._lines:
                raise InputError(f"{self.name}: no scores are known for the query {query!r}.")
        return [top_rows(self._lines[query], n, allowed) for query in queries]


class FittedOnce:
    """A retriever that several searchers share: it is fitted by the first of them, unless it was before.

    `texts` says what each query reads, where searchers know queries by another name than the retriever.
    """

    def __init__(self, retriever: Retriever, *, texts: Mapping[str, str] | None = None) -> None:
        self.name = retriever.name
        self.n_items: int | None = None
        self._retriever = retriever
        self._texts = texts

    @classmethod
    def on(cls, items: Items, retriever: Retriever, *, texts: Mapping[str, str]) -> Self:
        """Fitted on these items."""
        made = cls(retriever, texts=texts)
        return made.fit(items)

    def fit(self, items: Items) -> Self:
        if self.n_items is None:
            self._retriever.fit(items)
            self.n_items = len(items)
        return self

    def retrieve(self, queries: Sequence[str], n: int, *, allowed: Mask | None = None) -> list[Proposal]:
        asked = list(queries) if self._texts is None else [self._texts[query] for query in queries]
        return self._retriever.retrieve(asked, n, allowed=allowed)
