"""BM25 with the term weights of bm25s: the retriever, its inverted index, and both as part of a saved index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_choice, check_range
from crossknn._imports import import_extra
from crossknn.errors import InputError, MissingExtra
from crossknn.items.arrow_file import map_columns, write_columns
from crossknn.items.items import Items
from crossknn.items.string_column import StringColumn, StringColumnBuilder
from crossknn.retrievers.analyzer import Analyzer, import_bm25s
from crossknn.retrievers.base import TEXT_BLOCK, ScoringRetriever, check_fitted
from crossknn.retrievers.device_postings import DevicePostings
from crossknn.storage.atomic_dir import Write
from crossknn.storage.json_values import read_as
from crossknn.storage.safetensors import check_array, read_arrays, write_arrays
from crossknn.types import Mask, Proposal, Scores

WEIGHT_BLOCK: Final = 2**20  # postings weighted at once
METHODS: Final = ("lucene", "robertson", "atire", "bm25l", "bm25+")
SHIFTED_METHODS: Final = ("bm25l", "bm25+")  # in which absent terms contribute to an item's score, too
DELTA: Final = 0.5  # of these two, as in bm25s

STEM: Final = "stem"
STEMS_FILE, POSTINGS_FILE = "stems.arrow", "postings.safetensors"
DTYPES: Final[dict[str, type[np.generic]]] = {
    "starts": np.int64,
    "rows": np.int32,
    "weights": np.float32,
    "absent": np.float32,
}
ESTIMATE_ITEMS: Final = 10_000  # items that sizes are estimated from


class Bm25(ScoringRetriever):
    """BM25 over lower-cased, stemmed words of two letters or more, without stop words.

    A query that shares no word with any item scores 0 everywhere; a word that occurs twice in a query counts twice.

    Args:
        k1: Term frequency saturation. The default is customary for passages, as that of `b`.
        b: Length normalization, between 0 and 1.
        stemmer: A language of PyStemmer, or None.
        stopwords: A language that bm25s has stop words for, a list of words, or None.
        method: "lucene", "robertson", "atire", "bm25l" or "bm25+".
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
        super().__init__(name)
        check_range("k1", k1, 0)
        check_range("b", b, 0, 1)
        check_choice("method", method, METHODS)
        self.k1, self.b, self.method = k1, b, method
        self._analyzer = Analyzer(stemmer, stopwords)
        self._postings: Postings  # once fitted
        self._on_device: DevicePostings | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that determines a score, as plain values."""
        return {"k1": self.k1, "b": self.b, "method": self.method, **self._analyzer.settings}

    def fit(self, items: Items) -> Self:
        found, tokens, lengths = self._analyzer.tokenize(items.iter_texts(block=TEXT_BLOCK))
        stems = StringColumnBuilder()
        stems.append(found)
        starts, rows, frequencies = _count_terms(tokens, lengths, len(found))
        del found, tokens
        weights, absent = self._weigh(np.diff(starts), rows, frequencies, lengths)
        return self.restore(Postings(stems.finish(), starts, rows, weights, absent), len(items))

    def restore(self, postings: Postings, n_items: int) -> Self:
        """Use the postings of a fitted retriever with the same settings."""
        self._postings, self.n_items, self._on_device = postings, n_items, None
        return self

    def to(self, device: str) -> Self:
        """A copy, fitted likewise, that ranks on a device of torch where that has room for the postings."""
        placed = copy(self)
        placed._on_device = DevicePostings.place(self.postings, self._fitted_items, device)
        return placed

    @property
    def on_host(self) -> bool:
        """Whether the host's processors rank."""
        return self._on_device is None

    @property
    def postings(self) -> Postings:
        """The inverted index of the items."""
        check_fitted(self.n_items, self.name)
        return self._postings

    def scores(self, query: str) -> Scores:
        return self.postings.score(self._analyzer.stems(query), self._fitted_items)

    def _retrieve(self, queries: Sequence[str], n: int, allowed: Mask | None) -> list[Proposal]:
        if self._on_device is None:
            return super()._retrieve(queries, n, allowed)
        places = [self.postings.find(self._analyzer.stems(query)) for query in queries]
        return self._on_device.top_rows(places, n, allowed)

    def matches(self, query: str, texts: Iterable[str]) -> list[list[tuple[int, int]]]:
        """The (start, end) of each text's words for which it is retrieved."""
        return self._analyzer.matches(query, texts)

    def _weigh(
        self,
        document_frequencies: NDArray[np.int64],
        rows: NDArray[np.int32],
        frequencies: NDArray[np.int32],
        lengths: NDArray[np.int64],
    ) -> tuple[Scores, Scores]:
        """The `weights` and `absent` of `Postings` by the formulas of bm25s, but without its loop over items."""
        scoring, n_items = import_bm25s("bm25s.scoring"), len(lengths)
        mean_length = lengths.mean() if len(rows) else 1.0
        settings = {"l_avg": mean_length, "k1": self.k1, "b": self.b, "delta": DELTA}
        idf_of, tf_of = scoring._select_idf_scorer(self.method), scoring._select_tfc_scorer(self.method)
        by_stem = dict(enumerate(document_frequencies.tolist()))
        idf, absent = scoring._build_idf_array(by_stem, n_items, idf_of), np.empty(0, np.float32)
        if self.method in SHIFTED_METHODS:
            absent = scoring._build_nonoccurrence_array(by_stem, n_items, idf_of, tf_of, l_d=mean_length, **settings)
        stems = np.repeat(np.arange(len(idf), dtype=np.int32), document_frequencies)
        weights = np.empty(len(stems), np.float32)
        for start in range(0, len(weights), WEIGHT_BLOCK):
            block = slice(start, start + WEIGHT_BLOCK)
            tf = tf_of(tf_array=frequencies[block].astype(np.float32), l_d=lengths[rows[block]], **settings)
            weighted = idf[stems[block]] * tf
            weights[block] = weighted - absent[stems[block]] if len(absent) else weighted
        return weights, absent


