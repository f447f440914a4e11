"""AXN, the paper's adaptive search (Algorithm 1): solve for the query vector, retrieve with it, repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from crossknn._checks import check_positive, check_range, invalid
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
    search_unscored,
)
from crossknn.strategies.normalization import Normalization
from crossknn.types import Proposal, Rows, Scores, Vectors
from crossknn.vectors.ranking import order_rows


@dataclass(frozen=True, repr=False)
class Axn(MultiRound):
    """AXN(X, Y): X is the source of the item vectors (the index), Y the retriever of the first round.

    Scores are normalized by the α and β of the searcher, or of the query's first scores where it has none.

    Args:
        budget: B_CE, calls per query, spread evenly over the rounds.
        rounds: R; with one round this is `Rerank`. None: 10, or fewer where a searcher has measured slow rounds.
        mix: λ in `(1 − λ) u_linreg + λ u_param`, where u_param is the dual encoder's query vector.
        first: Y, the name of the first round's retriever; None is the searcher's default.
        shortlist: Search only the top `shortlist` rows of Y (the paper: 10,000 of five million items).
        estimates: Also return Ŝ, the estimated score of every item.
    """

    requires = frozenset({"query_vectors"})

    mix: float = 0.5
    first: str | None = None
    shortlist: int | None = None
    estimates: bool = False

    search_space: ClassVar[Grid] = {"mix": (0.5, 0.0, 0.2, 0.8), "first": RETRIEVERS}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("mix", self.mix, 0, 1)
        if self.shortlist is not None:
            check_positive("shortlist", self.shortlist)
            if self.shortlist < self.budget:
                raise invalid("shortlist", f"at least `budget` ({self.budget})", self.shortlist)

    def flow(self, context: SearchContext) -> Flow:
        share = self._share(context, 1, 0)
        name, proposals = context.propose(self.first, min(self.shortlist or share, context.reachable))
        shortlists = [proposal.rows for proposal in proposals] if self.shortlist else None
        observations = [Observations() for _ in range(context.queries)]

        def next_round(number: int) -> Round:  # lines 5 to 8 and 10
            counts = [self._count(context, observed, number) for observed in observations]
            return Round(self._next_rows(context, observations, counts, shortlists), "axn")

        first = Round([proposal.first(share) for proposal in proposals], name)  # line 3
        yield from self._run_rounds(first, observations, next_round)  # lines 4, 6 and 9
        return FlowResult(self._all_estimates(context, observations)) if self.estimates else None  # line 12

    def _count(self, context: SearchContext, observed: Observations, number: int) -> int:
        """A query with neither scores nor u_param has no vector to search with."""
        return self._share(context, number, len(observed.rows)) if len(observed.rows) or self.mix > 0 else 0

    def _next_rows(
        self,
        context: SearchContext,
        observations: list[Observations],
        counts: list[int],
        shortlists: list[Rows] | None,
    ) -> list[Proposal]:
        vectors, scales = self._query_vectors(context, observations)
        if shortlists is None:
            found = search_unscored(context, vectors, observations, counts)
        else:
            unscored = [
                np.setdiff1d(rows, observed.rows) for rows, observed in zip(shortlists, observations, strict=True)
            ]
            found = [
                order_rows(rows, context.item_vectors().take(rows) @ vector)
                for rows, vector in zip(unscored, vectors, strict=True)
            ]
        return [
            Proposal(proposal.rows, scale.restore(proposal.estimates).astype(np.float32)).first(count)
            for proposal, scale, count in zip(found, scales, counts, strict=True)
        ]

    def _query_vectors(
        self, context: SearchContext, observations: list[Observations]
    ) -> tuple[Vectors, list[Normalization]]:
        """The vector u of every query (Eq. 5, mixed as in Eq. 7), and the scale of its estimates."""
        from crossknn.strategies.least_squares import solve_query_vectors  # imports torch

        items = context.item_vectors()
        if self.mix > 0 and context.query_vectors is None:
            raise InputError(
                "`mix` above 0 needs query vectors: an encoder, and item vectors in its space. Or set `mix` to 0."
            )
        parametric = context.query_vectors() if context.query_vectors else None  # u_param
        with context.solving:
            guesses: Sequence[Vectors | None] = [None] * len(observations) if parametric is None else list(parametric)
            scales = [self._normalization(context, *pair) for pair in zip(observations, guesses, strict=True)]
            vectors = np.zeros((context.queries, items.dim), np.float32)
            if self.mix < 1:
                targets = [scale.normalize(one.scores) for scale, one in zip(scales, observations, strict=True)]
                vectors = (1 - self.mix) * solve_query_vectors(items, [one.rows for one in observations], targets)
            if parametric is not None:
                vectors += self.mix * parametric
        return vectors, scales

    def _all_estimates(self, context: SearchContext, observations: list[Observations]) -> list[Scores]:
        vectors, scales = self._query_vectors(context, observations)
        estimates = context.item_vectors().estimates(vectors)
        return [scale.restore(row).astype(np.float32) for scale, row in zip(scales, estimates, strict=True)]
