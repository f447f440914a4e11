"""Tokens of texts from the tokens of their words, each of which is tokenized once.

Most tokenizers split a text at spaces before anything else, so that the tokens of a text are those of its words, end to
end. Words repeat. All words of many texts are found, hashed and looked up by a few array operations, which takes a
fraction of the time of a tokenizer.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from crossknn.scorers.inference.token_store import Counts, Ragged, Tokenize, Tokens
from crossknn.types import Rows

Hashes = NDArray[np.uint64]

MAX_WORDS: Final = 1_000_000  # kept; about 100 MB
CHUNK_BYTES: Final = 1 << 17  # of texts that are looked up together: they stay in the processor's cache
LONG_WORD: Final = 24  # bytes; texts with longer words on average, as in languages without spaces, hardly repeat them
SPACE: Final = 32
# Tokenizers that drop the space before a word, and normalizers that treat words one by one.
SPLITTING: Final = {"BertPreTokenizer", "WhitespaceSplit"}
NORMALIZERS: Final = {"BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Precompiled"}
# White space before a space may belong to it, and so may an accent after one.
JOINED_SPACES: Final = re.compile("\\s | [\u0300-\u036f\u200d\ufe0f]")
CASES: Final = (
    "Rivers freeze  from the top ",
    "tab\tand\n line \nend",
    "don't (stop) a_b 3.14: é 漢字 🙂\u200b x",
    " lead",
    "",
    " ",
)


class WordTokens:
    """A function from texts to their tokens, as of `tokenize`, which is called for new words only. Thread-safe.

    Words are known by 64-bit hashes with random multipliers: of a million words, two have the same one with a
    probability below one in ten million.
    """

    def __init__(self, tokenize: Tokenize, *, leading_space: bool) -> None:
        self._tokenize = tokenize
        self._leading_space = leading_space  # whether a word's tokens depend on the space before it
        self._lock = Lock()
        self._words = WordTable()

    def __call__(self, texts: list[str]) -> list[Tokens]:
        """The tokens of each text."""
        rows: list[Tokens] = [np.empty(0, np.int32)] * len(texts)
        words = [text.count(" ") + 1 for text in texts]
        split = [self._splits(text, count) for text, count in zip(texts, words, strict=True)]
        whole = [place for place, one in enumerate(split) if not one]
        for place, row in zip(whole, self._tokenize([texts[place] for place in whole]) if whole else (), strict=True):
            rows[place] = row
        for places in _chunks(texts, [place for place, one in enumerate(split) if one]):
            found = self._look_up([texts[place] for place in places], np.array([words[place] for place in places]))
            for place, row in zip(places, found, strict=True):
                rows[place] = row
        return rows

    def _splits(self, text: str, words: int) -> bool:
        """Whether a text's tokens are those of its words, and it is worth while."""
        if len(text) > min(LONG_WORD * words, CHUNK_BYTES // 4):
            return False
        return not (self._leading_space or not text.isascii()) or not JOINED_SPACES.search(text)

    def _look_up(self, texts: list[str], words: Counts) -> list[Tokens]:
        """The tokens of texts with these numbers of words."""
        joined = " ".join(texts).encode("utf-8", "surrogatepass")
        ends = np.append(np.flatnonzero(np.frombuffer(joined, np.uint8) == SPACE), len(joined))
        starts = np.append(0, ends[:-1] + 1)
        after_text = np.cumsum(words)
        spaced = np.full(len(ends), self._leading_space)
        spaced[0] = spaced[after_text[:-1]] = False  # the first word of each text
        hashes = hash_words(joined, starts, ends, spaced)

        def tokenize_new(places: Rows) -> Ragged:
            words = [joined[starts[at] : ends[at]].decode("utf-8", "surrogatepass") for at in places]
            spaces = [" " if one else "" for one in spaced[places]]
            return Ragged.of(self._tokenize([space + word for space, word in zip(spaces, words, strict=True)]))

        with self._lock:
            if len(self._words) > MAX_WORDS:
                self._words = WordTable()
            tokens = self._words.look_up(hashes, tokenize_new)
        token_ends = np.cumsum(tokens.lengths)
        flat = np.empty(token_ends[-1], np.int32)
        tokens.copy_to(flat, token_ends - tokens.lengths)
        return np.split(flat, token_ends[after_text[:-1] - 1])


class WordTable:
    """The tokens of words by hash: a hash table with linear probing. Arrays grow by doubling."""

    def __init__(self) -> None:
        self._count = self._used = 0  # words, and their tokens
        self._hashes = np.empty(1 << 11, np.uint64)
        self._bounds = np.empty((2, 1 << 11), np.int64)  # start and length of each word's tokens
        self._flat = np.empty(1 << 12, np.int32)
        self._resize(12)

    def __len__(self) -> int:
        return self._count

    def look_up(self, hashes: Hashes, tokenize_new: Callable[[Rows], Ragged]) -> Ragged:
        """The tokens of each word; `tokenize_new` gives those of words at some of the places, which are then known."""
        numbers = self._find(hashes)
        new = np.flatnonzero(numbers < 0)
        if len(new):
            _, first = np.unique(hashes[new], return_index=True)
            self._add(hashes[new[first]], tokenize_new(new[first]))
            numbers = self._find(hashes)
        return Ragged(self._flat, *self._bounds[:, numbers])

    def _find(self, hashes: Hashes) -> Rows:
        """(words,) the number of each word, -1 if it is not there."""
        slots = self._home(hashes)
        numbers = self._numbers[slots]
        others = np.flatnonzero((self._keys[slots] != hashes) & (numbers >= 0))
        while len(others):
            slots[others] = (slots[others] + 1) & self._mask
            numbers[others] = self._numbers[slots[others]]
            others = others[(self._keys[slots[others]] != hashes[others]) & (numbers[others] >= 0)]
        return numbers

    def _add(self, hashes: Hashes, tokens: Ragged) -> None:
        """Add distinct words that are not there."""
        first, count, used = self._count, self._count + len(hashes), self._used + len(tokens.flat)
        if count > len(self._hashes):
            self._hashes = np.concatenate([self._hashes, np.empty(count, np.uint64)])
            self._bounds = np.concatenate([self._bounds, np.empty((2, count), np.int64)], axis=1)
        if used > len(self._flat):
            self._flat = np.concatenate([self._flat, np.empty(used, np.int32)])
        self._hashes[first:count] = hashes
        self._bounds[:, first:count] = tokens.starts + self._used, tokens.lengths
        self._flat[self._used : used] = tokens.flat
        self._count, self._used = count, used
        if 2 * count > len(self._keys):
            self._resize((4 * count).bit_length())
        else:
            self._insert(hashes, np.arange(first, count))

    def _resize(self, bits: int) -> None:
        self._shift, self._mask = np.uint64(64 - bits), (1 << bits) - 1
        self._keys, self._numbers = np.zeros(1 << bits, np.uint64), np.full(1 << bits, -1, np.int64)
        self._insert(self._hashes[: self._count], np.arange(self._count))

    def _home(self, hashes: Hashes) -> Rows:
        return (hashes >> self._shift).astype(np.int64)

    def _insert(self, hashes: Hashes, numbers: Rows) -> None:
        slots = self._home(hashes)
        while len(slots):
            empty = np.flatnonzero(self._numbers[slots] < 0)
            taken, winners = np.unique(slots[empty], return_index=True)
            winners = empty[winners]
            self._keys[taken], self._numbers[taken] = hashes[winners], numbers[winners]
            left = np.ones(len(slots), bool)
            left[winners] = False
            slots, hashes, numbers = (slots[left] + 1) & self._mask, hashes[left], numbers[left]


_RANDOM: Final = np.frombuffer(os.urandom(24), np.uint64) | np.uint64(1)  # odd, so that they can be inverted
_BASE, _MIX, _LENGTH = (int(number) for number in _RANDOM)
_INVERSE: Final = pow(_BASE, -1, 1 << 64)


@cache
def _powers(base: int) -> Hashes:
    """Base ** 0, 1, 2, … modulo 2 ** 64."""
    powers = np.full(4 * CHUNK_BYTES, base, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)


def hash_words(text: bytes, starts: Rows, ends: Rows, spaced: NDArray[np.bool_]) -> Hashes:
    """(words,) a polynomial hash of each word's bytes, with its length and whether a space counts as part of it."""
    values = np.frombuffer(text, np.uint8) * _powers(_BASE)[: len(text)]
    sums = np.concatenate([[np.uint64(0)], np.cumsum(values, dtype=np.uint64)])
    hashes = (sums[ends] - sums[starts]) * _powers(_INVERSE)[starts]
    sizes = (2 * (ends - starts) + spaced).astype(np.uint64)
    mixed: Hashes = (hashes + sizes * np.uint64(_LENGTH)) * np.uint64(_MIX)
    return mixed ^ (mixed >> np.uint64(32))


def _chunks(texts: list[str], places: list[int]) -> Iterator[list[int]]:
    """Places of texts with at most `CHUNK_BYTES` characters together."""
    chunk: list[int] = []
    size = 0
    for place in places:
        if chunk and size + len(texts[place]) > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(place)
        size += len(texts[place]) + 1
    if chunk:
        yield chunk


def tokenize_by_words(backend: Any, tokenize: Tokenize) -> Tokenize:
    """`tokenize`, by words where the tokens of `backend`, a `tokenizers.Tokenizer`, are those of words."""
    settings = json.loads(backend.to_str())
    steps = _flatten(settings["pre_tokenizer"], "pretokenizers")
    normalizers = {step["type"] for step in _flatten(settings["normalizer"], "normalizers")}
    splits = steps[:1] != [] and steps[0]["type"] in SPLITTING and normalizers <= NORMALIZERS
    byte_level = steps[-1:] != [] and steps[-1]["type"] == "ByteLevel" and normalizers <= {"NFC"}
    spaced = any(" " in token["content"] or token["rstrip"] for token in settings["added_tokens"])
    if spaced or not (splits or byte_level):
        return tokenize
    by_words = WordTokens(tokenize, leading_space=not splits)
    expected, found = tokenize(list(CASES)), by_words(list(CASES))
    equal = all(np.array_equal(one, other) for one, other in zip(expected, found, strict=True))
    return by_words if equal else tokenize


def _flatten(step: Any, name: str) -> list[Any]:
    """The steps of a tokenizer's pipeline."""
    if step is None:
        return []
    return [part for one in step[name] for part in _flatten(one, name)] if step["type"] == "Sequence" else [step]
