"""BM25 with bm25s."""

from __future__ import annotations

import math
import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.optional import import_extra
from crossknn.ranking import top_rows
from crossknn.retrievers.checks import check_fitted, check_name, check_request
from crossknn.types import Mask, Proposal, Scores

if TYPE_CHECKING:
    from crossknn.items import Items

BLOCK = 10_000  # texts read at a time
METHODS = ("lucene", "robertson", "atire", "bm25l", "bm25+")
find_words = re.compile(r"(?u)\b\w\w+\b").findall


class Bm25:
    """BM25 over lower-cased, stemmed words of two letters or more, without stop words.

    `k1` and `b` default to the values customary for passages. `stemmer` is a language of PyStemmer or
    None; `stopwords` a language that bm25s knows, a list of words, or None. A query that shares no
    word with any item scores 0 everywhere; a word that occurs twice in a query counts twice.
    """

    def __init__(
        self,
        k1: float = 0.9,
        b: float = 0.4,
        *,
        stemmer: str | None = "english",
        stopwords: str | Sequence[str] | None = "english",
        method: str = "lucene",
        name: str = "bm25",
    ) -> None:
        if not (math.isfinite(k1) and k1 >= 0):
            raise InputError(f"k1 must be a finite number of at least 0. Got {k1!r} instead.")
        if not 0 <= b <= 1:
            raise InputError(f"b must be between 0 and 1. Got {b!r} instead.")
        if method not in METHODS:
            raise InputError(f"method must be one of {', '.join(METHODS)}. Got {method!r} instead.")
        self.k1, self.b, self.method = k1, b, method
        self.name = check_name(name)
        self.n_items: int | None = None
        self._words = _Words(stemmer, stopwords)
        self._token_of: dict[str, int] = {}  # stem → token
        self._index: Any = None  # bm25s.BM25, or None where no item holds any word

    def fit(self, items: Items) -> Self:
        token_of: dict[str, int] = {}
        documents = _tokenize(self._words, items.iter_texts(block=BLOCK), token_of)
        self._index = self._build_index(documents, token_of) if token_of else None
        self._token_of = token_of
        self.n_items = len(items)
        return self

    def scores(self, query: str) -> Scores:
        """(items,) float32: the query's score with every item."""
        n_items = check_fitted(self.n_items, self.name)
        tokens = [self._token_of[stem] for stem in self._words.stems([query])[0] if stem in self._token_of]
        if not tokens:
            return np.zeros(n_items, np.float32)
        return np.asarray(self._index.get_scores_from_ids(tokens), np.float32)

    def retrieve(self, queries: Sequence[str], n: int, *, allowed: Mask | None = None) -> list[Proposal]:
        check_request(check_fitted(self.n_items, self.name), queries, n, allowed)
        return [top_rows(self.scores(query), n, allowed) for query in queries]

    def _build_index(self, documents: _Documents, token_of: dict[str, int]) -> Any:
        bm25s = _import("bm25s")
        index = bm25s.BM25(k1=self.k1, b=self.b, method=self.method, backend="numpy")
        index.index(_Tokenized(documents, token_of), create_empty_token=False, show_progress=False)
        return index


class _Words:
    """Splits texts into stems. Makes its stemmers as it goes: they can be neither copied nor shared by threads."""

    def __init__(self, language: str | None, stopwords: str | Sequence[str] | None) -> None:
        if language is not None:
            known = import_extra("Stemmer", extra="retrievers").algorithms()
            if language not in known:
                raise InputError(f"stemmer must be None or one of {', '.join(known)}. Got {language!r} instead.")
        self._language = language
        self._stopwords = _read_stopwords(stopwords)

    def stems(self, texts: Sequence[str]) -> list[list[str]]:
        """The stems of each text, in order, stop words left out."""
        kept = [[word for word in find_words(text.lower()) if word not in self._stopwords] for text in texts]
        if self._language is None:
            return kept
        stemmer = import_extra("Stemmer", extra="retrievers").Stemmer(self._language)
        return [stemmer.stemWords(words) for words in kept]


def _read_stopwords(stopwords: str | Sequence[str] | None) -> frozenset[str]:
    if stopwords is None:
        return frozenset()
    if not isinstance(stopwords, str):
        return frozenset(word.lower() for word in stopwords)
    tokenization = _import("bm25s.tokenization")
    try:
        return frozenset(tokenization.Tokenizer(stopwords=stopwords).stopwords)
    except ValueError as error:
        raise InputError(
            f"stopwords must be None, a list of words or a language bm25s knows. Got {stopwords!r} instead."
        ) from error


class _Documents:
    """The items' tokens in one flat array, 4 bytes each, handed out item by item as lists."""

    def __init__(self, tokens: NDArray[np.int32], ends: NDArray[np.int64]) -> None:
        self._tokens = tokens
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[list[int]]:
        start = 0
        for end in self._ends.tolist():
            yield self._tokens[start:end].tolist()
            start = end


class _Tokenized(NamedTuple):
    """What bm25s takes as a tokenised corpus."""

    ids: _Documents
    vocab: dict[str, int]


def _tokenize(words: _Words, blocks: Iterable[list[str]], token_of: dict[str, int]) -> _Documents:
    """The tokens of all texts; `token_of` grows by the stems that were not in it."""
    tokens, ends = array("i"), array("q")
    for texts in blocks:
        for stems in words.stems(texts):
            tokens.extend([token_of.setdefault(stem, len(token_of)) for stem in stems])
            ends.append(len(tokens))
    return _Documents(np.asarray(tokens, np.int32), np.asarray(ends, np.int64))


def _import(module: str) -> Any:
    """A module of bm25s, without jax: to import that takes most of a GPU's memory, and nothing here would use it."""
    if "jax" in sys.modules or "bm25s" in sys.modules:
        return import_extra(module, extra="retrievers")
    sys.modules["jax"] = None  # type: ignore[assignment]  # an ImportError to who imports it now
    try:
        return import_extra(module, extra="retrievers")
    finally:
        del sys.modules["jax"]
