"""An extension of griffe: the aligned lists of docstrings become definition lists, which a page can show.

A block of a docstring whose lines are `name`, two spaces or more, and its meaning, with further lines indented, is such
a list. All else is Markdown already.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ENTRY = re.compile(r"(\w+)  +(\S.*)")


class AlignedLists(Extension):
    """Changes docstrings as they are read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = define(obj.docstring.value)


def define(text: str) -> str:
    """The text, with its aligned lists as definition lists."""
    return "\n\n".join(define_block(block) for block in text.split("\n\n"))


def define_block(block: str) -> str:
    lines = block.splitlines()
    if not lines or not ENTRY.fullmatch(lines[0]) or not all(ENTRY.match(line) or line[:1] == " " for line in lines):
        return block
    entries: list[list[str]] = []
    for line in lines:
        if entry := ENTRY.fullmatch(line):
            entries.append([f"`{entry[1]}`\n:   {entry[2]}"])
        else:
            entries[-1].append(f"    {line.strip()}")
    return "\n\n".join("\n".join(entry) for entry in entries)
