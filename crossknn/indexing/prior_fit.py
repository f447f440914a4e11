"""Empirical Bayes fit of the `Prior` of posterior search to the scores of a build, with a probabilistic PCA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.indexing.factorization.trainer import batches
from crossknn.indexing.sampling import Propose
from crossknn.indexing.score_matrix import SparseScores, group_positions
from crossknn.strategies.posterior.prior import LATENT_FACTORS, RETRIEVER_DEPTH, Prior, gamma_at, signal_features
from crossknn.types import Scores
from crossknn.vectors.ranking import ranks_in

TOP_RANKS: Final = 100  # a pair is a top pair if a retriever ranks the item this high
TOP_WEIGHT: Final = 0.5  # of all top pairs together in the fit of the mean
GAMMA_EXTRAPOLATION: Final = 1.5  # γ − 1 grows up to this multiple of its value at the median top pair
RIDGE: Final = 1.0  # of the mean's weights, in observations
VARIANCE_QUERIES: Final = 80  # whose scores the variances are fitted to
VARIANCE_ROWS: Final = 50  # of each of them, for top pairs and for others
VARIANCE_STEPS: Final = 60
VECTOR_BATCH: Final = 2**15  # items whose vectors are in memory together
PCA_ITEMS: Final = 20_000  # that the loadings are fitted to
PCA_SCORES: Final = 64  # at most, of these items
EM_STEPS: Final = 12
PCA_BATCH: Final = 2**17  # whose loadings are in memory together
INITIAL_NOISE: Final = 0.7  # share of the variance
MAX_STORED: Final = float(np.finfo(np.float16).max)
MIN_VARIANCE, MAX_VARIANCE = 1e-4, 1e3  # relative to the residuals' own

Array = NDArray[np.float64]
Integers = NDArray[Any]
Positions = NDArray[np.int64]  # of pairs


class _Observations(NamedTuple):
    """Scored pairs with their retriever features."""

    queries: NDArray[np.int32]
    rows: NDArray[np.int32]
    features: Array  # (pairs, features)
    top: NDArray[np.bool_]  # whether a retriever ranks the item among its top
    scores: Array

    def take(self, chosen: NDArray[np.bool_]) -> Self:
        """Some of the pairs."""
        queries, rows, features, top, scores = self
        return type(self)(queries[chosen], rows[chosen], features[chosen], top[chosen], scores[chosen])


class ItemBiases(NamedTuple):
    """Mean residual of each item's scores given the retriever features, shrunk."""

    items: Scores  # (items,)
    leave_one_out: Array  # (pairs,) the bias of each pair's item without that pair
    weights: Array  # (dim + 1,) of the ridge regression of the bias on the item vector and a constant

    def scaled(self, factor: float) -> Self:
        """All of it by a factor."""
        return type(self)((factor * self.items).astype(np.float32), factor * self.leave_one_out, factor * self.weights)


def fit_prior(
    entries: SparseScores,
    signals: Sequence[str],
    propose: Propose,
    item_vectors: NDArray[Any],
    *,
    held_out: NDArray[np.integer] | None = None,
    seed: int = 0,
) -> Prior:
    """The prior that explains the entries.

    Where the item vectors were trained on the entries, `held_out` are the queries that they were not trained on. Only
    these tell what the vectors know of new queries: all but biases and latent factors is fitted to them alone.

    The mean comes from a ridge regression on retriever features in which top pairs weigh as much as all others; γ
    from the ratio of both groups' residuals; item biases from residuals, shrunk toward a regression on the item
    vectors; latent factors from a probabilistic PCA of what remains; variances by marginal likelihood.
    """
    if len(entries) < 2:
        raise InputError(f"A prior needs the scores of at least two pairs, got {len(entries)}.")
    seen = _observe(entries, signals, propose)
    center, spread = seen.features.mean(0), seen.features.std(0)
    spread[spread < 1e-6] = 1.0
    seen = seen._replace(features=(seen.features - center) / spread)
    fresh = np.ones(len(seen.rows), np.bool_) if held_out is None else np.isin(seen.queries, held_out)
    weights, intercept = _fit_mean(seen.take(fresh))
    mean = seen.features @ weights + intercept
    gamma_start, gamma_slope, gamma_max = _fit_gamma(mean[fresh], (seen.scores - mean)[fresh], seen.top[fresh])
    gamma = gamma_at(mean, gamma_start=gamma_start, gamma_slope=gamma_slope, gamma_max=gamma_max)
    biases = _fit_biases(seen, seen.scores - mean, gamma, item_vectors)
    if held_out is not None:
        biases = biases.scaled(_regress_on(biases.leave_one_out[fresh], (seen.scores - mean)[fresh], gamma[fresh]))
    variances, noise, latent_factors = _fit_variance_components(seen, fresh, mean, gamma, biases, item_vectors, seed)
    return Prior(
        signals=tuple(signals),
        center=center,
        spread=spread,
        weights=weights,
        intercept=intercept,
        bias=biases.items,
        latent_factors=latent_factors,
        bias_weights=biases.weights,
        variances=variances,
        noise=noise,
        gamma_start=gamma_start,
        gamma_slope=gamma_slope,
        gamma_max=gamma_max,
    )


