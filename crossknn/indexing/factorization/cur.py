"""Dense CUR factors: every item's scores for a few anchor queries are its vector (ANNCUR, adaCUR)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossknn._checks import check_positive
from crossknn.errors import InputError
from crossknn.indexing.score_matrix import Pairs, SparseScores
from crossknn.types import Vectors


@dataclass(frozen=True)
class Cur:
    """Each of `anchors` train queries is scored against all items: `anchors` calls per item.

    The paper's R (anchor queries × items), whose columns are the item vectors. They are raw scores, and there is no
    query vector to begin with: searching mixes nothing in (λ = 0). An item's vector takes 4 · anchors bytes; while
    the scores are collected, each pair needs about 60.
    """

    anchors: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive("anchors", self.anchors)

    def choose_anchors(self, queries: list[str]) -> list[str]:
        """The anchor queries, drawn from the train queries."""
        if len(queries) <= self.anchors:
            return queries
        chosen = np.random.default_rng(self.seed).choice(len(queries), self.anchors, replace=False)
        return [queries[number] for number in np.sort(chosen)]


def all_pairs(n_queries: int, n_items: int) -> Pairs:
    """Every query with every item."""
    queries = np.repeat(np.arange(n_queries, dtype=np.int32), n_items)
    return Pairs(queries, np.tile(np.arange(n_items, dtype=np.int32), n_queries), n_queries, n_items)


def columns(entries: SparseScores) -> Vectors:
    """(items, anchors) float32: the vector of every item, from the scores of all pairs."""
    n_queries, n_items = entries.pairs.n_queries, entries.pairs.n_items
    if len(entries) != n_queries * n_items:
        raise InputError(f"CUR needs all {n_queries * n_items} pairs of anchors and items. Got {len(entries)} instead.")
    vectors: Vectors = np.empty((n_items, n_queries), np.float32)
    vectors[entries.pairs.rows, entries.pairs.queries] = entries.scores
    return vectors
