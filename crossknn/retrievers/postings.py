"""Inverted index: for every stem the items that contain it, with a weight each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.items.string_column import StringColumn, StringColumnBuilder
from crossknn.retrievers.analyzer import Tokens
from crossknn.types import Scores

DTYPES: Final = {"starts": np.int64, "rows": np.int32, "weights": np.float32, "absent": np.float32}


@dataclass(frozen=True)
class Postings:
    """The weights whose sum is a query's score.

    Attributes:
        stems: The vocabulary.
        starts: (stems + 1,) int64, where the postings of each stem begin in `rows`.
        rows: (postings,) int32, the items that contain the stem, in ascending order.
        weights: (postings,) float32, the stem's weight in each.
        absent: (stems,) float32, the stem's weight in every item besides; (0,) if there is none.
    """

    stems: StringColumn
    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    weights: Scores
    absent: Scores

    def __post_init__(self) -> None:
        valid = len(self.starts) == len(self.stems) + 1 and len(self.absent) in (0, len(self.stems))
        valid = valid and len(self.rows) == len(self.weights) == self.starts[-1] and self.starts[0] == 0
        if not valid or (np.diff(self.starts) < 0).any():
            raise InputError("BM25 postings must have one range of rows per stem and one weight per row.")

    def score(self, stems: Iterable[str], n_items: int) -> Scores:
        """(items,) the sum of the weights of these stems."""
        found = [self._places[stem] for stem in stems if stem in self._places]
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

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays but the stems, for storage."""
        return {name: getattr(self, name) for name in DTYPES}

    @classmethod
    def load(cls, stems: StringColumn, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The inverse of `arrays`; memory-mapped arrays stay so."""
        return cls(stems, **{name: np.asarray(arrays[name], dtype) for name, dtype in DTYPES.items()})


@dataclass(frozen=True)
class TermCounts:
    """How often each stem occurs in each item that contains it; `starts` and `rows` are as in `Postings`."""

    stems: StringColumn
    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    frequencies: NDArray[np.int32]  # (postings,)
    lengths: NDArray[np.int64]  # (items,) words of each


def count_terms(tokens: Tokens) -> TermCounts:
    """Count by sorting (stem, row) pairs, each packed into one integer."""
    n_items = len(tokens.lengths)
    pairs = tokens.tokens.astype(np.int64)
    pairs *= n_items
    pairs += np.repeat(np.arange(n_items, dtype=np.int32), tokens.lengths)
    pairs.sort()
    is_new = np.ones(len(pairs), np.bool_)
    np.not_equal(pairs[1:], pairs[:-1], out=is_new[1:])
    firsts = np.flatnonzero(is_new)
    frequencies = np.diff(firsts, append=len(pairs)).astype(np.int32)
    pairs = pairs[firsts]
    rows = (pairs % max(n_items, 1)).astype(np.int32)
    starts = np.searchsorted(pairs, n_items * np.arange(len(tokens.stems) + 1))
    stems = StringColumnBuilder()
    stems.append(tokens.stems)
    return TermCounts(stems.finish(), starts, rows, frequencies, tokens.lengths)
