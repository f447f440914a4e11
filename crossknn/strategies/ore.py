"""Online relevance estimation: a linear bandit over few features of candidates, refitted to every batch of scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive
from crossknn._imports import import_extra
from crossknn.strategies.base import Flow, Grid, Observations, Round, SearchContext, Settings
from crossknn.strategies.neighbor_graph import NeighborGraph
from crossknn.types import Proposal, Rows, Scores
from crossknn.vectors.ranking import order_rows, ranks_in

POOL: Final = 1_000  # rows of each retriever that are candidates, or as many as the budget
START_WEIGHT: Final = 0.2  # of every feature

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class Ore(Settings):
    """ORE (Rathee, Venktesh, MacAvaney and Anand, SIGIR 2025, arXiv:2504.09353), for hybrid retrieval.

    Candidates are the first rows of all signal retrievers. Their estimated relevance (the paper's EstRel) is a weighted
    sum of features: each retriever's score, scaled to between 0 and 1, and the affinity to the best-scored items, the
    mean of score × inner product over those of the `top` best that have the candidate as a neighbor. Every batch is the
    best by this estimate; then the weights are the least-squares fit to the batch's scores, scaled to between 0 and 1,
    with weights between 0 and 1. The paper's fourth feature, RM3, needs texts, which a strategy does not see; its
    affinity is a trained model's, ours the inner product; and all of our budget is scored, none is left to estimates.

    Args:
        budget: Calls per query.
        batch: Calls of one round; the paper's 16.
        top: How many of the best-scored items give affinity.
        neighbors: Degree of the graph: nearest items of each item by inner product of item vectors.
    """

    requires = frozenset({"item_vectors"})
    by_default = False
    uses_signals = True

    budget: int = 100
    batch: int = 16
    top: int = 10
    neighbors: int = 16

    search_space: ClassVar[Grid] = {"top": (10, 5), "neighbors": (16, 64)}

    def __post_init__(self) -> None:
        for name in ("budget", "batch", "top", "neighbors"):
            check_positive(name, getattr(self, name))

    def flow(self, context: SearchContext) -> Flow:
        depth = min(max(POOL, self.budget), context.reachable)
        lists = [context.propose(name, depth)[1] for name in context.signals]
        graph = NeighborGraph(context, min(self.neighbors, context.items))
        searches = [_Estimator(found, graph, self.top) for found in zip(*lists, strict=True)]
        while True:
            with context.solving:
                proposals = [one.best(min(self.batch, self.budget - len(one.observed.rows))) for one in searches]
            if not any(map(len, proposals)):
                return None
            scored = yield Round(proposals, "ore")
            with context.solving:
                for one, proposal, scores in zip(searches, proposals, scored, strict=True):
                    one.update(proposal, scores)
                graph.search(row for one in searches for row in one.observed.rows[one.heads()].tolist())
                for one in searches:
                    one.refresh()


class _Estimator:
    """Features, weights and scores of one query."""

    def __init__(self, lists: tuple[Proposal, ...], graph: NeighborGraph, top: int) -> None:
        self.observed = Observations()
        self._graph, self._top = graph, top
        self._rows = np.unique(np.concatenate([one.rows for one in lists]))
        scaled = [np.append(_scale(one.estimates), 0.0) for one in lists]  # 0 for rows that are not in the list
        self._signals = [values[ranks_in(one, self._rows)] for values, one in zip(scaled, lists, strict=True)]
        self._weights = np.full(len(lists) + 1, START_WEIGHT)
        self._scaled = np.empty(0)  # the scores so far, each scaled within its batch
        self.refresh()

    def refresh(self) -> None:
        """Compute the (candidates, features) anew."""
        self._features = np.column_stack([*self._signals, self._affinity()])

    def heads(self) -> Rows:
        """The places of the best-scored rows, which give affinity."""
        order: Rows = np.lexsort((self.observed.rows, -self.observed.scores))
        return order[: self._top]

    def _affinity(self) -> Array:
        """(candidates,) mean of scaled score × inner product over the best-scored items that they are neighbors of."""
        total, count = np.zeros(len(self._rows)), np.zeros(len(self._rows))
        for place in self.heads():
            near = self._graph.neighbors(int(self.observed.rows[place]))
            _, at, which = np.intersect1d(self._rows, near.rows, assume_unique=True, return_indices=True)
            total[at] += self._scaled[place] * near.estimates[which]
            count[at] += 1
        return total / np.maximum(count, 1)

    def best(self, n: int) -> Proposal:
        """The `n` unscored candidates of largest estimate, which is on a scale of its own."""
        new = ~np.isin(self._rows, self.observed.rows)
        found = order_rows(self._rows[new], (self._features @ self._weights)[new]).first(n)
        return Proposal(found.rows, np.full(len(found), np.nan, np.float32))

    def update(self, batch: Proposal, scores: Scores) -> None:
        """Fit the weights to the batch. The first batch has no affinity to fit."""
        if not len(batch):
            return
        fitted = len(self._weights) - (not len(self.observed.rows))
        scaled = _scale(scores)
        rows = self._features[np.searchsorted(self._rows, batch.rows)]
        solve = import_extra("scipy.optimize", extra="retrievers").lsq_linear
        self._weights[:fitted] = solve(rows[:, :fitted], scaled, bounds=(0, 1), lsq_solver="exact").x
        self.observed.add(batch.rows, scores)
        self._scaled = np.concatenate([self._scaled, scaled])


def _scale(values: NDArray[Any]) -> Array:
    """The values, scaled to between 0 and 1; zeros where they are all equal."""
    wide = np.asarray(values, np.float64)
    if not len(wide) or not np.ptp(wide):
        return np.zeros(len(wide))
    scaled: Array = (wide - wide.min()) / np.ptp(wide)
    return scaled
