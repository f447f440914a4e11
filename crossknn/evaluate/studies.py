"""Studies of a benchmark beyond recall against budget: rounds, λ, offline calls, time, scores and quality."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.compare import Quality
from crossknn.evaluate.comparison import Comparison
from crossknn.evaluate.study_results import (
    FOUND,
    SCALED,
    SCORES,
    SIMILARITIES,
    DistributionStudy,
    Histogram,
    LatencyStudy,
    QualityStudy,
    Studies,
    Times,
)
from crossknn.evaluate.sweeps import Trial, plan_calls, study_mix, study_rounds, study_sampling
from crossknn.types import Progress

NAMES: Final = ("rounds", "mix", "sampling", "latency", "distributions", "quality")
PAIRS: Final = 200_000  # of queries and items that distributions are drawn from, at most
BINS: Final = 60


def read_studies(text: str) -> list[str]:
    """The studies between commas; "none" is no study."""
    names = [name.strip() for name in text.split(",")]
    if names == ["none"]:
        return []
    if not set(names) <= set(NAMES):
        raise InputError(f"studies must be names between commas, or none. Known: {', '.join(NAMES)}. Got {text!r}.")
    return names


def run_studies(
    bench: Bench,
    comparison: Comparison,
    names: Sequence[str] = NAMES,
    *,
    rounds: int = 10,
    progress: Progress | None = None,
) -> Studies:
    """These studies of what the bench compared, as far as its data can give them.

    Those of recall are made within the middle one of the comparison's budgets, for each of its k. `rounds` is for
    strategies whose rounds are not what is studied.
    """
    budget = comparison.budgets[len(comparison.budgets) // 2]
    trial = Trial(bench, budget=budget, ks=comparison.ks, rounds=rounds, progress=progress)
    makers: dict[str, Callable[[], Any]] = {
        "rounds": partial(study_rounds, trial),
        "mix": partial(study_mix, trial),
        "sampling": partial(study_sampling, trial),
        "latency": partial(study_latency, comparison),
        "distributions": partial(study_distributions, bench),
        "quality": partial(study_quality, comparison),
    }
    left_out = {name: reason for name in names if (reason := why_not(name, bench, budget))}
    return Studies(**{name: makers[name]() for name in names if name not in left_out}, left_out=left_out)


def why_not(name: str, bench: Bench, budget: int) -> str | None:
    """Why a bench cannot give a study within this budget; None where it can."""
    if name in ("rounds", "mix") and budget == 1:
        return "one call has one round"
    if name == "quality" and bench.task.judged is None:
        return "nobody judged which items are relevant"
    if name == "sampling" and not bench.task.can_learn:
        return "there are no train queries"
    if name == "sampling" and not bench.calls_per_item:
        return "no offline calls per item were allowed (--index-calls-per-item)"
    if name == "sampling" and not plan_calls(bench):
        return "one train query is too few"
    return None


def study_latency(comparison: Comparison) -> LatencyStudy:
    """Where the time of every strategy goes within every budget."""
    names = comparison.attainable.strategies
    costs = [comparison.cost(name, budget) for budget in comparison.budgets for name in names]
    return LatencyStudy([Times(cost.strategy, cost.budget, dict(cost.seconds)) for cost in costs if cost])


def study_quality(comparison: Comparison) -> QualityStudy:
    """The quality by the judgments, with the shares of the true top k that the same searches found."""
    levels = []
    for one in comparison.quality:
        found = {FOUND.format(k): 1.0 if one.budget is None else _recall(comparison, one, k) for k in comparison.ks}
        levels.append(Quality(one.strategy, one.budget, {**found, **one.values}))
    return QualityStudy(levels)


def study_distributions(bench: Bench) -> DistributionStudy:
    """The cross-encoder's scores and the encoder's similarities of all asked queries with items drawn at random."""
    task, searcher = bench.task, bench.searcher("encoder")
    drawn = min(len(task.items), max(1, PAIRS // len(task.queries)))
    rows = np.sort(np.random.default_rng(bench.seed).choice(len(task.items), drawn, replace=False))
    texts = task.items.texts_of(rows)
    items = task.encoder.encode_items(texts) if searcher.index is None else searcher.index.vectors[rows]
    scores = np.asarray(task.scores[:, rows], np.float64).ravel()
    similarities = (task.encoder.encode_queries(task.queries) @ np.asarray(items, np.float32).T).ravel()
    histograms = [_histogram(SCORES, scores, scores), _histogram(SIMILARITIES, similarities, similarities)]
    scale = searcher.normalization
    if scale is None:
        return DistributionStudy(histograms, len(scores))
    scaled = scale.normalize(scores)
    both = np.concatenate([scaled, similarities])
    histograms += [_histogram(SCALED, scaled, both), _histogram(SIMILARITIES, similarities, both)]
    return DistributionStudy(histograms, len(scores), scale.alpha, scale.beta)


def _histogram(of: str, values: NDArray[Any], among: NDArray[Any]) -> Histogram:
    """The densities of `values` between edges that cover `among`."""
    edges = np.histogram_bin_edges(among, BINS)
    return Histogram(of, edges.tolist(), np.histogram(values, edges, density=True)[0].tolist())


def _recall(comparison: Comparison, one: Quality, k: int) -> float:
    result = comparison.result(one.strategy, one.budget or 0, k)
    if result is None:
        raise InputError(f"{one.strategy!r} has a quality within {one.budget} calls, but no recall.")
    return result.recall
