"""A hook of mkdocs: the reference of strategies ends with every strategy of the registry."""

from __future__ import annotations

from typing import Any

from mkdocs.structure.pages import Page

from crossknn.strategies.registry import STRATEGIES

PAGE = "reference/strategies.md"


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    if page.file.src_uri != PAGE:
        return markdown
    sections = [
        f"::: {strategy.__module__}.{strategy.__name__}\n\nRegistered as `{name}`."
        for name, strategy in STRATEGIES.items()
    ]
    return "\n\n".join([markdown, *sections])
