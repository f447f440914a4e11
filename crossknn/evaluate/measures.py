"""Measures per query (recall of the true top k, nDCG, MRR, recall, accuracy) and bootstrap confidence intervals."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crossknn._checks import check_positive, invalid, is_finite
from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.evaluate.splits import Split
from crossknn.types import Rows

LEVEL: Final = 0.95  # of confidence
DRAWS: Final = 2000  # bootstrap samples
MIN_QUERIES: Final = 20  # of fewer, a bootstrap interval is too narrow to show a difference
QUALITY_MEASURES: Final = ("nDCG@10", "MRR@10", "recall@100", "accuracy")
MEASURE_PATTERN: Final = re.compile(r"(nDCG|MRR|recall)@([1-9][0-9]*)")
IR_MEASURES_NAMES: Final = {"nDCG": "nDCG", "MRR": "RR", "recall": "R"}


def top_k_recall(truth: Sequence[Rows], found: Sequence[Rows], k: int) -> NDArray[np.float64]:
    """(queries,) the share of each query's true top `k` that was found, between 0 and 1.

    Args:
        truth: Rows of the exact search, best first; at least one per query.
        found: Rows that a search scored, in any order.
        k: Where there are fewer items, the share is of all of them.
    """
    check_positive("k", k)
    if len(truth) != len(found):
        raise InputError(f"`truth` and `found` must have one entry per query, got {len(truth)} and {len(found)}.")
    for query, rows in enumerate(truth):
        if not len(rows):
            raise InputError(f"`truth` must have at least one row per query, got none for query {query}.")
    shares = [np.isin(best[:k], rows).mean() for best, rows in zip(truth, found, strict=True)]
    return np.array(shares, np.float64)


def bootstrap_interval(
    values: ArrayLike, *, seed: int = 0, level: float = LEVEL, draws: int = DRAWS
) -> tuple[float, float]:
    """The percentile bootstrap confidence interval of the mean of `values`, one per query."""
    array = np.asarray(values, np.float64)
    check_positive("draws", draws)
    if not is_finite(level) or not 0 < level < 1:
        raise invalid("level", "between 0 and 1", level)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise InputError("`values` must be one finite number per query, for at least one query.")
    rng = np.random.default_rng(seed)
    means = [array[rng.integers(array.size, size=array.size)].mean() for _ in range(draws)]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


class Difference(NamedTuple):
    """The mean difference of two strategies over queries, with its confidence interval."""

    mean: float
    low: float
    high: float
    queries: int

    @property
    def sign(self) -> int:
        """1 or −1 where the difference is shown to be above or below zero, else 0.

        It is shown by an interval without zero, of at least 20 queries.
        """
        return 0 if self.queries < MIN_QUERIES else (self.low > 0) - (self.high < 0)

    @property
    def shown(self) -> bool:
        """Whether the two are shown to differ."""
        return self.sign != 0

    def to_json(self) -> dict[str, float | int | bool]:
        """The fields, and whether the difference is shown."""
        return {**self._asdict(), "shown": self.shown}


def paired_difference(
    values: ArrayLike, baseline: ArrayLike, *, seed: int = 0, level: float = LEVEL, draws: int = DRAWS
) -> Difference:
    """The mean of `values − baseline` over queries and its percentile bootstrap confidence interval.

    Both have one number per query, of the same queries in the same order, and are resampled together. An interval
    without zero, of at least 20 queries, says that the two differ: `Difference.shown`.
    """
    ours, theirs = np.asarray(values, np.float64), np.asarray(baseline, np.float64)
    if ours.shape != theirs.shape:
        raise InputError(
            f"`values` and `baseline` must have one number for each query, got shapes {ours.shape} and {theirs.shape}."
        )
    low, high = bootstrap_interval(ours - theirs, seed=seed, level=level, draws=draws)
    return Difference(float((ours - theirs).mean()), low, high, ours.size)


def measure_quality(
    split: Split, found: Sequence[Sequence[str]], *, measures: Sequence[str] = QUALITY_MEASURES
) -> dict[str, NDArray[np.float64]]:
    """Relevance of hits by the judgments of `split`.

    Args:
        split: The queries and their judgments.
        found: The ids of each query's hits, best first, as in `hits.ids`. A query without hits has 0.
        measures: "nDCG@k", "MRR@k" and "recall@k" for any k, computed by `ir_measures`, and "accuracy".

    Returns:
        For each measure one number between 0 and 1 per query, in the order of the split.
    """
    names = _check_measures(measures)
    _check_found(split, found)
    values = {name: accuracy(split, found) for name in names if name == "accuracy"}
    if others := [name for name in names if name != "accuracy"]:
        values |= _from_ir_measures(split.judgments, found, others)
    return {name: values[name] for name in names}


def accuracy(split: Split, found: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """(queries,) 1 where the first hit is relevant, else 0; its mean is the accuracy of entity linking."""
    _check_found(split, found)
    pairs = zip(split.judgments, found, strict=True)
    return np.array([len(ids) > 0 and judged.get(ids[0], 0) > 0 for judged, ids in pairs], np.float64)


def _from_ir_measures(
    judgments: Sequence[Mapping[str, int]], found: Sequence[Sequence[str]], names: Sequence[str]
) -> dict[str, NDArray[np.float64]]:
    ir_measures = import_extra("ir_measures", extra="bench")
    theirs: dict[Any, str] = {}
    for name in names:
        kind, k = name.split("@")
        theirs[getattr(ir_measures, IR_MEASURES_NAMES[kind]) @ int(k)] = name
    qrels = {str(query): dict(judged) for query, judged in enumerate(judgments)}
    # Ranks instead of scores: ir_measures would reorder ids of equal score.
    run = {str(query): {id_: -float(rank) for rank, id_ in enumerate(ids)} for query, ids in enumerate(found)}
    values = {name: np.zeros(len(found)) for name in names}
    for metric in ir_measures.iter_calc(list(theirs), qrels, run):
        values[theirs[metric.measure]][int(metric.query_id)] = metric.value
    return values


def _check_measures(measures: Sequence[str]) -> list[str]:
    if isinstance(measures, str) or not measures or len(set(measures)) != len(measures):
        raise invalid("measures", "a nonempty list of distinct names", measures)
    for name in measures:
        if name != "accuracy" and not MEASURE_PATTERN.fullmatch(name):
            raise invalid("measures", "nDCG@k, MRR@k, recall@k (such as nDCG@10) or accuracy", name)
    return list(measures)


def _check_found(split: Split, found: Sequence[Sequence[str]]) -> None:
    if len(found) != len(split):
        raise InputError(f"`found` must have one entry for each of the {len(split)} queries, got {len(found)}.")
    for query, ids in zip(split.ids, found, strict=True):
        if isinstance(ids, str) or not all(isinstance(id_, str) for id_ in ids):
            raise InputError(f"`found` must hold ids, as in `hits.ids`; query {query!r} has something else.")
        if len(set(ids)) != len(ids):
            raise InputError(f"`found` must hold distinct ids per query; query {query!r} has one twice.")
