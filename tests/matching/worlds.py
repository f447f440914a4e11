"""Tables of records whose duplicates are known: vectors near each other, and scores that are a function of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.items.items import Items
from crossknn.testing import MatrixScorer

THRESHOLD = 0.0


@dataclass
class Table:
    """Records in groups of duplicates.

    The cross-encoder scores a pair by vectors that the encoder knows with noise only, and a little higher where the
    first of the two is the query.
    """

    items: Items
    matrix: np.ndarray  # (records, records) scores, query by item
    vectors: np.ndarray

    @classmethod
    def make(cls, sizes: list[int], *, noise: float = 0.3, dim: int = 16, seed: int = 0) -> Table:
        """A group of each of these sizes."""
        rng = np.random.default_rng(seed)
        group = np.repeat(np.arange(len(sizes)), sizes)
        rng.shuffle(group)
        truth = rng.normal(size=(len(sizes), dim))[group] + 0.2 * rng.normal(size=(len(group), dim))
        distance = ((truth[:, None] - truth[None]) ** 2).sum(2)
        matrix = (4.0 - distance + 0.01 * np.triu(np.ones_like(distance))).astype(np.float32)
        vectors = truth + noise * rng.normal(size=truth.shape)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        names = [f"record {number}" for number in range(len(group))]
        items = Items(names, ids=[f"id-{number}" for number in range(len(group))], fields={"group": group.tolist()})
        return cls(items, matrix, vectors.astype(np.float32))

    @property
    def scorer(self) -> MatrixScorer:
        return MatrixScorer(self.matrix, queries=list(self.items.texts), items=list(self.items.texts))

    @property
    def encoder(self) -> PrecomputedEncoder:
        return PrecomputedEncoder(queries=(list(self.items.texts), self.vectors))

    @property
    def item_encoder(self) -> PrecomputedEncoder:
        """The encoder with the vectors of items, too."""
        texts = list(self.items.texts)
        return PrecomputedEncoder(queries=(texts, self.vectors), items=(texts, self.vectors))

    @property
    def models(self) -> dict:
        return {"scorer": self.scorer, "encoder": self.encoder, "vectors": self.vectors, "progress": False}

    @property
    def true_pairs(self) -> set[tuple[int, int]]:
        """The pairs whose score, with the earlier record as the query, reaches the threshold."""
        left, right = np.nonzero(np.triu(self.matrix, 1) * (self.matrix >= THRESHOLD) > 0)
        return set(zip(left.tolist(), right.tolist(), strict=True))
