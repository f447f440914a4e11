"""Score fusion: hits ranked by a weighted sum of z-scores of the score and retrievers, and fitting the weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import is_finite
from crossknn.errors import InputError
from crossknn.items.items import Items
from crossknn.strategies.base import QueryResult, join_rounds
from crossknn.strategies.normalization import varies
from crossknn.strategies.posterior.prior import RETRIEVER_DEPTH, estimates_at
from crossknn.types import Proposal, Rows, Scores
from crossknn.vectors.ranking import ranks_in

SCORE: Final = "score"  # the name of the score among the weights
RANK_BY: Final = (SCORE, "fused")
TRAINING_DEPTH: Final = 100  # items per query that weights are fitted to: the first by equal weights
EQUALITY_PENALTY: Final = 100.0  # pulls fitted weights towards equal ones
RIDGE_PENALTY: Final = 0.1  # keeps weights finite where the data are separable
MAX_NEWTON_STEPS: Final = 50
MIN_NEWTON_STEP: Final = 1e-8

Array = NDArray[np.float64]
JudgedQuery = tuple[Array, NDArray[np.bool_]]  # (items, columns) z-scores of a query, and which items are relevant


class ScoreFusion:
    """Weighted sums of z-scores over the scored items of each query; `weights` are by name, that of the score first."""

    def __init__(
        self, weights: Mapping[str, float], propose: Callable[[str | None, int], tuple[str, list[Proposal]]]
    ) -> None:
        self._weights = np.array(list(weights.values()))
        self._signals = [propose(name, RETRIEVER_DEPTH)[1] for name in weights if name != SCORE]

    def _columns(self, query: int, rows: Rows, scores: Scores) -> Array:
        """(rows, weights) z-scores of the scores, then of each retriever's estimates."""
        proposals = [signal[query] for signal in self._signals]
        estimates = [estimates_at(proposal, ranks_in(proposal, rows)) for proposal in proposals]
        return np.column_stack([_standardize(column) for column in (scores, *estimates)])

    def fuse(self, query: int, rows: Rows, scores: Scores) -> Array:
        """(rows,) the weighted sums."""
        sums: Array = self._columns(query, rows, scores) @ self._weights
        return sums

    def judge(self, results: Sequence[QueryResult], relevant: Sequence[Rows]) -> list[JudgedQuery]:
        """The z-scores of every query's scored items, and which of these are relevant."""
        judged = []
        for query, (result, relevant_rows) in enumerate(zip(results, relevant, strict=True)):
            rows = join_rounds(result.rows)
            judged.append((self._columns(query, rows, join_rounds(result.scores)), np.isin(rows, relevant_rows)))
        return judged


def _standardize(values: Scores) -> Array:
    """z-scores; all 0 where the values do not differ."""
    wide = values.astype(np.float64)
    return (wide - wide.mean()) / wide.std() if varies(wide) else np.zeros(len(wide))


def check_weights(weights: Mapping[str, float]) -> dict[str, float]:
    """The weights, that of the score first."""
    numbers = isinstance(weights, Mapping) and all(is_finite(weight) for weight in weights.values())
    if not numbers or SCORE not in weights:
        raise InputError(
            "`rank_weights` must have a finite number for 'score' and for each retriever that counts, "
            f"such as {{'score': 1, 'bm25': 0.5}}, got {weights!r}."
        )
    return {SCORE: weights[SCORE], **weights}


def equal_weights(retrievers: Sequence[str]) -> dict[str, float]:
    """The same weight for the score and each retriever."""
    return dict.fromkeys([SCORE, *retrievers], 1 / (1 + len(retrievers)))


def find_relevant(items: Items, queries: Sequence[str], relevant: Sequence[Collection[str]]) -> list[Rows]:
    """The rows of each query's relevant items, given by their ids."""
    if isinstance(relevant, str) or any(isinstance(ids, str) for ids in relevant):
        raise InputError("`relevant` must have a list of ids for each query, got a string.")
    if not queries or len(relevant) != len(queries):
        raise InputError(
            "`relevant` must have a list of ids for each query, and there must be a query, "
            f"got {len(relevant)} lists for {len(queries)} queries."
        )
    return [items.rows_of(ids) for ids in relevant]


def fit_weights(queries: Sequence[JudgedQuery]) -> Array:
    """(columns,) fitted weights, whose absolute values sum to 1.

    A logistic regression of relevance on the z-scores and a constant, with a quadratic penalty, by Newton's method.
    Weights are shrunk towards equal ones, so that a few judged queries do no harm.
    """
    columns, relevant = _training_items(queries)
    count = columns.shape[1]
    inputs = np.column_stack([columns, np.ones(len(columns))])
    penalty = RIDGE_PENALTY * np.eye(count + 1)
    penalty[:count, :count] += EQUALITY_PENALTY * (np.eye(count) - 1 / count)

    def loss(weights: Array) -> float:
        logits = inputs @ weights
        negative_log_likelihood = np.logaddexp(0, np.where(relevant, -logits, logits)).sum()
        return float(negative_log_likelihood + weights @ penalty @ weights / 2)

    weights = np.zeros(count + 1)
    for _ in range(MAX_NEWTON_STEPS):
        chance = 0.5 + 0.5 * np.tanh(inputs @ weights / 2)
        gradient = inputs.T @ (relevant - chance) - penalty @ weights
        hessian = (inputs * (chance * (1 - chance))[:, None]).T @ inputs + penalty
        step = np.asarray(np.linalg.solve(hessian, gradient))
        while loss(weights + step) > loss(weights):
            step /= 2
        weights += step
        if np.abs(step).max() < MIN_NEWTON_STEP:
            break
    sizes = np.abs(weights[:-1])
    return weights[:-1] / sizes.sum() if sizes.any() else np.full(len(sizes), 1 / len(sizes))


def _training_items(queries: Sequence[JudgedQuery]) -> JudgedQuery:
    """The first items of all queries by equal weights."""
    first = [np.argsort(-columns.sum(1), kind="stable")[:TRAINING_DEPTH] for columns, _ in queries]
    columns = np.concatenate([columns[rows] for (columns, _), rows in zip(queries, first, strict=True)])
    relevant = np.concatenate([labels[rows] for (_, labels), rows in zip(queries, first, strict=True)])
    if relevant.all() or not relevant.any():
        raise InputError(
            "rank weights are fitted to scored items of which some are relevant and some are not, "
            f"got {int(relevant.sum())} relevant of {len(relevant)}. Use more queries or a larger `budget`."
        )
    return columns, relevant
