"""ANNCUR and adaCUR: the scores of a few anchor items, and what a dense CUR index makes of them.

With `R` the scores of anchor queries (lines) and all items (columns), and `c` the query's scores of its anchor
items A, CUR estimates all scores as `ŝ = c U R`, with `U = pinv(R_A)`. The columns of `R` are the item vectors
of an index with `Cur(…)` factors, so `c U` is the query vector u of least squares on the anchors' vectors.

Both take raw scores, without α and β: `R` holds raw scores too. Any other item vectors work as well, since a
strategy sees numbers only, but that is not the paper's CUR: adaCUR is then AXN with λ = 0 and no normalisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from crossknn._checks import check_fraction, check_positive, check_seed, invalid
from crossknn.errors import InputError
from crossknn.strategies.base import Flow, Requirement, Round, SearchContext, Settings
from crossknn.strategies.rounds import Observations, check_rounds, run_rounds, search_unscored, share_of_round
from crossknn.types import Proposal, Scores, Vectors


@dataclass(frozen=True, repr=False)
class AnnCur(Settings):
    """ANNCUR: the same random anchor items for every query, then the best of all others by `ŝ = c U R`.

    Meant for `Index.build(…, factors=Cur(…))`; it needs no retriever and no encoder.

    budget      calls per query: anchors and reranked items together
    anchors     how many of them are anchor items; None is `share` of the budget
    share       the anchors as a fraction of the budget, where their number is not given; None is half
    seed        draws the anchors, from the rows that the filter allows
    estimates   also return Ŝ, the estimated score of every item
    """

    requires: ClassVar[frozenset[Requirement]] = frozenset({"cur_factors"})

    budget: int = 100
    anchors: int | None = None
    share: float | None = None
    seed: int = 0
    estimates: bool = False

    def __post_init__(self) -> None:
        check_positive("budget", self.budget)
        check_seed(self.seed)
        if self.share is not None:
            check_fraction("share", self.share)
            if self.anchors is not None:
                raise InputError("give either `anchors` or `share`, not both.")
        if self.anchors is not None:
            check_positive("anchors", self.anchors)
            if self.anchors > self.budget:
                raise invalid("anchors", f"between 1 and `budget` ({self.budget})", self.anchors)

    def flow(self, space: SearchContext) -> Flow:
        anchors = self._choose_anchors(space)
        answered = yield Round([anchors] * space.queries, "anchors")
        scored = [Observations(anchors.rows, scores) for scores in answered]
        vectors = _solve(space, scored)
        rest = self.budget - len(anchors)
        if rest and len(anchors) < space.reachable:
            yield Round(search_unscored(space, vectors, scored, [rest] * space.queries), "anncur")
        return _all_estimates(space, vectors) if self.estimates else None

    def _choose_anchors(self, space: SearchContext) -> Proposal:
        rows = space.allowed_rows
        count = self.anchors
        if count is None:
            count = -(-self.budget // 2) if self.share is None else max(1, round(self.share * self.budget))
        drawn = np.random.default_rng(self.seed).choice(len(rows), min(count, len(rows)), replace=False)
        return Proposal(np.sort(rows[drawn]), np.full(len(drawn), np.nan, np.float32))  # nobody estimated anything


@dataclass(frozen=True, repr=False)
class AdaCur(Settings):
    """adaCUR(Y): the anchor items are chosen over rounds by the current `ŝ = c U R`, the first ones by Y.

    Meant for `Index.build(…, factors=Cur(…))`. Every scored item is an anchor.

    budget      calls per query, spread evenly over the rounds
    rounds      with one round this is `Rerank`
    first       Y: the name of the first round's retriever; None is the searcher's default. A query for which it
                proposes nothing finds nothing
    estimates   also return Ŝ, the estimated score of every item
    """

    requires: ClassVar[frozenset[Requirement]] = frozenset({"cur_factors"})

    budget: int = 100
    rounds: int = 10
    first: str | None = None
    estimates: bool = False

    def __post_init__(self) -> None:
        check_rounds(self.budget, self.rounds)

    def flow(self, space: SearchContext) -> Flow:
        name, proposals = space.propose(self.first, self._share(1, Observations()))
        scored = [Observations() for _ in range(space.queries)]

        def choose_anchors(number: int) -> Round:
            wanted = [self._share(number, one) if len(one.rows) else 0 for one in scored]
            return Round(search_unscored(space, _solve(space, scored), scored, wanted), "adacur")

        yield from run_rounds(Round(proposals, name), scored, self.rounds, choose_anchors)
        return _all_estimates(space, _solve(space, scored)) if self.estimates else None

    def _share(self, number: int, scored: Observations) -> int:
        return share_of_round(number, budget=self.budget, rounds=self.rounds, spent=len(scored.rows))


def _solve(space: SearchContext, scored: list[Observations]) -> Vectors:
    """(queries, dim): `c U` of every query; zeros where nothing was scored."""
    from crossknn.strategies.least_squares import solve_query_vectors  # imports torch

    with space.solving:
        return solve_query_vectors(space.item_vectors(), [one.rows for one in scored], [one.scores for one in scored])


def _all_estimates(space: SearchContext, vectors: Vectors) -> list[Scores]:
    return list(space.item_vectors().estimates(vectors))
