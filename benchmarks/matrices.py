"""Reads a folder of exact cross-encoder scores, so that strategies can be measured without a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.evaluate.matrices import read_scores
from crossknn.retrievers.bm25 import Bm25
from crossknn.retrievers.dense import Dense
from crossknn.retrievers.fused import Fused
from crossknn.strategies.base import QueryResult, RoundScores, SearchContext, Strategy, drive
from crossknn.strategies.normalization import Normalization
from crossknn.types import Proposal, Retriever
from crossknn.vectors.exact import ExactSearch


@dataclass
class Matrix:
    """Test queries with their exact scores, and train queries to estimate α and β from."""

    name: str
    queries: list[str]
    scores: np.ndarray  # (queries, items) float32
    query_vectors: np.ndarray  # (queries, dim) float32
    vectors: ExactSearch
    retrievers: dict[str, Retriever]
    normalization: Normalization

    def first(self, queries: int | None) -> Matrix:
        """The same with only the first test queries."""
        mine = slice(queries)
        parts = {"queries": self.queries[mine], "scores": self.scores[mine], "query_vectors": self.query_vectors[mine]}
        return replace(self, **parts)

    def context(self, normalization: Normalization | None) -> SearchContext:
        """What a strategy sees; without a normalization nobody has estimated α and β."""

        def propose(retriever: str | None, n: int) -> tuple[str, list[Proposal]]:
            return str(retriever), self.retrievers[str(retriever)].retrieve(self.queries, n)

        queries, items = self.scores.shape
        return SearchContext(
            queries=queries,
            items=items,
            propose=propose,
            query_vectors=lambda: self.query_vectors,
            item_vectors=lambda: self.vectors,
            augmented_vectors=lambda: self.vectors,
            normalization=normalization,
        )

    def run(self, strategy: Strategy, *, scale: str = "train") -> list[QueryResult]:
        """`scale` says where α and β come from: "train" queries, the query's "own" first scores, or "none"."""
        normalization = {"train": self.normalization, "own": None, "none": Normalization()}[scale]
        return drive(
            strategy,
            self.context(normalization),
            lambda asks: RoundScores([line[rows] for line, rows in zip(self.scores, asks, strict=True)]),
        )

    def recall(self, found: list[QueryResult], k: int) -> np.ndarray:
        """(queries,): the share of the exact top k that was scored."""
        truth = np.argsort(-self.scores, axis=1, kind="stable")[:, :k]
        return np.array([np.isin(t, np.concatenate(f.rows)).mean() for t, f in zip(truth, found, strict=True)])


def load(folder: Path) -> Matrix:
    """The matrix of `folder`; without train scores its first half of queries is train and its second half test."""
    found = read_scores(folder)
    if found.dataset is None:
        raise SystemExit(f"{folder}: needs texts.json.xz, for BM25 reads the texts")
    queries, search = list(found.dataset.split("test").texts), ExactSearch(found.item_vectors)
    encoder = PrecomputedEncoder(queries=dict(zip(queries, found.test.vectors, strict=True)))
    members = [Dense(encoder, vectors=search), Bm25()]
    return Matrix(
        name=found.name,
        queries=queries,
        scores=found.test.scores,
        query_vectors=found.test.vectors,
        vectors=search,
        retrievers={retriever.name: retriever for retriever in (Fused(members).fit(found.dataset.items), *members)},
        normalization=Normalization.fit(found.train.scores[:100], found.train.vectors[:100] @ found.item_vectors.T),
    )
