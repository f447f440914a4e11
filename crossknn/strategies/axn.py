"""AXN, the paper's adaptive search (Algorithm 1): solve for the query vector, retrieve with it, repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from crossknn.errors import InputError
from crossknn.strategies.base import Flow, Requirement, Round, SearchContext, Settings
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.rounds import EARLY, Observations, check_rounds, search_unscored, share_of_round
from crossknn.types import Proposal, Rows, Scores, Vectors, VectorSearch
from crossknn.vectors.ranking import order_rows


@dataclass(frozen=True, repr=False)
class Axn(Settings):
    """AXN(X, Y): X is where the item vectors come from (the index), Y the retriever of the first round.

    Scores are normalised by the α and β of the searcher, or of the query's first scores where it has none.

    budget      B_CE: calls per query, spread evenly over the rounds
    rounds      R; with one round this is `Rerank`
    mix         λ: `(1 − λ) u_linreg + λ u_param`, with u_param the dual encoder's query vector
    first       Y: the name of the first round's retriever; None is the searcher's default
    shortlist   search only the top `shortlist` rows of Y (the paper: 10,000 on five million items)
    estimates   also return Ŝ, the estimated score of every item
    """

    requires: ClassVar[frozenset[Requirement]] = frozenset({"query_vectors"})

    budget: int = 100
    rounds: int = 10
    mix: float = 0.5
    first: str | None = None
    shortlist: int | None = None
    estimates: bool = False

    def __post_init__(self) -> None:
        check_rounds(self.budget, self.rounds)
        if not 0 <= self.mix <= 1:
            raise InputError(f"mix must be between 0 and 1. Got {self.mix} instead.")
        if self.shortlist is not None and self.shortlist < self.budget:
            raise InputError(f"shortlist must be at least the budget ({self.budget}). Got {self.shortlist} instead.")

    def flow(self, space: SearchContext) -> Flow:
        name, proposals = space.propose(self.first, self.shortlist or self._share(0, 1))
        shortlists = [proposal.rows for proposal in proposals] if self.shortlist else None
        states = [Observations() for _ in range(space.queries)]
        ask = Round([proposal.first(self._share(0, 1)) for proposal in proposals], name)  # line 3
        for number in range(1, self.rounds + 1):
            scores = yield ask  # lines 4 and 9
            for state, proposal, new in zip(states, ask.proposals, scores, strict=True):
                state.add(proposal.rows, new)
            if number < self.rounds:
                wanted = [self._wanted(state, number + 1) for state in states]
                ask = Round(self._next_rows(space, states, wanted, shortlists), "axn")  # lines 5 to 8
                if not any(len(proposal) for proposal in ask.proposals):
                    break
        return self._all_estimates(space, states) if self.estimates else None  # line 12

    def _share(self, spent: int, number: int) -> int:
        return share_of_round(number, budget=self.budget, rounds=self.rounds, spent=spent)

    def _wanted(self, state: Observations, number: int) -> int:
        """A query for which nothing was scored and no u_param helps has no vector to search with."""
        return self._share(len(state.rows), number) if len(state.rows) or self.mix > 0 else 0

    def _next_rows(
        self, space: SearchContext, states: list[Observations], wanted: list[int], shortlists: list[Rows] | None
    ) -> list[Proposal]:
        vectors, scales = self._query_vectors(space, states)
        if shortlists is None:
            found = search_unscored(space, vectors, states, wanted)
        else:
            found = [
                _search_rows(np.setdiff1d(rows, state.rows), vector, space)
                for rows, state, vector in zip(shortlists, states, vectors, strict=True)
            ]
        return [
            Proposal(p.rows, scale.restore(p.estimates).astype(np.float32)).first(n)
            for p, scale, n in zip(found, scales, wanted, strict=True)
        ]

    def _query_vectors(self, space: SearchContext, states: list[Observations]) -> tuple[Vectors, list[Normalization]]:
        """The vector u of every query (Eq. 5, mixed as in Eq. 7), and the scale its estimates are on."""
        from crossknn.strategies.least_squares import solve_query_vectors  # imports torch

        items = space.item_vectors()
        if self.mix > 0 and space.query_vectors is None:
            raise InputError(
                "a mix above 0 needs query vectors: an encoder, and item vectors like its own. Or give mix=0."
            )
        parametric = space.query_vectors() if space.query_vectors else None  # u_param
        with space.solving:
            guesses: Sequence[Vectors | None] = [None] * len(states) if parametric is None else list(parametric)
            scales = [
                space.normalization or self._own_scale(items, *both) for both in zip(states, guesses, strict=True)
            ]
            vectors = np.zeros((space.queries, items.dim), np.float32)
            if self.mix < 1:
                goals = [scale.normalize(state.scores) for scale, state in zip(scales, states, strict=True)]
                vectors = (1 - self.mix) * solve_query_vectors(items, [state.rows for state in states], goals)
            if parametric is not None:
                vectors += self.mix * parametric
        return vectors, scales

    def _own_scale(self, items: VectorSearch, state: Observations, guess: Vectors | None) -> Normalization:
        """α and β from this query's own earliest scores, where nobody estimated them on train queries."""
        early = max(self._share(0, 1), EARLY)
        estimates = None if guess is None else items.take(state.rows[:early]) @ guess
        return Normalization.fit_query(state.scores[:early], estimates)

    def _all_estimates(self, space: SearchContext, states: list[Observations]) -> list[Scores]:
        vectors, scales = self._query_vectors(space, states)
        estimates = space.item_vectors().estimates(vectors)
        return [scale.restore(line).astype(np.float32) for scale, line in zip(scales, estimates, strict=True)]


def _search_rows(rows: Rows, vector: Vectors, space: SearchContext) -> Proposal:
    """These rows by inner product with `vector`, best first, ties to the lower row."""
    return order_rows(rows, space.item_vectors().take(rows) @ vector)
