"""The figures of a report: recall against the budget, and one or more for each study, all in one style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from textwrap import fill
from typing import Any, Final, Literal

import numpy as np

from crossknn._imports import import_extra
from crossknn.evaluate.comparison import TIME_PARTS, Comparison
from crossknn.evaluate.measures import LEVEL
from crossknn.evaluate.quality import best_first_stage
from crossknn.evaluate.report.findings import TYPICAL_K, describe_best, headline, typical
from crossknn.evaluate.report.formats import PERCENT, number, rounded
from crossknn.evaluate.studies import (
    RECALL,
    DistributionStudy,
    Indexed,
    LatencyStudy,
    QualityStudy,
    SamplingStudy,
    Sweep,
)

DPI: Final = 200
PAPER, INK, MUTED, GRID = "#ffffff", "#1c2230", "#5d6675", "#e3e7ed"
# Color-blind readers can tell the first five apart (after Okabe and Ito), and everybody the markers.
SERIES: Final = (
    *("#0072b2", "#d55e00", "#00875f", "#a84b8a", "#8a6d00"),
    *("#4338ca", "#be123c", "#0891b2", "#78492c", "#65a30d", "#d946a6", "#64748b"),
)
MARKERS: Final = "oDs^vPX<>phd8"  # one more than colors, so that a pair of both is reused late
TIME_COLORS: Final = {"scorer": "#0072b2", "solve": "#a84b8a", "search": "#e69f00"}  # as in page.css
DASHES: Final = (0, (4, 2))
EXACT_STYLE: Final = {"color": MUTED, "linewidth": 1.2, "zorder": 1}
SAME_STRATEGY: Final = {"axn, per item": "axn, fitted"}
MAX_COLUMNS: Final = 3
MAX_NAME_WIDTH: Final = 34  # characters; longer names wrap
EXACT: Final = "exact search"
ON_PAGE: Final = "All numbers are on the page."
OWN_SCALES: Final = "Each panel has its own scale; exact search is shown where it is near."
MAX_BANDS: Final = 6  # strategies; the confidence bands of more would hide the lines
MIN_SPAN: Final = 10.0  # percentage points that a panel shows at least
LIMIT_STYLE: Final = {"color": MUTED, "linewidth": 1.4, "linestyle": "dotted"}

Style = dict[str, Any]
Label = tuple[str, Style]
"""A legend entry: its text, and the style of its line."""


class Canvas:
    """A figure with rows of at most three panels, independent of matplotlib's global state.

    `height` is that of a panel, `width` that of the figure, by default by the number of panels; both in inches.
    """

    def __init__(self, titles: Sequence[str], *, height: float = 3.6, width: float | None = None) -> None:
        import_extra("matplotlib", extra="report")
        from matplotlib.figure import Figure

        panels = len(titles)
        self.columns = 2 if panels == 4 else min(panels, MAX_COLUMNS)
        rows = -(-panels // self.columns)
        size = (width or max(3.7 * self.columns, 5.5), 0.4 + rows * height)
        figure: Any = Figure(figsize=size, layout="constrained")
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
        self.figure = figure
        axes = figure.subplots(rows, self.columns, squeeze=False).ravel()
        self.axes: Sequence[Any] = axes[:panels]
        for axis in axes[panels:]:
            axis.set_visible(False)
        for axis, title in zip(self.axes, titles, strict=True):
            axis.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK, pad=8, parse_math=False)
            axis.set_facecolor("none")
            axis.grid(axis="y", color=GRID, linewidth=0.8)
            axis.set_axisbelow(True)
            axis.tick_params(colors=MUTED, labelcolor=INK, labelsize=10, length=3)
            axis.spines[["left", "top", "right"]].set_visible(False)
            axis.spines["bottom"].set_color(MUTED)

    def label(self, x: str, y: str, legend: Sequence[Label]) -> None:
        """Label the x axis of the last panel in each column and the y axis of the first in each row; add a legend."""
        for place, axis in enumerate(self.axes):
            if place % self.columns == 0:
                axis.set_ylabel(y, color=MUTED, fontsize=10)
            if place + self.columns >= len(self.axes):
                axis.set_xlabel(x, color=MUTED, fontsize=10)
        self._add_legend(legend)

    def _add_legend(self, labels: Sequence[Label]) -> None:
        """Add a legend below the panels."""
        from matplotlib.lines import Line2D

        names = [wrap_name(name) for name, _ in labels]
        longest = max(len(line) for name in names for line in name.splitlines() or [""])
        width, height = self.figure.get_size_inches()
        columns = min(len(labels), max(1, int(width / (0.8 + 0.085 * longest))))
        lines = -(-len(labels) // columns) * max(name.count("\n") + 1 for name in names)
        self.figure.set_size_inches(width, height + 0.22 * lines)
        legend = self.figure.legend(
            [Line2D([], [], **style) for _, style in labels],
            [str(place) for place in range(len(labels))],  # matplotlib would read "_" and "$" in a name
            loc="outside lower left",
            ncols=columns,
            frameon=False,
            fontsize=10,
            handlelength=3,
        )
        for text, name in zip(legend.get_texts(), names, strict=True):
            text.set(parse_math=False, text=name, color=INK)

    def render(self, kind: Literal["png", "svg"]) -> bytes:
        """The figure as a file: PNG on white paper, or SVG without a background and with real text."""
        from matplotlib import rc_context

        content = BytesIO()
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "crossknn"}):
            self.figure.savefig(
                content,
                format=kind,
                dpi=DPI,
                facecolor=PAPER if kind == "png" else "none",
                bbox_inches="tight",
                pad_inches=0.08,
                metadata={"Date": None} if kind == "svg" else None,
            )
        return content.getvalue()


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
    if comparison.reliability:
        plots["reliability"] = plot_reliability(comparison)
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
    canvas = Canvas([f"True top {k}" for k in ks])
    for axis, k in zip(canvas.axes, ks, strict=True):
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
    canvas.label("budget (calls per query)", "recall, %", labels)
    color = ", in the same color" if in_pairs(comparison) else ""
    caption = [f"Dashed: one round of reranking. Solid{color}: adaptive search."] * has_adaptive(comparison)
    caption += [f"Bands: {100 * LEVEL:.0f}{PERCENT} confidence intervals."] * bands
    alt = f"Recall of the true top {', '.join(map(str, ks))} against the budget. {headline(comparison)} {ON_PAGE}"
    return Plot(canvas, alt, " ".join(caption))


def plot_reliability(comparison: Comparison) -> Plot:
    """Measured against expected recall, one panel per k."""
    ks, styles = list(dict.fromkeys(one.k for one in comparison.reliability)), styles_of(comparison)
    canvas = Canvas([f"True top {k}" for k in ks])
    for axis, k in zip(canvas.axes, ks, strict=True):
        axis.plot([0, 100], [0, 100], **EXACT_STYLE)
        for one in comparison.reliability:
            if one.k == k:
                points = [(100 * place.expected, 100 * place.measured) for place in one.bins]
                axis.plot(*zip(*points, strict=True), **styles[one.strategy])
        axis.set(xlim=(-2, 102), ylim=(-2, 102))
    names = dict.fromkeys(one.strategy for one in comparison.reliability)
    labels = [*((name, styles[name]) for name in names), ("Perfect calibration", EXACT_STYLE)]
    canvas.label("expected recall, %", "measured recall, %", labels)
    alt = f"Measured recall where about as much was expected, for each strategy that expects one. {ON_PAGE}"
    caption = "Each point is the mean of the searches, over all queries and budgets, that expect about the same recall."
    return Plot(canvas, alt, caption)


def _plot_sweep(sweep: Sweep, comparison: Comparison, setting: str, meaning: str) -> Plot:
    """Recall against a setting, one panel per k."""
    styles = styles_of(comparison.attainable)
    for level in sweep.levels:
        styles[level.strategy] = {**styles[level.strategy], "marker": "", "linestyle": DASHES, "linewidth": 1.6}
    ks = list(dict.fromkeys(curve.k for curve in sweep.curves))
    names = dict.fromkeys(curve.strategy for curve in [*sweep.curves, *sweep.levels])
    values = [point.at for curve in sweep.curves for point in curve.points]
    canvas = Canvas([f"True top {k}" for k in ks])
    for axis, k in zip(canvas.axes, ks, strict=True):
        _set_x(axis, values, [point.at for point in sweep.curves[0].points])
        curves = [curve for curve in [*sweep.curves, *sweep.levels] if curve.k == k]
        for curve in curves:
            recall = [100 * point.recall for point in curve.points]
            axis.plot([point.at for point in curve.points], recall, **styles[curve.strategy])
        _set_y(axis, [100 * point.recall for curve in curves for point in curve.points], exact=100, min_span=MIN_SPAN)
    canvas.label(setting, "recall, %", [*((name, styles[name]) for name in names), (EXACT, EXACT_STYLE)])
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
    titles = [f"Pairs sampled {design}" for design in designs]
    canvas = Canvas(titles, height=0.8 + 0.3 * len(indexes) / len(designs))
    for axis, design in zip(canvas.axes, designs, strict=True):
        built = [index for index in indexes if index.sampling == design]
        calls = [number(round(index.calls_per_item, 1)) for index in built]
        _draw_bars(axis, calls, [index.seconds for index in built], colors)
    canvas.label("seconds", "calls per item", [(step, _area_style(color)) for step, color in colors.items()])
    return canvas


def _plot_latency(study: LatencyStudy) -> Plot:
    """Milliseconds per query, one panel per budget."""
    budgets = list(dict.fromkeys(times.budget for times in study.times))
    names = list(dict.fromkeys(times.strategy for times in study.times))
    colors = {part: TIME_COLORS[part] for part in TIME_PARTS if any(part in times.seconds for times in study.times)}
    canvas = Canvas([f"{number(budget)} calls" for budget in budgets], height=0.8 + 0.3 * len(names))
    for place, (axis, budget) in enumerate(zip(canvas.axes, budgets, strict=True)):
        known = {times.strategy: times.seconds for times in study.times if times.budget == budget}
        bars = [{part: 1000 * seconds for part, seconds in known.get(name, {}).items()} for name in names]
        _draw_bars(axis, names if place % canvas.columns == 0 else [""] * len(names), bars, colors)
    canvas.label("ms per query", "", [(part, _area_style(color)) for part, color in colors.items()])
    alt = "Milliseconds per query by strategy, budget and part. Those of the largest budget are in the table."
    return Plot(canvas, alt, "The numbers are sums. Each panel has its own scale.")


def _plot_distributions(study: DistributionStudy) -> Plot:
    """Densities of the scores, of the similarities, and of both on the scale of the similarities."""
    blue, yellow = TIME_COLORS["scorer"], TIME_COLORS["search"]
    colors = {"scores": blue, "scaled scores": blue, "similarities": yellow}
    scores, similarities, *both = study.histograms
    panels = {"Cross-encoder scores": [scores], "Encoder similarities": [similarities]}
    if both:
        panels["Both, scores with α and β"] = both
    canvas = Canvas(list(panels), height=2.6)
    for axis, histograms in zip(canvas.axes, panels.values(), strict=True):
        for histogram in histograms:
            color = colors[histogram.of]
            axis.stairs(histogram.density, histogram.edges, fill=True, color=color, alpha=0.45)
            axis.stairs(histogram.density, histogram.edges, color=color, linewidth=1.4)
        axis.set_ylim(bottom=0)
    canvas.label("", "density", [(of, _area_style(colors[of])) for of in ("scores", "similarities")])
    scale = "" if study.alpha is None else f" α is {study.alpha:.3g} and β {study.beta:.3g}.".replace("-", "−")
    alt = "Densities of the cross-encoder’s scores and of the encoder’s similarities."
    return Plot(canvas, alt, f"{number(study.pairs)} pairs of test queries with random items.{scale}")


def _plot_quality(study: QualityStudy, comparison: Comparison) -> Plot:
    """Recall of the true top k and each measure by judgments, against the budget."""
    recall = RECALL.format(typical(comparison.ks, TYPICAL_K))
    others = {RECALL.format(k) for k in comparison.ks} - {recall}
    measures = [name for name in study.levels[0].values if name not in others]
    names, styles = near_exact(study), styles_of(comparison.attainable)
    first = best_first_stage(comparison.quality)
    canvas = Canvas([f"Recall of the {name}" if name == recall else name for name in measures])
    for axis, measure in zip(canvas.axes, measures, strict=True):
        _set_x(axis, comparison.budgets, comparison.budgets)
        values: list[float] = []
        for name in names:
            known = [(level.budget, level.values[measure]) for level in study.levels if level.strategy == name]
            axis.plot(*zip(*known, strict=True), **styles[name])
            values += [value for _, value in known]
        if first is not None and measure in first.values:
            axis.axhline(first.values[measure], **LIMIT_STYLE)
            values.append(first.values[measure])
        exact = next(level.values[measure] for level in study.levels if level.budget is None)
        _set_y(axis, values, exact=exact, min_span=MIN_SPAN / 100)
    legend = [*((name, styles[name]) for name in names), (EXACT, EXACT_STYLE)]
    legend += [] if first is None else [(f"{first.strategy} alone, without a call", LIMIT_STYLE)]
    canvas.label("budget (calls per query)", "mean over queries", legend)
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


def has_adaptive(comparison: Comparison) -> bool:
    """Whether any strategy has a baseline."""
    return any(group.adaptive for group in comparison.groups)


def in_pairs(comparison: Comparison) -> bool:
    """Whether every baseline has at most one adaptive strategy, which then shares its color."""
    return all(len(group.adaptive) < 2 for group in comparison.groups)


def styles_of(comparison: Comparison) -> dict[str, Style]:
    """The style of each strategy in all figures: baselines dashed and hollow, the others solid."""
    pairs, adaptive, styles = in_pairs(comparison), has_adaptive(comparison), dict[str, Style]()
    for pair, group in enumerate(comparison.groups):
        for place, name in enumerate([group.baseline, *group.adaptive]):
            color, marker = (pair, place) if pairs else (len(styles), len(styles))
            styles[name] = line_style(color, marker, dashed=adaptive and place == 0)
    for name in comparison.studies.strategies if comparison.studies else ():
        own = line_style(len(styles), len(styles))
        styles.setdefault(name, styles.get(SAME_STRATEGY.get(name, ""), own))
    return styles


def line_style(color: int, marker: int, *, dashed: bool = False) -> Style:
    """The line style with these numbers of a color and a marker, both of which start over after the last one."""
    shade = SERIES[color % len(SERIES)]
    return {
        "color": shade,
        "marker": MARKERS[marker % len(MARKERS)],
        "markersize": 5.5,
        "markerfacecolor": PAPER if dashed else shade,
        "linestyle": DASHES if dashed else "solid",
        "linewidth": 1.6 if dashed else 2.0,
        "zorder": 4 if dashed else 3,
        "clip_on": False,
    }


def _area_style(color: str) -> Style:
    """The legend key of an area."""
    return {"color": color, "marker": "s", "markersize": 8, "linestyle": "none"}


def wrap_name(name: str) -> str:
    """The name, broken into lines where it is long."""
    return fill(name, MAX_NAME_WIDTH) or name
