"""Fits the prior of posterior search to the scores of a build."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.indexing.factorization.trainer import blocks
from crossknn.indexing.ppca import ProbabilisticPca
from crossknn.indexing.score_matrix import SparseScores
from crossknn.strategies.posterior.prior import (
    LATENT_FACTORS,
    RETRIEVER_DEPTH,
    Prior,
    SignalFeatures,
    gamma_at,
    signal_features,
)
from crossknn.types import Proposal, Rows, Scores
from crossknn.vectors.ranking import ranks_in

NEAR: Final = 100  # a pair is near where a retriever has the item among so many
WEIGHT: Final = 0.5  # of near pairs in the fit of the mean
BEYOND: Final = 1.5  # γ grows up to so many times what it has at the median of near pairs
RIDGE: Final = 1.0  # of the mean's weights, in observations
QUERIES: Final = 80  # whose scores the variances are fitted to
ROWS: Final = 50  # of each of them, near ones and others each
STEPS: Final = 60
BLOCK: Final = 2**15  # items whose vectors are in memory at once
LEAST, MOST = 1e-4, 1e3  # of a variance, as a share of the residuals' own

Propose = Callable[[str, int], Sequence[Proposal]]
"""`propose(retriever, n)`: the n best rows for every train query."""
Array = NDArray[np.float64]
Places = NDArray[np.int64]  # of pairs


class _Observed(NamedTuple):
    """Scored pairs: train query, row, what the retrievers say, whether one has it near its top, and the score."""

    queries: NDArray[np.int32]
    rows: NDArray[np.int32]
    columns: Array
    near: NDArray[np.bool_]
    scores: Array


def fit_prior(
    entries: SparseScores, signals: Sequence[str], propose: Propose, item_vectors: NDArray[Any], *, seed: int = 0
) -> Prior:
    """The prior that explains the entries.

    The mean by least squares, in which pairs near a retriever's top count as much as all others together; γ from the
    residuals of both; item biases from residuals, shrunk by how often each item was scored towards what its vector lets
    expect; traits from what is then left; variances by marginal likelihood.
    """
    if len(entries) < 2:
        raise InputError(f"a prior needs the scores of some pairs. Got {len(entries)}.")
    seen = _observe(entries, signals, propose)
    center, spread = seen.columns.mean(0), seen.columns.std(0)
    spread[spread < 1e-6] = 1.0
    seen = seen._replace(columns=(seen.columns - center) / spread)
    weights, intercept = _fit_mean(seen)
    said = seen.columns @ weights + intercept
    growth = _fit_growth(said, seen.scores - said, seen.near)
    deviation = gamma_at(said, **growth)
    biases = _fit_biases(seen, seen.scores - said, deviation, item_vectors)
    variances, noise, traits = _fit_rest(seen, said, deviation, biases, item_vectors, seed)
    return Prior(
        signals=tuple(signals),
        center=center,
        spread=spread,
        weights=weights,
        intercept=intercept,
        bias=biases.items,
        latent_factors=traits,
        bias_weights=biases.inductive,
        variances=variances,
        noise=noise,
        gamma_start=growth["gamma_start"],
        gamma_slope=growth["gamma_slope"],
        gamma_max=growth["gamma_max"],
    )


def _observe(entries: SparseScores, signals: Sequence[str], propose: Propose) -> _Observed:
    pairs, items = entries.pairs, entries.pairs.n_items
    lists = [propose(name, min(RETRIEVER_DEPTH, items)) for name in signals]
    order = np.argsort(pairs.queries, kind="stable")
    numbers, starts = np.unique(pairs.queries[order], return_index=True)
    columns: list[SignalFeatures] = []
    near: list[NDArray[np.bool_]] = []
    for number, places in zip(numbers, np.split(order, starts[1:]), strict=True):
        proposals = [found[number] for found in lists]
        rows: Rows = pairs.rows[places].astype(np.int64)
        ranks = [ranks_in(proposal, rows) for proposal in proposals]
        columns.append(signal_features(proposals, ranks))
        near.append(np.min(ranks, axis=0) < min(NEAR, items // 10))
    return _Observed(
        pairs.queries[order],
        pairs.rows[order],
        np.concatenate(columns).astype(np.float64),
        np.concatenate(near),
        entries.scores[order].astype(np.float64),
    )


def _fit_mean(seen: _Observed) -> tuple[Array, float]:
    """Weights of the columns and what the score is where all are 0."""
    share = float(seen.near.mean()) if seen.near.any() and not seen.near.all() else WEIGHT
    counts = np.where(seen.near, WEIGHT / share, (1 - WEIGHT) / (1 - share))
    level, center = float(np.average(seen.scores, weights=counts)), np.average(seen.columns, axis=0, weights=counts)
    inputs = seen.columns - center
    gram = inputs.T @ (counts[:, None] * inputs) + RIDGE * np.eye(inputs.shape[1])
    weights = np.linalg.solve(gram, inputs.T @ (counts * (seen.scores - level))).astype(np.float64)
    return weights, level - float(center @ weights)


def _fit_growth(said: Array, residuals: Array, near: NDArray[np.bool_]) -> dict[str, float]:
    """γ: 1 for what is far from any retriever's top, and what the residuals near one are times those far from it."""
    if not near.any() or near.all():
        return {"gamma_start": 0.0, "gamma_slope": 0.0, "gamma_max": 1.0}
    low, high = float(np.median(said[~near])), float(np.median(said[near]))
    times = float(residuals[near].std() / max(residuals[~near].std(), 1e-9))
    if high <= low or times <= 1:
        return {"gamma_start": low, "gamma_slope": 0.0, "gamma_max": 1.0}
    slope = (times - 1) / (high - low)
    return {"gamma_start": low, "gamma_slope": slope, "gamma_max": 1 + BEYOND * (times - 1)}


