"""Estimate of the share of matching pairs that were found, by logistic regression on a sample of unscored pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossknn.matching.pair_scores import PairScorer
from crossknn.types import Proposal, Rows

EDGES: Final = (0, 10, 30, 100, 300, 1_000)  # of the strata, by rank in the first stage's list of a record
SAMPLED_RECORDS: Final = 1_000  # whose lists the strata are made of
BATCH: Final = 256  # records whose lists are retrieved together
# Of log-odds = intercept + slope · log(rank): normal priors, which matter where few sampled pairs match.
PRIOR_MEAN: Final = np.array([-3.0, -1.0])
PRIOR_STD: Final = np.array([3.0, 0.5])
STEPS, TOLERANCE = 50, 1e-8
DRAWS: Final = 1_000  # of the posterior, for the interval
INTERVAL: Final = (2.5, 97.5)  # percentiles

Propose = Callable[[Rows, int], list[Proposal]]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class RecallEstimate:
    """The share of all matching pairs that are among the pairs found.

    Attributes:
        recall: The estimate.
        low, high: Its 95% interval.
        missed: Estimated number of matching pairs that were not found.
        calls: What the sample cost.
        sampled: Unscored pairs that were scored at random.
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
    scorer: PairScorer, propose: Propose, threshold: float, *, sample: int, seed: int = 0
) -> RecallEstimate | None:
    """Score `sample` random unscored pairs, as many per stratum of ranks, and estimate the matching pairs missed.

    A Bayesian logistic regression of matching on the log of the rank, in the first stage's list of a record, predicts
    how many of the other unscored pairs match. Pairs in no list have the ranks behind it. Equal texts count as one.
    None where the limits of `scorer` cut the sample.
    """
    before, rng = scorer.calls, np.random.default_rng(seed)
    unscored = _Unscored.read(scorer, propose, rng)
    drawn = unscored.sample(sample, rng)
    scorer.score(drawn.records, drawn.rows)
    scores = scorer.known(drawn.records, drawn.rows)
    if np.isnan(scores).any():
        return None
    matches = scores >= threshold
    model = _LogisticRegression.fit(np.log(drawn.ranks), matches)
    counts = np.maximum(0, unscored.counts - np.bincount(drawn.ranks, minlength=len(unscored.counts)))
    ranks = np.flatnonzero(counts)
    chances = model.chances(np.log(ranks), rng)  # (draws + 1, ranks), the first at the mode
    expected = unscored.weight * chances @ counts[ranks]
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


class _Sample(NamedTuple):
    records: Rows
    rows: Rows
    ranks: Rows  # from 1


