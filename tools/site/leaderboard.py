"""A hook of mkdocs: the site has the leaderboard as `make leaderboard` writes it, and links to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.nav import Link, Navigation, Section

from benchmarks.leaderboard import write_leaderboard

FOLDER = "leaderboard"


def on_nav(nav: Navigation, **_: Any) -> Navigation:
    for item in nav.items:
        if isinstance(item, Section) and item.title == "Benchmarks":
            item.children.insert(0, Link("Leaderboard", f"{FOLDER}/index.html"))
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    write_leaderboard(Path(config.site_dir) / FOLDER)
