"""TF-IDF with scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.retrievers.base import check_fitted, check_name, check_request
from crossknn.retrievers.side_by_side import map_queries
from crossknn.types import Mask, Proposal, Scores
from crossknn.vectors.ranking import top_rows

if TYPE_CHECKING:
    from crossknn.items.items import Items

BLOCK = 10_000  # texts read at a time


class TfIdf:
    """Inner product of TF-IDF vectors, by default their cosine.

    `settings` are those of scikit-learn's `TfidfVectorizer`, with its defaults (float32 apart). Items
    that share no term with the query follow with the estimate 0, in row order.
    """

    def __init__(self, *, name: str = "tfidf", **settings: Any) -> None:
        if settings.get("input", "content") != "content":
            raise InputError('input must be "content": the items are texts, not files.')
        self.name = check_name(name)
        self.settings = {"dtype": np.float32, **settings}
        self._vectorizer = self._make_vectorizer()
        self._terms: Any = None  # (terms, items) sparse: for each term the items that hold it
        self.n_items: int | None = None

    def fit(self, items: Items) -> Self:
        vectorizer = self._make_vectorizer()
        texts = chain.from_iterable(items.iter_texts(block=BLOCK))
        try:
            self._terms = vectorizer.fit_transform(texts).T.tocsr()
        except ValueError as error:
            if "empty vocabulary" not in str(error):
                raise InputError(f"TfIdf could not be fitted with {self.settings}: {error}") from error
            self._terms = None  # no item holds any term: every score is 0
        self._vectorizer = vectorizer
        self.n_items = len(items)
        return self

    def scores(self, query: str) -> Scores:
        """(items,) float32: the query's score with every item."""
        n_items = check_fitted(self.n_items, self.name)
        if self._terms is None:
            return np.zeros(n_items, np.float32)
        product = self._vectorizer.transform([query]) @ self._terms  # (1, items) sparse
        return np.asarray(product.toarray()[0], np.float32)

    def retrieve(self, queries: Sequence[str], n: int, *, allowed: Mask | None = None) -> list[Proposal]:
        n_items = check_fitted(self.n_items, self.name)
        check_request(n_items, queries, n, allowed)
        return map_queries(lambda query: top_rows(self.scores(query), n, allowed), queries, n_items)

    def _make_vectorizer(self) -> Any:
        text = import_extra("sklearn.feature_extraction.text", extra="retrievers")
        try:
            return text.TfidfVectorizer(**self.settings)
        except TypeError as error:
            raise InputError(f"settings must be those of scikit-learn's TfidfVectorizer: {error}") from error
