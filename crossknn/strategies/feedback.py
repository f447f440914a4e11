"""Qdrant's relevance feedback: one search with a query vector moved toward well-scored items and away from others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive, check_range
from crossknn.errors import InputError
from crossknn.strategies.base import (
    RETRIEVERS,
    Flow,
    Grid,
    Observations,
    Round,
    SearchContext,
    Settings,
    search_unscored,
)
from crossknn.types import Proposal, Vectors


@dataclass(frozen=True, repr=False)
class Feedback(Settings):
    """The relevance-feedback query of Qdrant 1.17 with its "naive" strategy: two rounds.

    The first `seeds` items of a ranking are scored. All other calls go to the items x of largest

        F(x) = a sim(q, x) + Σ c (s_p − s_n)^b (sim(p, x) − sim(n, x)),

    summed over the pairs of seeds with s_p > s_n (qdrant.tech/documentation/concepts/search-relevance, "naive
    strategy"; `calculate_naive_feedback_query` in qdrant-client). Similarity is the inner product, so that this is a
    search with one vector. Scores are raw, and only c / a and b change the order: Qdrant trains the three weights per
    collection, `--tune` chooses b and c.

    Args:
        budget: Calls per query.
        seeds: Calls of the first round; with as many as the budget this is `Rerank`.
        first: The name of the first round's retriever; None is the searcher's default.
        a: Weight of the query.
        b: Exponent of a pair's difference in score.
        c: Weight of the pairs.
    """

    requires = frozenset({"query_vectors"})
    by_default = False

    budget: int = 100
    seeds: int = 10
    first: str | None = None
    a: float = 1.0
    b: float = 1.0
    c: float = 0.01

    search_space: ClassVar[Grid] = {"seeds": (10, 5), "first": RETRIEVERS, "b": (1.0, 0.5), "c": (0.01, 0.001, 0.1)}

    def __post_init__(self) -> None:
        check_positive("budget", self.budget)
        check_positive("seeds", self.seeds)
        for name in ("a", "b", "c"):
            check_range(name, getattr(self, name), 0)

    def flow(self, context: SearchContext) -> Flow:
        if context.query_vectors is None:
            raise InputError("Feedback needs query vectors: an encoder, and item vectors in its space.")
        name, proposals = context.propose(self.first, min(self.seeds, self.budget, context.reachable))
        scored = yield Round(proposals, name)
        seeds = [Observations(proposal.rows, scores) for proposal, scores in zip(proposals, scored, strict=True)]
        left = [min(self.budget, context.reachable) - len(one.rows) for one in seeds]
        if any(left):
            with context.solving:
                queries = zip(context.query_vectors(), seeds, strict=True)
                vectors = np.stack(
                    [self.query_vector(vector, *self._examples(context, one)) for vector, one in queries]
                )
            found = search_unscored(context, vectors, seeds, left)
            unknown = [np.full(len(one), np.nan, np.float32) for one in found]  # F(x) is on a scale of its own
            yield Round([Proposal(one.rows, nan) for one, nan in zip(found, unknown, strict=True)], "feedback")
        return None

    def _examples(self, context: SearchContext, seeds: Observations) -> tuple[Vectors, NDArray[Any]]:
        return context.item_vectors().take(seeds.rows), seeds.scores

    def query_vector(self, query: Vectors, examples: Vectors, scores: NDArray[Any]) -> Vectors:
        """`a q + c Σ (s_p − s_n)^b (x_p − x_n)`: its inner product with x is F(x)."""
        gaps = np.subtract.outer(scores, scores).astype(np.float64)
        confidence = np.where(gaps > 0, np.maximum(gaps, 0) ** self.b, 0.0)
        weights = confidence.sum(1) - confidence.sum(0)
        moved: Vectors = (self.a * query + self.c * (weights @ examples)).astype(np.float32)
        return moved
