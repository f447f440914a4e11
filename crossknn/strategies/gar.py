"""Graph-based adaptive re-ranking: neighbors of well-scored items, alternating with the first-stage ranking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from crossknn._checks import check_positive
from crossknn.strategies.base import RETRIEVERS, Flow, Grid, MultiRound, Observations, Round, SearchContext
from crossknn.strategies.neighbor_graph import NeighborGraph, take_new
from crossknn.types import EMPTY_PROPOSAL, Proposal
from crossknn.vectors.ranking import order_rows


@dataclass(frozen=True, repr=False)
class Gar(MultiRound):
    """GAR (MacAvaney, Tonellotto and Macdonald, 2022): odd rounds continue the ranking, even ones take the frontier.

    The frontier is the nearest neighbors of scored items: those of the best-scored item first, its nearest first. Where
    one of the two has too few rows for a round the other completes it; where both have, the search ends early. The
    estimate of a frontier row is the score of the item it is a neighbor of. Later rows of the ranking have none: the
    retriever's is on another scale.

    Args:
        rounds: With one round this is `Rerank`.
        neighbors: Degree of the graph: nearest items of each item by inner product of item vectors. They are searched
            when first needed, within the filter, once for all queries of a search.
        first: The name of the ranking's retriever; None is the searcher's default. A query for which it proposes
            nothing finds nothing.
    """

    requires = frozenset({"item_vectors"})

    neighbors: int = 8
    first: str | None = None

    search_space: ClassVar[Grid] = {"neighbors": (8, 4, 16), "first": RETRIEVERS}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("neighbors", self.neighbors)

    def flow(self, context: SearchContext) -> Flow:
        name, rankings = context.propose(self.first, min(self.budget, context.reachable))
        observations = [Observations() for _ in range(context.queries)]
        graph = NeighborGraph(context, min(self.neighbors, context.items))
        later = [Proposal(ranking.rows, np.full(len(ranking), np.nan, np.float32)) for ranking in rankings]

        def alternate(number: int) -> Round:
            counts = [self._share(context, number, len(observed.rows)) for observed in observations]
            left = [
                take_new([ranking], observed.rows, self.budget)
                for ranking, observed in zip(later, observations, strict=True)
            ]
            ranking_first = number % 2 == 1
            needed = [0 if ranking_first and len(ranking) >= n else n for ranking, n in zip(left, counts, strict=True)]
            proposals = []
            for ranking, frontier, n in zip(left, self._frontiers(graph, observations, needed), counts, strict=True):
                sources = (ranking, frontier) if ranking_first else (frontier, ranking)
                proposals.append(take_new(sources, EMPTY_PROPOSAL.rows, n))
            return Round(proposals, type(self).__name__.lower())

        first = Round([ranking.first(self._share(context, 1, 0)) for ranking in rankings], name)
        yield from self._run_rounds(first, observations, alternate)
        return None

    def _frontiers(self, graph: NeighborGraph, observations: list[Observations], counts: list[int]) -> list[Proposal]:
        """For each query the first `counts` rows of the frontier, or fewer where there are not enough."""
        sources = [order_rows(observed.rows, observed.scores) for observed in observations]
        graph.search(
            int(row) for best, n in zip(sources, counts, strict=True) for row in best.rows[: -(-n // graph.degree)]
        )
        return [
            graph.nearest_frontier(best, observed.rows, n)
            for best, observed, n in zip(sources, observations, counts, strict=True)
        ]
