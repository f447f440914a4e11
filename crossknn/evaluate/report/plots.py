"""The figures of a report: recall against the budget, and one or more for each study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from crossknn.evaluate.comparison import Comparison
from crossknn.evaluate.measures import LEVEL
from crossknn.evaluate.report.findings import TYPICAL_K, describe_best, headline, typical
from crossknn.evaluate.report.format import PERCENT, number, rounded
from crossknn.evaluate.report.style import (
    DASHES,
    EXACT_STYLE,
    GRID,
    INK,
    MUTED,
    TIME_COLORS,
    Canvas,
    area_style,
    has_adaptive,
    in_pairs,
    styles_of,
    wrap_name,
)
from crossknn.evaluate.results import (
    RECALL,
    SCALED,
    SCORES,
    SIMILARITIES,
    TIME_PARTS,
    DistributionStudy,
    Indexed,
    LatencyStudy,
    QualityStudy,
    SamplingStudy,
    Sweep,
)

EXACT: Final = "exact search"
ON_PAGE: Final = "All numbers are on the page."
OWN_SCALES: Final = "Each panel has its own scale; exact search is shown where it is near."
MAX_BANDS: Final = 6  # strategies; the confidence bands of more would hide the lines
MIN_SPAN: Final = 10.0  # percentage points that a panel shows at least
LIMIT_STYLE: Final = {"color": MUTED, "linewidth": 1.4, "linestyle": "dotted"}


@dataclass(frozen=True)
class Plot:
    """A figure with its alternative text and caption."""

    canvas: Canvas
    alt: str
    caption: str

    def render(self, kind: Literal["png", "svg"]) -> bytes:
        return self.canvas.render(kind)


def make_plots(comparison: Comparison) -> dict[str, Plot]:
    """The figures of a report by name: recall, and those of its studies."""
    plots, studies = {"recall": plot_recall(comparison)}, comparison.studies
    if studies is None:
        return plots
    if studies.rounds:
        plots["rounds"] = _plot_sweep(studies.rounds, comparison, "rounds", "One round is reranking.")
    if studies.mix:
        meaning = "λ 0 is the vector that explains the scores so far, λ 1 the encoder’s."
        plots["mix"] = _plot_sweep(studies.mix, comparison, "λ", meaning)
    if studies.sampling:
        plots |= _plot_sampling(studies.sampling, comparison)
    if studies.latency:
        plots["latency"] = _plot_latency(studies.latency)
    if studies.distributions:
        plots["distributions"] = _plot_distributions(studies.distributions)
    if studies.quality:
        plots["quality"] = _plot_quality(studies.quality, comparison)
    return plots


def plot_recall(comparison: Comparison) -> Plot:
    """Recall against the budget, one panel per k, without oracles."""
    comparison = comparison.attainable
    budgets, ks, styles = comparison.budgets, comparison.ks, styles_of(comparison)
    bands = len(comparison.strategies) <= MAX_BANDS
    canvas = Canvas(len(ks))
    for axis, k in zip(canvas.axes, ks, strict=True):
        canvas.title(axis, f"True top {k}")
        _set_x(axis, budgets, budgets)
        axis.set_ylim(0, 102)
        axis.axhline(100, **EXACT_STYLE)
        if budgets[0] < k:
            limit = np.geomspace(budgets[0], min(k, budgets[-1]))
            axis.plot(limit, 100 * limit / k, zorder=1, **LIMIT_STYLE)
        for name in comparison.strategies:
            known = [result for budget in budgets if (result := comparison.result(name, budget, k))]
            if not known:
                continue
            at = [result.budget for result in known]
            if bands:
                low, high = ([100 * getattr(result, end) for result in known] for end in ("low", "high"))
                axis.fill_between(at, low, high, color=styles[name]["color"], alpha=0.11, linewidth=0, zorder=2)
            axis.plot(at, [100 * result.recall for result in known], **styles[name])
    labels = [(name, styles[name]) for name in comparison.strategies]
    labels.append((f"Exact search ({number(comparison.items)} calls)", EXACT_STYLE))
    if budgets[0] < ks[-1]:
        labels.append(("Limit: budget ÷ k", LIMIT_STYLE))
    canvas.label_axes("budget (calls per query)", "recall, %")
    canvas.add_legend(labels)
    color = ", in the same color" if in_pairs(comparison) else ""
    caption = [f"Dashed: one round of reranking. Solid{color}: adaptive search."] * has_adaptive(comparison)
    caption += [f"Bands: {100 * LEVEL:.0f}{PERCENT} confidence intervals."] * bands
    alt = f"Recall of the true top {', '.join(map(str, ks))} against the budget. {headline(comparison)} {ON_PAGE}"
    return Plot(canvas, alt, " ".join(caption))


def _plot_sweep(sweep: Sweep, comparison: Comparison, setting: str, meaning: str) -> Plot:
    """Recall against a setting, one panel per k."""
    styles = styles_of(comparison.attainable)
    for level in sweep.levels:
        styles[level.strategy] = {**styles[level.strategy], "marker": "", "linestyle": DASHES, "linewidth": 1.6}
    ks = list(dict.fromkeys(curve.k for curve in sweep.curves))
    values = [point.at for curve in sweep.curves for point in curve.points]
    canvas, names = Canvas(len(ks)), list[str]()
    for axis, k in zip(canvas.axes, ks, strict=True):
        canvas.title(axis, f"True top {k}")
        _set_x(axis, values, [point.at for point in sweep.curves[0].points])
        curves = [curve for curve in [*sweep.curves, *sweep.levels] if curve.k == k]
        for curve in curves:
            recall = [100 * point.recall for point in curve.points]
            axis.plot([point.at for point in curve.points], recall, **styles[curve.strategy])
        _set_y(axis, [100 * point.recall for curve in curves for point in curve.points], exact=100, min_span=MIN_SPAN)
        names = [curve.strategy for curve in curves]
    canvas.label_axes(setting, "recall, %")
    canvas.add_legend([*((name, styles[name]) for name in dict.fromkeys(names)), (EXACT, EXACT_STYLE)])
    within = f"within {number(sweep.budget)} calls"
    return Plot(
        canvas,
        f"Recall {within}, against {setting}. {describe_best(sweep, setting)} {ON_PAGE}",
        f"Recall {within}. {meaning} Dashed: “{sweep.levels[0].strategy}”, which does not depend on it. {OWN_SCALES}",
    )


def _plot_sampling(study: SamplingStudy, comparison: Comparison) -> dict[str, Plot]:
    meaning = (
        "Per item: every item is scored with train queries drawn at random. Per query: every train query with items"
        " drawn at random, as many calls in all."
    )
    plots = {"sampling": _plot_sweep(study.calls, comparison, "offline calls per item", meaning)}
    if study.seconds is not None:
        plots["indexing"] = _plot_sweep(study.seconds, comparison, "seconds of indexing", "Encoding is not included.")
    alt = f"Seconds of each step of building an index, against offline calls per item. {ON_PAGE}"
    plots["steps"] = Plot(_draw_indexing(study.indexes), alt, "Encoding is left out: it is the same for all.")
    return plots


def _draw_indexing(indexes: Sequence[Indexed]) -> Canvas:
    """Seconds of building an index, one panel per sampling design."""
    designs = list(dict.fromkeys(index.sampling for index in indexes))
    steps = dict.fromkeys(step for index in indexes for step in index.seconds)
    colors = dict(zip(steps, [*TIME_COLORS.values(), MUTED, GRID], strict=False))
    canvas = Canvas(len(designs), height=0.8 + 0.3 * len(indexes) / len(designs))
    for axis, design in zip(canvas.axes, designs, strict=True):
        canvas.title(axis, f"Pairs sampled {design}")
        built = [index for index in indexes if index.sampling == design]
        calls = [number(round(index.calls_per_item, 1)) for index in built]
        _draw_bars(axis, calls, [index.seconds for index in built], colors)
    canvas.label_axes("seconds", "calls per item")
    canvas.add_legend([(step, area_style(color)) for step, color in colors.items()])
    return canvas


def _plot_latency(study: LatencyStudy) -> Plot:
    """Milliseconds per query, one panel per budget."""
    budgets = list(dict.fromkeys(times.budget for times in study.times))
    names = list(dict.fromkeys(times.strategy for times in study.times))
    colors = {part: TIME_COLORS[part] for part in TIME_PARTS if any(part in times.seconds for times in study.times)}
    canvas = Canvas(len(budgets), height=0.8 + 0.3 * len(names))
    for place, (axis, budget) in enumerate(zip(canvas.axes, budgets, strict=True)):
        canvas.title(axis, f"{number(budget)} calls")
        known = {times.strategy: times.seconds for times in study.times if times.budget == budget}
        bars = [{part: 1000 * seconds for part, seconds in known.get(name, {}).items()} for name in names]
        _draw_bars(axis, names if place % canvas.columns == 0 else [""] * len(names), bars, colors)
    canvas.label_axes("ms per query", "")
    canvas.add_legend([(part, area_style(color)) for part, color in colors.items()])
    alt = "Milliseconds per query by strategy, budget and part. Those of the largest budget are in the table."
    return Plot(canvas, alt, "The numbers are sums. Each panel has its own scale.")


def _plot_distributions(study: DistributionStudy) -> Plot:
    """Densities of the scores, of the similarities, and of both on the scale of the similarities."""
    blue, yellow = TIME_COLORS["scorer"], TIME_COLORS["search"]
    colors = {SCORES: blue, SCALED: blue, SIMILARITIES: yellow}
    scores, similarities, *both = study.histograms
    panels = {"Cross-encoder scores": [scores], "Encoder similarities": [similarities]}
    if both:
        panels["Both, scores with α and β"] = both
    canvas = Canvas(len(panels), height=2.6)
    for axis, (title, histograms) in zip(canvas.axes, panels.items(), strict=True):
        canvas.title(axis, title)
        for histogram in histograms:
            color = colors[histogram.of]
            axis.stairs(histogram.density, histogram.edges, fill=True, color=color, alpha=0.45)
            axis.stairs(histogram.density, histogram.edges, color=color, linewidth=1.4)
        axis.set_ylim(bottom=0)
    canvas.label_axes("", "density")
    canvas.add_legend([(of, area_style(colors[of])) for of in (SCORES, SIMILARITIES)])
    scale = "" if study.alpha is None else f" α is {study.alpha:.3g} and β {study.beta:.3g}.".replace("-", "−")
    alt = "Densities of the cross-encoder’s scores and of the encoder’s similarities."
    return Plot(canvas, alt, f"{number(study.pairs)} pairs of test queries with random items.{scale}")


def _plot_quality(study: QualityStudy, comparison: Comparison) -> Plot:
    """Recall of the true top k and each measure by judgments, against the budget."""
    recall = RECALL.format(typical(comparison.ks, TYPICAL_K))
    others = {RECALL.format(k) for k in comparison.ks} - {recall}
    measures = [name for name in study.levels[0].values if name not in others]
    names, styles, canvas = near_exact(study), styles_of(comparison.attainable), Canvas(len(measures))
    for axis, measure in zip(canvas.axes, measures, strict=True):
        canvas.title(axis, f"Recall of the {measure}" if measure == recall else measure)
        _set_x(axis, comparison.budgets, comparison.budgets)
        values: list[float] = []
        for name in names:
            known = [(level.budget, level.values[measure]) for level in study.levels if level.strategy == name]
            axis.plot(*zip(*known, strict=True), **styles[name])
            values += [value for _, value in known]
        exact = next(level.values[measure] for level in study.levels if level.budget is None)
        _set_y(axis, values, exact=exact, min_span=MIN_SPAN / 100)
    canvas.label_axes("budget (calls per query)", "mean over queries")
    canvas.add_legend([*((name, styles[name]) for name in names), (EXACT, EXACT_STYLE)])
    far = [f"“{name}”" for name in comparison.attainable.strategies if name not in names]
    left_out = f" Not shown, below half of exact search: {', '.join(far)}." if far else ""
    alt = f"Recall and relevance of every strategy, against the budget. {ON_PAGE}"
    return Plot(canvas, alt, f"Means over the queries. {OWN_SCALES}{left_out}")


def near_exact(study: QualityStudy) -> list[str]:
    """The strategies with at least half of exact search's quality by all judgments; all where there are none."""
    exact = next(level.values for level in study.levels if level.budget is None)
    judged = [measure for measure in exact if not measure.startswith(RECALL.format(""))]
    levels = [level for level in study.levels if level.budget is not None]
    far = {level.strategy for level in levels if any(level.values[name] < exact[name] / 2 for name in judged)}
    names = list(dict.fromkeys(level.strategy for level in levels))
    return [name for name in names if name not in far] or names


