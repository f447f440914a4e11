"""TouR as the paper runs it: one gradient step on the query vector per round, towards the scores of that round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.strategies.base import Flow, Requirement, Round, SearchContext, Settings
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.rounds import (
    EARLY,
    Observations,
    check_rounds,
    run_rounds,
    search_unscored,
    share_of_round,
)
from crossknn.types import Proposal, Vectors

Loss = Literal["ce", "mse"]
LEARNING_RATES: dict[Loss, float] = {"ce": 0.1, "mse": 1e-3}  # the paper's


@dataclass(frozen=True, repr=False)
class Tour(Settings):
    """TouR-CE or TouR-MSE: starts from the encoder's query vector u, and needs an encoder for it.

    Each round scores the best rows by `u·v` that are not scored yet, and then moves u one step down the gradient
    of the loss on these rows. "mse" takes scores normalised as for `Axn`, "ce" raw ones.

    budget          calls per query, spread evenly over the rounds
    rounds          with one round this is `Rerank` with the dense retriever
    loss            "ce": KL divergence of the softmax of `u·v` from that of the scores; "mse": mean squared error
    learning_rate   None is the paper's: 0.1 for "ce", 0.001 for "mse"
    """

    requires: ClassVar[frozenset[Requirement]] = frozenset({"query_vectors"})

    budget: int = 100
    rounds: int = 10
    loss: Loss = "ce"
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        check_rounds(self.budget, self.rounds)
        if self.loss not in LEARNING_RATES:
            raise InputError(f'loss must be "ce" or "mse". Got {self.loss!r} instead.')
        if self.learning_rate is not None and not 0 < self.learning_rate < np.inf:
            raise InputError(f"learning_rate must be a positive number. Got {self.learning_rate!r} instead.")

    def flow(self, space: SearchContext) -> Flow:
        if space.query_vectors is None:
            raise InputError("Tour needs query vectors: an encoder, and item vectors like its own.")
        start = space.query_vectors()
        vectors = start.copy()
        scale = (space.normalization if self.loss == "mse" else None) or Normalization()
        scales = [scale] * space.queries
        scored = [Observations() for _ in range(space.queries)]

        def step_and_search(number: int) -> Round:
            with space.solving:
                for query, one in enumerate(scored):
                    scales[query] = self._scale(space, one, start[query])
                    vectors[query] = self._step(space, one, vectors[query], scales[query])
            return self._search(space, vectors, scored, scales, number)

        first = self._search(space, vectors, scored, scales, 1)
        yield from run_rounds(first, scored, self.rounds, step_and_search)
        return None

    def _search(
        self,
        space: SearchContext,
        vectors: Vectors,
        scored: list[Observations],
        scales: list[Normalization],
        number: int,
    ) -> Round:
        wanted = [self._share(number, len(one.rows)) for one in scored]
        found = search_unscored(space, vectors, scored, wanted)
        return Round(
            [
                Proposal(proposal.rows, scale.restore(proposal.estimates).astype(np.float32))
                for proposal, scale in zip(found, scales, strict=True)
            ],
            "tour",
        )

    def _step(self, space: SearchContext, scored: Observations, vector: Vectors, scale: Normalization) -> Vectors:
        """The query vector after one step on the rows of the last round."""
        rows, scores = scored.rows[scored.before :], scored.scores[scored.before :]
        if not len(rows):
            return vector
        rate = self.learning_rate or LEARNING_RATES[self.loss]
        gradient = kl_gradient if self.loss == "ce" else squared_error_gradient
        with np.errstate(over="ignore", invalid="ignore"):
            moved = vector - rate * gradient(space.item_vectors().take(rows), vector, scale.normalize(scores))
            stepped: Vectors = moved.astype(np.float32)
        if not np.isfinite(stepped).all():
            raise InputError(f"a query vector of Tour grew without bound. Lower learning_rate ({rate}).")
        return stepped

    def _scale(self, space: SearchContext, scored: Observations, guess: Vectors) -> Normalization:
        """α and β for "mse": from the query's own earliest scores, where nobody estimated them on train queries."""
        if self.loss == "ce":
            return Normalization()
        early = max(self._share(1, 0), EARLY)
        estimates = space.item_vectors().take(scored.rows[:early]) @ guess
        return space.normalization or Normalization.fit_query(scored.scores[:early], estimates)

    def _share(self, number: int, spent: int) -> int:
        return share_of_round(number, budget=self.budget, rounds=self.rounds, spent=spent)


def kl_gradient(vectors: NDArray[Any], u: NDArray[Any], scores: NDArray[Any]) -> NDArray[np.float64]:
    """The gradient in u of `KL(softmax(scores) ‖ softmax(vectors · u))`: `Vᵀ (softmax(V u) − softmax(scores))`."""
    wide = np.asarray(vectors, np.float64)
    gradient: NDArray[np.float64] = wide.T @ (_softmax(wide @ u) - _softmax(scores))
    return gradient


def squared_error_gradient(vectors: NDArray[Any], u: NDArray[Any], scores: NDArray[Any]) -> NDArray[np.float64]:
    """The gradient in u of the mean of `(vectors · u − scores)²`: `2/n Vᵀ (V u − scores)`."""
    wide = np.asarray(vectors, np.float64)
    gradient: NDArray[np.float64] = 2 / len(wide) * wide.T @ (wide @ u - scores)
    return gradient


def _softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    powers = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    shares: NDArray[np.float64] = powers / powers.sum()
    return shares
