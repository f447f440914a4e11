"""Advice for the data of a comparison: strategy, calls and rounds, by fixed rules, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from crossknn.evaluate.measures import MIN_QUERIES, Difference, paired_difference
from crossknn.evaluate.quality import Quality, best_first_stage, main_measure, verdict
from crossknn.evaluate.report.findings import TYPICAL_K, best_results, typical
from crossknn.evaluate.report.formats import PERCENT, decimals, number, percent, signed

if TYPE_CHECKING:
    from crossknn.evaluate.comparison import Comparison, Result
    from crossknn.evaluate.studies import Point

RECALL_TARGET: Final = 0.9  # what the interval of recall must reach, without judgments
MARGIN: Final = 0.01  # of quality, or of recall, that fewer calls or rounds may lose at most


@dataclass(frozen=True)
class Advice:
    """What to search these data with, as far as they show it.

    Attributes:
        strategy: Its name in the comparison, or that of a first-stage retriever; None without advice.
        calls: Per query; 0 for the first stage alone.
        rounds: None where only one number of rounds was measured, or there are none.
        reasons: What the advice rests on, or why there is none.
    """

    strategy: str | None
    calls: int | None
    rounds: float | None
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        if self.strategy is None:
            opening = "No advice for these data."
        else:
            rounds = "" if self.rounds is None else f", {number(self.rounds)} round{'s' * (self.rounds != 1)}"
            calls = f"{number(self.calls)} calls" if self.calls else "without the cross-encoder"
            opening = f"Advice for these data: “{self.strategy}”, {calls}{rounds}."
        return " ".join([opening, *self.reasons])

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON can hold them."""
        return {**asdict(self), "reasons": list(self.reasons)}


def advise(comparison: Comparison) -> Advice:
    """The advice of a comparison, by the rules of docs/evaluating.md."""
    comparison = comparison.attainable
    levels, queries = comparison.quality, {len(result.per_query) for result in comparison.results}
    if queries == {0} or len(queries) > 1:
        return Advice(None, None, None, ("The values of each query are unknown.",))
    if (asked := queries.pop()) < MIN_QUERIES:
        return Advice(None, None, None, (f"{number(asked)} queries are too few: {MIN_QUERIES} are needed.",))
    first, worse = best_first_stage(levels), verdict(levels)
    if worse is not None and worse.fewer.budget == 0 and first is not None:
        reason = f"The cross-encoder makes {main_measure(levels)} worse (see above): check it before anything else."
        return Advice(first.strategy, 0, None, (reason,))
    k = typical(comparison.ks, TYPICAL_K)
    choices = [choice for budget in comparison.budgets if (choice := _choose_strategy(comparison, budget, k))]
    if not choices:
        return Advice(None, None, None, (f"The true top {k} was measured for no budget.",))
    chosen, reason = _choose_calls(choices, levels)
    no_gain = _against_first_stage(chosen[0], levels)
    if no_gain is not None:
        return Advice(None, None, None, (no_gain,))
    rounds, why_rounds = _choose_rounds(comparison, chosen[0], k)
    number_of = f"All of it rests on {number(asked)} queries, on which the strategies were chosen, too."
    return Advice(
        chosen[0].strategy, chosen[0].budget, rounds, tuple(filter(None, [chosen[1], reason, why_rounds, number_of]))
    )


def _choose_strategy(comparison: Comparison, budget: int, k: int) -> tuple[Result, str] | None:
    """The best adaptive strategy if it is shown to find more than the best other one, else the other; and why."""
    plain, adaptive = best_results(comparison, budget, k)
    if plain is None or adaptive is None:
        only = plain or adaptive
        return None if only is None else (only, f"It finds {_share(only)}, the most of what was measured.")
    difference = comparison.difference(adaptive.strategy, plain.strategy, budget, k)
    if difference is None:
        return None
    gap = f"{signed(100 * difference.mean)} points, {_bounds(difference, 100)}"
    if difference.sign > 0:
        other = f"“{plain.strategy}”, the best without adaptation, {percent(plain.recall)}{PERCENT}"
        return adaptive, f"It finds {_share(adaptive)}, and {other} ({gap})."
    shown = "is shown to find less" if difference.sign < 0 else "is not shown to find more"
    return plain, f"It finds {_share(plain)}; “{adaptive.strategy}”, the best adaptive search, {shown} ({gap})."