class _Biases(NamedTuple):
    """By how much scores of each item are above what retrievers say.

    items      (items,)
    others     (pairs,) each pair's item's from the other pairs alone
    inductive  (dim + 1,) what an item's vector and a constant let expect
    """

    items: Scores
    others: Array
    inductive: Array


def _fit_biases(seen: _Observed, residuals: Array, deviation: Array, item_vectors: NDArray[Any]) -> _Biases:
    inductive, usual = _fit_inductive(seen.rows, residuals, deviation, item_vectors)
    bias, others = _fit_bias(seen.rows, residuals - usual[seen.rows], deviation, len(item_vectors))
    return _Biases((bias + usual).astype(np.float32), others + usual[seen.rows], inductive)


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


def _fit_inductive(
    rows: NDArray[np.int32], residuals: Array, deviation: Array, item_vectors: NDArray[Any]
) -> tuple[Array, Array]:
    """(dim + 1,) weights of an item's vector and a constant that explain residuals, and (items,) what they say."""
    items, dim = item_vectors.shape
    trust = deviation**-2
    counts, sums = np.bincount(rows, trust, minlength=items), np.bincount(rows, trust * residuals, minlength=items)
    gram, along = np.zeros((dim + 1, dim + 1)), np.zeros(dim + 1)
    for block in blocks(items, BLOCK):
        vectors = _with_constant(item_vectors[block])
        along += vectors.T @ sums[block].astype(np.float32)
        vectors *= np.sqrt(counts[block, None]).astype(np.float32)
        gram += vectors.T @ vectors
    weights = np.linalg.solve(gram + np.trace(gram) / len(gram) * np.eye(len(gram)), along)
    usual = np.empty(items)
    for block in blocks(items, BLOCK):
        usual[block] = np.asarray(item_vectors[block], np.float32) @ weights[:-1].astype(np.float32) + weights[-1]
    return weights, usual


