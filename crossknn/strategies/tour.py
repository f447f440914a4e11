"""TouR and ReFIT: gradient steps on the query vector after each round, on the scores of that round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_choice, check_number, check_positive
from crossknn.errors import InputError
from crossknn.strategies.base import Flow, Grid, MultiRound, Observations, Round, SearchContext, search_unscored
from crossknn.strategies.normalization import Normalization
from crossknn.types import Proposal, Vectors

Loss = Literal["ce", "mse"]
LEARNING_RATES: dict[Loss, float] = {"ce": 0.1, "mse": 1e-3}  # the paper's
RATE_GRIDS: Final[Mapping[str, Sequence[float]]] = {"ce": (0.1, 0.5, 1.0), "mse": (1e-3, 1e-2, 1e-4)}
STEPS: Final = (1, 10, 100)  # of "ce": TouR's, and up to ReFIT's


@dataclass(frozen=True, repr=False)
class Tour(MultiRound):
    """TouR-CE or TouR-MSE: gradient descent on the query vector u, which starts as the encoder's.

    Each round scores the best unscored rows by `u·v`, and then takes gradient steps on these rows: one is TouR as the
    AXN paper runs it. "mse" uses scores normalized as for `Axn`, "ce" raw scores.

    With two rounds and many steps "ce" is ReFIT (Gangi Reddy et al., arXiv:2305.11744, section 3): the KL divergence of
    the retriever's distribution from the reranker's over the reranked list is descended (100 steps of 0.005), and the
    new query vector retrieves again.

    Args:
        rounds: With one round this is `Rerank` with the dense retriever.
        loss: "ce" is the KL divergence of the softmax of `u·v` from that of the scores, "mse" the mean squared error.
        learning_rate: None is the paper's: 0.1 for "ce", 0.001 for "mse".
        steps: Gradient steps after each round.
    """

    requires = frozenset({"query_vectors"})
    variants = ("loss=ce", "loss=mse")

    loss: Loss = "ce"
    learning_rate: float | None = None
    steps: int = 1

    @classmethod
    def grid(cls, given: Mapping[str, Any]) -> Grid:
        loss = given.get("loss", "ce")
        return {"learning_rate": RATE_GRIDS[loss], **({"steps": STEPS} if loss == "ce" else {})}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("loss", self.loss, LEARNING_RATES)
        check_positive("steps", self.steps)
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
        """The query vector after the gradient steps on the rows of the last round."""
        rows, scores = observed.rows[observed.before :], observed.scores[observed.before :]
        if not len(rows):
            return vector
        rate = self.learning_rate or LEARNING_RATES[self.loss]
        gradient = kl_gradient if self.loss == "ce" else squared_error_gradient
        vectors, targets = context.item_vectors().take(rows), scale.normalize(scores)
        moved: NDArray[Any] = vector
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(self.steps):
                moved = moved - rate * gradient(vectors, moved, targets)
            stepped: Vectors = moved.astype(np.float32)
        if not np.isfinite(stepped).all():
            raise InputError(f"gradient descent on a query vector diverged. Lower `learning_rate` ({rate}).")
        return stepped


def kl_gradient(vectors: NDArray[Any], u: NDArray[Any], scores: NDArray[Any]) -> NDArray[np.float64]:
    """The gradient in u of `KL(softmax(scores) ‖ softmax(V u))`: `Vᵀ (softmax(V u) − softmax(scores))`."""
    wide = np.asarray(vectors, np.float64)
    gradient: NDArray[np.float64] = wide.T @ (softmax(wide @ u) - softmax(scores))
    return gradient


def squared_error_gradient(vectors: NDArray[Any], u: NDArray[Any], scores: NDArray[Any]) -> NDArray[np.float64]:
    """The gradient in u of the mean of `(V u − scores)²`: `2/n Vᵀ (V u − scores)`."""
    wide = np.asarray(vectors, np.float64)
    gradient: NDArray[np.float64] = 2 / len(wide) * wide.T @ (wide @ u - scores)
    return gradient


def softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Shares that sum to 1."""
    powers = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    shares: NDArray[np.float64] = powers / powers.sum()
    return shares