def _choose_calls(choices: Sequence[tuple[Result, str]], levels: Sequence[Quality]) -> tuple[tuple[Result, str], str]:
    """The choice with the fewest calls that are enough, and why they are."""
    *fewer, most = choices
    known = {(one.strategy, one.budget): one for one in levels}
    reference = known.get((most[0].strategy, most[0].budget))
    if reference is not None:
        measure = main_measure(levels)
        for choice in fewer:
            level = known.get((choice[0].strategy, choice[0].budget))
            lost = None if level is None else level.minus(reference)
            if lost is not None and lost.low >= -MARGIN:
                compared = f"{decimals(lost.mean)}, {_bounds(lost)}"
                return (
                    choice,
                    f"More calls add at most {MARGIN:g} to {measure} ({compared}, to {most[0].budget:,} calls).",
                )
        if fewer:
            return most, f"Fewer calls may lose more than {MARGIN:g} of {measure}."
        return most, "No other number of calls was measured."
    for choice in choices:
        if choice[0].low >= RECALL_TARGET:
            return (
                choice,
                f"These are the fewest calls whose interval of recall is above {percent(RECALL_TARGET)}{PERCENT}.",
            )
    return most, (
        f"No measured number of calls finds {percent(RECALL_TARGET)}{PERCENT} for certain: these are the most. Without"
        " judgments nothing says whether more are worth it."
    )


def _against_first_stage(chosen: Result, levels: Sequence[Quality]) -> str | None:
    """Why there is no advice: by the judgments, the chosen search is not shown to beat the best first stage."""
    first = best_first_stage(levels)
    level = next((one for one in levels if (one.strategy, one.budget) == (chosen.strategy, chosen.budget)), None)
    difference = None if first is None or level is None else level.minus(first)
    if first is None or difference is None or difference.sign > 0:
        return None
    return (
        f"In {main_measure(levels)} no gain is shown of “{chosen.strategy}” with {number(chosen.budget)} calls over"
        f" {first.strategy} alone ({decimals(difference.mean)}, {_bounds(difference)}): measure more queries."
    )


def _choose_rounds(comparison: Comparison, chosen: Result, k: int) -> tuple[float | None, str]:
    """The fewest rounds of the study that lose at most a point to the best, else those that were measured."""
    studied = comparison.studies.rounds if comparison.studies else None
    curves = [curve for curve in studied.curves if (curve.strategy, curve.k) == (chosen.strategy, k)] if studied else []
    if studied is None or not curves:
        return chosen.rounds, "" if chosen.rounds in (None, 1) else "No other number of rounds was measured."
    points: Sequence[Point] = curves[0].points
    best = max(points, key=lambda point: point.recall)
    if not best.per_query:
        return chosen.rounds, ""
    for point in points:
        lost = paired_difference(point.per_query, best.per_query)
        if lost.low >= -MARGIN:
            break
    within = f"in the study within {number(studied.budget)} calls"
    if point is best:
        return point.at, f"Fewer rounds may find more than {100 * MARGIN:g} point less, {within}."
    gap = f"{signed(100 * lost.mean)} points, {_bounds(lost, 100)}"
    return point.at, f"More rounds find at most {100 * MARGIN:g} point more, {within} ({gap})."


def _share(result: Result) -> str:
    return f"{percent(result.recall)}{PERCENT} of the true top {result.k}"


def _bounds(difference: Difference, scale: int = 1) -> str:
    low, high = (signed(scale * end) if scale > 1 else decimals(end) for end in (difference.low, difference.high))
    return f"95{PERCENT} interval {low} to {high}"
