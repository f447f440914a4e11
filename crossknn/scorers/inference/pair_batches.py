"""Forward passes of pairs: truncation to the model's length, and sliding windows over long items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from crossknn._checks import check_choice, check_positive
from crossknn.errors import InputError
from crossknn.scorers.inference.pair_template import PairTemplate, TokenSpans
from crossknn.scorers.inference.token_store import Counts, Ragged
from crossknn.types import Rows, Scores

LongItems = Literal["cut", "max"]


@dataclass(frozen=True, slots=True)
class Truncation:
    """The maximum length of a pair, and the treatment of longer ones; the arguments of `CrossEncoder`.

    The names of the fields are part of a scorer's fingerprint.
    """

    max_length: int
    max_query_tokens: int | None = None
    max_item_tokens: int | None = None
    long_items: LongItems = "cut"
    stride: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_length", "max_query_tokens", "max_item_tokens", "stride"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_choice("long_items", self.long_items, ("cut", "max"))
        if self.stride is not None and self.long_items == "cut":
            raise InputError("`stride` needs `long_items` 'max': with 'cut' no windows slide over the items.")


@dataclass(frozen=True, slots=True)
class ForwardPasses:
    """Forward passes of the model, each over one pair or one window of a pair's item."""

    spans: TokenSpans
    pair: Rows  # (passes,) the pair of each pass, ascending
    items_cut: int  # pairs whose item was truncated
    queries_cut: int


def plan_passes(
    template: PairTemplate, truncation: Truncation, queries: Ragged, items: Ragged, query_rows: Rows, item_rows: Rows
) -> ForwardPasses:
    """The forward passes of the pairs `(queries[query_rows[i]], items[item_rows[i]])`."""
    room = truncation.max_length - template.specials
    full_query, full_item = queries.lengths[query_rows], items.lengths[item_rows]
    query_limit = _clip(full_query, truncation.max_query_tokens)
    item_limit = _clip(full_item, truncation.max_item_tokens)
    query_kept, item_kept = longest_first(query_limit, item_limit, room)
    pair = np.arange(len(query_rows))
    windowed = truncation.long_items == "max"
    item_read = item_limit if windowed else item_kept  # tokens read in some pass
    item_skipped = (full_item - item_read) * template.cut_left
    if windowed:
        pair, shift = _windows(item_limit, item_kept, truncation.stride)
        item_skipped = item_skipped[pair] + shift
    spans = TokenSpans(
        queries.flat,
        (queries.starts[query_rows] + (full_query - query_kept) * template.cut_left)[pair],
        query_kept[pair],
        items.flat,
        items.starts[item_rows][pair] + item_skipped,
        item_kept[pair],
    )
    return ForwardPasses(spans, pair, int((item_read < full_item).sum()), int((query_kept < full_query).sum()))


def longest_first(query_lengths: Counts, item_lengths: Counts, room: int) -> tuple[Counts, Counts]:
    """The lengths that fit in `room` together when tokens are dropped from the longer text first.

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


def _clip(lengths: Counts, limit: int | None) -> Counts:
    return lengths if limit is None else np.minimum(lengths, limit)


def _windows(lengths: Counts, window: Counts, stride: int | None) -> tuple[Rows, Counts]:
    """(pair, start) of windows that cover each item; the last one ends where the item ends.

    Without a stride a window slides by half its length.
    """
    step = np.maximum(1, np.minimum(window, window // 2 if stride is None else stride))
    counts = 1 + -(-(lengths - window) // step)
    pair = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)
    return pair, np.minimum(number * step[pair], (lengths - window)[pair])


def max_over_windows(scores: Scores, pair: Rows, pairs: int) -> Scores:
    """(pairs,) the largest score among the passes of each pair."""
    if len(pair) == pairs:
        return scores
    best: Scores = np.maximum.reduceat(scores, np.searchsorted(pair, np.arange(pairs)))
    return best
