"""Figure of the rounds of one search: the expected and the true score of every scored item."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from textwrap import shorten
from typing import Any, Final

import numpy as np

from crossknn.errors import InputError
from crossknn.evaluate.report.plots import DASHES, GRID, INK, MUTED, PAPER, SERIES, Canvas, Label, Style
from crossknn.search.results import Hit, Hits

WIDTH, HEIGHT = 9.0, 4.2  # inches
MAX_TITLE_LENGTH: Final = 90
MAX_ROUND_NUMBERS: Final = 30  # of more rounds, only some are numbered
BOTTOM_MARGIN, TOP_MARGIN = 0.05, 0.17  # as a share of the range of scores; the round numbers are at the top


def draw_rounds(hits: Hits) -> bytes:
    """A PNG of the calls in their order, in bands of rounds, with the expected score before each.

    Estimates of a retriever are on another scale and not drawn.
    """
    return plot_rounds(hits).render("png")


def plot_rounds(hits: Hits) -> Canvas:
    """The figure of `draw_rounds`."""
    if not len(hits.trace):
        raise InputError("a picture of rounds needs a search that scored something, with its trace; this one has none.")
    trace = list(hits.trace)
    canvas = Canvas([shorten(hits.query, MAX_TITLE_LENGTH, placeholder=" …")], height=HEIGHT, width=WIDTH)
    axis = canvas.axes[0]
    _draw_bands(axis, trace)
    _set_limits(axis, trace)
    labels = [
        *_draw_expected(axis, trace),
        *_draw_scores(axis, trace, {hit.row for hit in hits}),
        _draw_kth_best(axis, [hit.score for hit in trace], len(hits)),
    ]
    canvas.label("calls; the bands are rounds", "score", labels)
    return canvas


def _draw_bands(axis: Any, trace: Sequence[Hit]) -> None:
    """Shade every other round, and label rounds with their number and the proposer where it changes."""
    previous, first = "", 0.5
    step = -(-trace[-1].round // MAX_ROUND_NUMBERS)
    for number, calls in groupby(trace, lambda hit: hit.round):
        scored = list(calls)
        if number % 2:
            axis.axvspan(first, first + len(scored), color=GRID, alpha=0.5, linewidth=0, zorder=0)
        name = scored[0].proposed_by
        if name != previous or number % step == 0:
            label = f"{number}\n{name if name != previous else ' '}"
            place = {"xy": (first, 1), "xycoords": ("data", "axes fraction"), "xytext": (3, -4)}
            style = {"textcoords": "offset points", "va": "top", "fontsize": 8, "color": MUTED}
            axis.annotate(label, **place, **style, parse_math=False)
        previous, first = name, first + len(scored)


def _set_limits(axis: Any, trace: Sequence[Hit]) -> None:
    """Show all scores and expectations; a deviation may reach out."""
    values = [hit.score for hit in trace] + [hit.expected for hit in trace if hit.expected is not None]
    low, high = min(values), max(values)
    span = (high - low) or max(1.0, abs(high))
    axis.set_ylim(low - BOTTOM_MARGIN * span, high + TOP_MARGIN * span)
    axis.set_xlim(0.5, len(trace) + 0.5)


def _draw_expected(axis: Any, trace: Sequence[Hit]) -> list[Label]:
    known = [
        (place, hit.expected, hit.deviation or 0.0) for place, hit in enumerate(trace, 1) if hit.expected is not None
    ]
    if not known:
        return []
    places, expected, deviations = zip(*known, strict=True)
    style: Style = {"marker": "o", "markersize": 4.5, "markerfacecolor": PAPER, "color": SERIES[0], "linestyle": "none"}
    axis.errorbar(places, expected, deviations, elinewidth=0.9, alpha=0.75, zorder=2, **style)
    return [("expected, ± deviation" if any(deviations) else "expected", style)]


def _draw_scores(axis: Any, trace: Sequence[Hit], hit_rows: set[int]) -> list[Label]:
    labels: list[Label] = []
    kinds = {"score": ("o", 4.0, MUTED, False), "score of a hit": ("D", 5.5, SERIES[1], True)}
    for name, (marker, size, color, is_hit) in kinds.items():
        places = [place for place, hit in enumerate(trace, 1) if (hit.row in hit_rows) == is_hit]
        style = {"marker": marker, "markersize": size, "color": color, "linestyle": "none", "clip_on": False}
        axis.plot(places, [trace[place - 1].score for place in places], zorder=3 + is_hit, **style)
        if places:
            labels.append((name, style))
    return labels


def _draw_kth_best(axis: Any, scores: Sequence[float], k: int) -> Label:
    """The k-th best score so far, from the k-th call on."""
    places = range(k, len(scores) + 1)
    style = {"color": INK, "linewidth": 1.1, "linestyle": DASHES}
    levels = [np.sort(scores[:place])[-k] for place in places]
    axis.plot(places, levels, drawstyle="steps-post", zorder=1, **style)
    return ("best so far" if k == 1 else f"k-th best so far, k = {k}", style)