def _set_x(axis: Any, values: Sequence[float], ticks: Sequence[float]) -> None:
    """A logarithmic scale, unless there is a zero."""
    if min(values) > 0:
        axis.set_xscale("log")
        axis.set_xlim(min(values) / 1.15, max(values) * 1.15)
    axis.set_xticks(ticks, [f"{value:.3g}" if value < 1 else rounded(value).removesuffix(".0") for value in ticks])
    axis.minorticks_off()


def _set_y(axis: Any, values: Sequence[float], *, exact: float, min_span: float) -> None:
    """The range of the values, and of exact search where it is near."""
    axis.axhline(exact, **EXACT_STYLE)
    span = max(values) - min(values)
    margin = max(0.1 * span, (min_span - span) / 2)
    low, high = max(0.0, min(*values, exact) - margin), max(values) + margin
    axis.set_ylim(low, max(*values, exact) + 0.03 * (exact - low) if exact < high + min_span else high)
    axis.locator_params(axis="y", nbins=6)


def _draw_bars(axis: Any, names: Sequence[str], bars: Sequence[Mapping[str, float]], colors: Mapping[str, str]) -> None:
    """Stacked horizontal bars from top to bottom, each with its sum at the end."""
    longest = max(sum(bar.values()) for bar in bars) or 1.0
    for place, bar in enumerate(bars):
        end = 0.0
        for part, color in colors.items():
            axis.barh(place, bar.get(part, 0.0), left=end, height=0.62, color=color)
            end += bar.get(part, 0.0)
        if bar:
            axis.text(end + 0.02 * longest, place, rounded(end), va="center", color=INK, fontsize=9)
    axis.set_yticks(range(len(bars)), [wrap_name(name) for name in names], parse_math=False)
    axis.tick_params(axis="y", length=0)
    axis.set(xlim=(0, 1.2 * longest), ylim=(len(bars) - 0.5, -0.5))
    axis.grid(visible=False, axis="y")
    axis.grid(visible=True, axis="x", color=GRID, linewidth=0.8)
    axis.locator_params(axis="x", nbins=5)