def _count_terms(
    tokens: NDArray[np.int32], lengths: NDArray[np.int64], n_stems: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    """The `starts` and `rows` of `Postings`, and how often each stem occurs in each of its rows.

    Counts by sorting (stem, row) pairs, each packed into one integer.
    """
    n_items = len(lengths)
    pairs = tokens.astype(np.int64)
    pairs *= n_items
    pairs += np.repeat(np.arange(n_items, dtype=np.int32), lengths)
    pairs.sort()
    is_new = np.ones(len(pairs), np.bool_)
    np.not_equal(pairs[1:], pairs[:-1], out=is_new[1:])
    firsts = np.flatnonzero(is_new)
    frequencies = np.diff(firsts, append=len(pairs)).astype(np.int32)
    pairs = pairs[firsts]
    rows = (pairs % max(n_items, 1)).astype(np.int32)
    return np.searchsorted(pairs, n_items * np.arange(n_stems + 1)), rows, frequencies


@dataclass(frozen=True)
class Postings:
    """An inverted index: for every stem the items that contain it, with the weights whose sum is a query's score."""

    stems: StringColumn  # the vocabulary
    starts: NDArray[np.int64]  # (stems + 1,) where the postings of each stem begin in `rows`
    rows: NDArray[np.int32]  # (postings,) the items that contain the stem, in ascending order
    weights: Scores  # (postings,) the stem's weight in each
    absent: Scores  # (stems,) the stem's weight in every item besides; (0,) if there is none

    def __post_init__(self) -> None:
        for name, dtype in DTYPES.items():
            check_array(name, getattr(self, name), (None,), dtype)
        valid = len(self.starts) == len(self.stems) + 1 and len(self.absent) in (0, len(self.stems))
        valid = valid and len(self.rows) == len(self.weights) == self.starts[-1] and self.starts[0] == 0
        if not valid or (self.starts[1:] < self.starts[:-1]).any():
            raise InputError("BM25 postings must have one range of rows per stem and one weight per row.")

    def check(self, n_items: int) -> None:
        """Raise `InputError` for rows that do not exist: the sparse product of `score` would write outside its array.

        Reads all rows once; those of a file are as its writer left them.
        """
        if len(self.rows) and self.rows.view(np.uint32).max() >= n_items:  # a negative row is a large one
            raise InputError(f"BM25 postings must have rows between 0 and {n_items - 1}.")

    def find(self, stems: Iterable[str]) -> list[int]:
        """The places of those stems that any item has."""
        return [self._places[stem] for stem in stems if stem in self._places]

    def score(self, stems: Iterable[str], n_items: int) -> Scores:
        """(items,) the sum of the weights of these stems."""
        found = self.find(stems)
        ranges = [slice(self.starts[place], self.starts[place + 1]) for place in found]
        scores = self._sum(ranges, n_items) if found else np.zeros(n_items, np.float32)
        if len(self.absent):
            scores += self.absent[found].sum()
        return scores

    def _sum(self, ranges: list[slice], n_items: int) -> Scores:
        """`scores[rows] += weights` of one range after the other, as a sparse product, which releases the GIL."""
        rows, weights = (np.concatenate([array[part] for part in ranges]) for array in (self.rows, self.weights))
        ends = np.cumsum([0, *(part.stop - part.start for part in ranges)])
        if ends[-1] <= np.iinfo(rows.dtype).max:
            ends = ends.astype(rows.dtype)  # scipy would copy the rows to the dtype of the ends
        matrix = import_extra("scipy.sparse", extra="retrievers").csc_array
        shape = (n_items, len(ranges))
        return np.asarray(matrix((weights, rows, ends), shape=shape) @ np.ones(len(ranges), np.float32))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {stem: place for place, stem in enumerate(self.stems)}


class StoredBm25(NamedTuple):
    """The settings and the postings of a fitted `Bm25` in a saved index, so that a searcher need not fit it."""

    settings: dict[str, Any]
    postings: Postings
    n_items: int

    @classmethod
    def of(cls, bm25: Bm25) -> Self:
        return cls(bm25.settings, bm25.postings, bm25.n_items or 0)

    @classmethod
    def load(cls, files: Mapping[str, Path], settings: dict[str, Any], n_items: int) -> Self:
        """From the files of an index, memory-mapped."""
        (stems,), _, _ = map_columns(files[STEMS_FILE], [STEM])
        stems.check(text=True)
        path = files[POSTINGS_FILE]
        arrays = read_arrays(path)
        try:
            postings = Postings(stems, **{name: arrays[name] for name in DTYPES})
            postings.check(n_items)
        except (KeyError, InputError) as error:
            raise InputError(f"{path}: damaged: {error}") from error
        return cls(read_as(dict[str, Any], settings, "bm25"), postings, n_items)

    def files(self) -> dict[str, Write]:
        """By file name a function that writes the file."""
        return {
            STEMS_FILE: lambda path: write_columns(path, {STEM: self.postings.stems}),
            POSTINGS_FILE: lambda path: write_arrays(path, {name: getattr(self.postings, name) for name in DTYPES}),
        }

    def open(self) -> Bm25 | None:
        """The retriever; None if its settings differ from the present defaults, as after an update of the stemmer."""
        bm25 = Bm25()
        return bm25.restore(self.postings, self.n_items) if bm25.settings == self.settings else None


def estimate_bytes(items: Items) -> int:
    """The size of both files, without headers: exact for few items, and 0 where bm25s is not installed.

    Extrapolated from a sample of many items: postings grow linearly, stems about with the square root.
    """
    sample = np.unique(np.linspace(0, len(items) - 1, min(ESTIMATE_ITEMS, len(items))).astype(np.int64))
    try:
        postings = Bm25().fit(Items(items.texts_of(sample))).postings
    except MissingExtra:
        return 0
    ratio = len(items) / len(sample)
    stem_bytes = postings.stems.array.nbytes + postings.starts.nbytes
    return int(ratio * (postings.rows.nbytes + postings.weights.nbytes) + ratio**0.5 * stem_bytes)
