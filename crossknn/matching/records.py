"""Records of a table with equal texts grouped, so that a text is searched and scored once."""

from __future__ import annotations

import logging

import numpy as np

from crossknn.items.items import Items
from crossknn.storage.score_log import hash_texts
from crossknn.types import Mask, Rows

logger = logging.getLogger("crossknn")


class Records:
    """The records of a table; those with equal texts share a representative, the first of them.

    Attributes:
        items: The table.
        representatives: Ascending rows, one per distinct text that is not blank.
    """

    def __init__(self, items: Items) -> None:
        self.items = items
        hashes = np.concatenate([hash_texts(block) for block in items.iter_texts()])
        blank = np.array([not text.strip() for block in items.iter_texts() for text in block], np.bool_)
        _, first, codes = np.unique(hashes, return_index=True, return_inverse=True)
        self._first = first[codes]  # (items,) the first row with the same text
        self._first[blank] = -1
        self.representatives: Rows = np.unique(self._first[~blank])
        order = np.argsort(self._first, kind="stable")
        self._groups = order, self._first[order]
        if blank.any():
            logger.warning(
                "%d records without text match none, the first is %r", blank.sum(), items.id(int(blank.argmax()))
            )

    def __len__(self) -> int:
        """How many distinct texts there are."""
        return len(self.representatives)

    @property
    def mask(self) -> Mask:
        """(items,) True for representatives."""
        mask = np.zeros(len(self.items), np.bool_)
        mask[self.representatives] = True
        return mask

    @property
    def repeated(self) -> Rows:
        """The representatives of texts that several records have."""
        rows, counts = np.unique(self._first[self._first >= 0], return_counts=True)
        return rows[counts > 1]

    def rows_like(self, representative: int) -> Rows:
        """All rows with the text of a representative, ascending."""
        order, keys = self._groups
        start, end = np.searchsorted(keys, [representative, representative + 1])
        return order[start:end]
