"""Tokens of texts from the tokens of their words, each of which is tokenized once.

Most tokenizers split a text at spaces before anything else, and some at punctuation, so that the tokens of a text are
those of its words, end to end. Words repeat. All words of many texts are found, hashed and looked up by a few array
operations, which takes a fraction of the time of a tokenizer.
"""

from __future__ import annotations

import json
import os
import re
import string
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from threading import Lock
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossknn._threads import map_in_threads
from crossknn.scorers.inference.token_store import Counts, Ragged, Tokenize, Tokens
from crossknn.types import Rows

Hashes = NDArray[np.uint64]

MAX_WORDS: Final = 1_000_000  # kept; about 100 MB
CHUNK_BYTES: Final = 1 << 17  # of texts that are looked up together: they stay in the processor's cache
THREADS: Final = min(8, os.cpu_count() or 1)
LONG_WORD: Final = 24  # bytes; texts with longer words on average, as in languages without spaces, hardly repeat them
SPACE: Final = 32
MAX_UNSPLIT: Final = 16  # tokens that are looked for in all texts
# Tokenizers that drop the space before a word, and normalizers that treat words one by one.
SPLITTING: Final = {"BertPreTokenizer", "WhitespaceSplit"}
NORMALIZERS: Final = {"BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Precompiled"}
# An accent may belong to the character before it; where spaces count, white space before a space may belong to it.
ACCENTS: Final = re.compile("[\u0300-\u036f\u200d\ufe0f]")
JOINED_SPACES: Final = re.compile("\\s | [\u0300-\u036f\u200d\ufe0f]")
CASES: Final = (
    "Rivers freeze  from the top ",
    "tab\tand\n line \nend",
    "don't (stop) a_b 3.14: é 漢字 🙂\u200b x",
    "(a),b [SEP] c",
    " lead",
    "",
    " ",
)


