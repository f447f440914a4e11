"""From pairs to batches: cut to the model's length, windows over long items, batches in the order given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from crossknn.errors import InputError
from crossknn.scorers.inference.pair_template import PairPieces, PairTemplate
from crossknn.scorers.inference.token_store import Counts, Ragged
from crossknn.types import Rows, Scores

LongItems = Literal["cut", "max"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a pair may be, and what happens to one that is longer."""

    max_length: int
    max_query_tokens: int | None = None
    max_item_tokens: int | None = None
    long_items: LongItems = "cut"
    stride: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_length", "max_query_tokens", "max_item_tokens", "stride"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1. Got {value} instead.")
        if self.long_items not in ("cut", "max"):
            raise InputError(f"long_items must be 'cut' or 'max'. Got {self.long_items!r} instead.")
        if self.stride is not None and self.long_items == "cut":
            raise InputError("stride is for long_items='max'; with 'cut' there are no windows to move.")


@dataclass(frozen=True, slots=True)
class Passes:
    """What runs through the model: a pass is one pair, or one window of a pair's item."""

    pieces: PairPieces
    pair: Rows  # (passes,) the pair each pass belongs to, rising
    items_cut: int  # pairs that lost tokens of their item
    queries_cut: int


def plan_passes(
    template: PairTemplate, limits: Limits, queries: Ragged, items: Ragged, query_rows: Rows, item_rows: Rows
) -> Passes:
    """The passes of the pairs `(queries[query_rows[i]], items[item_rows[i]])`."""
    room = limits.max_length - template.specials
    full_query, full_item = queries.lengths[query_rows], items.lengths[item_rows]
    query_most = _at_most(full_query, limits.max_query_tokens)
    item_most = _at_most(full_item, limits.max_item_tokens)
    query_kept, item_kept = longest_first(query_most, item_most, room)
    pair = np.arange(len(query_rows))
    item_skipped = (full_item - item_kept) * template.cut_left
    lost = item_kept < full_item
    if limits.long_items == "max":
        item_skipped = (full_item - item_most) * template.cut_left
        lost = item_most < full_item
        pair, shift = _windows(item_most, item_kept, limits.stride)
        item_skipped = item_skipped[pair] + shift
    pieces = PairPieces(
        queries.flat,
        (queries.starts[query_rows] + (full_query - query_kept) * template.cut_left)[pair],
        query_kept[pair],
        items.flat,
        items.starts[item_rows][pair] + item_skipped,
        item_kept[pair],
    )
    return Passes(pieces, pair, int(lost.sum()), int((query_kept < full_query).sum()))


def longest_first(query_lengths: Counts, item_lengths: Counts, room: int) -> tuple[Counts, Counts]:
    """The lengths that fit in `room` together when tokens are taken from the longer text first.

    The closed form of the fast tokenizers' `longest_first`: where both texts are longer than half the room,
    each gets half, and an odd token goes to the longer one (to the item where they are equal). Tokenizers before
    0.23.3 give it to the item where each text alone is longer than the room.
    """
    fits = query_lengths + item_lengths <= room
    shorter = np.minimum(query_lengths, item_lengths)
    longer = np.maximum(shorter, room - shorter)
    both = shorter + longer > room
    shorter = np.where(both, room // 2, shorter)
    longer = np.where(both, room - room // 2, longer)
    query_longer = query_lengths > item_lengths
    query_kept = np.where(fits, query_lengths, np.where(query_longer, longer, shorter))
    item_kept = np.where(fits, item_lengths, np.where(query_longer, shorter, longer))
    return query_kept, item_kept


def _at_most(lengths: Counts, most: int | None) -> Counts:
    return lengths if most is None else np.minimum(lengths, most)


def _windows(lengths: Counts, window: Counts, stride: int | None) -> tuple[Rows, Counts]:
    """For each item the starts of windows that cover it; the last window ends where the item ends.

    Without a stride a window moves by half its length.
    """
    step = np.maximum(1, np.minimum(window, window // 2 if stride is None else stride))
    counts = 1 + -(-(lengths - window) // step)
    pair = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)
    return pair, np.minimum(number * step[pair], (lengths - window)[pair])


def cut_in_order(lengths: Counts, batch_tokens: int) -> Iterator[slice]:
    """Batches in the order given: the sum of their lengths is at most `batch_tokens`, or it is one row."""
    ends = np.cumsum(lengths)
    start = 0
    while start < len(ends):
        taken = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, taken + batch_tokens, side="right")))
        yield slice(start, end)
        start = end


def best_of_passes(scores: Scores, pair: Rows, pairs: int) -> Scores:
    """(pairs,) the largest score among the passes of each pair."""
    if len(pair) == pairs:
        return scores
    best: Scores = np.maximum.reduceat(scores, np.searchsorted(pair, np.arange(pairs)))
    return best
