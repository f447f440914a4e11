"""Findings of a comparison in sentences, the most important first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from crossknn.evaluate.measures import LEVEL, MIN_QUERIES, Difference
from crossknn.evaluate.quality import Change, Quality, changes, main_measure, verdict
from crossknn.evaluate.report.formats import PERCENT, decimals, number, percent, signed

if TYPE_CHECKING:
    from crossknn.evaluate.comparison import Comparison, Result
    from crossknn.evaluate.studies import Sweep

TYPICAL_BUDGET: Final = 100  # the headline is about this budget and k, if they were measured
TYPICAL_K: Final = 10


def sentences(comparison: Comparison) -> list[str]:
    """What the cross-encoder is worth where that is bad news, the headline, and how many comparisons were made."""
    found = [
        describe_verdict(comparison.quality),
        headline(comparison),
        describe_quality(comparison.quality),
        tally(comparison),
        describe_choice(comparison),
    ]
    return list(dict.fromkeys(filter(None, found)))


def describe_verdict(levels: Sequence[Quality]) -> str | None:
    """That the cross-encoder makes the hits worse; None where that is not shown."""
    change = verdict(levels)
    return None if change is None else _describe(change, levels)


def describe_quality(levels: Sequence[Quality]) -> str | None:
    """What the cross-encoder adds to the best first stage by the judgments; None where that was not measured."""
    change = next((change for change in changes(levels) if change.fewer.budget == 0), None)
    return None if change is None else _describe(change, levels)


def headline(comparison: Comparison) -> str:
    """The best adaptive and the best other strategy at one budget and k, and the paired difference of the two."""
    comparison = comparison.attainable
    budget, k = typical(comparison.budgets, TYPICAL_BUDGET), typical(comparison.ks, TYPICAL_K)
    plain, adaptive = best_results(comparison, budget, k)
    if plain is None:
        return f"The true top {k} was not measured at {number(budget)} calls per query."
    if adaptive is None:
        return f"{_opening(plain)}."
    first, second, name = adaptive, plain, "the best without adaptation"
    if adaptive.recall < plain.recall:
        first, second, name = plain, adaptive, "the best adaptive search"
    difference = comparison.difference(first.strategy, second.strategy, budget, k)
    other = f"“{second.strategy}”, {name}"
    if difference is None:
        gap = f"{signed(points(first, second))} points; without values per query the difference has no interval"
        return f"{_opening(first)}, and {other}, {percent(second.recall)}{PERCENT} ({gap})."
    gap = _in_points(difference)
    if difference.shown:
        return f"{_opening(first)}, and {other}, {percent(second.recall)}{PERCENT}: {gap}."
    opening = _opening(first).replace("At", "No difference shown: at", 1)
    return f"{opening}, and {other}, {percent(second.recall)}{PERCENT} ({gap})."


def best_results(comparison: Comparison, budget: int, k: int) -> tuple[Result | None, Result | None]:
    """The highest recall without adaptation and with it; None where nothing was measured."""
    plain = (comparison.result(group.baseline, budget, k) for group in comparison.groups)
    adaptive = (comparison.result(name, budget, k) for group in comparison.groups for name in group.adaptive)
    return _best(plain), _best(adaptive)


def tally(comparison: Comparison) -> str | None:
    """How often adaptive search is shown to be above and below its baseline; None where nothing has a baseline."""
    comparison = comparison.attainable
    paired = [one for one in comparison.results if comparison.result(one.baseline, one.budget, one.k)]
    found = [comparison.difference(one.strategy, one.baseline, one.budget, one.k) for one in paired]
    signs = Counter(difference.sign for difference in found if difference is not None)
    if not signs:
        return None
    return (
        f"Over all budgets and k, adaptive search is shown to be above its own baseline in {signs[1]} of"
        f" {signs.total()} comparisons and below in {signs[-1]}; no difference is shown in {signs[0]}. Each interval"
        f" holds for its comparison alone: where nothing differs, about {100 * (1 - LEVEL):.0f}{PERCENT} of them"
        " exclude zero by chance."
    )


def describe_choice(comparison: Comparison) -> str | None:
    """From how many strategies those of the headline were chosen; None where there was no choice."""
    groups = comparison.attainable.groups
    plain, adaptive = len(groups), sum(len(group.adaptive) for group in groups)
    if not adaptive or plain + adaptive == 2:
        return None
    return (
        f"The two strategies of the headline are the best of {adaptive} adaptive and {plain} other"
        f" strateg{'y' if plain == 1 else 'ies'} on these queries; new queries may prefer others."
    )


def describe_best(sweep: Sweep, setting: str) -> str:
    """The value of the setting with the highest recall, for each k."""
    best = []
    for k in dict.fromkeys(curve.k for curve in sweep.curves):
        found = [(point, curve.strategy) for curve in sweep.curves if curve.k == k for point in curve.points]
        point, strategy = max(found, key=lambda pair: pair[0].recall)
        recall = f"“{strategy}”, {percent(point.recall)}{PERCENT}"
        best.append(f"{setting} = {point.at:.3g} for the true top {k} ({recall})")
    return f"On the test queries, recall is highest with {', '.join(best)}."


def explain_oracles(comparison: Comparison) -> str | None:
    """What an oracle is; None where there is none."""
    if not any(result.oracle for result in comparison.results):
        return None
    return (
        "Oracle: the best setting for each budget and k, chosen on the test queries themselves. It is an upper bound:"
        " not attainable."
    )


def typical(sizes: Sequence[int], preferred: int) -> int:
    """`preferred` if it is among the sizes, else the middle one."""
    return preferred if preferred in sizes else sizes[len(sizes) // 2]


def points(result: Result | None, baseline: Result | None) -> float | None:
    """The percentage points by which a result is above its baseline."""
    return None if result is None or baseline is None else 100 * (result.recall - baseline.recall)


def sign(comparison: Comparison, result: Result | None) -> int:
    """1 or −1 where a result is shown to be above or below its baseline, else 0; an oracle is never better."""
    if result is None or result.oracle:
        return 0
    difference = comparison.difference(result.strategy, result.baseline, result.budget, result.k)
    return 0 if difference is None else difference.sign


def budget_name(level: Quality) -> str:
    """How many items the cross-encoder scores, in words."""
    if level.budget is None:
        return "with every item scored"
    return "without a call" if level.budget == 0 else f"with {number(level.budget)} calls (“{level.strategy}”)"


def _describe(change: Change, levels: Sequence[Quality]) -> str:
    fewer, more, difference = change
    other = f"{fewer.strategy} alone" if fewer.budget == 0 else f"its own first {number(fewer.budget)} calls do"
    opening = f"No difference shown between this cross-encoder and {other}"
    if difference.shown:
        opening = f"This cross-encoder ranks these data {'better' if difference.sign > 0 else 'worse'} than {other}"
    interval = _interval(decimals(difference.low), decimals(difference.high))
    count = len(changes(levels))
    counted = f", one of {count} such comparisons" if count > 1 else ""
    return (
        f"{opening}: {main_measure(levels)} is {fewer.main:.3f} {budget_name(fewer)} and {more.main:.3f}"
        f" {budget_name(more)} ({decimals(difference.mean)}, {interval}{_few(difference)}{counted})."
    )


def _in_points(difference: Difference) -> str:
    low, high = (signed(100 * end) for end in (difference.low, difference.high))
    return f"{signed(100 * difference.mean)} points, {_interval(low, high)}{_few(difference)}"


def _interval(low: str, high: str) -> str:
    return f"{100 * LEVEL:.0f}{PERCENT} interval {low} to {high}"


def _few(difference: Difference) -> str:
    """The reason why even an interval without zero shows nothing."""
    if difference.queries >= MIN_QUERIES:
        return ""
    return f"; {number(difference.queries)} queries are too few to show one"


def _opening(result: Result) -> str:
    return (
        f"At {number(result.budget)} calls per query, “{result.strategy}” finds {percent(result.recall)}{PERCENT}"
        f" of the cross-encoder’s true top {result.k}"
    )


def _best(results: Iterable[Result | None]) -> Result | None:
    return max((result for result in results if result), key=lambda result: result.recall, default=None)
