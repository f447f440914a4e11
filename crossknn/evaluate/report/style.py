"""What all figures of a report share: colours, panels, lines and legends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import zip_longest
from textwrap import fill
from typing import Any

from crossknn._imports import import_extra
from crossknn.evaluate.comparison import Comparison

DPI = 200  # two pixels for each of the page's
MARKERS = "oDs^vPX<>phd8"  # one more than colours, so that pairs of both come again late
DASHES = (0, (4, 2))
ALIKE = {"axn, per item": "axn, fitted"}  # two names of one strategy
ACROSS = 3  # panels in a row, at most
NAME_WIDTH = 34  # characters; longer names wrap
LINE, KEY, LETTER = 0.22, 0.81, 0.085  # inches of a line of the legend, of a key in it, and of a letter

Style = dict[str, Any]
Label = tuple[str, Style]
"""What a legend says of a style."""
BLANK: Label = ("", {"alpha": 0})


@dataclass(frozen=True)
class Theme:
    """Colours.

    series  the first five can be told apart by colour-blind readers (after Okabe and Ito); the marks by everybody
    parts   of a search's time, as on the page
    """

    paper: str
    ink: str
    quiet: str
    grid: str
    series: tuple[str, ...]
    parts: dict[str, str]


LIGHT = Theme(
    paper="#ffffff",
    ink="#1c2230",
    quiet="#5d6675",
    grid="#e3e7ed",
    series=(
        *("#0072b2", "#d55e00", "#00875f", "#a84b8a", "#8a6d00"),
        *("#4338ca", "#be123c", "#0891b2", "#78492c", "#65a30d", "#d946a6", "#64748b"),
    ),
    parts={"scorer": "#0072b2", "solve": "#a84b8a", "search": "#e69f00"},
)
DARK = Theme(
    paper="#14181f",
    ink="#e8ebf0",
    quiet="#9aa4b2",
    grid="#2b323d",
    series=(
        *("#56b4e9", "#f28e52", "#35c79a", "#dd94c0", "#e6c229"),
        *("#a5a0ff", "#ff7d92", "#67e8f9", "#d3a17e", "#a3e635", "#ff9ee0", "#b4c0cf"),
    ),
    parts={"scorer": "#56b4e9", "solve": "#dd94c0", "search": "#e6c229"},
)


def has_adaptive(comparison: Comparison) -> bool:
    """Whether any strategy is measured against another."""
    return any(group.adaptive for group in comparison.groups)


def in_pairs(comparison: Comparison) -> bool:
    """Whether at most one strategy is measured against each baseline, whose colour it then shares."""
    return all(len(group.adaptive) < 2 for group in comparison.groups)


def styles_of(comparison: Comparison, theme: Theme) -> dict[str, Style]:
    """How each strategy is drawn in every figure: baselines dashed, hollow and on top, the others solid.

    Those that only its studies have come after the comparison's own.
    """
    pairs, adaptive, styles = in_pairs(comparison), has_adaptive(comparison), dict[str, Style]()
    for number, group in enumerate(comparison.groups):
        for place, name in enumerate([group.baseline, *group.adaptive]):
            chosen = (number, place) if pairs else (len(styles), len(styles))
            styles[name] = _line_style(*chosen, theme, dashed=adaptive and place == 0)
    for name in comparison.studies.strategies if comparison.studies else ():
        own = _line_style(len(styles), len(styles), theme)
        styles.setdefault(name, styles.get(ALIKE.get(name, ""), own))
    return styles


def _line_style(colour: int, marker: int, theme: Theme, *, dashed: bool = False) -> Style:
    """The style of this number; beyond the last colour and the last marker the first come again."""
    shown = theme.series[colour % len(theme.series)]
    return {
        "color": shown,
        "marker": MARKERS[marker % len(MARKERS)],
        "markersize": 5.5,
        "markerfacecolor": theme.paper if dashed else shown,
        "linestyle": DASHES if dashed else "solid",
        "linewidth": 1.6 if dashed else 2.0,
        "zorder": 4 if dashed else 3,
        "clip_on": False,
    }


def exact_style(theme: Theme) -> Style:
    return {"color": theme.quiet, "linewidth": 1.2, "zorder": 1}


def area_style(colour: str) -> Style:
    """The key of an area in a legend."""
    return {"color": colour, "marker": "s", "markersize": 8, "linestyle": "none"}


class Canvas:
    """Panels side by side, at most three in a row; `stacked` one below the other, for narrow screens.

    height  of a panel in inches
    width   of all panels side by side in inches
    """

    def __init__(
        self, panels: int, theme: Theme, *, stacked: bool, height: float | None = None, width: float | None = None
    ) -> None:
        across = 1 if stacked else 2 if panels == 4 else min(panels, ACROSS)
        rows = -(-panels // across)
        usual = (4.4, 2.7) if stacked else (max(3.7 * across, 5.5), 3.6)
        size = (width or usual[0], 0.4 + rows * (height or usual[1]))
        self.theme = theme
        self.stacked = stacked
        self.across = across
        self._figure = _new_figure(size, theme)
        every = self._figure.subplots(rows, across, squeeze=False).ravel()
        self.axes: Sequence[Any] = every[:panels]
        for axis in every[panels:]:
            axis.set_visible(False)
        for axis in self.axes:
            _draw_frame(axis, theme)

    def title(self, axis: Any, text: str) -> None:
        axis.set_title(text, loc="left", fontsize=12, fontweight="bold", color=self.theme.ink, pad=8, parse_math=False)

    def name_axes(self, x: str, y: str) -> None:
        """What is shown along each side: below the last panel of each column, and beside the first of each row."""
        for place, axis in enumerate(self.axes):
            if place % self.across == 0:
                axis.set_ylabel(y, color=self.theme.quiet, fontsize=10)
            if place + self.across >= len(self.axes):
                axis.set_xlabel(x, color=self.theme.quiet, fontsize=10)

    def draw_legend(self, rows: Sequence[Sequence[Label]]) -> None:
        """Below the panels, row by row; in one column where they are stacked."""
        from matplotlib.lines import Line2D

        width, height = self._figure.get_size_inches()
        shown = [[label] for row in rows for label in row] if self.stacked else _fold(rows, width)
        labels = [label for column in zip_longest(*shown, fillvalue=BLANK) for label in column]
        lines = sum(max(wrap(name).count("\n") + 1 for name, _ in row) for row in shown)
        self._figure.set_size_inches(width, height + LINE * lines)
        legend = self._figure.legend(
            [Line2D([], [], **style) for _, style in labels],
            [str(place) for place in range(len(labels))],  # the names are set below, where nothing in them is special
            loc="outside lower center",
            ncols=max(map(len, shown)),
            frameon=False,
            fontsize=10,
            handlelength=3,
        )
        for text, (name, _) in zip(legend.get_texts(), labels, strict=True):
            text.set(parse_math=False, text=wrap(name), color=self.theme.ink)

    def render(self) -> bytes:
        """The picture as PNG."""
        picture = BytesIO()
        self._figure.savefig(
            picture, format="png", dpi=DPI, facecolor=self.theme.paper, bbox_inches="tight", pad_inches=0.08
        )
        return picture.getvalue()


def wrap(name: str) -> str:
    """The name in lines that leave room beside them."""
    return fill(name, NAME_WIDTH) or name


def _fold(rows: Sequence[Sequence[Label]], width: float) -> list[list[Label]]:
    """The rows in as many columns as fit into `width` inches."""
    folded: list[list[Label]] = []
    for columns in range(max(map(len, rows)), 0, -1):
        folded = [line for row in rows for line in _break(row, columns)]
        longest = [max(len(name) for name, _ in column) for column in zip_longest(*folded, fillvalue=BLANK)]
        if sum(KEY + LETTER * min(length, NAME_WIDTH) for length in longest) <= width:
            break
    return folded


def _break(row: Sequence[Label], columns: int) -> list[list[Label]]:
    """The row in lines of so many labels; those after the first leave the first column free."""
    if columns == 1:
        return [[label] for label in row]
    first, *others = row
    starts = range(0, max(1, len(others)), columns - 1)
    return [[BLANK if start else first, *others[start : start + columns - 1]] for start in starts]


def _new_figure(size: tuple[float, float], theme: Theme) -> Any:
    """A figure of its own: nothing of matplotlib's global state is read or changed."""
    import_extra("matplotlib", extra="report")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=size, layout="constrained", facecolor=theme.paper)
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    return figure


def _draw_frame(axis: Any, theme: Theme) -> None:
    axis.set_facecolor(theme.paper)
    axis.grid(axis="y", color=theme.grid, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(colors=theme.quiet, labelcolor=theme.ink, labelsize=10, length=3)
    for side, spine in axis.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(theme.quiet)
