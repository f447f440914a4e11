"""Graph-based adaptive re-ranking: look beside what scored well, in turns with the first ranking."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from crossknn._checks import check_positive
from crossknn.strategies.base import Flow, Requirement, Round, SearchContext, Settings
from crossknn.strategies.rounds import Observations, check_rounds, run_rounds, share_of_round
from crossknn.types import EMPTY_PROPOSAL, Proposal, Rows
from crossknn.vectors.ranking import order_rows


@dataclass(frozen=True, repr=False)
class Gar(Settings):
    """GAR (MacAvaney, Tonellotto and Macdonald, 2022): odd rounds score the next of a ranking, even ones the frontier.

    The frontier are the nearest neighbours of scored items: those of the best-scored item first, its nearest first.
    Where one of the two has too few rows left for a round the other fills it; where both have, the search ends early.
    The estimate of a row from the frontier is the score of the item it is a neighbour of. Later rows of the ranking
    have none: the retriever's is on another scale.

    budget      calls per query, spread evenly over the rounds
    rounds      with one round this is `Rerank`
    neighbors   nearest items, by inner product of item vectors, that each item has in the graph. They are searched
                when first needed, among what the filter allows, and once for all queries of a search
    first       the name of the ranking's retriever; None is the searcher's default. A query for which it proposes
                nothing finds nothing
    """

    requires: ClassVar[frozenset[Requirement]] = frozenset({"item_vectors"})

    budget: int = 100
    rounds: int = 10
    neighbors: int = 8
    first: str | None = None

    def __post_init__(self) -> None:
        check_rounds(self.budget, self.rounds)
        check_positive("neighbors", self.neighbors)

    def flow(self, space: SearchContext) -> Flow:
        name, rankings = space.propose(self.first, self.budget)
        scored = [Observations() for _ in range(space.queries)]
        graph = _Graph(space, self.neighbors)
        later = [Proposal(ranking.rows, np.full(len(ranking), np.nan, np.float32)) for ranking in rankings]

        def take_turns(number: int) -> Round:
            wanted = [self._share(number, len(one.rows)) for one in scored]
            left = [_take_new([ranking], one.rows, self.budget) for ranking, one in zip(later, scored, strict=True)]
            ranking_first = number % 2 == 1
            needed = [0 if ranking_first and len(ranking) >= n else n for ranking, n in zip(left, wanted, strict=True)]
            proposals = []
            for ranking, frontier, n in zip(left, graph.frontiers(scored, needed), wanted, strict=True):
                turns = (ranking, frontier) if ranking_first else (frontier, ranking)
                proposals.append(_take_new(turns, EMPTY_PROPOSAL.rows, n))
            return Round(proposals, "gar")

        first = Round([ranking.first(self._share(1, 0)) for ranking in rankings], name)
        yield from run_rounds(first, scored, self.rounds, take_turns)
        return None

    def _share(self, number: int, spent: int) -> int:
        return share_of_round(number, budget=self.budget, rounds=self.rounds, spent=spent)


class _Graph:
    """Every item's nearest items, found when first asked for."""

    def __init__(self, space: SearchContext, neighbors: int) -> None:
        self._space = space
        self._neighbors = neighbors
        self._known: dict[int, Rows] = {}

    def frontiers(self, scored: list[Observations], wanted: list[int]) -> list[Proposal]:
        """For each query the first `wanted` neighbours of its scored rows that are not scored; fewer if there are.

        The neighbours of lower-scored rows come later, so they are not searched before those of better ones are
        too few.
        """
        sources = [order_rows(one.rows, one.scores) for one in scored]
        reach = [-(-n // self._neighbors) for n in wanted]  # rows that are enough if all their neighbours are new
        while True:
            self._find({int(row) for best, n in zip(sources, reach, strict=True) for row in best.rows[:n]})
            frontiers = [
                self._frontier(best.first(n), one.rows) for best, n, one in zip(sources, reach, scored, strict=True)
            ]
            short = [
                query
                for query, frontier in enumerate(frontiers)
                if len(frontier) < wanted[query] and reach[query] < len(sources[query])
            ]
            if not short:
                return [frontier.first(n) for frontier, n in zip(frontiers, wanted, strict=True)]
            for query in short:
                reach[query] *= 2

    def _frontier(self, sources: Proposal, scored: Rows) -> Proposal:
        """The neighbours of `sources`, in their order, each once, with the score of its source."""
        beside = [self._known[int(row)] for row in sources.rows]
        rows = np.concatenate([np.empty(0, np.int64), *beside])
        scores = np.repeat(sources.estimates, [len(some) for some in beside])
        return _take_new([Proposal(rows, scores)], scored, len(rows))

    def _find(self, rows: Iterable[int]) -> None:
        missing = np.array(sorted(set(rows) - self._known.keys()), np.int64)
        if not len(missing):
            return
        items = self._space.item_vectors()
        found = items.search(
            items.take(missing), self._neighbors, exclude=list(missing[:, None]), allowed=self._space.allowed
        )
        self._known.update(zip(missing.tolist(), (proposal.rows for proposal in found), strict=True))


def _take_new(turns: Sequence[Proposal], scored: Rows, n: int) -> Proposal:
    """The first `n` rows of one proposal after the other that are not scored, each once."""
    rows = np.concatenate([proposal.rows for proposal in turns])
    estimates = np.concatenate([proposal.estimates for proposal in turns])
    first_seen = np.zeros(len(rows), np.bool_)
    first_seen[np.unique(rows, return_index=True)[1]] = True
    kept = first_seen & ~np.isin(rows, scored)
    return Proposal(rows[kept], estimates[kept]).first(n)
