"""Studies as lines: what is found against a setting, and how good it is against the budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crossknn.evaluate.comparison import Comparison
from crossknn.evaluate.report.findings import TYPICAL_K, typical
from crossknn.evaluate.report.format import rounded
from crossknn.evaluate.report.style import DARK, DASHES, LIGHT, Canvas, Theme, exact_style, styles_of
from crossknn.evaluate.study_results import FOUND, Curve, QualityStudy, Sweep

EXACT = "exact search"
NEAR = 10.0  # percentage points that a panel shows at least


def draw_sweep(
    sweep: Sweep, setting: str, comparison: Comparison, *, dark: bool = False, stacked: bool = False
) -> bytes:
    """The share found against a setting, one panel per k; each shows its own part of the y axis."""
    theme = DARK if dark else LIGHT
    styles = styles_of(comparison.attainable, theme)
    for level in sweep.levels:
        styles[level.strategy] = {**styles[level.strategy], "marker": "", "linestyle": DASHES, "linewidth": 1.6}
    ks = list(dict.fromkeys(curve.k for curve in sweep.curves))
    values = [point.at for curve in sweep.curves for point in curve.points]
    canvas = Canvas(len(ks), theme, stacked=stacked)
    for axis, k in zip(canvas.axes, ks, strict=True):
        canvas.title(axis, f"True top {k}")
        _draw_x(axis, values, marked=[point.at for point in sweep.curves[0].points])
        lines = {curve.strategy: _line(curve) for curve in [*sweep.curves, *sweep.levels] if curve.k == k}
        for name, line in lines.items():
            axis.plot(*line, **styles[name])
        _draw_y(axis, [y for _, ys in lines.values() for y in ys], exact=100, near=NEAR, theme=theme)
    canvas.name_axes(setting, "found, %")
    canvas.draw_legend([[*((name, styles[name]) for name in lines), (EXACT, exact_style(theme))]])
    return canvas.render()


def draw_quality(study: QualityStudy, comparison: Comparison, *, dark: bool = False, stacked: bool = False) -> bytes:
    """Against the budget: what is found of the true top k, and each measure by the judgments."""
    theme = DARK if dark else LIGHT
    found = FOUND.format(typical(comparison.ks, TYPICAL_K))
    others = {FOUND.format(k) for k in comparison.ks} - {found}
    measures = [name for name in study.levels[0].values if name not in others]
    strategies = choose_near(study)
    canvas, styles = Canvas(len(measures), theme, stacked=stacked), styles_of(comparison.attainable, theme)
    for axis, measure in zip(canvas.axes, measures, strict=True):
        canvas.title(axis, f"Share of the {measure}" if measure == found else measure)
        _draw_x(axis, comparison.budgets, marked=comparison.budgets)
        shown = []
        for name in strategies:
            known = [(one.budget, one.values[measure]) for one in study.levels if one.strategy == name]
            axis.plot(*zip(*known, strict=True), **styles[name])
            shown += [value for _, value in known]
        exact = next(one.values[measure] for one in study.levels if one.budget is None)
        _draw_y(axis, shown, exact=exact, near=NEAR / 100, theme=theme)
    canvas.name_axes("budget (calls per query)", "mean over queries")
    labels = [*((name, styles[name]) for name in strategies), (EXACT, exact_style(theme))]
    canvas.draw_legend([labels[start : start + canvas.across] for start in range(0, len(labels), canvas.across)])
    return canvas.render()


def choose_near(study: QualityStudy) -> list[str]:
    """The strategies that by all judgments have at least half of exact search's quality; where there are none all."""
    exact = next(one.values for one in study.levels if one.budget is None)
    judged = [measure for measure in exact if not measure.startswith(FOUND.format(""))]
    found = [one for one in study.levels if one.budget is not None]
    far = {one.strategy for one in found if any(one.values[measure] < exact[measure] / 2 for measure in judged)}
    names = list(dict.fromkeys(one.strategy for one in found))
    return [name for name in names if name not in far] or names


def _line(curve: Curve) -> tuple[list[float], list[float]]:
    return [point.at for point in curve.points], [100 * point.recall for point in curve.points]


def _draw_x(axis: Any, values: Sequence[float], *, marked: Sequence[float]) -> None:
    """The range of the values; equal distances are equal factors, but where there is a zero."""
    if min(values) > 0:
        axis.set_xscale("log")
        axis.set_xlim(min(values) / 1.15, max(values) * 1.15)
    axis.set_xticks(marked, [f"{value:.3g}" if value < 1 else rounded(value).removesuffix(".0") for value in marked])
    axis.minorticks_off()


def _draw_y(axis: Any, values: Sequence[float], *, exact: float, near: float, theme: Theme) -> None:
    """Show the values and what is near; exact search as a line, or in words where it is far above."""
    span = max(values) - min(values)
    margin = max(0.1 * span, (near - span) / 2)
    low, high = max(0.0, min(*values, exact) - margin), max(values) + margin
    if exact < high + near:
        axis.axhline(exact, **exact_style(theme))
        high = max(*values, exact) + 0.03 * (exact - low)
    else:
        said = {"color": theme.quiet, "fontsize": 9, "ha": "right", "va": "bottom"}
        axis.text(1, 1, f"{EXACT}: {exact:.3g} ↑", transform=axis.transAxes, **said)
    axis.set_ylim(low, high)
    axis.locator_params(axis="y", nbins=6)
