"""Texts as stems: lower-cased words of two letters or more, without stop words."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossknn._imports import import_extra
from crossknn.errors import InputError

END: Final = "\0"  # of a text, among the words of many
find_words = re.compile(rf"\w\w+|{END}").findall


class Tokens(NamedTuple):
    """Texts in numbers.

    stems   all that occur, each once, as they first come
    tokens  (words of all texts,) int32 which stem each of them has
    counts  (texts,) int64 how many words each text has
    """

    stems: list[str]
    tokens: NDArray[np.int32]
    counts: NDArray[np.int64]


class Words:
    """Splits texts into stems. Makes its stemmers as it goes: they can be neither copied nor shared by threads."""

    def __init__(self, language: str | None, stopwords: str | Sequence[str] | None) -> None:
        if language is not None:
            known = import_extra("Stemmer", extra="retrievers").algorithms()
            if language not in known:
                raise InputError(f"stemmer must be None or one of {', '.join(known)}. Got {language!r} instead.")
        self._language = language
        self._stopwords = _read_stopwords(stopwords)

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides which stems a text has, as plain values."""
        version = None if self._language is None else import_extra("Stemmer", extra="retrievers").version()
        return {"stemmer": self._language, "stemmer_version": version, "stopwords": sorted(self._stopwords)}

    def stems(self, text: str) -> list[str]:
        """The stems of the text, in order, stop words left out."""
        stem = self._make_stemmer()
        return [stem(word) for word in _split([text])[:-1] if word not in self._stopwords]

    def tokenize(self, blocks: Iterable[list[str]]) -> Tokens:
        """All texts, read block by block."""
        tokens, counts = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
        token_of = _TokenOf(self._make_stemmer(), self._stopwords)
        for texts in blocks:
            words = _split(texts)
            found = np.fromiter(map(token_of.__getitem__, words), np.int32, len(words))
            ends = np.cumsum(found >= 0)[found == token_of[END]]
            tokens.append(found[found >= 0])
            counts.append(np.diff(ends, prepend=0))
        return Tokens(list(token_of.stems), np.concatenate(tokens), np.concatenate(counts))

    def _make_stemmer(self) -> Callable[[str], str]:
        if self._language is None:
            return str
        stem: Callable[[str], str] = import_extra("Stemmer", extra="retrievers").Stemmer(self._language).stemWord
        return stem


class _TokenOf(dict[str, int]):
    """The token of each word, found when it is first asked for: the same for words of one stem, negative for none."""

    def __init__(self, stem: Callable[[str], str], stopwords: Iterable[str]) -> None:
        super().__init__(dict.fromkeys(stopwords, -1))
        self[END] = -2
        self.stems: dict[str, int] = {}
        self._stem = stem

    def __missing__(self, word: str) -> int:
        token = self[word] = self.stems.setdefault(self._stem(word), len(self.stems))
        return token


def _split(texts: Iterable[str]) -> list[str]:
    """The words of all texts one after the other, and `END` after each text's."""
    return find_words("".join([text.replace(END, " ") + END for text in texts]).lower())


def _read_stopwords(stopwords: str | Sequence[str] | None) -> frozenset[str]:
    if stopwords is None:
        return frozenset()
    if not isinstance(stopwords, str):
        return frozenset(word.lower() for word in stopwords)
    tokenization = import_bm25s("bm25s.tokenization")
    try:
        return frozenset(tokenization.Tokenizer(stopwords=stopwords).stopwords)
    except ValueError as error:
        raise InputError(
            f"stopwords must be None, a list of words or a language bm25s knows. Got {stopwords!r} instead."
        ) from error


def import_bm25s(module: str) -> Any:
    """A module of bm25s, without jax: to import that takes most of a GPU's memory, and nothing here would use it."""
    if "jax" in sys.modules or "bm25s" in sys.modules:
        return import_extra(module, extra="retrievers")
    sys.modules["jax"] = None  # type: ignore[assignment]  # an ImportError to who imports it now
    try:
        return import_extra(module, extra="retrievers")
    finally:
        del sys.modules["jax"]
