"""Studies as areas: bars of the time that searches and builds take, and distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crossknn.evaluate.compare import PARTS
from crossknn.evaluate.report.format import number, rounded
from crossknn.evaluate.report.style import DARK, LIGHT, Canvas, Theme, area_style, wrap
from crossknn.evaluate.study_results import (
    SCALED,
    SCORES,
    SIMILARITIES,
    STEPS,
    DistributionStudy,
    Indexed,
    LatencyStudy,
)

BAR = 0.3  # inches


def draw_latency(study: LatencyStudy, *, dark: bool = False, stacked: bool = False) -> bytes:
    """Milliseconds per query, one panel per budget."""
    theme = DARK if dark else LIGHT
    budgets = list(dict.fromkeys(one.budget for one in study.times))
    names = list(dict.fromkeys(one.strategy for one in study.times))
    parts = [part for part in PARTS if any(part in one.seconds for one in study.times)]
    canvas = Canvas(len(budgets), theme, stacked=stacked, height=0.8 + BAR * len(names))
    for place, (axis, budget) in enumerate(zip(canvas.axes, budgets, strict=True)):
        canvas.title(axis, f"{number(budget)} calls")
        known = {one.strategy: one.seconds for one in study.times if one.budget == budget}
        bars = [{part: 1000 * seconds for part, seconds in known.get(name, {}).items()} for name in names]
        _draw_bars(axis, names if place % canvas.across == 0 else [], bars, theme.parts, theme)
    canvas.name_axes("ms per query", "")
    canvas.draw_legend([[(part, area_style(theme.parts[part])) for part in parts]])
    return canvas.render()


def draw_indexing(indexes: Sequence[Indexed], *, dark: bool = False, stacked: bool = False) -> bytes:
    """Seconds of building an index, one panel for each way to choose pairs."""
    theme = DARK if dark else LIGHT
    ways = list(dict.fromkeys(one.sampling for one in indexes))
    steps = [step for step in STEPS if any(step in one.seconds for one in indexes)]
    colours = dict(zip(STEPS, [*theme.parts.values(), theme.quiet], strict=True))
    canvas = Canvas(len(ways), theme, stacked=stacked, height=0.8 + BAR * len(indexes) / len(ways))
    for axis, way in zip(canvas.axes, ways, strict=True):
        canvas.title(axis, f"Pairs chosen {way}")
        built = [one for one in indexes if one.sampling == way]
        calls = [number(round(one.calls_per_item, 1)) for one in built]
        _draw_bars(axis, calls, [one.seconds for one in built], colours, theme)
    canvas.name_axes("seconds", "calls per item")
    canvas.draw_legend([[(step, area_style(colours[step])) for step in steps]])
    return canvas.render()


def draw_distributions(study: DistributionStudy, *, dark: bool = False, stacked: bool = False) -> bytes:
    """Densities of the scores, of the similarities, and of both on the scale of the similarities."""
    theme = DARK if dark else LIGHT
    blue, yellow = theme.parts["scorer"], theme.parts["search"]
    colours = {SCORES: blue, SCALED: blue, SIMILARITIES: yellow}
    scores, similarities, *both = study.histograms
    panels = {"Cross-encoder scores": [scores], "Encoder similarities": [similarities]}
    if both:
        panels["Both, scores with α and β"] = both
    canvas = Canvas(len(panels), theme, stacked=stacked, height=2.6)
    for axis, (title, histograms) in zip(canvas.axes, panels.items(), strict=True):
        canvas.title(axis, title)
        for one in histograms:
            axis.stairs(one.density, one.edges, fill=True, color=colours[one.of], alpha=0.45)
            axis.stairs(one.density, one.edges, color=colours[one.of], linewidth=1.4)
        axis.set_ylim(bottom=0)
    canvas.name_axes("", "density")
    canvas.draw_legend([[(of, area_style(colours[of])) for of in (SCORES, SIMILARITIES)]])
    return canvas.render()


def _draw_bars(
    axis: Any, names: Sequence[str], bars: Sequence[Mapping[str, float]], colours: Mapping[str, str], theme: Theme
) -> None:
    """Horizontal bars from top to bottom, the parts of each one after the other, and at its end their sum."""
    longest = max(sum(bar.values()) for bar in bars) or 1.0
    for place, bar in enumerate(bars):
        end = 0.0
        for part, colour in colours.items():
            axis.barh(place, bar.get(part, 0.0), left=end, height=0.62, color=colour)
            end += bar.get(part, 0.0)
        if bar:
            axis.text(end + 0.02 * longest, place, rounded(end), va="center", color=theme.ink, fontsize=9)
    axis.set_yticks(range(len(bars)), [wrap(name) for name in names] or [""] * len(bars), parse_math=False)
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(len(bars) - 0.5, -0.5)
    axis.set_xlim(0, 1.2 * longest)
    axis.grid(visible=False, axis="y")
    axis.grid(visible=True, axis="x", color=theme.grid, linewidth=0.8)
    axis.locator_params(axis="x", nbins=5)