def _with_constant(vectors: NDArray[Any]) -> NDArray[np.float32]:
    wide = np.ones((len(vectors), vectors.shape[1] + 1), np.float32)
    wide[:, :-1] = vectors
    return wide


def _leave(queries: NDArray[np.int32], shown: Array, values: Array) -> Array:
    """What a regression of each query's own on what is shown of its pairs leaves of the values."""
    left = values.copy()
    order = np.argsort(queries, kind="stable")
    for places in np.split(order, np.flatnonzero(np.diff(queries[order])) + 1):
        inputs = shown[places]
        gram = inputs.T @ inputs + RIDGE * np.eye(inputs.shape[1])
        left[places] -= inputs @ np.linalg.solve(gram, inputs.T @ values[places])
    return left


def _fit_rest(
    seen: _Observed, said: Array, deviation: Array, biases: _Biases, item_vectors: NDArray[Any], seed: int
) -> tuple[Array, float, NDArray[Any]]:
    """Variances, noise and (items, factors) latent factors, which count as much as held-out queries say."""
    n_items, spread = len(item_vectors), float(biases.items.std()) or 1.0
    own = biases.items[seen.rows]
    shown = np.column_stack([seen.columns, own / spread, np.ones(len(own))])
    left = _leave(seen.queries, shown, (seen.scores - said - own) / deviation)
    sample = _sample(seen, seed)
    held_out = _fit_held_out(seen, left, sample, n_items, seed)
    shown[:, -2] = biases.others / spread
    residuals = (seen.scores - said - biases.others) / deviation
    variances, noise = _fit_variances(seen.rows, shown, residuals, held_out, item_vectors, sample)
    tastes = ProbabilisticPca.fit(seen.queries, seen.rows, left, n_items=n_items, seed=seed)
    traits = tastes.features(np.arange(n_items)) * min(1.0, np.sqrt(variances[-1]))
    return variances[:-1], noise, traits.astype(np.float16)  # as an index keeps them


def _fit_held_out(seen: _Observed, left: Array, sample: Sequence[Places], n_items: int, seed: int) -> list[Array]:
    """For each sampled query (its pairs, factors) what scores of half of the queries, not its own, tell of them."""
    numbers = np.unique(seen.queries)
    half = np.random.default_rng(seed).permutation(len(numbers)) < len(numbers) // 2
    side = half[np.searchsorted(numbers, seen.queries)]
    if side.all() or not side.any():
        return [np.zeros((len(places), LATENT_FACTORS)) for places in sample]
    halves = {
        which: ProbabilisticPca.fit(seen.queries[mine], seen.rows[mine], left[mine], n_items=n_items, seed=seed)
        for which, mine in ((True, side), (False, ~side))
    }
    return [halves[not side[places[0]]].features(seen.rows[places]) for places in sample]


def _fit_variances(
    rows: NDArray[np.int32],
    shown: Array,
    residuals: Array,
    traits: Sequence[Array],
    item_vectors: NDArray[Any],
    sample: Sequence[Places],
) -> tuple[Array, float]:
    """The variance of each block of features, of the traits last, and of the noise, of largest marginal likelihood."""
    scale = max(float(residuals.var()), 1e-12)
    cases = []
    for places, mine in zip(sample, traits, strict=True):
        vectors = np.asarray(item_vectors[rows[places]], np.float64)
        columns = (np.outer(column, column) for column in shown[places].T)
        kernels = [vectors @ vectors.T, *columns, mine @ mine.T]
        cases.append((np.stack(kernels), residuals[places] / np.sqrt(scale)))
    found = _maximise(cases) * scale
    return found[:-1], float(found[-1])


def _sample(seen: _Observed, seed: int) -> list[Places]:
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
    explained = np.append(kernels @ solved @ solved, solved @ solved)
    return np.stack([explained, np.append(np.tensordot(kernels, inverse, 2), np.trace(inverse))])
