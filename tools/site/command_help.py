"""A hook of mkdocs: the page of the command line ends with the help of every command, as the command gives it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from mkdocs.structure.pages import Page

from crossknn.cli import app

PAGE = "cli.md"
WIDTH = 80


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """The page, with a section for each command where it is the one of the command line."""
    if page.file.src_uri != PAGE:
        return markdown
    sections = [f"## {name}\n\n```text\n{text}\n```" for name, text in helps(typer.main.get_command(app), "crossknn")]
    return "\n\n".join([markdown, *sections])


def helps(command: Any, name: str, parent: Any = None) -> Iterator[tuple[str, str]]:
    """The full name and the help of a command and of all below it."""
    context = command.make_context(name.split()[-1], [], parent=parent, resilient_parsing=True, max_content_width=WIDTH)
    context.terminal_width = WIDTH
    yield name, command.get_help(context)
    for below in getattr(command, "commands", {}).values():
        yield from helps(below, f"{name} {below.name}", context)
