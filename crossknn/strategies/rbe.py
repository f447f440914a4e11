"""Relevance-based embeddings: a query is described by its scores of support items, chosen greedily offline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_fraction, check_number, check_positive
from crossknn.strategies.base import Flow, Grid, Observations, Round, SearchContext, Settings, search_unscored
from crossknn.types import Proposal, Rows, Scores, Vectors, VectorSearch

Array = NDArray[np.float64]
_ORDERS: Final[WeakKeyDictionary[VectorSearch, Rows]] = WeakKeyDictionary()  # of support items, found once per index


@dataclass(frozen=True, repr=False)
class Rbe(Settings):
    """RBE (ICML 2026, openreview.net/forum?id=aDG34Bhbs1) in its linear form: two rounds over a CUR index.

    An item is described by its scores with the train queries, its vector in an index with `Cur(…)` factors, and a query
    by its scores with support items. These are chosen greedily (the paper's "l2-greedy"): each is the item whose scores
    explain most of what the others leave unexplained of all items' scores. The first round scores them for every query;
    all items' scores are then expected to be Gaussian with the mean and covariance of the train queries, which is
    ridge regression from support scores to scores. The paper trains neural networks for both descriptions; the identity
    and this regression stand for them here.

    Args:
        budget: Calls per query, support items and reranked items together.
        share: Support items as a fraction of the budget.
        ridge: Of the regression, relative to the mean variance of a support item's scores.
    """

    requires = frozenset({"cur_factors"})
    by_default = False
    search_space: ClassVar[Grid] = {"share": (0.25, 0.1, 0.5), "ridge": (0.1, 1.0)}

    budget: int = 100
    share: float = 0.25
    ridge: float = 0.1

    def __post_init__(self) -> None:
        check_positive("budget", self.budget)
        check_fraction("share", self.share)
        check_number("ridge", self.ridge)

    def flow(self, context: SearchContext) -> Flow:
        count = min(max(1, round(self.share * self.budget)), context.reachable)
        with context.solving:
            rows = support_items(context, count)
        unknown = np.full(len(rows), np.nan, np.float32)
        scored = yield Round([Proposal(rows, unknown)] * context.queries, "support")
        with context.solving:
            vectors = self._query_vectors(context.item_vectors().take(rows), scored)
        rest = min(self.budget, context.reachable) - len(rows)
        if rest:
            observations = [Observations(rows, scores) for scores in scored]
            yield Round(search_unscored(context, vectors, observations, [rest] * context.queries), "rbe")
        return None

    def _query_vectors(self, supports: Vectors, scored: list[Scores]) -> Vectors:
        """(queries, dim): a vector whose inner product with an item's vector is the item's expected score.

        With v the vector of an item (its scores with the train queries), its mean is `v·1/dim`, and its centered scores
        are `v C` with C = I − 1 1ᵀ/dim.
        """
        wide = supports.astype(np.float64)
        mean = wide.mean(1)
        centered = wide - mean[:, None]
        covariance = centered @ centered.T
        covariance[np.diag_indices(len(wide))] += self.ridge * max(float(np.trace(covariance)) / len(wide), 1e-12)
        weights = np.linalg.solve(covariance, (np.array(scored, np.float64) - mean).T).T @ centered  # rows sum to 0
        vectors: Vectors = (weights + 1 / wide.shape[1]).astype(np.float32)
        return vectors


def support_items(context: SearchContext, count: int) -> Rows:
    """The first `count` support items in the order of their greedy choice, completed by other allowed rows."""
    items = context.item_vectors()
    if context.allowed is not None:
        return _choose(context, context.allowed_rows, count)
    known = _ORDERS.get(items)
    if known is None or len(known) < count:
        known = _ORDERS[items] = _choose(context, context.allowed_rows, count)
    return known[:count]


def _choose(context: SearchContext, rows: Rows, count: int) -> Rows:
    residuals = context.item_vectors().take(rows)
    residuals = residuals - residuals.mean(1, keepdims=True)
    chosen: list[int] = []
    smallest = 1e-6 * float(np.square(residuals).sum(1).max(initial=0.0))
    for _ in range(min(count, residuals.shape[1] - 1)):
        norms = np.square(residuals).sum(1)
        explained = ((residuals @ (residuals.T @ residuals)) * residuals).sum(1)
        gains = np.where(norms > smallest, explained / np.maximum(norms, 1e-30), -1.0)
        best = int(gains.argmax())
        if gains[best] <= 0:
            break  # every item is explained
        chosen.append(best)
        direction = residuals[best] / np.sqrt(norms[best])
        residuals = residuals - np.outer(residuals @ direction, direction)
    others = np.delete(np.arange(len(rows)), chosen)[: count - len(chosen)]
    supports: Rows = rows[np.concatenate([np.array(chosen, np.int64), others])]
    return supports
