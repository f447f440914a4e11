"""Tables of the page about rivals."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import Table, markdown_table, read_result

CELLS = ((10, 100), (100, 500))  # k and budget


def rivals() -> Table:
    """The recall of every strategy in some cells."""
    sets = read_result("rivals")["sets"]
    rows = [
        [name, *(_recall(cell, name) for found in sets for cell in _cells(found))]
        for name in dict.fromkeys(name for found in sets for name in found["chosen"])
    ]
    return markdown_table(
        ["strategy", *(f"{found['set']} {k}@{budget}" for found in sets for k, budget in CELLS)], rows
    )


def _recall(cell: dict[str, Any], name: str) -> str:
    """The recall, with an arrow where it is shown to be above or below that of posterior search."""
    if name not in cell["recall"]:
        return "–"
    difference = cell["− posterior"].get(name, {"low": 0, "high": 0})
    arrow = "▲" if difference["low"] > 0 else "▼" if difference["high"] < 0 else ""
    return f"{cell['recall'][name]['mean']:.1f}{arrow}"


def rival_times() -> Table:
    """Processor time of one query."""
    sets = [found for found in read_result("rivals")["sets"] if found["milliseconds_at_100"]]
    names = [name.split(",")[0] for name in sets[0]["milliseconds_at_100"]]
    rows = [[found["set"], *(f"{value:.0f}" for value in found["milliseconds_at_100"].values())] for found in sets]
    return markdown_table(["ms", *names], rows)


def _cells(found: dict[str, Any]) -> list[dict[str, Any]]:
    cells = {(cell["k"], cell["budget"]): cell for cell in found["cells"]}
    return [cells[place] for place in CELLS]


TABLES = {
    "rivals": rivals,
    "rival times": rival_times,
}
