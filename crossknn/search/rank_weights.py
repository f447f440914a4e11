"""How much the score and each retriever count in the fused order of hits: equally, as given, or as judgments say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError

SCORE: Final = "score"  # the weight of the score, beside the names of retrievers
NEAR: Final = 100  # items of a query that weights are learned from: those that may come first
ALIKE: Final = 100.0  # how strongly fitted weights are drawn towards equal ones
SMALL: Final = 0.1  # keeps weights finite where they tell relevant items from all others
STEPS: Final = 50  # of Newton's method, at most

Judged = tuple[NDArray[np.float64], NDArray[np.bool_]]  # (items, columns) z-scores of a query, and what is relevant


def check_weights(weights: Mapping[str, float]) -> dict[str, float]:
    """The weights, that of the score first."""
    numbers = isinstance(weights, Mapping) and all(
        isinstance(weight, int | float) and np.isfinite(weight) for weight in weights.values()
    )
    if not numbers or SCORE not in weights:
        raise InputError(
            "rank_weights must give a finite number for 'score' and for each retriever that counts, "
            f"such as {{'score': 1, 'bm25': 0.5}}. Got {weights!r} instead."
        )
    return {SCORE: weights[SCORE], **weights}


def equal_weights(retrievers: Sequence[str]) -> dict[str, float]:
    """The score and each retriever count the same."""
    return dict.fromkeys([SCORE, *retrievers], 1 / (1 + len(retrievers)))


def fit_weights(queries: Sequence[Judged]) -> NDArray[np.float64]:
    """(columns,) by how much each counts for relevance; their sizes add up to 1.

    A logistic regression of what is relevant on the z-scores of each query's first items by equal weights. Weights are
    drawn towards equal ones, so that a few judged queries do no harm.
    """
    regression = _Regression.of(queries)
    weights = np.zeros(regression.inputs.shape[1])
    for _ in range(STEPS):
        step = regression.newton_step(weights)
        while regression.loss(weights + step) > regression.loss(weights):
            step /= 2
        weights += step
        if np.abs(step).max() < 1e-8:
            break
    sizes = np.abs(weights[:-1])
    return weights[:-1] / sizes.sum() if sizes.any() else np.full(len(sizes), 1 / len(sizes))


@dataclass(frozen=True)
class _Regression:
    """A logistic regression; the last input is the constant 1."""

    inputs: NDArray[np.float64]  # (items, columns + 1)
    relevant: NDArray[np.bool_]
    penalty: NDArray[np.float64]

    @classmethod
    def of(cls, queries: Sequence[Judged]) -> _Regression:
        near = [np.argsort(-columns.sum(1), kind="stable")[:NEAR] for columns, _ in queries]
        columns = np.concatenate([mine[first] for (mine, _), first in zip(queries, near, strict=True)])
        relevant = np.concatenate([mine[first] for (_, mine), first in zip(queries, near, strict=True)])
        if relevant.all() or not relevant.any():
            raise InputError(
                "rank weights are learned from scored items that are relevant and others that are not. "
                f"Got {int(relevant.sum())} relevant ones of {len(relevant)}. Give more queries or a larger budget."
            )
        count = columns.shape[1]
        penalty = SMALL * np.eye(count + 1)
        penalty[:count, :count] += ALIKE * (np.eye(count) - 1 / count)
        return cls(np.column_stack([columns, np.ones(len(columns))]), relevant, penalty)

    def newton_step(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        chance = 0.5 + 0.5 * np.tanh(self.inputs @ weights / 2)
        slope = self.inputs.T @ (self.relevant - chance) - self.penalty @ weights
        curve = (self.inputs * (chance * (1 - chance))[:, None]).T @ self.inputs + self.penalty
        return np.asarray(np.linalg.solve(curve, slope))

    def loss(self, weights: NDArray[np.float64]) -> float:
        sums = self.inputs @ weights
        missed = np.logaddexp(0, np.where(self.relevant, -sums, sums)).sum()
        return float(missed + weights @ self.penalty @ weights / 2)
