"""Figure style: one color, marker and line style per strategy, and figures of several panels above one legend."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from textwrap import fill
from typing import Any, Final, Literal

from crossknn._imports import import_extra
from crossknn.evaluate.comparison import Comparison

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

Style = dict[str, Any]
Label = tuple[str, Style]
"""A legend entry: its text, and the style of its line."""


def has_adaptive(comparison: Comparison) -> bool:
    """Whether any strategy has a baseline."""
    return any(group.adaptive for group in comparison.groups)


def in_pairs(comparison: Comparison) -> bool:
    """Whether every baseline has at most one adaptive strategy, which then shares its color."""
    return all(len(group.adaptive) < 2 for group in comparison.groups)


def styles_of(comparison: Comparison) -> dict[str, Style]:
    """The style of each strategy in all figures: baselines dashed and hollow, the others solid."""
    pairs, adaptive, styles = in_pairs(comparison), has_adaptive(comparison), dict[str, Style]()
    for number, group in enumerate(comparison.groups):
        for place, name in enumerate([group.baseline, *group.adaptive]):
            color, marker = (number, place) if pairs else (len(styles), len(styles))
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


def area_style(color: str) -> Style:
    """The legend key of an area."""
    return {"color": color, "marker": "s", "markersize": 8, "linestyle": "none"}


def wrap_name(name: str) -> str:
    """The name, broken into lines where it is long."""
    return fill(name, MAX_NAME_WIDTH) or name


class Canvas:
    """A figure with rows of at most three panels, independent of matplotlib's global state.

    Args:
        panels: Number of panels.
        height: Height of a panel in inches.
        width: Width of the figure in inches; by default by the number of panels.
    """

    def __init__(self, panels: int, *, height: float = 3.6, width: float | None = None) -> None:
        import_extra("matplotlib", extra="report")
        from matplotlib.figure import Figure

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
        for axis in self.axes:
            axis.set_facecolor("none")
            axis.grid(axis="y", color=GRID, linewidth=0.8)
            axis.set_axisbelow(True)
            axis.tick_params(colors=MUTED, labelcolor=INK, labelsize=10, length=3)
            axis.spines[["left", "top", "right"]].set_visible(False)
            axis.spines["bottom"].set_color(MUTED)

    def title(self, axis: Any, text: str) -> None:
        """Set the title of a panel."""
        axis.set_title(text, loc="left", fontsize=12, fontweight="bold", color=INK, pad=8, parse_math=False)

    def label_axes(self, x: str, y: str) -> None:
        """Label the x axis of the last panel in each column, and the y axis of the first in each row."""
        for place, axis in enumerate(self.axes):
            if place % self.columns == 0:
                axis.set_ylabel(y, color=MUTED, fontsize=10)
            if place + self.columns >= len(self.axes):
                axis.set_xlabel(x, color=MUTED, fontsize=10)

    def add_legend(self, labels: Sequence[Label]) -> None:
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
