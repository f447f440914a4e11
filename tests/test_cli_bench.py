"""`crossknn bench` as a user runs it: numbers, files, exit codes, no tracebacks."""

import json

import numpy as np
import pytest

from tests.evaluate.folders import write_beir, write_scores
from tests.test_cli import ENCODER, fail, invoke

SMALL = ["--budgets", "10,20", "--k", "1,5", "--rounds", 3]


@pytest.fixture
def folder(tmp_path):
    write_scores(tmp_path / "tiny", train=9)
    return tmp_path / "tiny"


def test_a_matrix_gives_a_table_and_a_file(folder, tmp_path):
    result = invoke("bench", "matrix", folder, *SMALL, "--index-calls-per-item", 4, "--json", tmp_path / "out.json")
    assert "tiny: 60 items, 12 queries" in result.stdout
    assert "↳ axn, fitted" in result.stdout
    assert "offline calls, CUR: 540" in result.stdout
    found = json.loads((tmp_path / "out.json").read_text())
    assert len(found["records"]) == 10 * 2 * 2
    record = found["records"][0]
    assert {"strategy", "budget", "k", "recall", "low", "high", "calls", "seconds"} <= record.keys()
    assert (record["strategy"], record["budget"], record["k"], record["calls"]) == ("rerank, dense", 10, 1, 10)
    data = found["header"]["data"]
    assert (data["data"], data["queries"], data["train queries"], data["seed"]) == ("tiny", 12, 9, 0)
    assert data["offline calls, fitted vectors"] == 4 * 60
    assert "crossknn" in data["versions"]
    assert found["header"]["command"].startswith(f"crossknn bench matrix {folder} --budgets 10,20 --k 1,5")


def test_strategies_queries_and_a_report(folder, tmp_path):
    names = ["--strategies", "rerank:retriever=bm25,axn:mix=0.8:first=bm25", "--queries", 3]
    result = invoke("bench", "matrix", folder, *SMALL, *names, "--report", tmp_path / "report")
    assert "3 queries" in result.stdout
    assert "↳ axn, λ 0.8, bm25 first" in result.stdout
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "axn, λ 0.8, bm25 first" in page
    assert (tmp_path / "report" / "recall.png").read_bytes().startswith(b"\x89PNG")


def test_a_set_is_scored_searched_and_judged(tmp_path, bert_folder):
    write_beir(tmp_path / "set")
    options = ["--scorer", bert_folder, "--encoder", ENCODER, "--index-calls-per-item", 2, "--queries", 3]
    command = ["bench", "set", tmp_path / "set", *SMALL, *options, "--json", tmp_path / "out.json"]
    result = invoke(*command, "--strategies", "rerank,axn,adacur")
    assert "By the judgments" in result.stdout
    found = json.loads((tmp_path / "out.json").read_text())
    assert {record["strategy"] for record in found["records"]} == {"rerank, fused", "axn", "axn, fitted", "adacur"}
    assert {one["strategy"] for one in found["quality"]} == {"rerank, fused", "axn", "axn, fitted", "adacur", "exact"}
    assert all(0 <= one["nDCG@10"] <= 1 for one in found["quality"])
    assert found["header"]["data"]["offline calls, CUR"] == 2 * 40
    assert found["header"]["data"]["train part"] == "train"
    assert list((tmp_path / "set.work" / "exact").glob("*.npy"))
    again = invoke(*command, "--strategies", "rerank,axn,adacur")
    assert again.stdout.split("budget 10")[0] == result.stdout.split("budget 10")[0]
    before, after = found["records"], json.loads((tmp_path / "out.json").read_text())["records"]
    assert [record["recall"] for record in after] == [record["recall"] for record in before]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--strategies", "nax"], "there is no strategy 'nax' to compare."),
        (["--strategies", ""], "strategies must be names between commas"),
        (["--strategies", "axn:mxi=1"], "axn:mxi=1: there is no setting 'mxi'."),
        (["--strategies", "rerank:retriever=tfidf"], "there is no retriever 'tfidf' here."),
        (["--strategies", "rerank:retriever=fitted"], "there are no fitted vectors."),
        (["--budgets", ""], "--budgets must be different whole numbers between commas, such as 50,100. Got ''."),
        (["--budgets", "10,ten"], "--budgets must be different whole numbers between commas"),
        (["--budgets", "10,10"], "--budgets must be different whole numbers between commas"),
        (["--k", "0"], "--k must be different whole numbers between commas"),
        (["--json", "nowhere/out.json"], "--json must be a file in a folder that exists."),
        (["--report", "FILE"], "--report must be a folder."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence_and_exit_code_2(folder, options, message, monkeypatch, capsys):
    given = [folder / "item_embeddings.f16.npy" if option == "FILE" else option for option in options]
    code, said = fail(monkeypatch, capsys, "bench", "matrix", folder, *given)
    assert code == 2
    assert message in said


def test_a_folder_that_is_none(tmp_path, monkeypatch, capsys, bert_folder):
    code, said = fail(monkeypatch, capsys, "bench", "matrix", tmp_path / "missing")
    assert code == 2
    assert "item_embeddings.f16.npy: wanted an array of a folder of scores, got nothing" in said
    models = ["--scorer", bert_folder, "--encoder", ENCODER]
    code, said = fail(monkeypatch, capsys, "bench", "set", tmp_path / "missing", *models)
    assert code == 2
    assert "wanted a BEIR folder, got nothing" in said


def test_a_folder_of_one_query_has_nothing_to_learn_from(tmp_path, monkeypatch, capsys):
    write_scores(tmp_path / "one", queries=1)
    result = invoke("bench", "matrix", tmp_path / "one", *SMALL, "--index-calls-per-item", 8)
    assert "adacur" not in result.stdout
    assert "offline calls" not in result.stdout
    code, said = fail(monkeypatch, capsys, "bench", "matrix", tmp_path / "one", "--strategies", "adacur")
    assert code == 2
    assert "CUR needs all scores of some train queries" in said


def test_arrays_that_do_not_fit_together(folder, monkeypatch, capsys):
    np.save(folder / "test_scores.f16.npy", np.zeros((12, 61), np.float16))
    code, said = fail(monkeypatch, capsys, "bench", "matrix", folder)
    assert code == 2
    assert "wanted scores of shape (12, 60) beside it, got (12, 61)" in said
