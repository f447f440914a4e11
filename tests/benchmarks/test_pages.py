"""The benchmark pages: their tables are those of the result files, and together they stay short."""

import re

import pytest

from benchmarks import pages
from benchmarks.plots import draw_recall
from benchmarks.tables import markdown_table, marks_of, replace_tables
from tests.paths import ROOT

PAGES = sorted((ROOT / "benchmarks" / "pages").glob("*.md"))
INDEX = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", pages.PAGES, ids=lambda path: path.stem)
def test_tables_are_those_of_the_result_files(path):
    assert pages.filled(path) == path.read_text(encoding="utf-8")


def test_every_table_stands_on_one_page():
    marks = [mark for path in pages.PAGES for mark in marks_of(path.read_text(encoding="utf-8"))]
    assert sorted(marks) == sorted(pages.TABLES)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_states_its_claim_its_limits_and_its_results(path):
    text = path.read_text(encoding="utf-8")
    assert "laim" in text
    assert "**Limits.**" in text
    assert f"(pages/{path.name})" in INDEX
    linked = re.findall(r"\]\((\.\./results/[^)]+)\)", text)
    assert linked
    assert all((path.parent / link).is_file() for link in linked)


def test_every_result_file_is_linked_from_a_page():
    text = " ".join(path.read_text(encoding="utf-8") for path in [*PAGES, *(ROOT / "docs").glob("*.md")])
    files = {path.name for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    assert {name for name in files if f"results/{name}" not in text and not name.startswith("ablations_")} == set()


def test_pages_stay_short():
    words = sum(len(path.read_text(encoding="utf-8").split()) for path in PAGES) + len(INDEX.split())
    assert words < 575 * len(PAGES)
    assert len(INDEX.splitlines()) < 50


def test_a_table_replaces_the_old_one():
    table = markdown_table(["", "ms"], [["one", "1"], ["two", ""]])
    old = "before\n<!-- times -->\n\n| old |\n\n<!-- end of times -->\nafter"
    new = "before\n<!-- times -->\n\n| | ms |\n| --- | --- |\n| one | 1 |\n| two | |\n\n<!-- end of times -->\nafter"
    assert replace_tables(old, {"times": table}) == new
    assert replace_tables(new, {"times": table}) == new


@pytest.mark.parametrize(
    "text", ["no marks", "<!-- times --> only the first", "<!-- times --><!-- end of times -->" * 2]
)
def test_marks_that_are_not_there_once_are_an_error(text):
    with pytest.raises(SystemExit, match="times"):
        replace_tables(text, {"times": ["| a |"]})


def test_recall_is_drawn():
    recalls = {"best Rerank": 50, "best Axn": 60, "Posterior, no index": 70, "Posterior": 80}
    cells = [
        {"k": k, "budget": budget, **{name: {"mean": mean} for name, mean in recalls.items()}}
        for k in (1, 10)
        for budget in (50, 100)
    ]
    assert draw_recall([{"set": "made", "items": 1000, "cells": cells}]).startswith(b"\x89PNG")
