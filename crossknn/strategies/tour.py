"""TouR as the paper runs it: one gradient step on the query vector per round, on the scores of that round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_choice, check_number
from crossknn.errors import InputError
from crossknn.strategies.base import Flow, MultiRound, Observations, Round, SearchContext, search_unscored
from crossknn.strategies.normalization import Normalization
from crossknn.types import Proposal, Vectors

Loss = Literal["ce", "mse"]
LEARNING_RATES: dict[Loss, float] = {"ce": 0.1, "mse": 1e-3}  # the paper's


@dataclass(frozen=True, repr=False)
class Tour(MultiRound):
    """TouR-CE or TouR-MSE: gradient descent on the query vector u, which starts as the encoder's.

    Each round scores the best unscored rows by `u·v`, and then takes one gradient step on these rows. "mse" uses scores
    normalized as for `Axn`, "ce" raw scores.

    Args:
        rounds: With one round this is `Rerank` with the dense retriever.
        loss: "ce" is the KL divergence of the softmax of `u·v` from that of the scores, "mse" the mean squared error.
        learning_rate: None is the paper's: 0.1 for "ce", 0.001 for "mse".
    """

    requires = frozenset({"query_vectors"})

    loss: Loss = "ce"
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("loss", self.loss, LEARNING_RATES)
        if self.learning_rate is not None:
            check_number("learning_rate", self.learning_rate)

    def flow(self, context: SearchContext) -> Flow:
        if context.query_vectors is None:
            raise InputError("Tour needs query vectors: an encoder, and item vectors in its space.")
        start = context.query_vectors()
        vectors = start.copy()
        scale = (context.normalization if self.loss == "mse" else None) or Normalization()
        scales = [scale] * context.queries
        observations = [Observations() for _ in range(context.queries)]

        def search(number: int) -> Round:
            counts = [self._share(context, number, len(observed.rows)) for observed in observations]
            found = search_unscored(context, vectors, observations, counts)
            pairs = zip(found, scales, strict=True)
            proposals = [Proposal(one.rows, scale.restore(one.estimates).astype(np.float32)) for one, scale in pairs]
            return Round(proposals, "tour")

        def step_and_search(number: int) -> Round:
            with context.solving:
                for query, observed in enumerate(observations):
                    if self.loss == "mse":
                        scales[query] = self._normalization(context, observed, start[query])
                    vectors[query] = self._step(context, observed, vectors[query], scales[query])
            return search(number)

        yield from self._run_rounds(search(1), observations, step_and_search)
        return None

    def _step(self, context: SearchContext, observed: Observations, vector: Vectors, scale: Normalization) -> Vectors:
        """The query vector after one gradient step on the rows of the last round."""
        rows, scores = observed.rows[observed.before :], observed.scores[observed.before :]
        if not len(rows):
            return vector
        rate = self.learning_rate or LEARNING_RATES[self.loss]
        gradient = kl_gradient if self.loss == "ce" else squared_error_gradient
        with np.errstate(over="ignore", invalid="ignore"):
            moved = vector - rate * gradient(context.item_vectors().take(rows), vector, scale.normalize(scores))
            stepped: Vectors = moved.astype(np.float32)
        if not np.isfinite(stepped).all():
            raise InputError(f"gradient descent on a query vector diverged. Lower `learning_rate` ({rate}).")
        return stepped


def kl_gradient(vectors: NDArray[Any], u: NDArray[Any], scores: NDArray[Any]) -> NDArray[np.float64]:
    """The gradient in u of `KL(softmax(scores) ‖ softmax(V u))`: `Vᵀ (softmax(V u) − softmax(scores))`."""
    wide = np.asarray(vectors, np.float64)
    gradient: NDArray[np.float64] = wide.T @ (_softmax(wide @ u) - _softmax(scores))
    return gradient


def squared_error_gradient(vectors: NDArray[Any], u: NDArray[Any], scores: NDArray[Any]) -> NDArray[np.float64]:
    """The gradient in u of the mean of `(V u − scores)²`: `2/n Vᵀ (V u − scores)`."""
    wide = np.asarray(vectors, np.float64)
    gradient: NDArray[np.float64] = 2 / len(wide) * wide.T @ (wide @ u - scores)
    return gradient


def _softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    powers = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    shares: NDArray[np.float64] = powers / powers.sum()
    return shares