class _Unscored(NamedTuple):
    """The unscored pairs of some records with their ranks.

    Attributes:
        listed: By stratum, those in the records' lists.
        counts: Pairs by rank; those in no list are spread over the ranks behind it.
        weight: Pairs that each of these stands for: those of other records, and in a self-join half, since both records
            of a pair have it.
    """

    scorer: PairScorer
    records: Rows
    lists: list[Rows]
    listed: list[_Sample]
    unlisted: NDArray[np.int64]  # (records,)
    counts: Array
    weight: float

    @classmethod
    def read(cls, scorer: PairScorer, propose: Propose, rng: np.random.Generator) -> _Unscored:
        """Of at most `SAMPLED_RECORDS` random records."""
        every = scorer.left.representatives
        records = np.sort(rng.permutation(every)[:SAMPLED_RECORDS])
        parts = [propose(records[start : start + BATCH], EDGES[-1]) for start in range(0, len(records), BATCH)]
        lists = [one.rows for part in parts for one in part]
        listed = [_find_unscored(scorer, records, lists, low, high) for low, high in pairwise(EDGES)]
        reachable = len(scorer.right) - scorer.self_join
        counts = np.bincount(np.concatenate([one.ranks for one in listed]), minlength=reachable + 1).astype(np.float64)
        size = len(scorer.left.items)
        left, right, _ = scorer.scored_pairs()
        distinct = (left != right) | (not scorer.self_join)
        ends = np.concatenate([left[distinct], right[distinct]]) if scorer.self_join else left
        in_lists = sum(np.bincount(one.records, minlength=size) for one in listed)
        unlisted = (reachable - np.bincount(ends, minlength=size) - in_lists)[records]
        behind = np.arange(min(EDGES[-1], reachable) + 1, reachable + 1)
        counts[behind] += unlisted.sum() / max(1, len(behind))
        weight = len(every) / max(1, len(records)) / (1 + scorer.self_join)
        return cls(scorer, records, lists, listed, unlisted, counts, weight)

    def sample(self, size: int, rng: np.random.Generator) -> _Sample:
        """Distinct random pairs, as many of each stratum, as far as it has them."""
        strata = [len(one.rows) for one in self.listed] + [int(self.unlisted.sum())]
        counts = _spread(size, strata)
        parts = [self._draw_unlisted(counts[-1], rng)]
        for one, count in zip(self.listed, counts, strict=False):
            chosen = rng.permutation(len(one.rows))[:count]
            parts.append(_Sample(*(column[chosen] for column in one)))
        return _Sample(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _draw_unlisted(self, count: int, rng: np.random.Generator) -> _Sample:
        """Pairs in no list, with replacement; each has the rank that it would have in a random order."""
        if not count:
            return _Sample(*(np.empty(0, np.int64) for _ in range(3)))
        places = rng.choice(len(self.records), count, p=self.unlisted / self.unlisted.sum())
        rows, ranks = [], []
        for place in places.tolist():
            rows.append(int(rng.choice(self._unlisted_rows(place))))
            ranks.append(int(rng.integers(len(self.lists[place]), len(self.counts) - 1)) + 1)
        return _Sample(self.records[places], np.array(rows), np.array(ranks))

    def _unlisted_rows(self, place: int) -> Rows:
        record = self.records[place]
        rows = np.setdiff1d(self.scorer.right.representatives, self.lists[place])
        rows = rows[rows != record] if self.scorer.self_join else rows
        return rows[np.isnan(self.scorer.known(np.full(len(rows), record), rows))]


def _find_unscored(scorer: PairScorer, records: Rows, lists: list[Rows], low: int, high: int) -> _Sample:
    parts = [rows[low:high] for rows in lists]
    queries = np.repeat(records, [len(rows) for rows in parts])
    rows = np.concatenate([np.empty(0, np.int64), *parts])
    ranks = np.concatenate([np.empty(0, np.int64), *(np.arange(low, low + len(rows)) + 1 for rows in parts)])
    missing = np.isnan(scorer.known(queries, rows))
    return _Sample(queries[missing], rows[missing], ranks[missing])


class _LogisticRegression(NamedTuple):
    """Normal approximation to the posterior of intercept and slope (Laplace)."""

    mean: Array  # (2,)
    covariance: Array  # (2, 2)

    @classmethod
    def fit(cls, inputs: Array, matches: NDArray[np.bool_]) -> _LogisticRegression:
        columns: Array = np.column_stack([np.ones(len(inputs)), inputs])
        precision: Array = np.diag(PRIOR_STD**-2.0)
        weights: Array = PRIOR_MEAN
        for _ in range(STEPS):
            chances = _sigmoid(columns @ weights)
            gradient = columns.T @ (matches - chances) - precision @ (weights - PRIOR_MEAN)
            hessian = (columns * (chances * (1 - chances))[:, None]).T @ columns + precision
            step = np.linalg.solve(hessian, gradient)
            step /= max(1.0, float(np.abs(step).max()))
            weights = weights + step
            if np.abs(step).max() < TOLERANCE:
                break
        return cls(weights, np.asarray(np.linalg.inv(hessian), np.float64))

    def chances(self, inputs: Array, rng: np.random.Generator) -> Array:
        """(draws + 1, inputs) at the mode, then at random weights."""
        weights = np.vstack([self.mean, rng.multivariate_normal(self.mean, self.covariance, DRAWS)])
        return _sigmoid(weights @ np.vstack([np.ones(len(inputs)), inputs]))


def _sigmoid(values: Array) -> Array:
    chances: Array = 0.5 + 0.5 * np.tanh(values / 2)
    return chances


def _spread(total: int, sizes: list[int]) -> list[int]:
    """The total over strata: even, but no more than each holds."""
    counts = [0] * len(sizes)
    places = sorted(range(len(sizes)), key=lambda place: sizes[place])
    for done, place in enumerate(places):
        counts[place] = min(sizes[place], total // (len(places) - done))
        total -= counts[place]
    return counts


def _share(found: int, missed: float) -> float:
    return found / (found + missed) if found + missed else 1.0
