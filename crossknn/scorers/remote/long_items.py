"""Long items before they are sent: truncated, or as overlapping windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossknn._checks import check_choice, check_positive
from crossknn.errors import InputError
from crossknn.scorers.inference.pairs import LongItems, sliding_windows
from crossknn.types import Rows


@dataclass(frozen=True, slots=True)
class ItemWindows:
    """The maximum length of an item in characters, and the treatment of longer ones; the arguments of `RemoteScorer`.

    Characters, because a server's tokenizer is not known here and words are not separated in every language.
    """

    max_item_chars: int | None = None
    long_items: LongItems = "cut"
    stride: int | None = None

    def __post_init__(self) -> None:
        check_choice("long_items", self.long_items, ("cut", "max"))
        for name in ("max_item_chars", "stride"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if self.long_items == "max" and self.max_item_chars is None:
            raise InputError("`long_items` 'max' needs `max_item_chars`, the length of a window.")
        if self.stride is not None and self.long_items == "cut":
            raise InputError("`stride` needs `long_items` 'max': with 'cut' no windows slide over the items.")

    def split(self, items: Sequence[str]) -> tuple[list[str], Rows]:
        """The texts to send, and (texts,) the item of each, ascending."""
        limit = self.max_item_chars
        if self.long_items == "cut" or limit is None:
            return [item[:limit] for item in items], np.arange(len(items))
        lengths = np.fromiter(map(len, items), np.int64, len(items))
        pair, start = sliding_windows(lengths, np.minimum(lengths, limit), self.stride)
        return [items[row][at : at + limit] for row, at in zip(pair.tolist(), start.tolist(), strict=True)], pair
