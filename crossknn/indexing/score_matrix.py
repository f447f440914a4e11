"""The sparse matrix G of the paper: some train queries, all items, and the scores that were paid for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.types import Scores

Numbers = NDArray[np.int32]  # of train queries, or rows of items


@dataclass(frozen=True, slots=True)
class Pairs:
    """Different query–item pairs, in the order in which they are scored.

    queries  (pairs,) numbers of train queries, below `n_queries`
    rows     (pairs,) rows of items, below `n_items`
    """

    queries: Numbers
    rows: Numbers
    n_queries: int
    n_items: int

    def __post_init__(self) -> None:
        for name, numbers, below in (("queries", self.queries, self.n_queries), ("rows", self.rows, self.n_items)):
            if numbers.ndim != 1 or numbers.dtype != np.int32:
                raise InputError(f"{name} must be one int32 per pair. Got {numbers.dtype} {numbers.shape} instead.")
            if len(numbers) and not 0 <= numbers.min() <= numbers.max() < below:
                raise InputError(
                    f"{name} must be between 0 and {below - 1}. Got {numbers.min()} to {numbers.max()} instead."
                )
        if len(self.queries) != len(self.rows):
            raise InputError(f"queries and rows must pair up. Got {len(self.queries)} and {len(self.rows)} instead.")

    def __len__(self) -> int:
        return len(self.queries)

    def keys(self) -> NDArray[np.int64]:
        """(pairs,) one number per pair, different for different pairs."""
        return self.queries.astype(np.int64) * self.n_items + self.rows

    def take(self, which: NDArray[np.int64] | NDArray[np.bool_] | slice) -> Pairs:
        """Some of the pairs."""
        return Pairs(self.queries[which], self.rows[which], self.n_queries, self.n_items)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How the calls of a build are spread over the items."""

    calls: int
    items: int
    never_scored: int  # items
    fewest: int  # calls of the item that has fewest
    median: float
    most: int

    @classmethod
    def of(cls, pairs: Pairs) -> Coverage:
        counts = np.bincount(pairs.rows, minlength=pairs.n_items)
        if not len(counts):
            return cls(0, 0, 0, 0, 0.0, 0)
        return cls(
            calls=len(pairs),
            items=pairs.n_items,
            never_scored=int((counts == 0).sum()),
            fewest=int(counts.min()),
            median=float(np.median(counts)),
            most=int(counts.max()),
        )

    @property
    def calls_per_item(self) -> float:
        return self.calls / self.items if self.items else 0.0


@dataclass(frozen=True, slots=True)
class SparseScores:
    """Pairs with their scores: the observed entries of G."""

    pairs: Pairs
    scores: Scores

    def __post_init__(self) -> None:
        if self.scores.shape != (len(self.pairs),) or self.scores.dtype != np.float32:
            raise InputError(
                f"scores must be one float32 per pair ({len(self.pairs)}). "
                f"Got {self.scores.dtype} {self.scores.shape} instead."
            )
        if not np.isfinite(self.scores).all():
            raise InputError("scores must be finite.")

    def __len__(self) -> int:
        return len(self.pairs)

    def take(self, which: NDArray[np.int64] | NDArray[np.bool_] | slice) -> SparseScores:
        """Some of the entries."""
        return SparseScores(self.pairs.take(which), self.scores[which])

    def hold_out(self, share: float, *, seed: int) -> tuple[SparseScores, SparseScores]:
        """(to fit, to check the fit with): entries drawn at random, at least one on each side where there are two."""
        if not 0 <= share < 1:
            raise InputError(f"share must be at least 0 and below 1. Got {share!r} instead.")
        count = min(max(1, round(share * len(self))), len(self) - 1) if share and len(self) > 1 else 0
        chosen = np.zeros(len(self), np.bool_)
        chosen[np.random.default_rng(seed).permutation(len(self))[:count]] = True
        return self.take(~chosen), self.take(chosen)
