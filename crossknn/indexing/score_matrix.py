"""Sparse score matrix, the paper's G: train queries × items, with the pairs scored so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import invalid
from crossknn.errors import InputError
from crossknn.types import Scores

Numbers = NDArray[np.int32]  # of train queries, or rows of items


@dataclass(frozen=True, slots=True)
class Pairs:
    """Distinct query–item pairs, in the order in which they are scored.

    Attributes:
        queries: (pairs,) numbers of train queries, less than `n_queries`.
        rows: (pairs,) rows of items, less than `n_items`.
    """

    queries: Numbers
    rows: Numbers
    n_queries: int
    n_items: int

    def __post_init__(self) -> None:
        for name, numbers, size in (("queries", self.queries, self.n_queries), ("rows", self.rows, self.n_items)):
            if numbers.ndim != 1 or numbers.dtype != np.int32:
                raise InputError(f"`{name}` must be one int32 per pair, got {numbers.dtype} {numbers.shape}.")
            if len(numbers) and not 0 <= numbers.min() <= numbers.max() < size:
                raise InputError(f"`{name}` must be between 0 and {size - 1}, got {numbers.min()} to {numbers.max()}.")
        if len(self.queries) != len(self.rows):
            raise InputError(
                f"`queries` and `rows` must have equal lengths, got {len(self.queries)} and {len(self.rows)}."
            )

    def __len__(self) -> int:
        return len(self.queries)

    def keys(self) -> NDArray[np.int64]:
        """(pairs,) one integer that identifies each pair."""
        return self.queries.astype(np.int64) * self.n_items + self.rows

    def take(self, which: NDArray[np.int64] | NDArray[np.bool_] | slice) -> Pairs:
        """The pairs at these positions."""
        return Pairs(self.queries[which], self.rows[which], self.n_queries, self.n_items)


def all_pairs(n_queries: int, n_items: int) -> Pairs:
    """Every query with every item."""
    queries = np.repeat(np.arange(n_queries, dtype=np.int32), n_items)
    return Pairs(queries, np.tile(np.arange(n_items, dtype=np.int32), n_queries), n_queries, n_items)


@dataclass(frozen=True, slots=True)
class SparseScores:
    """Pairs with their scores: the observed entries of G."""

    pairs: Pairs
    scores: Scores  # (pairs,)

    def __post_init__(self) -> None:
        if self.scores.shape != (len(self.pairs),) or self.scores.dtype != np.float32:
            raise InputError(
                f"`scores` must be one float32 per pair ({len(self.pairs)}), "
                f"got {self.scores.dtype} {self.scores.shape}."
            )
        if not np.isfinite(self.scores).all():
            raise InputError("`scores` must be finite.")

    def __len__(self) -> int:
        return len(self.pairs)

    def take(self, which: NDArray[np.int64] | NDArray[np.bool_] | slice) -> SparseScores:
        """The entries at these positions."""
        return SparseScores(self.pairs.take(which), self.scores[which])

    def hold_out(self, share: float, *, seed: int) -> tuple[SparseScores, SparseScores]:
        """A random split into (training, held-out) entries; of two or more entries, each side gets at least one."""
        if not 0 <= share < 1:
            raise invalid("share", "at least 0 and less than 1", share)
        count = min(max(1, round(share * len(self))), len(self) - 1) if share and len(self) > 1 else 0
        chosen = np.zeros(len(self), np.bool_)
        chosen[np.random.default_rng(seed).permutation(len(self))[:count]] = True
        return self.take(~chosen), self.take(chosen)


def group_positions(numbers: NDArray[Any]) -> list[NDArray[np.int64]]:
    """The positions of each distinct number, in ascending order of numbers."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1) if len(numbers) else []
