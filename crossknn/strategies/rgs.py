"""Reranker-guided search: best-first search of the k-nearest-neighbor graph by score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from crossknn._checks import check_positive
from crossknn.strategies.base import RETRIEVERS, Flow, Grid, Observations, Round, SearchContext, Settings
from crossknn.strategies.neighbor_graph import NeighborGraph, take_new
from crossknn.types import Proposal
from crossknn.vectors.ranking import order_rows


@dataclass(frozen=True, repr=False)
class Rgs(Settings):
    """RGS (Xu and Chen, ICLR 2026, arXiv:2509.07163): expand the best-scored item, score its neighbors, repeat.

    The search starts from the first `seeds` items of a ranking. Where all scored items are expanded, and none has a
    neighbor left, it takes the next `seeds` items of the ranking. Two things differ from the paper: its graph is
    DiskANN's and ours the k nearest neighbors, and its reranker orders windows of a list where ours scores items.

    Args:
        budget: Calls per query; every expansion is a round.
        neighbors: Degree of the graph: nearest items of each item by inner product of item vectors.
        seeds: Items of the ranking that the search starts from.
        first: The name of the ranking's retriever; None is the searcher's default.
    """

    requires = frozenset({"item_vectors"})
    by_default = False

    budget: int = 100
    neighbors: int = 16
    seeds: int = 10
    first: str | None = None

    search_space: ClassVar[Grid] = {"neighbors": (16, 8), "seeds": (10, 1), "first": RETRIEVERS}

    def __post_init__(self) -> None:
        for name in ("budget", "neighbors", "seeds"):
            check_positive(name, getattr(self, name))

    def flow(self, context: SearchContext) -> Flow:
        name, rankings = context.propose(self.first, min(self.budget, context.reachable))
        observations = [Observations() for _ in range(context.queries)]
        expanded: list[set[int]] = [set() for _ in observations]
        graph = NeighborGraph(context, min(self.neighbors, context.items))
        step = Round([ranking.first(min(self.seeds, self.budget)) for ranking in rankings], name)
        while any(len(proposal) for proposal in step.proposals):
            scored = yield step
            for observed, proposal, scores in zip(observations, step.proposals, scored, strict=True):
                observed.add(proposal.rows, scores)
            graph.search(row for state in zip(observations, expanded, strict=True) for row in self._best(*state)[:1])
            proposals = [
                self._expand(graph, observed, seen)
                or take_new([ranking], observed.rows, self._left(observed, self.seeds))
                for observed, seen, ranking in zip(observations, expanded, rankings, strict=True)
            ]
            step = Round(proposals, "rgs")
        return None

    def _left(self, observed: Observations, n: int) -> int:
        return min(n, self.budget - len(observed.rows))

    def _expand(self, graph: NeighborGraph, observed: Observations, expanded: set[int]) -> Proposal | None:
        """The unscored neighbors of the best item that is not expanded yet and has any."""
        n = self._left(observed, self.neighbors)
        for row in self._best(observed, expanded):
            expanded.add(row)
            found = take_new([graph.neighbors(row)], observed.rows, n)
            if len(found):
                return Proposal(found.rows, np.full(len(found), observed.scores[observed.rows == row][0]))
        return None

    def _best(self, observed: Observations, expanded: set[int]) -> list[int]:
        """The rows that are not expanded, best first; none where no call is left."""
        best = order_rows(observed.rows, observed.scores).rows.tolist() if self._left(observed, 1) else []
        return [row for row in best if row not in expanded]
