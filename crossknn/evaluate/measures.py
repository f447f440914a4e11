"""What is measured of a search, per query, and how sure the mean over queries is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crossknn._checks import check_positive
from crossknn.errors import InputError
from crossknn.types import Rows

LEVEL: Final = 0.95  # how often an interval is meant to hold the mean
DRAWS: Final = 2000  # resampled sets of queries behind an interval


def top_k_recall(truth: Sequence[Rows], found: Sequence[Rows], k: int) -> NDArray[np.float64]:
    """(queries,) the share of each query's true top `k` that was found, between 0 and 1.

    `truth` holds the rows of the exact search, best first; `found` the rows that a search scored, in
    any order. Where fewer than `k` items exist the share is of those there are; no truth is an error.
    """
    check_positive("k", k)
    if len(truth) != len(found):
        raise InputError(f"truth and found must have one entry per query. Got {len(truth)} and {len(found)} instead.")
    for query, rows in enumerate(truth):
        if not len(rows):
            raise InputError(f"every query needs at least one true row. Query {query} has none.")
    shares = [np.isin(best[:k], rows).mean() for best, rows in zip(truth, found, strict=True)]
    return np.array(shares, np.float64)


def bootstrap_interval(
    values: ArrayLike, *, seed: int = 0, level: float = LEVEL, draws: int = DRAWS
) -> tuple[float, float]:
    """The percentile bootstrap interval of the mean of `values`, one per query.

    The queries are drawn anew with replacement `draws` times; the interval holds the middle `level`
    of the means. The same values and seed give the same interval.
    """
    array = np.asarray(values, np.float64)
    check_positive("draws", draws)
    if not 0 < level < 1:
        raise InputError(f"level must be between 0 and 1. Got {level!r} instead.")
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise InputError("values must be one finite number per query, for at least one query.")
    rng = np.random.default_rng(seed)
    means = [array[rng.integers(array.size, size=array.size)].mean() for _ in range(draws)]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


class Difference(NamedTuple):
    """How far one strategy is above another in the mean over queries, with the interval of that mean."""

    mean: float
    low: float
    high: float


def paired_difference(
    values: ArrayLike, baseline: ArrayLike, *, seed: int = 0, level: float = LEVEL, draws: int = DRAWS
) -> Difference:
    """The mean of `values − baseline` over queries and its percentile bootstrap interval.

    Both hold one number per query, of the same queries in the same order. Each draw takes a query with both its
    numbers, so that what makes a query hard for both does not widen the interval. One that leaves out zero
    says that the two differ.
    """
    ours, theirs = np.asarray(values, np.float64), np.asarray(baseline, np.float64)
    if ours.shape != theirs.shape:
        raise InputError(
            "values and baseline must have one number for each of the same queries. "
            f"Got arrays of shape {ours.shape} and {theirs.shape} instead."
        )
    low, high = bootstrap_interval(ours - theirs, seed=seed, level=level, draws=draws)
    return Difference(float((ours - theirs).mean()), low, high)
