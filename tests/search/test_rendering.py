"""Hits as text, HTML, JSON and data frames."""

import datetime
import json
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from crossknn.errors import MissingExtra
from crossknn.search.results import Hit, Hits

HOSTILE = '<script>alert(1)</script> & "quotes"\n\x1b[31mred \u202ereversed\x00 end'


def some_hits(*hits, query="ice & snow", **options):
    return Hits(query, hits, calls=20, rounds=2, seconds=0.5, score_seconds=0.25, **options)


FOUND = some_hits(
    Hit("a", 7.314, 6.9, 2, "posterior", 0, 0.81, {"dense": 4, "bm25": None}, "Rivers  freeze\nslowly.", {"year": 1}),
    Hit("bb", -1.5, 0.4, 1, "dense", 1, None, {"dense": 1, "bm25": 3}, "Bread rises.", {"year": 2}, 0.25),
    Hit("c", np.nan, 0.2, 0, "dense", 2, None, {"dense": 2, "bm25": 9}, "Yeast.", {}),
    stopped="deadline",
)


class Table(HTMLParser):
    """The texts of the cells, row by row, and the names of all elements."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.tags = [], set()
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_printed_hits_have_a_line_each_and_what_they_cost():
    query, *lines, cost = str(FOUND).splitlines()
    assert query == "ice & snow"
    assert [line.split() for line in lines] == [
        ["1", "7.314", "a", "Rivers", "freeze", "slowly."],
        ["2", "-1.500", "bb", "Bread", "rises."],
        ["3", "–", "c", "Yeast."],
    ]
    assert cost.startswith("20 calls in 2 rounds, 0.50 s")
    assert "deadline" in cost
    assert "1 not scored" in cost
    assert "no hits" in str(some_hits())


def test_long_answers_and_texts_are_shortened():
    many = some_hits(*(Hit(f"{row}" * 30, 0.0, None, 1, "exact", row, text="word " * 1000) for row in range(1000)))
    assert len(str(many)) < 4_000
    assert len(repr(many)) < 100
    assert len(many._repr_html_()) < 100_000
    assert "980 more" in str(many)


def test_texts_can_neither_leave_their_place_nor_run():
    found = some_hits(
        Hit(HOSTILE, 1.0, None, 1, HOSTILE, 0, None, {HOSTILE: 1}, HOSTILE, {HOSTILE: HOSTILE}), query=HOSTILE
    )
    for shown in (str(found), found._repr_html_()):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e]", shown)
        assert "reversed" in shown
    assert len(str(found).splitlines()) == 3
    table = Table(found._repr_html_())
    assert table.tags == {"div", "p", "table", "thead", "tbody", "tr", "th", "td", "bdi", "br", "small"}
    assert table.rows[1][2].startswith('<script>alert(1)</script> & "quotes"')


def test_a_notebook_shows_scores_rounds_proposers_and_why():
    table = Table(FOUND._repr_html_())
    heads, *rows = [dict(zip(table.rows[0], row, strict=True)) for row in table.rows]
    assert [row["score"] for row in rows] == ["7.314", "-1.500", "–"]
    assert [row["probability"] for row in rows] == ["–", "0.25", "–"]
    assert [(row["round"], row["proposed by"]) for row in rows] == [("2", "posterior"), ("1", "dense"), ("–", "dense")]
    assert [row["text"] for row in rows] == ["Rivers freeze slowly.year 1", "Bread rises.year 2", "Yeast."]
    assert "expected 6.90 ± 0.81" in rows[0]["why"]
    assert "bm25 9" in rows[2]["why"]
    assert "not scored" in rows[2]["why"]
    uncalibrated = Table(some_hits(FOUND[0])._repr_html_())
    assert "probability" in heads
    assert "probability" not in uncalibrated.rows[0]


def test_dictionaries_are_json_and_say_everything():
    read = json.loads(FOUND.to_json(trace=True))
    assert read == FOUND.to_dict(trace=True)
    assert read["hits"] == FOUND.to_dicts()
    assert read["hits"][0] == {
        "id": "a",
        "score": 7.314,
        "probability": None,
        "round": 2,
        "proposed_by": "posterior",
        "estimate": 6.9,
        "deviation": 0.81,
        "ranks": {"dense": 4, "bm25": None},
        "text": "Rivers  freeze\nslowly.",
        "fields": {"year": 1},
    }
    assert [hit["score"] for hit in read["hits"]] == [7.314, -1.5, None]
    assert "trace" not in FOUND.to_dict()
    assert "\n" not in FOUND.to_json()


def test_a_notebook_shows_fields_that_are_not_null_with_lists_as_words():
    fields = {"day": datetime.date(2020, 1, 2), "none": None, "tags": ["a", None, "b"], "free": False}
    (_, row) = Table(some_hits(Hit("a", 1.0, None, 1, "exact", 0, text="x", fields=fields))._repr_html_()).rows
    assert row[3] == "xday 2020-01-02; tags a, b; free False"


def test_fields_of_every_type_become_json():
    fields = {
        "day": datetime.date(2020, 1, 2),
        "time": datetime.datetime(2020, 1, 2, 3, 4, tzinfo=datetime.UTC),
        "size": 3,
        "share": float("nan"),
        "tags": ["a", "b"],
        "known": True,
        "none": None,
    }
    (hit,) = json.loads(some_hits(Hit("a", 1.0, None, 1, "exact", 0, fields=fields)).to_json())["hits"]
    assert hit["fields"] == {
        "day": "2020-01-02",
        "time": "2020-01-02T03:04:00+00:00",
        "size": 3,
        "share": None,
        "tags": ["a", "b"],
        "known": True,
        "none": None,
    }


def test_a_data_frame_has_a_row_for_each_hit():
    pytest.importorskip("pandas")
    frame = some_hits(*FOUND, Hit("d", 0.0, None, 1, "exact", 3, fields={"id": "own", "text": 1})).to_pandas()
    assert frame["rank"].tolist() == [1, 2, 3, 4]
    assert frame["score"].isna().tolist() == [False, False, True, False]
    assert frame["dense_rank"].tolist()[:3] == [4, 1, 2]
    assert frame["year"].tolist()[:2] == [1, 2]
    assert frame["field_id"][3] == "own"
    assert frame["id"].tolist() == ["a", "bb", "c", "d"]
    empty = some_hits().to_pandas()
    assert len(empty) == 0
    assert {"rank", "id", "score", "text"} <= set(empty.columns)


def test_pandas_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match="pip install pandas"):
        FOUND.to_pandas()
