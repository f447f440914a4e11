"""The main findings of a comparison as sentences, computed from its numbers, whoever wins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from crossknn.evaluate.compare import Result
from crossknn.evaluate.comparison import Comparison
from crossknn.evaluate.report.format import PERCENT, number, percent, points
from crossknn.evaluate.study_results import Sweep

TYPICAL_BUDGET, TYPICAL_K = 100, 10  # what the headline is about, where it was measured


def headline(comparison: Comparison) -> str:
    """The best adaptive and the best other strategy at one budget and k, the better one first."""
    comparison = comparison.attainable
    budget, k = typical(comparison.budgets, TYPICAL_BUDGET), typical(comparison.ks, TYPICAL_K)
    plain = _best(comparison.result(group.baseline, budget, k) for group in comparison.groups)
    adaptive = _best(comparison.result(name, budget, k) for group in comparison.groups for name in group.adaptive)
    if plain is None:
        return f"At {number(budget)} calls per query nothing was measured of the true top {k}."
    if adaptive is None:
        return f"{_opening(plain)}."
    if (points(adaptive, plain) or 0) == 0:
        return f"{_opening(adaptive)}, as many as “{plain.strategy}”, the best without adaptation."
    if adaptive.recall > plain.recall:
        return (
            f"{_opening(adaptive)}; the best without adaptation, “{plain.strategy}”, {percent(plain.recall)}{PERCENT}."
        )
    return f"{_opening(plain)}; the best adaptive search, “{adaptive.strategy}”, {percent(adaptive.recall)}{PERCENT}."


def tally(comparison: Comparison) -> str | None:
    """How often adaptive search is above, below and level with its own baseline; None where there is none."""
    signs: Counter[int] = Counter()
    for result in comparison.attainable.results:
        difference = points(result, comparison.result(result.baseline, result.budget, result.k))
        if difference is not None:
            signs[(difference > 0) - (difference < 0)] += 1
    if not signs:
        return None
    return (
        f"Over all budgets and k, adaptive search is above its own baseline in {signs[1]} of {signs.total()}"
        f" comparisons, below in {signs[-1]} and level in {signs[0]}."
    )


def name_peaks(sweep: Sweep, setting: str) -> str:
    """With which value of the setting most is found, for each k."""
    peaks = []
    for k in dict.fromkeys(curve.k for curve in sweep.curves):
        points = [(point, curve.strategy) for curve in sweep.curves if curve.k == k for point in curve.points]
        point, strategy = max(points, key=lambda one: one[0].recall)
        share = f"“{strategy}”, {percent(point.recall)}{PERCENT}"
        peaks.append(f"{setting} = {point.at:.3g} for the true top {k} ({share})")
    return f"On the queries that were asked, most is found with {', '.join(peaks)}."


def explain_oracles(comparison: Comparison) -> str | None:
    """What an oracle is; None where there is none."""
    if not any(result.oracle for result in comparison.results):
        return None
    return (
        "Oracle: for each budget and k the best setting on the very queries that are asked. Nobody can know it before:"
        " it is not attainable."
    )


def _opening(result: Result) -> str:
    return (
        f"At {number(result.budget)} calls per query, “{result.strategy}” finds {percent(result.recall)}{PERCENT}"
        f" of the cross-encoder’s true top {result.k}"
    )


def typical(sizes: Sequence[int], wanted: int) -> int:
    """`wanted` where it is among the sizes, else the middle one."""
    return wanted if wanted in sizes else sizes[len(sizes) // 2]


def _best(results: Iterable[Result | None]) -> Result | None:
    return max((result for result in results if result), key=lambda result: result.recall, default=None)
