"""CUR factorization (ANNCUR, adaCUR): each item's vector is its scores for some anchor queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossknn._checks import check_positive
from crossknn.errors import InputError
from crossknn.indexing.score_matrix import SparseScores
from crossknn.types import Vectors


@dataclass(frozen=True)
class Cur:
    """The paper's dense matrix R (anchor queries × items), whose columns are the item vectors.

    These are raw scores in a space without query vectors, so searches start with λ = 0. An item's vector takes
    4 · anchors bytes; while scores are collected, each pair takes about 60.

    Args:
        anchors: Train queries scored against all items: calls per item.
        seed: Of the choice of anchors.
    """

    anchors: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive("anchors", self.anchors)

    def choose_anchors(self, queries: list[str]) -> list[str]:
        """A random subset of the train queries, in their order."""
        if len(queries) <= self.anchors:
            return queries
        chosen = np.random.default_rng(self.seed).choice(len(queries), self.anchors, replace=False)
        return [queries[number] for number in np.sort(chosen)]


def columns(entries: SparseScores) -> Vectors:
    """(items, anchors) float32: the item vectors, from the scores of all pairs."""
    n_queries, n_items = entries.pairs.n_queries, entries.pairs.n_items
    if len(entries) != n_queries * n_items:
        raise InputError(f"CUR needs all {n_queries * n_items} pairs of anchors and items, got {len(entries)}.")
    vectors: Vectors = np.empty((n_items, n_queries), np.float32)
    vectors[entries.pairs.rows, entries.pairs.queries] = entries.scores
    return vectors
