"""A hook of mkdocs: pages may link to files of the repository outside docs/, as they do where the repository is read.

The site has the repository's files at their own paths, and those of docs/ at its root. Only files that a page or the
navigation names are taken: Markdown becomes a page, Python a page that shows it, anything else is copied.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = "docs/"
FENCE = "`" * 8
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(#[^)\s]*)?(?=\))")  # `](path)` and `](path#anchor)`; with a colon it is a URL


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take in what the navigation names, and all that is linked from there or from pages, until nothing is new."""
    named = [source for source in sources_in(config.nav) if (ROOT / source).is_file()]
    linked = [path for page in files.documentation_pages() for path in outside_links(DOCS + page.src_uri)]
    wanted = [*named, *linked]
    while wanted:
        path = wanted.pop()
        if files.get_file_from_path(place_in_site(path)) is None:
            files.append(site_file(path, config))
            wanted += outside_links(path) if path.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links of a page as the site needs them."""
    here = place_in_repository(page.file)
    if here.endswith(".py"):
        page.meta.update(hide=["toc"], search={"exclude": True})
        return f"# `{here}`\n\n{FENCE}python\n{markdown}\n{FENCE}\n"

    def rewrite(link: re.Match[str]) -> str:
        path = place_in_site(target(here, link[1]))
        return posixpath.relpath(path, posixpath.dirname(page.file.src_uri) or ".") + (link[2] or "")

    return LINK.sub(rewrite, markdown)


def sources_in(nav: Any) -> Iterator[str]:
    """The paths that a navigation names."""
    if isinstance(nav, str):
        yield nav
    for part in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from sources_in(part)


def outside_links(path: str) -> list[str]:
    """The files outside docs/ that a Markdown file links to, as paths of the repository."""
    text = (ROOT / path).read_text(encoding="utf-8")
    targets = [target(path, link[1]) for link in LINK.finditer(text)]
    return [to for to in targets if not to.startswith(DOCS) and (ROOT / to).is_file()]


def target(path: str, link: str) -> str:
    """Where a link of a file leads, as a path of the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def site_file(path: str, config: MkDocsConfig) -> File:
    """A file of the repository as one of the site."""
    inclusion = InclusionLevel.NOT_IN_NAV if path.endswith(".py") else InclusionLevel.UNDEFINED
    return File.generated(config, place_in_site(path), abs_src_path=str(ROOT / path), inclusion=inclusion)


def place_in_site(path: str) -> str:
    return path.removeprefix(DOCS) + (".md" if path.endswith(".py") else "")


def place_in_repository(file: File) -> str:
    return Path(file.abs_src_path or "").relative_to(ROOT).as_posix()
