"""Terminal table of the results, each adaptive strategy below its baseline."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from crossknn.evaluate.comparison import Comparison, Result
from crossknn.evaluate.report.findings import explain_oracles, milliseconds, number, percent, points

MAX_NAME_WIDTH = 42  # leaves room for the numbers in 100 columns; longer names wrap


def table(comparison: Comparison, ks: Sequence[int] = (1, 10, 100)) -> Table:
    """A table with one section per budget and one for exact search; fits 80 columns for three k."""
    drawn = Table(box=SIMPLE_HEAD, title=Text(comparison.title), title_justify="left", title_style="bold")
    drawn.caption = _caption(comparison)
    drawn.caption_justify = "left"
    drawn.add_column("recall, % of the true", max_width=MAX_NAME_WIDTH, overflow="fold")
    for header in ["calls", *(f"top {k}" for k in ks), "ms/query"]:
        drawn.add_column(header, justify="right", no_wrap=True, overflow="fold")
    for budget in comparison.budgets:
        drawn.add_row(Text(f"budget {number(budget)}", style="bold"))
        for group in comparison.groups:
            drawn.add_row(*_cells(comparison, group.baseline, None, budget, ks))
            for name in group.adaptive:
                drawn.add_row(*_cells(comparison, name, group.baseline, budget, ks))
        drawn.add_section()
    exact = ["100.0"] * len(ks)
    drawn.add_row("Exact search", number(comparison.items), *exact, milliseconds(comparison.exact_seconds))
    return drawn


def _cells(comparison: Comparison, name: str, baseline: str | None, budget: int, ks: Sequence[int]) -> list[Text]:
    cost = comparison.cost(name, budget)
    return [
        Text(f"↳ {name}" if baseline else name, style="dim italic" if cost and cost.oracle else ""),
        Text(number(cost.calls if cost else None)),
        *(_recall(comparison.result(name, budget, k), comparison.result(baseline, budget, k)) for k in ks),
        Text(milliseconds(cost.total_seconds if cost else None)),
    ]


def _recall(result: Result | None, baseline: Result | None) -> Text:
    difference = points(result, baseline) or 0
    style = "green" if difference > 0 else "dim red" if difference < 0 else ""
    return Text(percent(result.recall if result else None), style=style)


def _caption(comparison: Comparison) -> str:
    adaptive = any(group.adaptive for group in comparison.groups)
    colors = " Green: above the baseline, the row without ↳ before it; red: below." if adaptive else ""
    known = f"ms/query: scorer, solve and search together.{colors}"
    return " ".join(filter(None, [known, explain_oracles(comparison)]))
