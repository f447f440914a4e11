"""Estimate of the share of matching pairs that were found, by logistic regression on a sample of unscored pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossknn.matching.pair_scores import PairScorer
from crossknn.matching.unscored import Prior, Unscored, UnscoredPairs

SAMPLING_POWER: Final = 0.75  # of a pair's chance to match by the prior, by which it is drawn
UNIFORM_SHARE: Final = 0.1  # of the sample is drawn from all pairs alike
STEPS, TOLERANCE = 50, 1e-8
DRAWS: Final = 1_000  # of the posterior, for the interval
INTERVAL: Final = (2.5, 97.5)  # percentiles
INFLATION: Final = 1.5  # of the posterior's covariance in the interval: log-odds are not quite linear in evidence
BINS: Final = 300  # of evidence, whose pairs are counted together

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RecallEstimate:
    """The share of all matching pairs that are among the pairs found.

    Attributes:
        recall: The estimate.
        low, high: Its 95% interval.
        missed: Estimated number of matching pairs that were not found.
        calls: What the sample cost.
        sampled: Unscored pairs that were drawn and scored.
        matches: Those that match; they count as found.
    """

    recall: float
    low: float
    high: float
    missed: float
    calls: int
    sampled: int
    matches: int

    def __str__(self) -> str:
        return f"{self.recall:.0%} of all matching pairs found (95% interval {self.low:.0%} to {self.high:.0%})"


def estimate_recall(
    scorer: PairScorer, unscored: Unscored, threshold: float, *, sample: int, seed: int = 0
) -> RecallEstimate | None:
    """Score a `sample` of unscored pairs, and estimate how many matching pairs there are among all.

    A Bayesian logistic regression of matching on the evidence for each pair is fitted to the sample, and predicts how
    many of the other unscored pairs match. Pairs are drawn by their chance to match, so that some do. Equal texts
    count as one. None where the limits of `scorer` cut the sample.
    """
    before, rng = scorer.calls, np.random.default_rng(seed)
    pairs = unscored.pairs()
    drawn = pairs.take(_draw(scorer, pairs, unscored.prior, sample, rng))
    scorer.score(drawn.records, drawn.rows)
    scores = scorer.known(drawn.records, drawn.rows)
    if np.isnan(scores).any():
        return None
    matches = scores >= threshold
    model = _LogisticRegression.fit(drawn.evidence, matches, unscored.prior)
    counts, evidence = _count_by_evidence(unscored.pairs())
    expected = model.chances(evidence, rng) @ counts  # (draws + 1,), the first at the mode
    missed, drawn_missed = float(expected[0]), rng.poisson(expected[1:])
    left, right, values = scorer.scored_pairs()
    found = int(((values >= threshold) & ~(scorer.self_join & (left == right))).sum())
    fewest, most = np.percentile(drawn_missed, INTERVAL)
    return RecallEstimate(
        recall=_share(found, missed),
        low=_share(found, float(most)),
        high=_share(found, float(fewest)),
        missed=missed,
        calls=scorer.calls - before,
        sampled=len(matches),
        matches=int(matches.sum()),
    )


def _draw(
    scorer: PairScorer, pairs: UnscoredPairs, prior: Prior, size: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """The places of distinct pairs, drawn by their chances and by the numbers of pairs that they stand for."""
    if not len(pairs.rows):
        return np.empty(0, np.int64)
    intercept, slope = prior.mean
    likely = pairs.weights * _sigmoid(intercept + slope * pairs.evidence) ** SAMPLING_POWER
    shares = (1 - UNIFORM_SHARE) * likely / likely.sum() + UNIFORM_SHARE * pairs.weights / pairs.weights.sum()
    keys = np.log(shares) + rng.gumbel(size=len(shares))  # the places of the largest are drawn without replacement
    order = np.argsort(-keys, kind="stable")[: 2 * size]  # a pair may be there twice, once for each of its records
    return order[scorer.first_places(pairs.records[order], pairs.rows[order])[:size]]


def _count_by_evidence(pairs: UnscoredPairs) -> tuple[Array, Array]:
    """How many pairs there are in bins of evidence, and the evidence in the middle of each."""
    counts, edges = np.histogram(pairs.evidence, BINS, weights=pairs.weights)
    return counts, (edges[1:] + edges[:-1]) / 2


class _LogisticRegression(NamedTuple):
    """Normal approximation to the posterior of intercept and slope (Laplace)."""

    mean: Array  # (2,)
    covariance: Array  # (2, 2)

    @classmethod
    def fit(cls, inputs: Array, matches: NDArray[np.bool_], prior: Prior) -> _LogisticRegression:
        columns: Array = np.column_stack([np.ones(len(inputs)), inputs])
        prior_mean: Array = np.array(prior.mean)
        precision: Array = np.diag(np.array(prior.std) ** -2.0)
        weights = prior_mean
        for _ in range(STEPS):
            chances = _sigmoid(columns @ weights)
            gradient = columns.T @ (matches - chances) - precision @ (weights - prior_mean)
            hessian = (columns * (chances * (1 - chances))[:, None]).T @ columns + precision
            step = np.linalg.solve(hessian, gradient)
            step /= max(1.0, float(np.abs(step).max()))
            weights = weights + step
            if np.abs(step).max() < TOLERANCE:
                break
        return cls(weights, np.asarray(np.linalg.inv(hessian), np.float64))

    def chances(self, inputs: Array, rng: np.random.Generator) -> Array:
        """(draws + 1, inputs) at the mode, then at random weights."""
        weights = np.vstack([self.mean, rng.multivariate_normal(self.mean, INFLATION * self.covariance, DRAWS)])
        return _sigmoid(weights @ np.vstack([np.ones(len(inputs)), inputs]))


def _sigmoid(values: Array) -> Array:
    chances: Array = 0.5 + 0.5 * np.tanh(values / 2)
    return chances


def _share(found: int, missed: float) -> float:
    return found / (found + missed) if found + missed else 1.0