def _observe(entries: SparseScores, signals: Sequence[str], propose: Propose) -> _Observations:
    """The entries sorted by query, with the features of each pair."""
    pairs, items = entries.pairs, entries.pairs.n_items
    proposals = [propose(name, min(RETRIEVER_DEPTH, items)) for name in signals]
    by_query = group_positions(pairs.queries)
    order, features, top = np.concatenate(by_query), [], []
    for positions in by_query:
        own = [found[pairs.queries[positions[0]]] for found in proposals]
        ranks = [ranks_in(proposal, pairs.rows[positions].astype(np.int64)) for proposal in own]
        features.append(signal_features(own, ranks))
        top.append(np.min(ranks, axis=0) < min(TOP_RANKS, items // 10))
    return _Observations(
        pairs.queries[order],
        pairs.rows[order],
        np.concatenate(features).astype(np.float64),
        np.concatenate(top),
        entries.scores[order].astype(np.float64),
    )


def _fit_mean(seen: _Observations) -> tuple[Array, float]:
    """Weights and intercept of a weighted ridge regression of the scores on the features."""
    share = float(seen.top.mean()) if seen.top.any() and not seen.top.all() else TOP_WEIGHT
    counts = np.where(seen.top, TOP_WEIGHT / share, (1 - TOP_WEIGHT) / (1 - share))
    level, center = float(np.average(seen.scores, weights=counts)), np.average(seen.features, axis=0, weights=counts)
    inputs = seen.features - center
    gram = inputs.T @ (counts[:, None] * inputs) + RIDGE * np.eye(inputs.shape[1])
    weights = np.linalg.solve(gram, inputs.T @ (counts * (seen.scores - level))).astype(np.float64)
    return weights, level - float(center @ weights)


def _fit_gamma(mean: Array, residuals: Array, top: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Start, slope and maximum of γ.

    It is 1 at the median of other pairs, and at the median of top pairs the ratio of both groups' residual deviations.
    """
    if not top.any() or top.all():
        return 0.0, 0.0, 1.0
    start, end = float(np.median(mean[~top])), float(np.median(mean[top]))
    ratio = float(residuals[top].std() / max(residuals[~top].std(), 1e-9))
    if end <= start or ratio <= 1:
        return start, 0.0, 1.0
    return start, (ratio - 1) / (end - start), 1 + GAMMA_EXTRAPOLATION * (ratio - 1)


def _fit_biases(seen: _Observations, residuals: Array, gamma: Array, item_vectors: NDArray[Any]) -> ItemBiases:
    weights, predicted = _regress_bias(seen.rows, residuals, gamma, item_vectors)
    bias, leave_one_out = _shrink_bias(seen.rows, residuals - predicted[seen.rows], gamma, len(item_vectors))
    return ItemBiases((bias + predicted).astype(np.float32), leave_one_out + predicted[seen.rows], weights)


def _regress_on(biases: Array, residuals: Array, gamma: Array) -> float:
    """The slope, from 0 to 1, of a weighted regression of residuals on biases that were fitted without them."""
    weighted = biases / gamma**2
    return float(np.clip((weighted @ residuals) / max(float(weighted @ biases), 1e-12), 0, 1))


def _regress_bias(
    rows: NDArray[np.int32], residuals: Array, gamma: Array, item_vectors: NDArray[Any]
) -> tuple[Array, Array]:
    """(dim + 1,) ridge regression of residuals on the item vector and a constant; (items,) its predictions."""
    items, dim = item_vectors.shape
    precision = gamma**-2
    counts = np.bincount(rows, precision, minlength=items)
    sums = np.bincount(rows, precision * residuals, minlength=items)
    gram, right = np.zeros((dim + 1, dim + 1)), np.zeros(dim + 1)
    for batch in batches(items, VECTOR_BATCH):
        inputs = np.ones((batch.stop - batch.start, dim + 1), np.float32)
        inputs[:, :-1] = item_vectors[batch]
        right += inputs.T @ sums[batch].astype(np.float32)
        inputs *= np.sqrt(counts[batch, None]).astype(np.float32)
        gram += inputs.T @ inputs
    weights = np.linalg.solve(gram + np.trace(gram) / len(gram) * np.eye(len(gram)), right)
    predicted = np.empty(items)
    for batch in batches(items, VECTOR_BATCH):
        predicted[batch] = np.asarray(item_vectors[batch], np.float32) @ weights[:-1].astype(np.float32) + weights[-1]
    return weights, predicted


def _shrink_bias(rows: NDArray[np.int32], residuals: Array, gamma: Array, items: int) -> tuple[Scores, Array]:
    """(items,) posterior mean of each item's bias; (pairs,) the same without the pair itself."""
    precision = gamma**-2 / max(float((residuals / gamma).var()), 1e-12)
    counts = np.bincount(rows, precision, minlength=items)
    sums = np.bincount(rows, precision * residuals, minlength=items)
    # The expected product of an item's residuals in two different queries is the variance of the bias.
    products = sums**2 - np.bincount(rows, (precision * residuals) ** 2, minlength=items)
    weights = counts**2 - np.bincount(rows, precision**2, minlength=items)
    variance = float(products.sum() / weights.sum()) if weights.sum() > 0 else 0.0
    prior_precision = 1 / max(variance, 1e-12)
    leave_one_out = (sums[rows] - precision * residuals) / (counts[rows] - precision + prior_precision)
    return (sums / (counts + prior_precision)).astype(np.float32), leave_one_out


def _fit_variance_components(
    seen: _Observations,
    fresh: NDArray[np.bool_],
    mean: Array,
    gamma: Array,
    biases: ItemBiases,
    item_vectors: NDArray[Any],
    seed: int,
) -> tuple[Array, float, NDArray[Any]]:
    """Variances of the feature blocks, noise, and (items, factors) latent factors, scaled by their own variance.

    The variances are of some queries whose pairs are `fresh`.
    """
    n_items, spread = len(item_vectors), float(biases.items.std()) or 1.0
    bias = biases.items[seen.rows]
    features = np.column_stack([seen.features, bias / spread, np.ones(len(bias))])
    residuals = _regress_out(seen.queries, features, (seen.scores - mean - bias) / gamma)
    features[:, -2] = biases.leave_one_out / spread
    targets = (seen.scores - mean - biases.leave_one_out) / gamma
    scale, cases = max(float(targets.var()), 1e-12), []
    sample = _sample_pairs(seen, fresh, seed)
    for positions, factors in zip(sample, _cross_fit(seen, residuals, sample, n_items, seed), strict=True):
        vectors = np.asarray(item_vectors[seen.rows[positions]], np.float64)
        of_features = (np.outer(feature, feature) for feature in features[positions].T)
        kernels = np.stack([vectors @ vectors.T, *of_features, factors @ factors.T])
        cases.append((kernels, targets[positions] / np.sqrt(scale)))
    *variances, factor_variance, noise = _maximize_likelihood(cases) * scale
    pca = ProbabilisticPca.fit(seen.queries, seen.rows, residuals, n_items=n_items, seed=seed)
    latent_factors = pca.features(np.arange(n_items)) * min(1.0, np.sqrt(factor_variance))
    stored = latent_factors.clip(-MAX_STORED, MAX_STORED).astype(np.float16)  # as in an index
    return np.array(variances), float(noise), stored


def _regress_out(queries: NDArray[np.int32], features: Array, values: Array) -> Array:
    """The residuals of a ridge regression of each query's values on the features."""
    residuals = values.copy()
    for positions in group_positions(queries):
        inputs = features[positions]
        gram = inputs.T @ inputs + RIDGE * np.eye(inputs.shape[1])
        residuals[positions] -= inputs @ np.linalg.solve(gram, inputs.T @ values[positions])
    return residuals


def _sample_pairs(seen: _Observations, fresh: NDArray[np.bool_], seed: int) -> list[Positions]:
    """For some of the fresh queries the positions of some of their pairs, top ones and others."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(np.unique(seen.queries[fresh]))[:VARIANCE_QUERIES]
    sample = []
    for number in np.sort(chosen):
        own = rng.permutation(np.flatnonzero(seen.queries == number))
        sample.append(np.concatenate([own[seen.top[own]][:VARIANCE_ROWS], own[~seen.top[own]][:VARIANCE_ROWS]]))
    return sample


def _cross_fit(
    seen: _Observations, residuals: Array, sample: Sequence[Positions], n_items: int, seed: int
) -> list[Array]:
    """For each sampled query (its pairs, factors) latent factors fitted to the half of the queries it is not in."""
    numbers = np.unique(seen.queries)
    first_half = np.random.default_rng(seed).permutation(len(numbers)) < len(numbers) // 2
    half = first_half[np.searchsorted(numbers, seen.queries)]
    if half.all() or not half.any():
        return [np.zeros((len(positions), LATENT_FACTORS)) for positions in sample]
    fits = {
        which: ProbabilisticPca.fit(seen.queries[own], seen.rows[own], residuals[own], n_items=n_items, seed=seed)
        for which, own in ((True, half), (False, ~half))
    }
    return [fits[not half[positions[0]]].features(seen.rows[positions]) for positions in sample]


def _maximize_likelihood(cases: Sequence[tuple[Array, Array]]) -> Array:
    """Type-II maximum likelihood by minorization–maximization, of which no step lowers the likelihood."""
    variances = np.full(len(cases[0][0]) + 1, 0.5)
    for _ in range(VARIANCE_STEPS):
        explained, expected = np.sum([_likelihood_terms(variances, *case) for case in cases], axis=0)
        ratio = np.divide(explained, expected, out=np.zeros_like(expected), where=expected > 0)
        variances = np.clip(variances * np.sqrt(ratio), MIN_VARIANCE, MAX_VARIANCE)
    return variances


def _likelihood_terms(variances: Array, kernels: Array, values: Array) -> Array:
    """(2, kernels + 1): what each kernel and the noise explain of the values, and its expectation under the model."""
    covariance = np.tensordot(variances[:-1], kernels, 1) + variances[-1] * np.eye(len(values))
    inverse = np.linalg.inv(covariance)
    solved = inverse @ values
    explained = np.append(kernels @ solved @ solved, solved @ solved)
    return np.stack([explained, np.append(np.tensordot(kernels, inverse, 2), np.trace(inverse))])


@dataclass(frozen=True)
class ItemScores:
    """Scores grouped by item."""

    queries: Integers  # (scores,)
    values: Array  # (scores,)
    starts: Integers  # (items + 1,) item i has the scores starts[i] to starts[i + 1]

    @classmethod
    def group(cls, queries: Integers, rows: Integers, values: Array, n_items: int) -> Self:
        order = np.argsort(rows, kind="stable")
        return cls(queries[order], values[order], np.searchsorted(rows[order], np.arange(n_items + 1)))

    def sample(self, rng: np.random.Generator) -> Self:
        """At most `PCA_ITEMS` scored items with at most `PCA_SCORES` scores each."""
        counts = np.diff(self.starts)
        rows = np.sort(rng.permutation(np.flatnonzero(counts))[:PCA_ITEMS])
        chosen = np.concatenate(
            [np.sort(rng.permutation(self.starts[row] + np.arange(counts[row]))[:PCA_SCORES]) for row in rows]
        )
        starts = np.concatenate([[0], np.cumsum(np.minimum(counts[rows], PCA_SCORES))])
        return type(self)(self.queries[chosen], self.values[chosen], starts)

    def batches(self, rows: Integers) -> Iterator[tuple[Integers, Integers]]:
        """(positions in `rows`, (positions, count) their scores), for items with the same number of scores."""
        counts = np.diff(self.starts)[rows]
        for count in np.unique(counts):
            members = np.flatnonzero(counts == count)
            for batch in batches(len(members), max(1, PCA_BATCH // max(int(count), 1))):
                part = members[batch]
                yield part, self.starts[rows[part], None] + np.arange(count)


@dataclass(frozen=True)
class ProbabilisticPca:
    """`value(q, i) = loadings(q) · z(i) + noise` with latent factors z(i) ~ N(0, I) of every item."""

    scores: ItemScores
    loadings: Array  # (queries, factors)
    noise: float  # variance

    @classmethod
    def fit(cls, queries: Integers, rows: Integers, values: Array, *, n_items: int, seed: int = 0) -> Self:
        rng = np.random.default_rng(seed)
        distinct, numbers = np.unique(queries, return_inverse=True)
        scores = ItemScores.group(numbers, rows, values, n_items)
        deviation = float(np.sqrt(max(values.var(), 1e-12)))
        loadings = deviation * rng.normal(size=(len(distinct), LATENT_FACTORS)) / np.sqrt(LATENT_FACTORS)
        model = cls(scores.sample(rng), loadings, INITIAL_NOISE * deviation**2)
        for _ in range(EM_STEPS):
            model = model._em_step()
        return cls(scores, model.loadings, model.noise)

    def features(self, rows: Integers) -> Array:
        """(rows, factors) posterior means of z, rotated and scaled so that a query's loadings are ~ N(0, I)."""
        eigenvalues, axes = np.linalg.eigh(self.loadings.T @ self.loadings / len(self.loadings))
        rotation, features = axes * np.sqrt(np.maximum(eigenvalues, 0)), np.empty((len(rows), LATENT_FACTORS))
        for part, means, _, _ in self._posterior(rows):
            features[part] = means @ rotation
        return features

    def _posterior(self, rows: Integers) -> Iterator[tuple[Integers, Array, Array, Array]]:
        """Batches of (positions in `rows`, posterior means of z, gain, loadings); covariance I − gain·loadings."""
        for part, entries in self.scores.batches(rows):
            loadings = self.loadings[self.scores.queries[entries]]  # (items, scores, factors)
            gain = _gain(loadings, self.noise)
            yield part, (gain @ self.scores.values[entries][:, :, None])[:, :, 0], gain, loadings

    def _em_step(self) -> Self:
        """E step: posterior of every z. M step: least squares for the loadings and the noise."""
        scores, count = self.scores, len(self.scores.starts) - 1
        means, reduction = np.empty((count, LATENT_FACTORS)), np.empty((count, LATENT_FACTORS * LATENT_FACTORS))
        for part, own, gain, tall in self._posterior(np.arange(count)):
            means[part] = own
            reduction[part] = (gain @ tall).reshape(len(own), -1)  # of the variance
        items = np.repeat(np.arange(count), np.diff(scores.starts))
        loadings, explained = np.zeros_like(self.loadings), 0.0
        for entries in group_positions(scores.queries):
            query, own = scores.queries[entries[0]], means[items[entries]]
            right = scores.values[entries] @ own
            reduced = reduction[items[entries]].sum(0).reshape(LATENT_FACTORS, LATENT_FACTORS)
            covariance = len(entries) * np.eye(LATENT_FACTORS) - reduced
            loadings[query] = np.linalg.solve(covariance + own.T @ own, right)
            explained += float(loadings[query] @ right)
        noise = max(float(scores.values @ scores.values) - explained, 1e-12) / len(scores.values)
        return type(self)(scores, loadings, noise)


def _gain(loadings: Array, noise: float) -> Array:
    """(items, factors, scores): maps values to posterior means, by the smaller of two equivalent linear systems."""
    transposed = loadings.swapaxes(1, 2)
    if loadings.shape[1] < LATENT_FACTORS:
        small: Array = np.linalg.inv(loadings @ transposed + noise * np.eye(loadings.shape[1])).astype(np.float64)
        return transposed @ small
    large: Array = np.linalg.inv(transposed @ loadings + noise * np.eye(LATENT_FACTORS)).astype(np.float64)
    return large @ transposed
