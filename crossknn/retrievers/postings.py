"""For every stem the items that hold it, and what it counts in each."""

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
    """What is summed to score a query.

    stems    each once
    starts   (stems + 1,) int64 where the items of each begin in `rows`
    rows     (postings,) int32 those that hold the stem, lowest first
    weights  (postings,) float32 what it counts in each
    absent   (stems,) float32 what it counts in every item besides; (0,) where that is nothing
    """

    stems: StringColumn
    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    weights: Scores
    absent: Scores

    def __post_init__(self) -> None:
        fits = len(self.starts) == len(self.stems) + 1 and len(self.absent) in (0, len(self.stems))
        fits = fits and len(self.rows) == len(self.weights) == self.starts[-1] and self.starts[0] == 0
        if not fits or (np.diff(self.starts) < 0).any():
            raise InputError("the rows of stems must lie side by side, each with its weight.")

    def score(self, stems: Iterable[str], n_items: int) -> Scores:
        """(items,) the sum of what these stems count."""
        found = [self._places[stem] for stem in stems if stem in self._places]
        mine = [slice(self.starts[place], self.starts[place + 1]) for place in found]
        scores = self._sum(mine, n_items) if found else np.zeros(n_items, np.float32)
        if len(self.absent):
            scores += self.absent[found].sum()
        return scores

    def _sum(self, parts: list[slice], n_items: int) -> Scores:
        """As `scores[rows] += weights` of one part after the other, but faster and in threads side by side."""
        rows, weights = (np.concatenate([array[part] for part in parts]) for array in (self.rows, self.weights))
        ends = np.cumsum([0, *(part.stop - part.start for part in parts)])
        if ends[-1] <= np.iinfo(rows.dtype).max:
            ends = ends.astype(rows.dtype)  # or else rows would be copied to have that of the ends
        columns = import_extra("scipy.sparse", extra="retrievers").csc_array
        shape = (n_items, len(parts))
        return np.asarray(columns((weights, rows, ends), shape=shape) @ np.ones(len(parts), np.float32))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {stem: place for place, stem in enumerate(self.stems)}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All but the stems, as an index keeps them."""
        return {name: getattr(self, name) for name in DTYPES}

    @classmethod
    def load(cls, stems: StringColumn, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """What `arrays` was taken from; arrays that are mapped stay so."""
        return cls(stems, **{name: np.asarray(arrays[name], dtype) for name, dtype in DTYPES.items()})


@dataclass(frozen=True)
class Counts:
    """How often each stem occurs in each item that holds it: `starts` and `rows` as in `Postings`."""

    stems: StringColumn
    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    times: NDArray[np.int32]
    lengths: NDArray[np.int64]  # (items,) words of each


def count_stems(tokens: Tokens) -> Counts:
    """By sorting (stem, row) as one number each, which puts equal ones side by side."""
    n_items = len(tokens.counts)
    pairs = tokens.tokens.astype(np.int64)
    pairs *= n_items
    pairs += np.repeat(np.arange(n_items, dtype=np.int32), tokens.counts)
    pairs.sort()
    is_new = np.ones(len(pairs), np.bool_)
    np.not_equal(pairs[1:], pairs[:-1], out=is_new[1:])
    firsts = np.flatnonzero(is_new)
    times = np.diff(firsts, append=len(pairs)).astype(np.int32)
    pairs = pairs[firsts]
    rows = (pairs % max(n_items, 1)).astype(np.int32)
    starts = np.searchsorted(pairs, n_items * np.arange(len(tokens.stems) + 1))
    stems = StringColumnBuilder()
    stems.append(tokens.stems)
    return Counts(stems.finish(), starts, rows, times, tokens.counts)
