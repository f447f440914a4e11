"""Tiny worlds with a known answer, for tests that need scores, vectors and candidates but no model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from crossknn.strategies.base import QueryResult, RoundScores, SearchContext, Strategy, drive
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.posterior.prior import Prior
from crossknn.types import Proposal
from crossknn.vectors.exact import ExactSearch
from crossknn.vectors.ranking import top_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class World:
    """Scores of every pair, item vectors, and a dual encoder's query vectors that are a little off."""

    scores: np.ndarray  # (queries, items)
    vectors: np.ndarray  # (items, dim)
    query_vectors: np.ndarray  # (queries, dim)
    normalization: Normalization | None = None
    prior: Prior | None = None
    asked: list[list[int]] | None = None  # how many rows each round asked for, per query

    @classmethod
    def low_rank(cls, queries: int = 5, items: int = 200, dim: int = 8, seed: int = 0, noise: float = 1.0) -> World:
        """Scores that are exactly `u·v`, with `u` unknown to the dual encoder up to `noise`."""
        rng = np.random.default_rng(seed)
        vectors = rng.normal(size=(items, dim)).astype(np.float32)
        truth = rng.normal(size=(queries, dim)).astype(np.float32)
        guess = truth + noise * rng.normal(size=truth.shape).astype(np.float32)
        return cls(truth @ vectors.T, vectors, guess, Normalization())

    def context(self, *, allowed: np.ndarray | None = None, only: slice = slice(None)) -> SearchContext:
        query_vectors = self.query_vectors[only]
        signals = {
            "dense": query_vectors @ self.vectors.T,
            "random": np.tile(np.random.default_rng(7).permutation(len(self.vectors)), (len(query_vectors), 1)),
        }

        def propose(name: str | None, n: int) -> tuple[str, list[Proposal]]:
            return name or "dense", [top_rows(line, n, allowed) for line in signals[name or "dense"]]

        return SearchContext(
            queries=len(query_vectors),
            items=len(self.vectors),
            propose=propose,
            query_vectors=lambda: query_vectors,
            item_vectors=lambda: ExactSearch(self.vectors, device=DEVICE),
            augmented_vectors=lambda: ExactSearch(self.vectors, device=DEVICE).with_columns(
                *(self.prior.item_columns if self.prior else ())
            ),
            allowed=allowed,
            normalization=self.normalization,
            prior=self.prior,
        )

    def run(
        self,
        strategy: Strategy,
        *,
        allowed: np.ndarray | None = None,
        only: slice = slice(None),
        context: SearchContext | None = None,
    ) -> list[QueryResult]:
        self.asked = []
        scores = self.scores[only]

        def answer(asks: list[np.ndarray]) -> RoundScores:
            assert self.asked is not None
            self.asked.append([len(rows) for rows in asks])
            return RoundScores([line[rows].astype(np.float32) for line, rows in zip(scores, asks, strict=True)])

        return drive(strategy, context or self.context(allowed=allowed, only=only), answer)


def all_rows(found: QueryResult) -> list[int]:
    return np.concatenate(found.rows).tolist()


def best(found: QueryResult, k: int) -> list[int]:
    rows, scores = np.concatenate(found.rows), np.concatenate(found.scores)
    return rows[np.lexsort((rows, -scores))][:k].tolist()
