"""Fit of the calibration of expected recall, on searches of held-out queries whose true top is estimated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from crossknn.indexing.score_matrix import Pairs, SparseScores
from crossknn.items.items import Items
from crossknn.strategies.base import RoundScores, SearchContext, drive
from crossknn.strategies.posterior.calibration import RecallCalibration, calibration_error
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.types import Rows, Scores

QUERIES, MIN_QUERIES = 50, 20  # held out
MIN_ITEMS: Final = 1_000  # of fewer, most would be scored
KS: Final = (1, 10, 100)  # that one calibration is fitted to
SHORT: Final = Posterior(100, 10, stop_at=1.0)  # searches of each query: `stop_at` asks for what each round expects
LONG: Final = Posterior(500, 20, stop_at=1.0, estimates=True)
POOL_DEPTH: Final = 100  # top rows of each retriever that are scored, too
STRATA: Final = (75, 300, 1_200, 4_800)  # ends of the strata of all other rows, by their posterior mean
STRATUM_ROWS: Final = 75  # scored at random in each stratum
MAX_LOG_RATIO: Final = 30.0  # in absolute value
MIN_SLOPE: Final = 0.05  # keeps the calibration increasing
MIN_CHANCE: Final = 1e-9
FISHER_STEPS, MAX_STEP, TOLERANCE = 50, 1.0, 1e-6
RIDGE_QUERIES: Final = 1.0  # of a ridge toward intercept 0 and slope 1

Array = NDArray[np.float64]
Score = Callable[[Pairs, Sequence[str], Items], SparseScores]


@dataclass(frozen=True)
class CalibrationReport:
    """What a calibration of expected recall was fitted to, and what it brought.

    Attributes:
        queries: Held-out ones.
        calls: Scores that it used.
        expected_before, expected: Mean expected recall of the top 10 after 100 calls, without and with calibration.
        measured: The same recall as estimated from all calls.
        error_before, error: Expected calibration error over all rounds, the mean for the top 1, 10 and 100. With
            calibration each half of the queries is measured with the fit to the other.
    """

    queries: int
    calls: int
    expected_before: float
    expected: float
    measured: float
    error_before: float
    error: float

    def __str__(self) -> str:
        return (
            f"calibrated on {self.queries} held-out queries with {self.calls:,} calls; top 10 after 100 calls: "
            f"{self.expected_before:.2f} before, {self.expected:.2f} after, {self.measured:.2f} measured; "
            f"calibration error {self.error_before:.3f} before, {self.error:.3f} after"
        )


class Calibrated(NamedTuple):
    """A fitted calibration and how it was fitted."""

    calibration: RecallCalibration
    report: CalibrationReport


def most_calls(items: int, queries: int, signals: int) -> int:
    """The calls of `calibrate` at most."""
    pool = SHORT.budget + LONG.budget + POOL_DEPTH * signals + STRATUM_ROWS * (len(STRATA) + 1)
    return queries * min(items, pool)


def calibrate(
    queries: Sequence[str],
    items: Items,
    context: SearchContext,
    score: Score,
    *,
    signals: Sequence[str],
    known: Sequence[Mapping[int, float]] | None = None,
    seed: int = 0,
) -> Calibrated:
    """Search the queries, estimate after each round which share of the true top was found, and fit the calibration.

    The true top is estimated from all scored items: those of both searches, the tops of retrievers, and a stratified
    random sample of the others with inverse-probability weights.

    Args:
        context: Of these queries.
        score: Scores pairs of some queries and items.
        signals: The retrievers whose tops are scored.
        known: Scores of each query by row.
    """
    pool = _Pool(queries, items, score, known or [{} for _ in queries])
    context = replace(context, k=max(KS))
    traces = [_watch(strategy, context, pool) for strategy in (SHORT, LONG)]
    pool.look_up([_distinct(lists) for lists in zip(*(_tops(context, name) for name in signals), strict=True)])
    pool.sample_others(traces[-1].estimates, np.random.default_rng(seed))
    points = [_Points.of(trace, pool, k) for trace in traces for k in KS]
    calibration = fit_calibration(points)
    return Calibrated(calibration, _describe(points, calibration, pool))


class _Pool:
    """The scores of some queries so far; each pair is scored once.

    Attributes:
        weights: For each query, the number of items that each random item stands for; 1 for all others.
    """

    def __init__(
        self, queries: Sequence[str], items: Items, score: Score, known: Sequence[Mapping[int, float]]
    ) -> None:
        self._queries, self._items, self._score = queries, items, score
        self._scores = [dict(scores) for scores in known]
        self._known = sum(map(len, known))
        self.weights: list[dict[int, float]] = [{} for _ in queries]

    @property
    def calls(self) -> int:
        """Scores that were not known before."""
        return sum(map(len, self._scores)) - self._known

    def look_up(self, rows: Sequence[Rows]) -> list[Scores]:
        """The scores of these rows for each query."""
        missing = [
            [row for row in some.tolist() if row not in known] for some, known in zip(rows, self._scores, strict=True)
        ]
        if any(missing):
            self._add(missing)
        return [
            np.array([known[row] for row in some.tolist()], np.float32)
            for some, known in zip(rows, self._scores, strict=True)
        ]

    def _add(self, rows: list[list[int]]) -> None:
        numbers = np.repeat(np.arange(len(rows), dtype=np.int32), [len(some) for some in rows])
        chosen, columns = np.unique(np.concatenate(rows).astype(np.int64), return_inverse=True)
        pairs = Pairs(numbers, columns.astype(np.int32), len(rows), len(chosen))
        scores = self._score(pairs, self._queries, Items(self._items.texts_of(chosen))).scores
        for query, row, score in zip(numbers.tolist(), chosen[columns].tolist(), scores.tolist(), strict=True):
            self._scores[query][row] = score

    def sample_others(self, estimates: Sequence[Scores], rng: np.random.Generator) -> None:
        """Score random rows of those that are not scored, in strata by estimated score."""
        drawn = []
        for scores, weights, values in zip(self._scores, self.weights, estimates, strict=True):
            order = np.argsort(-values, kind="stable")
            strata = np.split(order[~np.isin(order, list(scores))], STRATA)
            samples = [rng.permutation(stratum)[:STRATUM_ROWS] for stratum in strata]
            for stratum, sample in zip(strata, samples, strict=True):
                weights.update(dict.fromkeys(sample.tolist(), len(stratum) / max(1, len(sample))))
            drawn.append(np.concatenate(samples))
        self.look_up(drawn)

    def top(self, query: int, k: int) -> dict[int, float]:
        """The estimated true top k: its rows, each with the number of the k places that it stands for."""
        scores, weights = self._scores[query], self.weights[query]
        places, left = dict[int, float](), float(k)
        for row in sorted(scores, key=lambda row: (-scores[row], row)):
            if left <= 0:
                break
            places[row] = min(weights.get(row, 1.0), left)
            left -= places[row]
        return places


class _Trace(NamedTuple):
    """A search of all queries, round by round."""

    rows: list[list[Rows]]  # that each round scored for each query
    above: list[Array]  # (queries, at most k) expected numbers of better unscored rows after it
    estimates: list[Scores]  # of all rows, at the end


def _watch(strategy: Posterior, context: SearchContext, pool: _Pool) -> _Trace:
    rows: list[list[Rows]] = []
    above: list[Array] = []

    def answer(asked: list[Rows]) -> RoundScores:
        rows.append(asked)
        return RoundScores(pool.look_up(asked))

    results = drive(strategy, replace(context, on_counts=above.append), answer)
    return _Trace(rows, above, [one.all_estimates for one in results if one.all_estimates is not None])


def _tops(context: SearchContext, name: str) -> list[Rows]:
    return [proposal.rows for proposal in context.propose(name, POOL_DEPTH)[1]]


def _distinct(lists: Sequence[Rows]) -> Rows:
    return np.unique(np.concatenate(lists))


class _Points(NamedTuple):
    """What was expected of the top k and what was found, after each round for each query."""

    k: int
    above: Array  # (rounds, queries, ranks)
    recall: Array  # (rounds, queries)

    @classmethod
    def of(cls, trace: _Trace, pool: _Pool, k: int) -> Self:
        rounds, queries = len(trace.rows), len(trace.rows[0])
        found, above = np.zeros((rounds, queries)), np.full((rounds, queries, k), np.inf)
        for query in range(queries):
            places = pool.top(query, k)
            for number, rows in enumerate(trace.rows):
                found[number, query] = sum(places.get(row, 0.0) for row in rows[query].tolist())
        for number, counts in enumerate(trace.above[:rounds]):
            above[number, :, : counts.shape[1]] = counts[:, :k]
        return cls(k, above, found.cumsum(0) / k)

    def take(self, queries: slice) -> _Points:
        return _Points(self.k, self.above[:, queries], self.recall[:, queries])

    def expected(self, calibration: RecallCalibration | None) -> Array:
        """(rounds, queries) expected recall."""
        import torch

        from crossknn.strategies.posterior.diagnostics import expected_recall

        above = torch.from_numpy(self.above.reshape(-1, self.k))
        valid = torch.where(torch.isinf(above), -torch.inf, 0.0)
        expected: Array = expected_recall(above, valid, self.k, calibration).reshape(self.recall.shape).numpy()
        return expected

    def log_ratios(self) -> Array:
        """(searches, ranks) log((k − r + 1) / λ_r)."""
        room = self.k - np.arange(self.k)
        with np.errstate(divide="ignore"):
            ratios: Array = np.log(room) - np.log(self.above.reshape(-1, self.k))
        return ratios.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def fit_calibration(points: Sequence[_Points]) -> RecallCalibration:
    """Fractional logistic regression of recall, as the mean chance of the ranks, by Fisher scoring.

    All points count the same, and a ridge toward (0, 1) as much as one query.
    """
    start = np.array([0.0, 1.0])
    weights = start
    ridge = RIDGE_QUERIES * len(points) / points[0].recall.shape[1]
    data = [(one.log_ratios(), one.recall.ravel()) for one in points]
    for _ in range(FISHER_STEPS):
        gradient, information = ridge * (start - weights), ridge * np.eye(2)
        for ratios, recall in data:
            slopes, residual, variance = _linearize(weights, ratios, recall)
            gradient = gradient + slopes.T @ (residual / variance) / len(recall)
            information = information + slopes.T @ (slopes / variance[:, None]) / len(recall)
        step = np.linalg.solve(information, gradient)
        before, weights = weights, weights + step * min(1.0, MAX_STEP / max(np.abs(step).max(), TOLERANCE))
        weights[1] = max(weights[1], MIN_SLOPE)
        if np.abs(weights - before).max() < TOLERANCE:
            break
    return RecallCalibration(float(weights[0]), float(weights[1]))


def _linearize(weights: Array, ratios: Array, recall: Array) -> tuple[Array, Array, Array]:
    """Of the mean chance of each search: its derivatives by intercept and slope, the residual, and the variance."""
    chances = 1 / (1 + np.exp(-(weights[0] + weights[1] * ratios)))
    mean = np.clip(chances.mean(1), MIN_CHANCE, 1 - MIN_CHANCE)
    spread = chances * (1 - chances)
    slopes = np.stack([spread.mean(1), (spread * ratios).mean(1)], 1)
    return slopes, recall - mean, mean * (1 - mean)


def _describe(points: Sequence[_Points], calibration: RecallCalibration, pool: _Pool) -> CalibrationReport:
    shown = points[KS.index(10)]
    queries = shown.recall.shape[1]
    halves = [slice(0, None, 2), slice(1, None, 2)]
    fits = [fit_calibration([one.take(half) for one in points]) for half in reversed(halves)]
    by_k = [[one for one in points if one.k == k] for k in KS]
    return CalibrationReport(
        queries=queries,
        calls=pool.calls,
        expected_before=float(shown.expected(None)[-1].mean()),
        expected=float(shown.expected(calibration)[-1].mean()),
        measured=float(shown.recall[-1].mean()),
        error_before=float(np.mean([_error(some, [None] * 2, halves) for some in by_k])),
        error=float(np.mean([_error(some, fits, halves) for some in by_k])),
    )


def _error(
    points: Sequence[_Points], calibrations: Sequence[RecallCalibration | None], parts: Sequence[slice]
) -> float:
    """Expected calibration error, each part of the queries with its own calibration."""
    both = [
        (one.take(part), calibration) for one in points for calibration, part in zip(calibrations, parts, strict=True)
    ]
    expected = np.concatenate([one.expected(calibration).ravel() for one, calibration in both])
    return calibration_error(expected, np.concatenate([one.recall.ravel() for one, _ in both]))