class WordTokens:
    """A function from texts to their tokens, as of `tokenize`, which is called for new words only. Thread-safe.

    Words are known by 64-bit hashes with random multipliers: of a million words, two have the same one with a
    probability below one in ten million.
    """

    def __init__(self, tokenize: Tokenize, *, leading_space: bool, unsplit: Sequence[str] | None = None) -> None:
        self._tokenize = tokenize
        self._leading_space = leading_space  # whether a word's tokens depend on the space before it
        self._unsplit = unsplit  # tokens with punctuation; None if punctuation is not always a token of its own
        self._words = WordTable()

    def __call__(self, texts: list[str]) -> list[Tokens]:
        """The tokens of each text."""
        rows: list[Tokens] = [np.empty(0, np.int32)] * len(texts)
        spaces = [text.count(" ") for text in texts]
        split = [self._splits(text, count + 1) for text, count in zip(texts, spaces, strict=True)]
        whole = [place for place, one in enumerate(split) if not one]
        for place, row in zip(whole, self._tokenize([texts[place] for place in whole]) if whole else (), strict=True):
            rows[place] = row

        def look_up(places: list[int]) -> list[Tokens]:
            return self._look_up([texts[place] for place in places], np.array([spaces[place] for place in places]))

        chunks = list(_chunks(texts, [place for place, one in enumerate(split) if one]))
        for places, found in zip(chunks, map_in_threads(look_up, chunks, THREADS), strict=True):
            for place, row in zip(places, found, strict=True):
                rows[place] = row
        return rows

    def _splits(self, text: str, words: int) -> bool:
        """Whether a text's tokens are those of its words, and it is worth while."""
        if len(text) > min(LONG_WORD * words, CHUNK_BYTES // 4):
            return False
        if self._leading_space:
            return not JOINED_SPACES.search(text)
        return text.isascii() or not ACCENTS.search(text)

    def _look_up(self, texts: list[str], spaces: Counts) -> list[Tokens]:
        """The tokens of texts with these numbers of spaces."""
        whole = " ".join(texts)
        joined = whole.encode("utf-8", "surrogatepass")
        data = np.frombuffer(joined, np.uint8)
        text_ends = np.append(np.flatnonzero(data == SPACE), len(data))[np.cumsum(spaces + 1) - 1]
        at_punctuation = self._unsplit is not None and not any(token in whole for token in self._unsplit)
        starts, ends = split_at_punctuation(data) if at_punctuation else split_at_spaces(data)
        after_text = np.searchsorted(starts, text_ends, side="right")  # words until each text's end
        spaced = np.full(len(ends), self._leading_space)
        if self._leading_space:
            spaced[0] = spaced[after_text[:-1]] = False  # the first word of each text
        hashes = hash_words(data, starts, ends, spaced)

        def tokenize_new(places: Rows) -> Ragged:
            words = [joined[starts[at] : ends[at]].decode("utf-8", "surrogatepass") for at in places]
            spaces = [" " if one else "" for one in spaced[places]]
            return Ragged.of(self._tokenize([space + word for space, word in zip(spaces, words, strict=True)]))

        if len(self._words) > MAX_WORDS:
            self._words = WordTable()
        tokens = self._words.look_up(hashes, tokenize_new)
        token_ends = np.cumsum(np.append(0, tokens.lengths))
        flat = np.empty(token_ends[-1], np.int32)
        tokens.copy_to(flat, token_ends[:-1])
        return np.split(flat, token_ends[after_text[:-1]])


class Slots(NamedTuple):
    """The slots of a hash table with linear probing."""

    keys: Hashes  # (slots,)
    numbers: Rows  # (slots,) the number of the word in each slot, -1 if it is empty

    @classmethod
    def empty(cls, bits: int) -> Slots:
        """2 ** bits slots."""
        return cls(np.zeros(1 << bits, np.uint64), np.full(1 << bits, -1, np.int64))

    def home(self, hashes: Hashes) -> Rows:
        """(words,) the slot where the search for each word begins."""
        return (hashes >> np.uint64(65 - len(self.keys).bit_length())).astype(np.int64)

    def find(self, hashes: Hashes) -> Rows:
        """(words,) the number of each word, -1 if it is not there."""
        slots = self.home(hashes)
        numbers = self.numbers[slots]
        others = np.flatnonzero((self.keys[slots] != hashes) & (numbers >= 0))
        while len(others):
            slots[others] = (slots[others] + 1) & (len(self.keys) - 1)
            numbers[others] = self.numbers[slots[others]]
            others = others[(self.keys[slots[others]] != hashes[others]) & (numbers[others] >= 0)]
        return numbers

    def insert(self, hashes: Hashes, numbers: Rows) -> None:
        """Add distinct words that are not there; a key is written before its number, which others may be reading."""
        slots = self.home(hashes)
        while len(slots):
            empty = np.flatnonzero(self.numbers[slots] < 0)
            taken, winners = np.unique(slots[empty], return_index=True)
            winners = empty[winners]
            self.keys[taken] = hashes[winners]
            self.numbers[taken] = numbers[winners]
            left = np.ones(len(slots), bool)
            left[winners] = False
            slots, hashes, numbers = (slots[left] + 1) & (len(self.keys) - 1), hashes[left], numbers[left]


class WordTable:
    """The tokens of words by hash. Arrays grow by doubling. Words are added by one thread at a time, and found by any:
    whatever a slot refers to is written before it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = self._used = 0  # words, and their tokens
        self._hashes = np.empty(1 << 11, np.uint64)
        self._bounds = np.empty((2, 1 << 11), np.int64)  # start and length of each word's tokens
        self._flat = np.empty(1 << 12, np.int32)
        self._slots = Slots.empty(12)

    def __len__(self) -> int:
        return self._count

    def look_up(self, hashes: Hashes, tokenize_new: Callable[[Rows], Ragged]) -> Ragged:
        """The tokens of each word; `tokenize_new` gives those of words at some of the places, which are then known."""
        numbers = self._slots.find(hashes)
        new = np.flatnonzero(numbers < 0)
        if len(new):
            _, first = np.unique(hashes[new], return_index=True)
            places = new[first]
            tokens = tokenize_new(places)
            with self._lock:
                unknown = np.flatnonzero(self._slots.find(hashes[places]) < 0)  # to other threads, too
                self._add(hashes[places[unknown]], tokens.take(unknown))
            numbers[new] = self._slots.find(hashes[new])
        return Ragged(self._flat, *self._bounds[:, numbers])

    def _add(self, hashes: Hashes, tokens: Ragged) -> None:
        """Add distinct words that are not there."""
        ends = self._used + np.cumsum(tokens.lengths)
        first, count, used = self._count, self._count + len(hashes), int(ends[-1]) if len(ends) else self._used
        if count > len(self._hashes):
            self._hashes = np.concatenate([self._hashes, np.empty(count, np.uint64)])
            self._bounds = np.concatenate([self._bounds, np.empty((2, count), np.int64)], axis=1)
        if used > len(self._flat):
            self._flat = np.concatenate([self._flat, np.empty(used, np.int32)])
        self._hashes[first:count] = hashes
        self._bounds[:, first:count] = ends - tokens.lengths, tokens.lengths
        tokens.copy_to(self._flat, ends - tokens.lengths)
        self._count, self._used = count, used
        if 2 * count > len(self._slots.keys):
            larger = Slots.empty((4 * count).bit_length())
            larger.insert(self._hashes[:count], np.arange(count))
            self._slots = larger
        else:
            self._slots.insert(hashes, np.arange(first, count))


_RANDOM: Final = np.frombuffer(os.urandom(24), np.uint64) | np.uint64(1)  # odd, so that they can be inverted
_BASE, _MIX, _LENGTH = (int(number) for number in _RANDOM)
_INVERSE: Final = pow(_BASE, -1, 1 << 64)


@cache
def _powers(base: int) -> Hashes:
    """Base ** 0, 1, 2, … modulo 2 ** 64."""
    powers = np.full(4 * CHUNK_BYTES, base, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)


def split_at_spaces(text: NDArray[np.uint8]) -> tuple[Rows, Rows]:
    """Where words start and end; those between two spaces are empty."""
    ends = np.append(np.flatnonzero(text == SPACE), len(text))
    return np.append(0, ends[:-1] + 1), ends


BREAKS: Final = np.array([byte in b" \t\n\r" + string.punctuation.encode() for byte in range(256)])
PUNCTUATION: Final = np.array([byte in string.punctuation.encode() for byte in range(256)])


def split_at_punctuation(text: NDArray[np.uint8]) -> tuple[Rows, Rows]:
    """Where words start and end; each ASCII punctuation mark is a word of its own, and none are empty."""
    breaks, marks = BREAKS[text], PUNCTUATION[text]
    beside = np.concatenate([[True], breaks, [True]])
    starts, lasts = (np.flatnonzero(marks | (side & ~breaks)) for side in (beside[:-2], beside[2:]))
    return starts, lasts + 1


def hash_words(text: NDArray[np.uint8], starts: Rows, ends: Rows, spaced: NDArray[np.bool_]) -> Hashes:
    """(words,) a polynomial hash of each word's bytes, with its length and whether a space counts as part of it."""
    values = text * _powers(_BASE)[: len(text)]
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
    by_words = WordTokens(tokenize, leading_space=not splits, unsplit=_unsplit_tokens(settings, steps))
    expected, found = tokenize(list(CASES)), by_words(list(CASES))
    equal = all(np.array_equal(one, other) for one, other in zip(expected, found, strict=True))
    return by_words if equal else tokenize


def _unsplit_tokens(settings: Any, steps: list[Any]) -> list[str] | None:
    """The tokens of more than a word or a punctuation mark; None unless both are always apart, as for BERT."""
    added = [token for token in settings["added_tokens"] if not token["content"].isalnum()]
    if [step["type"] for step in steps] != ["BertPreTokenizer"] or len(added) > MAX_UNSPLIT:
        return None
    return None if any(token["normalized"] for token in added) else [token["content"] for token in added]


def _flatten(step: Any, name: str) -> list[Any]:
    """The steps of a tokenizer's pipeline."""
    if step is None:
        return []
    return [part for one in step[name] for part in _flatten(one, name)] if step["type"] == "Sequence" else [step]
