"""Terminal table of the results, each adaptive strategy below its baseline."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from crossknn.evaluate.comparison import Comparison, Result
from crossknn.evaluate.measures import Difference
from crossknn.evaluate.quality import Quality, best_first_stage, gains, main_measure
from crossknn.evaluate.report.findings import explain_oracles, sign
from crossknn.evaluate.report.formats import decimals, milliseconds, number, percent

MAX_NAME_WIDTH = 42  # leaves room for the numbers in 100 columns; longer names wrap
STYLES = {1: "green", 0: "", -1: "dim red"}  # of differences that are shown, by their sign


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
        *(_recall(comparison, comparison.result(name, budget, k)) for k in ks),
        Text(milliseconds(cost.total_seconds if cost else None)),
    ]


def _recall(comparison: Comparison, result: Result | None) -> Text:
    return Text(percent(result.recall if result else None), style=STYLES[sign(comparison, result)])


def _caption(comparison: Comparison) -> str:
    adaptive = any(group.adaptive for group in comparison.groups)
    colors = " Green: shown to be above the baseline, the row without ↳ before it; red: below." if adaptive else ""
    known = f"ms/query: scorer, solve and search together.{colors}"
    return " ".join(filter(None, [known, explain_oracles(comparison)]))


def quality_table(levels: Sequence[Quality]) -> Table:
    """A table of the relevance by judgments: first stages without the cross-encoder, each budget, and exact search."""
    drawn = Table(box=SIMPLE_HEAD, title="By the judgments", title_justify="left", title_style="bold")
    first, measure = best_first_stage(levels), main_measure(levels)
    drawn.add_column("strategy", overflow="fold")
    for header in ("calls", *levels[0].values, *([f"{measure} − {first.strategy}"] if first else [])):
        drawn.add_column(header, justify="right", no_wrap=True)
    for one, gain in gains(levels):
        calls = "all" if one.budget is None else number(one.budget)
        values = [f"{value:.3f}" for value in one.values.values()]
        drawn.add_row(Text(one.strategy), calls, *values, *([_gain(gain)] if first else []))
    return drawn


def _gain(gain: Difference | None) -> Text:
    if gain is None:
        return Text("")
    ends = [decimals(end).replace("0.", ".", 1) for end in (gain.low, gain.high)]
    text = f"{decimals(gain.mean)} [{' '.join(ends)}]"
    return Text(text, style=STYLES[gain.sign])
