"""Recall against budget as a picture, one panel per k."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.evaluate.comparison import Comparison
from crossknn.evaluate.figures import number
from crossknn.optional import import_extra

DPI = 200  # two pixels for each of the page's
MARKERS = "oDs^vP"  # the baseline's, then those of the strategies measured against it


@dataclass(frozen=True)
class Theme:
    """Colours; `series` can be told apart by colour-blind readers (after Okabe and Ito)."""

    paper: str
    ink: str
    quiet: str
    grid: str
    series: tuple[str, ...]


LIGHT = Theme("#ffffff", "#1c2230", "#5d6675", "#e3e7ed", ("#0072b2", "#d55e00", "#00875f", "#a84b8a", "#8a6d00"))
DARK = Theme("#14181f", "#e8ebf0", "#9aa4b2", "#2b323d", ("#56b4e9", "#f28e52", "#35c79a", "#dd94c0", "#e6c229"))


@dataclass(frozen=True)
class Series:
    """How one strategy is drawn: in its baseline's colour, the baseline itself dashed and hollow."""

    name: str
    colour: str
    marker: str
    dashed: bool


def plot(comparison: Comparison, path: str | Path, *, dark: bool = False) -> None:
    """Write the picture to `path` as PNG."""
    Path(path).write_bytes(draw(comparison, dark=dark))


def draw(comparison: Comparison, *, dark: bool = False, stacked: bool = False) -> bytes:
    """The picture as PNG; `stacked` puts one panel below the other, for narrow screens."""
    theme = DARK if dark else LIGHT
    panels = len(comparison.ks)
    figure = _figure((4.4, 0.9 + 2.7 * panels) if stacked else (max(3.7 * panels, 5.5), 4.9), theme)
    shape = {"nrows": panels} if stacked else {"ncols": panels}
    axes = figure.subplots(**shape, squeeze=False, sharey=True, sharex=stacked).ravel()
    for axis, k in zip(axes, comparison.ks, strict=True):
        _draw_panel(axis, comparison, k, theme)
    for axis in axes if stacked else axes[:1]:
        axis.set_ylabel("found, %", color=theme.quiet, fontsize=10)
    for axis in axes[-1:] if stacked else axes:
        axis.set_xlabel("budget (calls per query)", color=theme.quiet, fontsize=10)
    _draw_legend(figure, axes[0], comparison, theme, stacked=stacked)
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=DPI, facecolor=theme.paper, bbox_inches="tight", pad_inches=0.08)
    return picture.getvalue()


def _figure(size: tuple[float, float], theme: Theme) -> Any:
    """A figure of its own: nothing of matplotlib's global state is read or changed."""
    import_extra("matplotlib", extra="report")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=size, layout="constrained", facecolor=theme.paper)
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    return figure


def _draw_panel(axis: Any, comparison: Comparison, k: int, theme: Theme) -> None:
    _draw_frame(axis, comparison.budgets, theme)
    axis.set_title(f"True top {k}", loc="left", fontsize=12, fontweight="bold", color=theme.ink, pad=8)
    axis.axhline(100, zorder=1, **_exact_style(theme))
    if comparison.budgets[0] < k:
        reach = np.geomspace(comparison.budgets[0], min(k, comparison.budgets[-1]))
        axis.plot(reach, 100 * reach / k, zorder=1, **_reach_style(theme))
    for series in _series(comparison, theme):
        known = [r for budget in comparison.budgets if (r := comparison.result(series.name, budget, k))]
        if known:
            budgets = [r.budget for r in known]
            recall, low, high = 100 * np.array([(r.recall, r.low, r.high) for r in known]).T
            axis.fill_between(budgets, low, high, color=series.colour, alpha=0.11, linewidth=0, zorder=2)
            axis.plot(budgets, recall, zorder=3, clip_on=False, **_style(series, theme))


def _draw_frame(axis: Any, budgets: list[int], theme: Theme) -> None:
    axis.set_facecolor(theme.paper)
    axis.set_xscale("log")
    axis.set_xticks(budgets, [number(budget) for budget in budgets])
    axis.minorticks_off()
    axis.set_xlim(budgets[0] / 1.15, budgets[-1] * 1.15)
    axis.set_ylim(0, 102)
    axis.set_yticks(range(0, 101, 20))
    axis.grid(axis="y", color=theme.grid, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(colors=theme.quiet, labelcolor=theme.ink, labelsize=10, length=3)
    for side, spine in axis.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(theme.quiet)


def _style(series: Series, theme: Theme) -> dict[str, Any]:
    return {
        "color": series.colour,
        "marker": series.marker,
        "markersize": 5.5,
        "markerfacecolor": theme.paper if series.dashed else series.colour,
        "linestyle": (0, (4, 2)) if series.dashed else "solid",
        "linewidth": 1.6 if series.dashed else 2.0,
    }


def _exact_style(theme: Theme) -> dict[str, Any]:
    return {"color": theme.quiet, "linewidth": 1.2}


def _reach_style(theme: Theme) -> dict[str, Any]:
    return {"color": theme.quiet, "linewidth": 1.4, "linestyle": "dotted"}


def _series(comparison: Comparison, theme: Theme) -> Iterator[Series]:
    for number_, group in enumerate(comparison.groups):
        colour = theme.series[number_ % len(theme.series)]
        for place, name in enumerate([group.baseline, *group.adaptive]):
            yield Series(name, colour, MARKERS[place % len(MARKERS)], dashed=place == 0)


def _draw_legend(figure: Any, axis: Any, comparison: Comparison, theme: Theme, *, stacked: bool) -> None:
    """Below the panels: baselines in the first column, what is measured against each beside it, or all in one."""
    exact, reach, blank = f"Exact search ({number(comparison.items)} calls)", "Limit: budget ÷ k", ""
    handles = {series.name: axis.plot([], [], **_style(series, theme))[0] for series in _series(comparison, theme)}
    handles[exact] = axis.plot([], [], **_exact_style(theme))[0]
    handles[reach] = axis.plot([], [], **_reach_style(theme))[0]
    handles[blank] = axis.plot([], [], alpha=0)[0]
    rows = [[group.baseline, *group.adaptive] for group in comparison.groups] + [[exact]]
    if comparison.budgets[0] < comparison.ks[-1]:
        rows[-1].append(reach)
    columns = [[name for row in rows for name in row]] if stacked else list(zip_longest(*rows, fillvalue=blank))
    names = [name for column in columns for name in column]
    legend = figure.legend(
        [handles[name] for name in names],
        [str(place) for place in range(len(names))],  # the names are set below, where nothing in them is special
        loc="outside lower center",
        ncols=len(columns),
        frameon=False,
        fontsize=10,
        handlelength=3,
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set(parse_math=False, text=name, color=theme.ink)
