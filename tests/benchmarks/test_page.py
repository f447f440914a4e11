"""benchmarks/README.md: its tables are those of the result files, and its pictures are there."""

import json
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


@pytest.fixture
def results(tmp_path, monkeypatch):
    """An empty folder in place of that of the result files."""
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    page.read.cache_clear()
    yield tmp_path
    page.read.cache_clear()


def test_times_of_both_machines_are_shown_where_both_were_measured(results):
    cell = {
        "items": 25_000,
        "queries": 64,
        "budget": 100,
        "ms": {"Axn": 1.234},
        "times Axn": {"Posterior, no index": 1.5, "Posterior": 2, "AXN as in the paper": 7.25},
        "times Rerank": {"Axn": 10, "Posterior": 20},
    }
    (results / "round_time.json").write_text(json.dumps({"cells": [cell]}))
    here = "| CPU | 25,000 | 64 | 100 | 1.23 | 1.5 | 2.0 | 7.2 | 10.0 | 20.0 | – | – |"
    assert page.round_time()[2:] == [here]
    shares = {"share_of_scoring": {"ce-ir": {"Axn": 0.02, "Posterior": 0.0441}}}
    (results / "round_time_h200.json").write_text(json.dumps({"cells": [cell | shares]}))
    there = here.replace("CPU", "H200").replace("– | –", "2.0 and 4.4 % | –")
    assert page.round_time()[2:] == [here, there]


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
