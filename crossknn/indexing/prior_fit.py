"""Fits the prior of posterior search to the scores of a build."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.indexing.entries import Entries
from crossknn.prior import DEPTH, Columns, Prior, columns_at, ranks_of
from crossknn.types import Proposal, Rows, Scores

NEAR: Final = 100  # a pair is near where a retriever has the item among so many
BEYOND: Final = 1.5  # γ grows up to so many times what it has at the median of near pairs
RIDGE: Final = 1.0  # of the mean's weights, in observations
QUERIES: Final = 80  # whose scores the variances are fitted to
ROWS: Final = 50  # of each of them, near ones and others each
STEPS: Final = 60
LEAST, MOST = 1e-4, 1e3  # of a variance, as a share of the residuals' own

Propose = Callable[[str, int], Sequence[Proposal]]
"""`propose(retriever, n)`: the n best rows for every train query."""
Array = NDArray[np.float64]


class _Observed(NamedTuple):
    """Scored pairs: train query, row, what the retrievers say, whether one has it near its top, and the score."""

    queries: NDArray[np.int32]
    rows: NDArray[np.int32]
    columns: Array
    near: NDArray[np.bool_]
    scores: Array


def fit_prior(
    entries: Entries, signals: Sequence[str], propose: Propose, item_vectors: NDArray[Any], *, seed: int = 0
) -> Prior:
    """The prior that explains the entries.

    The mean by least squares; γ from the residuals of pairs near a retriever's top and of others; item biases from
    residuals, shrunk by how often each item was scored; variances by marginal likelihood.
    """
    if len(entries) < 2:
        raise InputError(f"a prior needs the scores of some pairs. Got {len(entries)}.")
    seen = _observe(entries, signals, propose)
    center, spread = seen.columns.mean(0), seen.columns.std(0)
    spread[spread < 1e-6] = 1.0
    seen = seen._replace(columns=(seen.columns - center) / spread)
    weights, intercept = _fit_mean(seen)
    said = seen.columns @ weights + intercept
    prior = Prior(
        signals=tuple(signals),
        center=center,
        spread=spread,
        weights=weights,
        intercept=intercept,
        bias=np.zeros(entries.pairs.n_items, np.float32),
        variances=np.ones(seen.columns.shape[1] + 3),
        noise=1.0,
        **_fit_growth(said, seen.scores - said, seen.near),
    )
    deviation = prior.deviation(said)
    bias, without = _fit_bias(seen.rows, seen.scores - said, deviation, entries.pairs.n_items)
    residuals = (seen.scores - said - without) / deviation
    variances, noise = _fit_variances(seen, residuals, without, float(bias.std()) or 1.0, item_vectors, seed)
    return replace(prior, bias=bias, variances=variances, noise=noise)


def _observe(entries: Entries, signals: Sequence[str], propose: Propose) -> _Observed:
    pairs, items = entries.pairs, entries.pairs.n_items
    lists = [propose(name, min(DEPTH, items)) for name in signals]
    order = np.argsort(pairs.queries, kind="stable")
    numbers, starts = np.unique(pairs.queries[order], return_index=True)
    columns: list[Columns] = []
    near: list[NDArray[np.bool_]] = []
    for number, places in zip(numbers, np.split(order, starts[1:]), strict=True):
        proposals = [found[number] for found in lists]
        rows: Rows = pairs.rows[places].astype(np.int64)
        columns.append(columns_at(proposals, items, rows))
        best = np.min([ranks_of(proposal, items)[rows] for proposal in proposals], axis=0)
        near.append(best < min(NEAR, items // 10))
    return _Observed(
        pairs.queries[order],
        pairs.rows[order],
        np.concatenate(columns).astype(np.float64),
        np.concatenate(near),
        entries.scores[order].astype(np.float64),
    )


def _fit_mean(seen: _Observed) -> tuple[Array, float]:
    gram = seen.columns.T @ seen.columns + RIDGE * np.eye(seen.columns.shape[1])
    level = float(seen.scores.mean())
    weights = np.linalg.solve(gram, seen.columns.T @ (seen.scores - level))
    return weights.astype(np.float64), level


def _fit_growth(said: Array, residuals: Array, near: NDArray[np.bool_]) -> dict[str, Any]:
    """γ: 1 for what is far from any retriever's top, and what the residuals near one are times those far from it."""
    if not near.any() or near.all():
        return {"low": 0.0, "rise": 0.0, "most": 1.0}
    low, high = float(np.median(said[~near])), float(np.median(said[near]))
    times = float(residuals[near].std() / max(residuals[~near].std(), 1e-9))
    if high <= low or times <= 1:
        return {"low": low, "rise": 0.0, "most": 1.0}
    return {"low": low, "rise": (times - 1) / (high - low), "most": 1 + BEYOND * (times - 1)}


