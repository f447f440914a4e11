"""Training lists of a teaching: for each query the items that were scored, best first; and the choice of items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from crossknn.indexing.score_matrix import Numbers, Pairs, SparseScores
from crossknn.types import Scores

NEAREST_SHARE, FARTHER_SHARE, RANDOM_SHARE = 0.5, 0.25, 0.25  # of a list, by default
DEPTH: Final = 2_000  # ranks that the farther items are drawn from


@dataclass(frozen=True, slots=True)
class ScoredLists:
    """The scored items of each query, best first."""

    queries: Numbers  # (lists,)
    rows: Numbers  # (lists, longest) items; 0 behind the end of a list
    scores: Scores  # (lists, longest); −inf behind the end of a list

    @classmethod
    def of(cls, entries: SparseScores, *, min_items: int = 2) -> Self:
        """The lists of all queries with at least `min_items` scores."""
        pairs = entries.pairs
        order = np.lexsort((pairs.rows, -entries.scores, pairs.queries))
        numbers, starts, counts = np.unique(pairs.queries[order], return_index=True, return_counts=True)
        kept = np.flatnonzero(counts >= min_items)
        width = int(counts[kept].max(initial=0))
        rows, scores = np.zeros((len(kept), width), np.int32), np.full((len(kept), width), -np.inf, np.float32)
        inside = np.arange(width) < counts[kept, None]
        at = order[(starts[kept, None] + np.arange(width))[inside]]
        rows[inside], scores[inside] = pairs.rows[at], entries.scores[at]
        return cls(numbers[kept].astype(np.int32), rows, scores)

    def __len__(self) -> int:
        return len(self.queries)

    def take(self, numbers: NDArray[np.int64]) -> Self:
        """Some of the lists."""
        return type(self)(self.queries[numbers], self.rows[numbers], self.scores[numbers])

    def split(self, held_out: NDArray[np.int64]) -> tuple[Self, Self]:
        """The lists of all queries but these, and of these."""
        chosen = np.isin(self.queries, held_out)
        return self.take(np.flatnonzero(~chosen)), self.take(np.flatnonzero(chosen))

    def sample(self, size: int, *, best: int, rng: np.random.Generator) -> Self:
        """At most `size` items of each list, still best first: its `best` ones, and others at random."""
        if self.rows.shape[1] <= size:
            return self
        keys = rng.random(self.rows.shape)
        keys[:, :best] = -1.0
        keys[np.isneginf(self.scores)] = 2.0
        chosen = np.sort(np.argpartition(keys, size, axis=1)[:, :size], axis=1)
        return type(self)(
            self.queries, np.take_along_axis(self.rows, chosen, 1), np.take_along_axis(self.scores, chosen, 1)
        )

    def deviation(self) -> float:
        """The standard deviation of scores within lists."""
        inside = np.isfinite(self.scores)
        counts = inside.sum(1, keepdims=True)
        scores = np.where(inside, self.scores, 0).astype(np.float64)
        centered = np.where(inside, scores - scores.sum(1, keepdims=True) / counts, 0)
        return float(np.sqrt(np.square(centered).sum() / max(int(inside.sum()) - len(self), 1))) or 1.0


def choose_items(
    nearest: NDArray[np.integer],
    size: int,
    *,
    n_items: int,
    rng: np.random.Generator,
    random_share: float = RANDOM_SHARE,
) -> Pairs:
    """`size` items for each query: by default half the nearest, a quarter of the ranks behind them, a quarter random.

    `nearest` are (queries, at most `DEPTH`) rows, nearest first. Items that are drawn twice count once.
    """
    queries, depth = nearest.shape
    mined = (1 - random_share) / (1 - RANDOM_SHARE) * size
    near = min(round(NEAREST_SHARE * mined), depth)
    far = min(round(FARTHER_SHARE * mined), depth - near)
    parts = [nearest[:, :near]]
    if far:
        drawn = np.argpartition(rng.random((queries, depth - near)), far - 1, axis=1)[:, :far]
        parts.append(np.take_along_axis(nearest, near + drawn, 1))
    parts.append(rng.integers(n_items, size=(queries, max(0, size - near - far))))
    rows = np.concatenate([part.astype(np.int64) for part in parts], axis=1)
    keys = np.unique(np.arange(queries)[:, None] * n_items + rows)
    return Pairs((keys // n_items).astype(np.int32), (keys % n_items).astype(np.int32), queries, n_items)
