"""Findings of a comparison in sentences, and the number formats of the table, the figures and the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from crossknn.evaluate.comparison import Comparison, Result
from crossknn.evaluate.studies import Sweep
from crossknn.scorers.timing import Speed

MISSING: Final = "–"
PERCENT: Final = "\u00a0%"  # a line never ends before the sign
TYPICAL_BUDGET: Final = 100  # the headline is about this budget and k, if they were measured
TYPICAL_K: Final = 10


def headline(comparison: Comparison) -> str:
    """The best adaptive and the best other strategy at one budget and k, the better one first."""
    comparison = comparison.attainable
    budget, k = typical(comparison.budgets, TYPICAL_BUDGET), typical(comparison.ks, TYPICAL_K)
    plain = _best(comparison.result(group.baseline, budget, k) for group in comparison.groups)
    adaptive = _best(comparison.result(name, budget, k) for group in comparison.groups for name in group.adaptive)
    if plain is None:
        return f"The true top {k} was not measured at {number(budget)} calls per query."
    if adaptive is None:
        return f"{_opening(plain)}."
    if points(adaptive, plain) == 0:
        return f"{_opening(adaptive)}, as many as “{plain.strategy}”, the best without adaptation."
    first, second, name = adaptive, plain, "the best without adaptation"
    if adaptive.recall < plain.recall:
        first, second, name = plain, adaptive, "the best adaptive search"
    return f"{_opening(first)}; {name}, “{second.strategy}”, {percent(second.recall)}{PERCENT}."


def tally(comparison: Comparison) -> str | None:
    """How often adaptive search is above, below and level with its baseline; None where nothing has a baseline."""
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


def _opening(result: Result) -> str:
    return (
        f"At {number(result.budget)} calls per query, “{result.strategy}” finds {percent(result.recall)}{PERCENT}"
        f" of the cross-encoder’s true top {result.k}"
    )


def _best(results: Iterable[Result | None]) -> Result | None:
    return max((result for result in results if result), key=lambda result: result.recall, default=None)


def percent(share: float | None) -> str:
    """A share between 0 and 1 in percent, with one decimal and without the sign."""
    return MISSING if share is None else f"{100 * share:.1f}"


def number(value: float | None) -> str:
    """A count; a mean that is not whole keeps one decimal."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def short(value: float) -> str:
    """Three significant digits."""
    return f"{value:.3g}"


def value(fact: str | float) -> str:
    """A fact about the run: text as it is, numbers with separators."""
    return fact if isinstance(fact, str) else f"{fact:,}" if isinstance(fact, int) else f"{fact:,g}"


def milliseconds(seconds: float | None) -> str:
    """Seconds in milliseconds; from ten on without decimals."""
    return MISSING if seconds is None else rounded(1000 * seconds)


def rounded(value: float) -> str:
    """With one decimal; from ten on without."""
    return f"{value:,.1f}" if value < 9.95 else f"{value:,.0f}"


def describe_speed(speed: Speed) -> str:
    """A scorer's speed in words."""
    rate = number(round(speed.calls_per_second))
    return f"{milliseconds(speed.per_round)} ms for each round and 1 s for {rate} calls"


def points(result: Result | None, baseline: Result | None) -> float | None:
    """The percentage points by which a result is above its baseline, of the numbers as they are printed."""
    if result is None or baseline is None:
        return None
    return round(round(100 * result.recall, 1) - round(100 * baseline.recall, 1), 1)


def signed(difference: float | None) -> str:
    """A difference with its sign."""
    return MISSING if difference is None else f"{difference + 0.0:+.1f}".replace("-", "−").replace("+0.0", "0.0")
