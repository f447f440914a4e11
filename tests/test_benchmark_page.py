"""benchmarks/README.md: its tables are those of the result files, and its pictures are there."""

import re

import pytest

from benchmarks import page
from benchmarks.pictures import draw_recall
from benchmarks.tables import as_table, fill


def test_the_tables_are_those_of_the_result_files():
    text = page.PAGE.read_text(encoding="utf-8")
    assert fill(text, page.tables()) == text


def test_every_table_between_marks_is_written():
    marks = re.findall(r"<!-- end of (.*) -->", page.PAGE.read_text(encoding="utf-8"))
    assert sorted(marks) == sorted(page.TABLES)


def test_pictures_of_the_page_are_there():
    pictures = re.findall(r"!\[.*\]\((.*\.png)\)", page.PAGE.read_text(encoding="utf-8"))
    assert "results/recall.png" in pictures
    assert all((page.PAGE.parent / picture).is_file() for picture in pictures)


def test_a_table_takes_the_place_of_the_old_one():
    table = as_table(["", "ms"], [["one", "1"], ["two", ""]])
    old = "before\n<!-- times -->\n\n| old |\n\n<!-- end of times -->\nafter"
    new = "before\n<!-- times -->\n\n| | ms |\n| --- | --- |\n| one | 1 |\n| two | |\n\n<!-- end of times -->\nafter"
    assert fill(old, {"times": table}) == new
    assert fill(new, {"times": table}) == new


@pytest.mark.parametrize(
    "text", ["no marks", "<!-- times --> only the first", "<!-- times --><!-- end of times -->" * 2]
)
def test_marks_that_are_not_there_once_are_an_error(text):
    with pytest.raises(SystemExit, match="times"):
        fill(text, {"times": ["| a |"]})


def test_recall_is_drawn():
    shares = {"best Rerank": 50, "best Axn": 60, "Posterior, no index": 70, "Posterior": 80}
    cells = [
        {"k": k, "budget": budget, **{name: {"mean": mean} for name, mean in shares.items()}}
        for k in (1, 10)
        for budget in (50, 100)
    ]
    picture = draw_recall([{"set": "made", "items": 1000, "cells": cells}])
    assert picture.startswith(b"\x89PNG")
