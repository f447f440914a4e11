"""BM25 as an index keeps it, so that a searcher need not fit it."""

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
ESTIMATED: Final = 10_000  # items that sizes are estimated from


class KeptBm25(NamedTuple):
    """What a `Bm25` was fitted to, and the settings it has."""

    settings: dict[str, Any]
    postings: Postings
    n_items: int

    @classmethod
    def of(cls, bm25: Bm25) -> Self:
        return cls(bm25.settings, bm25.postings, bm25.n_items or 0)

    @classmethod
    def load(cls, files: Mapping[str, Path], settings: dict[str, Any], n_items: int) -> Self:
        """From an index's files, which are mapped."""
        (stems,), _ = map_columns(files[STEMS_FILE], [STEM])
        return cls(settings, Postings.load(stems, read_arrays(files[POSTINGS_FILE])), n_items)

    def files(self) -> dict[str, Write]:
        """By its name what writes each file."""
        return {
            STEMS_FILE: lambda path: write_columns(path, {STEM: self.postings.stems}, {}),
            POSTINGS_FILE: lambda path: write_arrays(path, self.postings.arrays()),
        }

    def open(self) -> Bm25 | None:
        """The retriever; None where its settings are not the default ones of this version or of its stemmer's."""
        bm25 = Bm25()
        return bm25.use(self.postings, self.n_items) if bm25.settings == self.settings else None


def estimate_bytes(items: Items) -> int:
    """What both files will take, but for some hundred bytes: exact for few items, and 0 where bm25s is not installed.

    Beyond some items postings grow with them, and stems about with their square root.
    """
    some = np.unique(np.linspace(0, len(items) - 1, min(ESTIMATED, len(items))).astype(np.int64))
    try:
        postings = Bm25().fit(Items(items.texts_of(some))).postings
    except MissingExtra:
        return 0
    times = len(items) / len(some)
    of_stems = postings.stems.array.nbytes + postings.starts.nbytes
    return int(times * (postings.rows.nbytes + postings.weights.nbytes) + times**0.5 * of_stems)
