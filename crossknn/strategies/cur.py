"""ANNCUR and adaCUR: CUR estimates of all scores from the exact scores of a few anchor items.

With `R` the scores of anchor queries (rows) and all items (columns), and `c` the query's scores of its anchor items A,
CUR estimates all scores as `ŝ = c U R`, with `U = pinv(R_A)`. The columns of `R` are the item vectors of an index with
`Cur(…)` factors, so `c U` is the least-squares query vector u on the anchors' vectors.

Both use raw scores, without α and β, because `R` holds raw scores too. Other item vectors work as well, but that is not
the paper's CUR: adaCUR is then AXN with λ = 0 and no normalization.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from crossknn._checks import check_fraction, check_positive, check_seed, invalid
from crossknn.errors import InputError
from crossknn.strategies.base import (
    RETRIEVERS,
    Flow,
    FlowResult,
    Grid,
    MultiRound,
    Observations,
    Round,
    SearchContext,
    Settings,
    search_unscored,
)
from crossknn.types import Proposal, Vectors


@dataclass(frozen=True, repr=False)
class AnnCur(Settings):
    """ANNCUR: the same random anchor items for every query, then the best other items by `ŝ = c U R`.

    Meant for `Index.build(…, factors=Cur(…))`; it needs no retriever and no encoder.

    Args:
        budget: Calls per query, anchors and reranked items together.
        anchors: Number of anchor items; None is `share` of the budget.
        share: Anchors as a fraction of the budget, where `anchors` is not given; None is one half.
        seed: Draws the anchors from the rows that the filter allows.
        estimates: Also return Ŝ, the estimated score of every item.
    """

    requires = frozenset({"cur_factors"})

    budget: int = 100
    anchors: int | None = None
    share: float | None = None
    seed: int = 0
    estimates: bool = False

    @classmethod
    def grid(cls, given: Mapping[str, Any]) -> Grid:
        return {} if "anchors" in given else {"share": (0.5, 0.25, 0.75)}

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

    def flow(self, context: SearchContext) -> Flow:
        anchors = self._choose_anchors(context)
        scored = yield Round([anchors] * context.queries, "anchors")
        observations = [Observations(anchors.rows, scores) for scores in scored]
        vectors = _solve(context, observations)
        rest = min(self.budget, context.reachable) - len(anchors)
        if rest:
            yield Round(search_unscored(context, vectors, observations, [rest] * context.queries), "anncur")
        return _all_estimates(context, vectors) if self.estimates else None

    def _choose_anchors(self, context: SearchContext) -> Proposal:
        rows = context.allowed_rows
        count = self.anchors
        if count is None:
            count = -(-self.budget // 2) if self.share is None else max(1, round(self.share * self.budget))
        drawn = np.random.default_rng(self.seed).choice(len(rows), min(count, len(rows)), replace=False)
        return Proposal(np.sort(rows[drawn]), np.full(len(drawn), np.nan, np.float32))


@dataclass(frozen=True, repr=False)
class AdaCur(MultiRound):
    """adaCUR(Y): anchor items chosen over rounds by the current `ŝ = c U R`, the first ones by Y.

    Meant for `Index.build(…, factors=Cur(…))`. Every scored item is an anchor.

    Args:
        rounds: With one round this is `Rerank`.
        first: Y, the name of the first round's retriever; None is the searcher's default. A query for which it proposes
            nothing finds nothing.
        estimates: Also return Ŝ, the estimated score of every item.
    """

    requires = frozenset({"cur_factors"})

    first: str | None = None
    estimates: bool = False

    search_space: ClassVar[Grid] = {"first": RETRIEVERS}

    def flow(self, context: SearchContext) -> Flow:
        name, proposals = context.propose(self.first, self._share(context, 1, 0))
        observations = [Observations() for _ in range(context.queries)]

        def choose_anchors(number: int) -> Round:
            scored = [len(observed.rows) for observed in observations]
            counts = [self._share(context, number, calls) if calls else 0 for calls in scored]
            return Round(search_unscored(context, _solve(context, observations), observations, counts), "adacur")

        yield from self._run_rounds(Round(proposals, name), observations, choose_anchors)
        return _all_estimates(context, _solve(context, observations)) if self.estimates else None


def _solve(context: SearchContext, observations: list[Observations]) -> Vectors:
    """(queries, dim): `c U` of every query; zeros where nothing was scored."""
    from crossknn.strategies.least_squares import solve_query_vectors  # imports torch

    rows, scores = [observed.rows for observed in observations], [observed.scores for observed in observations]
    with context.solving:
        return solve_query_vectors(context.item_vectors(), rows, scores)


def _all_estimates(context: SearchContext, vectors: Vectors) -> FlowResult:
    return FlowResult(list(context.item_vectors().estimates(vectors)))
