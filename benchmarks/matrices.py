"""Reads a folder of exact cross-encoder scores, so that strategies can be measured without a model."""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.items import Items
from crossknn.normalization import Normalization
from crossknn.retrievers.bm25 import Bm25
from crossknn.retrievers.dense import Dense
from crossknn.retrievers.fused import Fused
from crossknn.strategies.base import Answer, Found, Space, Strategy, drive
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

    def space(self, normalization: Normalization | None) -> Space:
        """What a strategy sees; without a normalization nobody has estimated α and β."""

        def propose(retriever: str | None, n: int) -> tuple[str, list[Proposal]]:
            return str(retriever), self.retrievers[str(retriever)].retrieve(self.queries, n)

        queries, items = self.scores.shape
        return Space(
            queries=queries,
            items=items,
            propose=propose,
            query_vectors=lambda: self.query_vectors,
            item_vectors=lambda: self.vectors,
            normalization=normalization,
        )

    def run(self, strategy: Strategy, *, scale: str = "train") -> list[Found]:
        """`scale` says where α and β come from: "train" queries, the query's "own" first scores, or "none"."""
        normalization = {"train": self.normalization, "own": None, "none": Normalization()}[scale]
        return drive(
            strategy,
            self.space(normalization),
            lambda asks: Answer([line[rows] for line, rows in zip(self.scores, asks, strict=True)]),
        )

    def recall(self, found: list[Found], k: int) -> np.ndarray:
        """(queries,): the share of the exact top k that was scored."""
        truth = np.argsort(-self.scores, axis=1, kind="stable")[:, :k]
        return np.array([np.isin(t, np.concatenate(f.rows)).mean() for t, f in zip(truth, found, strict=True)])


def load(folder: Path) -> Matrix:
    """The matrix of `folder`; without train scores its first half of queries is train and its second half test."""
    scores = _full_scores(folder)
    vectors = np.load(folder / "item_embeddings.f16.npy").astype(np.float32)
    query_vectors = np.load(folder / "test_query_embeddings.f16.npy").astype(np.float32)
    with lzma.open(folder / "texts.json.xz") as file:
        texts = json.load(file)
    queries = [query["text"] for query in texts["test"]]
    if (folder / "train_scores.f16.npy").exists():
        train_scores = np.load(folder / "train_scores.f16.npy").astype(np.float32)
        train_vectors = np.load(folder / "train_query_embeddings.f16.npy").astype(np.float32)
    else:
        half = len(queries) // 2
        train_scores, scores = scores[:half], scores[half:]
        train_vectors, query_vectors = query_vectors[:half], query_vectors[half:]
        queries = queries[half:]
    items, search = Items(texts["items"], ids=texts["item_ids"]), ExactSearch(vectors)
    encoder = PrecomputedEncoder(queries=dict(zip(queries, query_vectors, strict=True)))
    members = [Dense(encoder, vectors=search), Bm25()]
    return Matrix(
        name=folder.name,
        queries=queries,
        scores=scores,
        query_vectors=query_vectors,
        vectors=search,
        retrievers={retriever.name: retriever for retriever in (Fused(members).fit(items), *members)},
        normalization=Normalization.fit(train_scores[:100], train_vectors[:100] @ vectors.T),
    )


def _full_scores(folder: Path) -> np.ndarray:
    scores = np.load(folder / "test_scores.f16.npy").astype(np.float32)
    top = np.load(folder / "test_top1000.npz")
    np.put_along_axis(scores, top["rows"].astype(np.int64), top["scores"].astype(np.float32), axis=1)
    return scores
