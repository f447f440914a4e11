"""Plots of the benchmark pages."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

SERIES = {  # by their names in posterior.json: label, color, marker, line style
    "best Rerank": ("best Rerank", "#767676", "o", "--"),
    "best Axn": ("best Axn", "#b35c00", "s", "--"),
    "Posterior, no index": ("Posterior, no index", "#3b7dd8", "^", "-"),
    "Posterior": ("Posterior, prior", "#00796b", "D", "-"),
}


def draw_recall(sets: Sequence[dict[str, Any]], k: int = 10) -> bytes:
    """Recall of the exact top k against the budget as a PNG, one panel per set."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.4 * len(sets), 3.2), layout="constrained")
    axes = figure.subplots(1, len(sets), sharey=True, squeeze=False)[0]
    for axis, found in zip(axes, sets, strict=True):
        cells = [cell for cell in found["cells"] if cell["k"] == k]
        budgets = [cell["budget"] for cell in cells]
        for side, (label, color, marker, dashes) in SERIES.items():
            recall = [cell[side]["mean"] for cell in cells]
            axis.plot(budgets, recall, dashes, label=label, color=color, marker=marker, markersize=4)
        axis.set_title(f"{found['set']}\n{found['items']:,} items", fontsize=10)
        axis.set_xscale("log")
        axis.set_xticks(budgets, [str(budget) for budget in budgets])
        axis.minorticks_off()
        axis.set_ylim(0, 100)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(f"recall of the exact top {k}, %")
    figure.supxlabel("budget (cross-encoder calls per query)", fontsize=10)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(SERIES), frameon=False)
    return render_png(figure)


def render_png(figure: Any) -> bytes:
    """The figure as a PNG of few colors, a third of the usual size."""
    from PIL import Image

    drawn, small = BytesIO(), BytesIO()
    figure.savefig(drawn, dpi=110)
    Image.open(drawn).convert("RGB").quantize(64).save(small, "PNG", optimize=True)
    return small.getvalue()
