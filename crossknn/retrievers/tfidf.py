"""TF-IDF with scikit-learn."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from crossknn._checks import invalid
from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.retrievers.base import TEXT_BLOCK, ScoringRetriever
from crossknn.types import Scores

if TYPE_CHECKING:
    from crossknn.items.items import Items


class TfIdf(ScoringRetriever):
    """Inner product of TF-IDF vectors, by default their cosine.

    Items that share no term with the query follow with the estimate 0, in row order.

    Args:
        settings: Those of scikit-learn's `TfidfVectorizer`, with its defaults except for float32.
    """

    def __init__(self, *, name: str = "tfidf", **settings: Any) -> None:
        super().__init__(name)
        if settings.get("input", "content") != "content":
            raise invalid("input", '"content"', settings["input"], "The items are texts, not files.")
        self.settings = {"dtype": np.float32, **settings}
        self._vectorizer = self._make_vectorizer()
        self._terms: Any = None  # (terms, items) sparse

    def fit(self, items: Items) -> Self:
        vectorizer = self._make_vectorizer()
        texts = chain.from_iterable(items.iter_texts(block=TEXT_BLOCK))
        try:
            self._terms = vectorizer.fit_transform(texts).T.tocsr()
        except ValueError as error:
            if "empty vocabulary" not in str(error):
                raise InputError(f"TfIdf could not be fitted with {self.settings}: {error}") from error
            self._terms = None  # no item contains any term: every score is 0
        self._vectorizer = vectorizer
        self.n_items = len(items)
        return self

    def scores(self, query: str) -> Scores:
        n_items = self._fitted_items
        if self._terms is None:
            return np.zeros(n_items, np.float32)
        product = self._vectorizer.transform([query]) @ self._terms  # (1, items) sparse
        return np.asarray(product.toarray()[0], np.float32)

    def _make_vectorizer(self) -> Any:
        text = import_extra("sklearn.feature_extraction.text", extra="retrievers")
        try:
            return text.TfidfVectorizer(**self.settings)
        except TypeError as error:
            raise InputError(f"`settings` must be those of scikit-learn's TfidfVectorizer: {error}") from error
