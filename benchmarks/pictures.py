"""Pictures of benchmarks/README.md."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from crossknn.evaluate.report.style import DASHES, MARKERS, SERIES, Canvas, Style

SIDES = ("best Rerank", "best Axn", "Posterior, no index", "Posterior")
NAMES = ("best Rerank", "best Axn", "Posterior, no index", "Posterior, prior")


def draw_recall(sets: Sequence[dict[str, Any]], k: int = 10) -> bytes:
    """What is found of the true top k against the budget, one panel for each set."""
    canvas = Canvas(len(sets), height=2.6)
    for axis, found in zip(canvas.axes, sets, strict=True):
        cells = [cell for cell in found["cells"] if cell["k"] == k]
        budgets = [cell["budget"] for cell in cells]
        canvas.title(axis, f"{found['set']} ({found['items']:,} items)")
        axis.set_xscale("log")
        axis.set_xticks(budgets, [str(budget) for budget in budgets])
        axis.minorticks_off()
        axis.set_ylim(0, 100)
        for place, side in enumerate(SIDES):
            axis.plot(budgets, [cell[side]["mean"] for cell in cells], **style_of(place))
    canvas.label_axes("budget (calls per query)", f"true top {k} found, %")
    canvas.add_legend([(name, style_of(place)) for place, name in enumerate(NAMES)])
    return with_few_colours(canvas.render("png"))


def style_of(place: int) -> Style:
    """Lines of what is best in each cell are dashed."""
    return {
        "color": SERIES[place],
        "marker": MARKERS[place],
        "markersize": 5,
        "linewidth": 1.8,
        "linestyle": DASHES if place < 2 else "solid",
    }


def with_few_colours(picture: bytes) -> bytes:
    """The same picture in a third of the bytes."""
    from PIL import Image

    small = BytesIO()
    Image.open(BytesIO(picture)).convert("RGB").quantize(64).save(small, "PNG", optimize=True)
    return small.getvalue()
