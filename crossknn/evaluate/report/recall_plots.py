"""Recall against budget as a picture, one panel per k."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from crossknn.evaluate.comparison import Comparison
from crossknn.evaluate.report.format import number
from crossknn.evaluate.report.style import DARK, LIGHT, Canvas, Label, Style, Theme, exact_style, styles_of

CROWDED = 6  # strategies; the intervals of more would hide the lines


def plot(comparison: Comparison, path: str | Path, *, dark: bool = False) -> None:
    """Write the picture to `path` as PNG."""
    Path(path).write_bytes(draw(comparison, dark=dark))


def draw(comparison: Comparison, *, dark: bool = False, stacked: bool = False) -> bytes:
    """The picture as PNG, without oracles; `stacked` puts one panel below the other, for narrow screens."""
    comparison = comparison.attainable
    theme = DARK if dark else LIGHT
    canvas, styles = Canvas(len(comparison.ks), theme, stacked=stacked), styles_of(comparison, theme)
    for axis, k in zip(canvas.axes, comparison.ks, strict=True):
        canvas.title(axis, f"True top {k}")
        _draw_scales(axis, comparison.budgets)
        _draw_limits(axis, comparison, k, theme)
        for name in comparison.strategies:
            _draw_line(axis, comparison, name, k, styles[name])
    canvas.name_axes("budget (calls per query)", "found, %")
    canvas.draw_legend(_labels(comparison, styles, theme))
    return canvas.render()


def shows_intervals(comparison: Comparison) -> bool:
    """Whether the picture has room for the intervals."""
    return len(comparison.attainable.strategies) <= CROWDED


def _draw_scales(axis: Any, budgets: list[int]) -> None:
    axis.set_xscale("log")
    axis.set_xticks(budgets, [number(budget) for budget in budgets])
    axis.minorticks_off()
    axis.set_xlim(budgets[0] / 1.15, budgets[-1] * 1.15)
    axis.set_ylim(0, 102)
    axis.set_yticks(range(0, 101, 20))


def _draw_limits(axis: Any, comparison: Comparison, k: int, theme: Theme) -> None:
    """What exact search finds, and what a budget smaller than k can at most."""
    axis.axhline(100, **exact_style(theme))
    if comparison.budgets[0] < k:
        reach = np.geomspace(comparison.budgets[0], min(k, comparison.budgets[-1]))
        axis.plot(reach, 100 * reach / k, zorder=1, **_reach_style(theme))


def _draw_line(axis: Any, comparison: Comparison, name: str, k: int, style: Style) -> None:
    known = [result for budget in comparison.budgets if (result := comparison.result(name, budget, k))]
    if not known:
        return
    budgets = [result.budget for result in known]
    recall, low, high = 100 * np.array([(result.recall, result.low, result.high) for result in known]).T
    if shows_intervals(comparison):
        axis.fill_between(budgets, low, high, color=style["color"], alpha=0.11, linewidth=0, zorder=2)
    axis.plot(budgets, recall, **style)


def _reach_style(theme: Theme) -> Style:
    return {"color": theme.quiet, "linewidth": 1.4, "linestyle": "dotted"}


def _labels(comparison: Comparison, styles: dict[str, Style], theme: Theme) -> list[list[Label]]:
    """Baselines in the first column, and what is measured against each beside it."""
    rows = [[(name, styles[name]) for name in (group.baseline, *group.adaptive)] for group in comparison.groups]
    rows.append([(f"Exact search ({number(comparison.items)} calls)", exact_style(theme))])
    if comparison.budgets[0] < comparison.ks[-1]:
        rows[-1].append(("Limit: budget ÷ k", _reach_style(theme)))
    return rows
