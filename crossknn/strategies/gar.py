"""Graph-based adaptive re-ranking: neighbors of well-scored items, alternating with the first-stage ranking."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from crossknn._checks import check_positive
from crossknn.strategies.base import Flow, MultiRound, Observations, Round, SearchContext
from crossknn.types import EMPTY_PROPOSAL, Proposal, Rows
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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("neighbors", self.neighbors)

    def flow(self, context: SearchContext) -> Flow:
        name, rankings = context.propose(self.first, min(self.budget, context.reachable))
        observations = [Observations() for _ in range(context.queries)]
        graph = _NeighborGraph(context, min(self.neighbors, context.items))
        later = [Proposal(ranking.rows, np.full(len(ranking), np.nan, np.float32)) for ranking in rankings]

        def alternate(number: int) -> Round:
            counts = [self._share(context, number, len(observed.rows)) for observed in observations]
            left = [
                _take_new([ranking], observed.rows, self.budget)
                for ranking, observed in zip(later, observations, strict=True)
            ]
            ranking_first = number % 2 == 1
            needed = [0 if ranking_first and len(ranking) >= n else n for ranking, n in zip(left, counts, strict=True)]
            proposals = []
            for ranking, frontier, n in zip(left, graph.frontiers(observations, needed), counts, strict=True):
                sources = (ranking, frontier) if ranking_first else (frontier, ranking)
                proposals.append(_take_new(sources, EMPTY_PROPOSAL.rows, n))
            return Round(proposals, "gar")

        first = Round([ranking.first(self._share(context, 1, 0)) for ranking in rankings], name)
        yield from self._run_rounds(first, observations, alternate)
        return None


@dataclass(slots=True)
class _NeighborGraph:
    """The k-nearest-neighbor graph of the items, searched lazily."""

    context: SearchContext
    degree: int
    neighbors: dict[int, Rows] = field(default_factory=dict)

    def frontiers(self, observations: list[Observations], counts: list[int]) -> list[Proposal]:
        """For each query the first `counts` unscored neighbors of its scored rows, or fewer where there are not enough.

        The neighbors of lower-scored rows are searched only where those of better ones are too few.
        """
        sources = [order_rows(observed.rows, observed.scores) for observed in observations]
        reach = [-(-n // self.degree) for n in counts]  # rows that are enough if all their neighbors are unscored
        while True:
            self._search({int(row) for best, n in zip(sources, reach, strict=True) for row in best.rows[:n]})
            frontiers = [
                self._frontier(best.first(n), observed.rows)
                for best, n, observed in zip(sources, reach, observations, strict=True)
            ]
            short = [
                query
                for query, frontier in enumerate(frontiers)
                if len(frontier) < counts[query] and reach[query] < len(sources[query])
            ]
            if not short:
                return [frontier.first(n) for frontier, n in zip(frontiers, counts, strict=True)]
            for query in short:
                reach[query] *= 2

    def _frontier(self, sources: Proposal, scored: Rows) -> Proposal:
        """The unscored neighbors of `sources`, in their order, each once, with the score of its source."""
        neighbors = [self.neighbors[int(row)] for row in sources.rows]
        rows = np.concatenate([np.empty(0, np.int64), *neighbors])
        scores = np.repeat(sources.estimates, [len(found) for found in neighbors])
        return _take_new([Proposal(rows, scores)], scored, len(rows))

    def _search(self, rows: Iterable[int]) -> None:
        missing = np.array(sorted(set(rows) - self.neighbors.keys()), np.int64)
        if not len(missing):
            return
        items = self.context.item_vectors()
        found = items.search(
            items.take(missing), self.degree, exclude=list(missing[:, None]), allowed=self.context.allowed
        )
        self.neighbors.update(zip(missing.tolist(), (proposal.rows for proposal in found), strict=True))


def _take_new(sources: Sequence[Proposal], scored: Rows, n: int) -> Proposal:
    """The first `n` unscored rows of these proposals, one proposal after the other, each row once."""
    rows = np.concatenate([proposal.rows for proposal in sources])
    estimates = np.concatenate([proposal.estimates for proposal in sources])
    first_seen = np.zeros(len(rows), np.bool_)
    first_seen[np.unique(rows, return_index=True)[1]] = True
    kept = first_seen & ~np.isin(rows, scored)
    return Proposal(rows[kept], estimates[kept]).first(n)
