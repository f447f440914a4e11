"""Markdown tables between marks, written from result files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
Table = list[str]  # lines


@cache
def read_result(name: str) -> dict[str, Any]:
    """The content of `results/<name>.json`."""
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return result


def replace_tables(page: str, tables: Mapping[str, Table]) -> str:
    """The page with each table in place of what stands between `<!-- name -->` and `<!-- end of name -->`."""
    for name, lines in tables.items():
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
        text = "\n".join([start, "", *lines, "", end])
        page, count = pattern.subn(lambda _, text=text: text, page)  # type: ignore[misc]
        if count != 1:
            raise SystemExit(f"the page must have {start} and {end} once, got {count}.")
    return page


def marks_of(page: str) -> list[str]:
    """The names of the tables that a page has marks for."""
    return re.findall(r"<!-- end of (.*) -->", page)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    return [markdown_row(header), markdown_row(["---"] * len(header)), *map(markdown_row, rows)]


def markdown_row(cells: Sequence[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def bold_best(values: Sequence[float]) -> list[str]:
    """The values with one decimal, the largest in bold."""
    return [f"**{value:.1f}**" if value == max(values) else f"{value:.1f}" for value in values]


def signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def interval(difference: Mapping[str, float]) -> str:
    """A mean difference with its confidence interval."""
    return f"{signed(difference['mean'])} ({signed(difference['low'])} to {signed(difference['high'])})"


def significant(difference: Mapping[str, float]) -> str:
    """A mean difference, in bold where its confidence interval excludes 0."""
    shown = signed(difference["mean"])
    return f"**{shown}**" if difference["low"] > 0 or difference["high"] < 0 else shown


def slashed(values: Iterable[object]) -> str:
    return " / ".join(map(str, values))
