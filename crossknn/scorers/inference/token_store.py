"""A bounded store of token ids by text, so that each text is tokenized once, and ragged arrays of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
Counts = NDArray[np.int64]
Key = tuple[int, int]
Tokenize = Callable[[list[str]], list[Tokens]]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of different lengths in one buffer: row `i` is `flat[starts[i] : starts[i] + lengths[i]]`."""

    flat: Tokens
    starts: Counts
    lengths: Counts

    @classmethod
    def of(cls, rows: Sequence[Tokens]) -> Ragged:
        """The rows, concatenated."""
        lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
        flat = np.concatenate(rows) if len(rows) else np.empty(0, np.int32)
        return cls(flat, np.cumsum(lengths) - lengths, lengths)

    def take(self, rows: NDArray[np.int64]) -> Ragged:
        """Some of the rows, of the same buffer; one may be taken several times."""
        return Ragged(self.flat, self.starts[rows], self.lengths[rows])

    def with_tail(self, tail: tuple[int, ...], chosen: NDArray[np.bool_]) -> Ragged:
        """The chosen rows end with these tokens in place of as many of their own; the others stay as they are."""
        if not tail or not chosen.any():
            return self
        rows = np.flatnonzero(chosen & (self.lengths >= len(tail)))
        changed = Ragged.of([self.flat[self.starts[row] :][: self.lengths[row]] for row in rows])
        for place, token in enumerate(reversed(tail), start=1):
            changed.flat[changed.starts + changed.lengths - place] = token
        starts = self.starts.copy()
        starts[rows] = len(self.flat) + changed.starts
        return Ragged(np.concatenate([self.flat, changed.flat]), starts, self.lengths)

    def copy_to(self, target: Tokens, at: Counts) -> None:
        """`target[at[i] : at[i] + lengths[i]] = row i` for all rows at once."""
        ends = np.cumsum(self.lengths)
        if not len(ends) or not ends[-1]:
            return
        steps = np.arange(ends[-1])
        before = ends - self.lengths
        source = np.repeat(self.starts - before, self.lengths) + steps
        target[np.repeat(at - before, self.lengths) + steps] = self.flat[source]


class TokenStore:
    """Token ids by text, evicted first in, first out once `max_tokens` are stored. Thread-safe.

    The key is a text's hash, which Python stores with the text, and its length, so that the store never holds a text:
    of three million texts, two have the same key with a probability below one in a million.
    """

    def __init__(self, tokenize: Tokenize, *, max_tokens: int) -> None:
        self._tokenize = tokenize
        self._max_tokens = max_tokens
        self._rows: dict[Key, Tokens] = {}  # in the order of insertion
        self._lock = Lock()
        self.tokens = 0  # stored now

    def lookup(self, texts: Sequence[str]) -> Ragged:
        """The token ids of each text; those not stored are tokenized in one call."""
        keys = [(hash(text), len(text)) for text in texts]
        rows: list[Tokens | None] = [self._rows.get(key) for key in keys]
        missing = {key: text for key, text, row in zip(keys, texts, rows, strict=True) if row is None}
        if not missing:
            return Ragged.of(rows)  # type: ignore[arg-type]
        tokenized = dict(zip(missing, self._tokenize(list(missing.values())), strict=True))
        self._insert(tokenized)
        return Ragged.of([tokenized[key] if row is None else row for key, row in zip(keys, rows, strict=True)])

    def _insert(self, tokenized: dict[Key, Tokens]) -> None:
        with self._lock:
            new = {key: row for key, row in tokenized.items() if key not in self._rows}
            self._rows |= new
            self.tokens += sum(len(row) for row in new.values())
            while self.tokens > self._max_tokens:
                for key in list(islice(self._rows, max(1, len(self._rows) // 16))):
                    self.tokens -= len(self._rows.pop(key))


def fast_tokenize(backend: Any, *, special_tokens: bool = False) -> Tokenize:
    """A function from texts to their token ids, without the tokenizer's special tokens by default.

    `backend` is a `tokenizers.Tokenizer` that nobody else changes: the functions of `transformers` set truncation on
    a shared one at every call, which is not thread-safe.
    """

    def tokenize(texts: list[str]) -> list[Tokens]:
        valid = [_without_surrogates(text) for text in texts]
        encodings = backend.encode_batch_fast(valid, add_special_tokens=special_tokens)
        return [np.fromiter(encoding.ids, np.int32, len(encoding)) for encoding in encodings]

    return tokenize


def _without_surrogates(text: str) -> str:
    """Lone surrogates have no UTF-8 encoding, which is what tokenizers read."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text