def _fit_bias(rows: NDArray[np.int32], residuals: Array, deviation: Array, items: int) -> tuple[Scores, Array]:
    """(items,) each item's mean residual, shrunk; and for every pair its item's from the other pairs alone."""
    trust = deviation**-2 / max(float((residuals / deviation).var()), 1e-12)
    counts = np.bincount(rows, trust, minlength=items)
    sums = np.bincount(rows, trust * residuals, minlength=items)
    # The product of an item's residuals in two different queries is on average its bias squared.
    products = sums**2 - np.bincount(rows, (trust * residuals) ** 2, minlength=items)
    weights = counts**2 - np.bincount(rows, trust**2, minlength=items)
    square = float(products.sum() / weights.sum()) if weights.sum() > 0 else 0.0
    doubt = 1 / max(square, 1e-12)
    without = (sums[rows] - trust * residuals) / (counts[rows] - trust + doubt)
    return (sums / (counts + doubt)).astype(np.float32), without


def _fit_variances(
    seen: _Observed, residuals: Array, bias: Array, bias_spread: float, item_vectors: NDArray[Any], seed: int
) -> tuple[Array, float]:
    """The variance of each block of features, and of the noise, of largest marginal likelihood."""
    scale = max(float(residuals.var()), 1e-12)
    cases = []
    for places in _sample(seen, seed):
        vectors = np.asarray(item_vectors[seen.rows[places]], np.float64)
        columns = np.column_stack([seen.columns[places], bias[places] / bias_spread, np.ones(len(places))])
        kernels = [vectors @ vectors.T, *(np.outer(column, column) for column in columns.T)]
        cases.append((np.stack(kernels), residuals[places] / np.sqrt(scale)))
    found = _maximise(cases) * scale
    return found[:-1], float(found[-1])


def _sample(seen: _Observed, seed: int) -> list[NDArray[np.int64]]:
    """For some queries the places of some of their pairs, near ones and others alike."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(np.unique(seen.queries))[:QUERIES]
    parts = []
    for number in np.sort(chosen):
        mine = rng.permutation(np.flatnonzero(seen.queries == number))
        parts.append(np.concatenate([mine[seen.near[mine]][:ROWS], mine[~seen.near[mine]][:ROWS]]))
    return parts


def _maximise(cases: Sequence[tuple[Array, Array]]) -> Array:
    """The variances of largest likelihood of all cases; no step of this minorise–maximise scheme makes it smaller."""
    variances = np.full(len(cases[0][0]) + 1, 0.5)
    for _ in range(STEPS):
        explained, expected = np.sum([_compare(variances, *case) for case in cases], axis=0)
        ratio = np.divide(explained, expected, out=np.zeros_like(expected), where=expected > 0)
        variances = np.clip(variances * np.sqrt(ratio), LEAST, MOST)
    return variances


def _compare(variances: Array, kernels: Array, values: Array) -> Array:
    """(2, blocks + 1): what each block explains of the values, and what it would on average if the model were true."""
    covariance = np.tensordot(variances[:-1], kernels, 1) + variances[-1] * np.eye(len(values))
    inverse = np.linalg.inv(covariance)
    solved = inverse @ values
    explained = np.append(np.einsum("i,bij,j->b", solved, kernels, solved), solved @ solved)
    return np.stack([explained, np.append(np.tensordot(kernels, inverse, 2), np.trace(inverse))])
