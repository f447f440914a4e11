"""Tables of a page in Markdown, each between its marks, written from result files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

Table = list[str]
"""Its lines."""


def fill(page: str, tables: Mapping[str, Table]) -> str:
    """The page with these tables in place of those that stand between their marks."""
    for name, lines in tables.items():
        marks = f"<!-- {name} -->", f"<!-- end of {name} -->"
        inside = re.compile(re.escape(marks[0]) + ".*?" + re.escape(marks[1]), re.DOTALL)
        text = "\n".join([marks[0], "", *lines, "", marks[1]])
        page, found = inside.subn(lambda _, text=text: text, page)  # type: ignore[misc]
        if found != 1:
            raise SystemExit(f"the page must have {marks[0]} and {marks[1]} once. Got {found}.")
    return page


def as_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    return [line(head), line(["---"] * len(head)), *map(line, rows)]


def line(cells: Sequence[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)
