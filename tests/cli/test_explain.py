"""`crossknn search` with --explain, --picture and --rank-by."""

import re
import sys

import pytest

import crossknn as ck
from crossknn.cli.search import explain
from tests.cli.test_cli import ENCODER, TEXTS, as_json, fail, invoke

SEARCH = ["ice and snow", "-k", 3, "--budget", 20, "--encoder", ENCODER]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(TEXTS), encoding="utf-8")
    return path


@pytest.fixture
def wanted(corpus, bert_folder):
    items = ck.Items.from_lines(corpus)
    return ck.Searcher(items, scorer=ck.CrossEncoder(bert_folder), encoder=ck.SentenceEncoder(ENCODER))


def test_explanations_of_every_kind_of_hit():
    hit = ck.Hit("a", 7.314, 6.9, 3, "posterior", 0, 0.81, {"dense": 4, "bm25": None})
    assert explain(hit) == "round 3, posterior: expected 6.90 ± 0.81 → 7.31; ranks: dense 4, bm25 –"
    assert explain(ck.Hit("a", 7.314, 6.9, 3, "axn", 0)) == "round 3, axn: expected 6.90 → 7.31"
    assert explain(ck.Hit("a", -1, 0.4, 1, "dense", 0, None, {"dense": 1})) == "round 1, dense: -1.00; ranks: dense 1"
    assert explain(ck.Hit("a", 2, None, 1, "exact", 0)) == "round 1, exact: 2.00"


def test_each_hit_is_explained(corpus, bert_folder, wanted, monkeypatch):
    monkeypatch.setattr("crossknn.cli.search.out.width", 200)
    command = ["search", corpus, *SEARCH, "--scorer", bert_folder, "--strategy", "posterior", "--rounds", 4]
    lines = invoke(*command, "--explain").stdout.splitlines()
    hits = wanted.search("ice and snow", k=3, strategy=ck.Posterior(20, 4))
    under = [line for line in lines if "ranks: dense" in line]
    assert len(under) == 3
    for line, hit in zip(under, hits, strict=True):
        assert f"round {hit.round}, {hit.proposed_by}: " in line
        assert re.search(rf"{re.escape(f'{hit.score:.2f}')}; ranks: dense {hit.ranks['dense']}, bm25 ", line)
    assert "ranks" not in invoke(*command).stdout


def test_explained_json_has_the_fields_and_plain_json_has_not(corpus, bert_folder, wanted):
    command = ["search", corpus, *SEARCH, "--scorer", bert_folder, "--json"]
    (line,) = as_json(invoke(*command, "--explain"))
    hits = wanted.search("ice and snow", k=3, budget=20)
    assert [hit["ranks"] for hit in line["hits"]] == [dict(hit.ranks) for hit in hits]
    assert all("deviation" in hit for hit in line["hits"])
    (plain,) = as_json(invoke(*command))
    assert set(plain["hits"][0]) == {"id", "score", "text", "fields", "estimate", "round", "proposed_by"}


def test_rank_by_is_the_librarys(corpus, bert_folder, wanted):
    command = ["search", corpus, *SEARCH, "--scorer", bert_folder, "--json", "-k", 10]
    for order in ("score", "fused"):
        (line,) = as_json(invoke(*command, "--rank-by", order))
        hits = wanted.search("ice and snow", k=10, budget=20, rank_by=order)
        assert [hit["id"] for hit in line["hits"]] == hits.ids
    invoke(*command, "--rank-by", "fuzed", code=2)


def test_the_picture_is_written(corpus, bert_folder, tmp_path):
    path = tmp_path / "rounds.png"
    result = invoke("search", corpus, *SEARCH, "--scorer", bert_folder, "--picture", path, "--json")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert as_json(result)[0]["calls"] == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--picture", "rounds.jpg"], "--picture must be a .png file in an existing folder, got 'rounds.jpg'"),
        (["--picture", "no/such/rounds.png"], "got 'no/such/rounds.png'"),
        (["--picture", "rounds.png", "snow"], "--picture shows one query, got 2."),
        (["--picture", "rounds.png", "--strategy", "exact"], "exact search has none"),
    ],
)
def test_impossible_pictures_are_refused_before_anything_is_loaded(corpus, options, message, monkeypatch, capsys):
    """Otherwise the error would be that there is no such model."""
    code, said = fail(monkeypatch, capsys, "search", corpus, "ice", "--scorer", "/no/such/model", *options)
    assert code == 2
    assert message in said


def test_without_matplotlib_the_error_says_what_brings_it(corpus, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    options = ["--scorer", "/no/such/model", "--picture", "rounds.png"]
    code, said = fail(monkeypatch, capsys, "search", corpus, "ice", *options)
    assert code == 2
    assert "pip install 'crossknn[report]'" in said
