"""The rounds of one search as a picture: what was expected of each item, and its score."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from textwrap import shorten
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.evaluate.report.style import DARK, DASHES, LIGHT, Canvas, Style, Theme
from crossknn.search.results import Hit, Hits

WIDTH, HEIGHT = 9.0, 4.2  # inches
LONGEST = 90  # letters of a title
MOST_NUMBERS = 30  # rounds that are numbered; of more only some
BELOW, ABOVE = 0.05, 0.17  # room beside the scores, as a share of their range; the rounds' names are above


def draw_rounds(hits: Hits, *, dark: bool = False) -> bytes:
    """The picture as PNG: the calls in their order, in bands of rounds, and what was expected before each.

    What a retriever expected is on a scale of its own, and not drawn.
    """
    if not len(hits.trace):
        raise InputError("a picture of rounds needs a search that scored something, and its trace. Got none.")
    theme, trace = DARK if dark else LIGHT, list(hits.trace)
    canvas = Canvas(1, theme, stacked=False, height=HEIGHT, width=WIDTH)
    axis = canvas.axes[0]
    canvas.title(axis, shorten(hits.query, LONGEST, placeholder=" …"))
    _draw_bands(axis, trace, theme)
    _set_limits(axis, trace)
    labels = [
        *_draw_expected(axis, trace, theme),
        *_draw_scores(axis, trace, {hit.row for hit in hits}, theme),
        *_draw_level(axis, [hit.score for hit in trace], len(hits), theme),
    ]
    canvas.name_axes("calls; the bands are rounds", "score")
    canvas.draw_legend([labels])
    return canvas.render()


def _draw_bands(axis: Any, trace: Sequence[Hit], theme: Theme) -> None:
    """Every other round on grey, with its number, and below it who asked where that is another than before."""
    last, first = "", 0.5
    step = -(-trace[-1].round // MOST_NUMBERS)
    for number, calls in groupby(trace, lambda hit: hit.round):
        some = list(calls)
        if number % 2:
            axis.axvspan(first, first + len(some), color=theme.grid, alpha=0.5, linewidth=0, zorder=0)
        name = some[0].proposed_by
        if name != last or number % step == 0:
            said = f"{number}\n{name if name != last else ' '}"
            place = {"xy": (first, 1), "xycoords": ("data", "axes fraction"), "xytext": (3, -4)}
            style = {"textcoords": "offset points", "va": "top", "fontsize": 8, "color": theme.quiet}
            axis.annotate(said, **place, **style, parse_math=False)
        last, first = name, first + len(some)


def _set_limits(axis: Any, trace: Sequence[Hit]) -> None:
    """All scores and expectations are inside; a deviation may reach out."""
    values = [hit.score for hit in trace] + [hit.expected for hit in trace if hit.expected is not None]
    low, high = min(values), max(values)
    room = (high - low) or max(1.0, abs(high))
    axis.set_ylim(low - BELOW * room, high + ABOVE * room)
    axis.set_xlim(0.5, len(trace) + 0.5)


def _draw_expected(axis: Any, trace: Sequence[Hit], theme: Theme) -> list[tuple[str, Style]]:
    known = [
        (place, hit.expected, hit.deviation or 0.0) for place, hit in enumerate(trace, 1) if hit.expected is not None
    ]
    if not known:
        return []
    places, expected, deviations = zip(*known, strict=True)
    mark = {"marker": "o", "markersize": 4.5, "markerfacecolor": theme.paper, "color": theme.series[0]}
    axis.errorbar(places, expected, deviations, linestyle="none", elinewidth=0.9, alpha=0.75, zorder=2, **mark)
    said = "expected, ± deviation" if any(deviations) else "expected"
    return [(said, {**mark, "linestyle": "none"})]


def _draw_scores(axis: Any, trace: Sequence[Hit], rows: set[int], theme: Theme) -> list[tuple[str, Style]]:
    labels = []
    kinds = {"score": ("o", 4.0, theme.quiet, False), "score of a hit": ("D", 5.5, theme.series[1], True)}
    for said, (marker, size, colour, is_hit) in kinds.items():
        places = [place for place, hit in enumerate(trace, 1) if (hit.row in rows) == is_hit]
        style = {"marker": marker, "markersize": size, "color": colour, "linestyle": "none", "clip_on": False}
        axis.plot(places, [trace[place - 1].score for place in places], zorder=3 + is_hit, **style)
        if places:
            labels.append((said, style))
    return labels


def _draw_level(axis: Any, scores: Sequence[float], k: int, theme: Theme) -> list[tuple[str, Style]]:
    """The k-th best score so far, from the k-th call on."""
    places = range(k, len(scores) + 1)
    style = {"color": theme.ink, "linewidth": 1.1, "linestyle": DASHES}
    levels = [np.sort(scores[:place])[-k] for place in places]
    axis.plot(places, levels, drawstyle="steps-post", zorder=1, **style)
    return [("best so far" if k == 1 else f"k-th best so far, k = {k}", style)]
