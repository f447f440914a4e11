"""Text analysis for BM25: lower-cased words of two letters or more, without stop words, stemmed."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import invalid
from crossknn._imports import import_extra

END: Final = "\0"  # marks the end of a text in a sequence of words
STOP_TOKEN: Final = -1
END_TOKEN: Final = -2
WORD: Final = re.compile(rf"\w\w+|{END}")


class Analyzer:
    """Splits texts into stems. Stemmers are created per call, since they can be neither copied nor shared by threads.

    Args:
        language: A language of PyStemmer; None for no stemming.
        stopwords: A language that bm25s has stop words for, a list of words, or None.
    """

    def __init__(self, language: str | None, stopwords: str | Sequence[str] | None) -> None:
        if language is not None:
            known = import_extra("Stemmer", extra="retrievers").algorithms()
            if language not in known:
                raise invalid("stemmer", f"None or one of {', '.join(known)}", language)
        self._language = language
        self._stopwords = _read_stopwords(stopwords)

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that determines the stems of a text, as plain values."""
        version = None if self._language is None else import_extra("Stemmer", extra="retrievers").version()
        return {"stemmer": self._language, "stemmer_version": version, "stopwords": sorted(self._stopwords)}

    def stems(self, text: str) -> list[str]:
        """The stems of the text, in order, without stop words."""
        stem = self._make_stemmer()
        return [stem(word) for word in _split([text])[:-1] if word not in self._stopwords]

    def matches(self, query: str, texts: Iterable[str]) -> list[list[tuple[int, int]]]:
        """The (start, end) of each text's words that share a stem with the query."""
        wanted, stem = set(self.stems(query)), cache(self._make_stemmer())

        def is_match(word: str) -> bool:
            return word not in self._stopwords and stem(word) in wanted

        return [[word.span() for word in WORD.finditer(text) if is_match(word[0].lower())] for text in texts]

    def tokenize(self, blocks: Iterable[list[str]]) -> tuple[list[str], NDArray[np.int32], NDArray[np.int64]]:
        """The vocabulary of all texts, the position of each word's stem in it, and the number of words of each text."""
        tokens, lengths = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
        vocabulary = _Vocabulary(self._make_stemmer(), self._stopwords)
        for texts in blocks:
            words = _split(texts)
            found = np.fromiter(map(vocabulary.__getitem__, words), np.int32, len(words))
            ends = np.cumsum(found >= 0)[found == END_TOKEN]
            tokens.append(found[found >= 0])
            lengths.append(np.diff(ends, prepend=0))
        return list(vocabulary.stems), np.concatenate(tokens), np.concatenate(lengths)

    def _make_stemmer(self) -> Callable[[str], str]:
        if self._language is None:
            return str
        stem: Callable[[str], str] = import_extra("Stemmer", extra="retrievers").Stemmer(self._language).stemWord
        return stem


class _Vocabulary(dict[str, int]):
    """The token of each word, assigned on first use: equal for words of one stem, negative for stop words and `END`."""

    def __init__(self, stem: Callable[[str], str], stopwords: Iterable[str]) -> None:
        super().__init__(dict.fromkeys(stopwords, STOP_TOKEN))
        self[END] = END_TOKEN
        self.stems: dict[str, int] = {}
        self._stem = stem

    def __missing__(self, word: str) -> int:
        token = self[word] = self.stems.setdefault(self._stem(word), len(self.stems))
        return token


def _split(texts: Iterable[str]) -> list[str]:
    """The words of all texts, with `END` after those of each text."""
    return WORD.findall("".join([text.replace(END, " ") + END for text in texts]).lower())


def _read_stopwords(stopwords: str | Sequence[str] | None) -> frozenset[str]:
    if stopwords is None:
        return frozenset()
    if not isinstance(stopwords, str):
        return frozenset(word.lower() for word in stopwords)
    tokenization = import_bm25s("bm25s.tokenization")
    try:
        return frozenset(tokenization.Tokenizer(stopwords=stopwords).stopwords)
    except ValueError as error:
        raise invalid("stopwords", "None, a list of words or a language that bm25s knows", stopwords) from error


def import_bm25s(module: str) -> Any:
    """A module of bm25s, imported without jax, which is not needed and would reserve most of a GPU's memory."""
    if "jax" in sys.modules or "bm25s" in sys.modules:
        return import_extra(module, extra="retrievers")
    sys.modules["jax"] = None  # type: ignore[assignment]  # makes `import jax` fail
    try:
        return import_extra(module, extra="retrievers")
    finally:
        del sys.modules["jax"]
