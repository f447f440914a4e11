"""Fields on the command line: which are kept, conditions on them, and what a search prints of them."""

import csv
import json

import pytest

from crossknn.cli.where import parse_conditions
from crossknn.errors import InputError
from tests.cli.test_cli import TEXTS, as_json, fail, invoke

KINDS = {"section": "string", "size": "int64", "rate": "float64", "free": "bool", "day": "date", "size in m": "int64"}
SEARCH = ("--encoder", "none", "--json")


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "section", "size", "day"])
        writer.writerows(
            [row, text, ("utils", "io")[row % 2], row * 100, "2024-05-01"] for row, text in enumerate(TEXTS)
        )
    return path


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("section = utils", {"section": {"eq": "utils"}}),
        ("section=two words", {"section": {"eq": "two words"}}),
        ("section != ' kept '", {"section": {"ne": " kept "}}),
        ('section = "a = b"', {"section": {"eq": "a = b"}}),
        ("size <= 5000", {"size": {"le": 5000}}),
        ("size>=-2.5", {"size": {"ge": -2.5}}),
        ("rate < 1e3", {"rate": {"lt": 1000.0}}),
        ("size > much", {"size": {"gt": "much"}}),
        ("free = True", {"free": {"eq": True}}),
        ("day > 2024-05-01", {"day": {"gt": "2024-05-01"}}),
        ("section in utils, io", {"section": {"in": ["utils", "io"]}}),
        ('section not in ["a, b", "c"]', {"section": {"not_in": ["a, b", "c"]}}),
        ("size in 1, 2.5", {"size": {"in": [1, 2.5]}}),
        ("size in [1, 2]", {"size": {"in": [1, 2]}}),
        ("size in m = 7", {"size": {"in": ["m = 7"]}}),
        ("missing = 5", {"missing": {"eq": "5"}}),
        ("section =", {"section": {"eq": ""}}),
    ],
)
def test_conditions(condition, expected):
    assert parse_conditions([condition], KINDS) == {"and": [expected]}


@pytest.mark.parametrize("condition", ["section", "", "= 5", "section is utils"])
def test_conditions_that_are_none(condition):
    with pytest.raises(InputError, match="--where must be a field, an operator"):
        parse_conditions([condition], KINDS)


def test_hits_meet_all_conditions_and_show_text_and_fields(corpus, bert_folder, tmp_path):
    command = ["search", corpus, "ice", "--scorer", bert_folder, *SEARCH, "--budget", 20]
    (found,) = as_json(invoke(*command, "--where", "section = utils", "--where", "size < 900"))
    assert {hit["id"] for hit in found["hits"]} == {"0", "2", "4", "6", "8"}
    for hit in found["hits"]:
        row = int(hit["id"])
        assert hit["text"] == TEXTS[row]
        assert hit["fields"] == {"section": "utils", "size": row * 100, "day": "2024-05-01"}
    (tmp_path / "ids.txt").write_text("2\n3\n4\n")
    both = [*command, "--where", "section = utils", "--filter-ids", tmp_path / "ids.txt"]
    assert {hit["id"] for hit in as_json(invoke(*both))[0]["hits"]} == {"2", "4"}


def test_which_fields_are_kept(corpus, bert_folder):
    command = ["search", corpus, "ice", "--scorer", bert_folder, *SEARCH, "-k", 1]
    (found,) = as_json(invoke(*command, "--field", "size", "--field", "day"))
    assert list(found["hits"][0]["fields"]) == ["size", "day"]
    assert as_json(invoke(*command, "--no-fields"))[0]["hits"][0]["fields"] == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--where", "sise = 5"],
            "--where names the field 'sise', which the items do not have. Their fields: 'section'",
        ),
        (["--where", "size = x"], "--where must compare 'size' (int64) with a number, got str 'x'."),
        (["--field", "sise"], "no column named 'sise' among 'id', 'text', 'section', 'size', 'day'."),
        (["--field", "size", "--no-fields"], "--field and --no-fields exclude each other."),
    ],
)
def test_errors_speak_of_options(options, message, corpus, bert_folder, monkeypatch, capsys):
    code, error = fail(monkeypatch, capsys, "search", corpus, "ice", "--scorer", bert_folder, *SEARCH, *options)
    assert (code, message in error) == (2, True), error


def test_an_index_has_its_fields_already(tmp_path, monkeypatch, capsys):
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "index.json").write_text(json.dumps({}))
    code, error = fail(monkeypatch, capsys, "search", tmp_path / "index", "ice", "--field", "size")
    assert (code, "--field applies to items only" in error) == (2, True)
