"""BM25 as part of a saved index, so that a searcher need not fit it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np

from crossknn.errors import MissingExtra
from crossknn.items.items import Items
from crossknn.items.string_column import map_columns, write_columns
from crossknn.retrievers.bm25 import Bm25
from crossknn.retrievers.postings import Postings
from crossknn.storage.atomic_dir import Write
from crossknn.storage.safetensors import read_arrays, write_arrays

STEM: Final = "stem"
STEMS_FILE, POSTINGS_FILE = "stems.arrow", "postings.safetensors"
ESTIMATE_ITEMS: Final = 10_000  # items that sizes are estimated from


class StoredBm25(NamedTuple):
    """The settings and the postings of a fitted `Bm25`."""

    settings: dict[str, Any]
    postings: Postings
    n_items: int

    @classmethod
    def of(cls, bm25: Bm25) -> Self:
        return cls(bm25.settings, bm25.postings, bm25.n_items or 0)

    @classmethod
    def load(cls, files: Mapping[str, Path], settings: dict[str, Any], n_items: int) -> Self:
        """From the files of an index, memory-mapped."""
        (stems,), _ = map_columns(files[STEMS_FILE], [STEM])
        return cls(settings, Postings.load(stems, read_arrays(files[POSTINGS_FILE])), n_items)

    def files(self) -> dict[str, Write]:
        """By file name a function that writes the file."""
        return {
            STEMS_FILE: lambda path: write_columns(path, {STEM: self.postings.stems}, {}),
            POSTINGS_FILE: lambda path: write_arrays(path, self.postings.arrays()),
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
