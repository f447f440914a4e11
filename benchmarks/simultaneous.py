"""Paired differences of many strategies at once: single intervals, and what stands after all comparisons."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from crossknn.evaluate.measures import LEVEL, paired_difference

DRAWS: Final = 5_000
FEWEST: Final = 10  # queries that differ: with fewer, a difference is never shown


def compare_all(
    pairs: Mapping[Hashable, tuple[NDArray[Any], NDArray[Any]]], *, seed: int = 0, level: float = LEVEL
) -> tuple[dict[Hashable, dict[str, float]], float]:
    """For each pair of values per query the mean of `ours − theirs`, its own interval, and whether it is shown.

    A difference is `shown` (1 above, −1 below, else 0) if its simultaneous interval excludes zero: mean ± c · standard
    error, with one c for all pairs, the `level` quantile of the largest |t| over them when queries are resampled, all
    pairs together (single-step max-t). Then with probability `level` not one true null is shown. A pair that differs
    on fewer than 10 queries is not tested.

    Returns:
        The differences, and c.
    """
    names = list(pairs)
    gaps = np.array([np.subtract(*pairs[name]) for name in names], np.float64).reshape(len(names), -1)
    means = gaps.mean(1)
    errors = gaps.std(1, ddof=1) / np.sqrt(gaps.shape[1])
    tested = (gaps != 0).sum(1) >= FEWEST
    critical = critical_value(gaps[tested & (errors > 0)], seed=seed, level=level)
    shown_signs = np.where(tested & (np.abs(means) > critical * errors), np.sign(means), 0).astype(int)
    found = {}
    for name, shown in zip(names, shown_signs.tolist(), strict=True):
        single = paired_difference(*pairs[name])
        found[name] = {part: round(getattr(single, part), 2) for part in ("mean", "low", "high")} | {"shown": shown}
    return found, critical


def critical_value(gaps: NDArray[np.float64], *, seed: int, level: float) -> float:
    """The `level` quantile of the largest |t| of the (pairs, queries) gaps, resampled over queries."""
    pairs, queries = gaps.shape
    if not pairs:
        return 0.0
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(queries, np.full(queries, 1 / queries), size=DRAWS) / queries  # weights of the queries
    centered = gaps - gaps.mean(1, keepdims=True)
    errors = gaps.std(1, ddof=1) / np.sqrt(queries)
    largest = np.abs(drawn @ (centered / errors[:, None]).T).max(1)
    return float(np.quantile(largest, level))
