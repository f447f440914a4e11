"""`crossknn bench` as a user runs it: numbers, files, exit codes, no tracebacks."""

import json
import os
import pty
import subprocess
import sys

import numpy as np
import pytest

from crossknn.scorers.emb_cross_encoder import EmbCrossEncoder
from tests.cli.test_cli import ENCODER, fail, invoke
from tests.evaluate.folders import write_beir, write_scores
from tests.evaluate.test_datasets import WORDS, mention, write_zeshel

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
    assert len(found["records"]) == 12 * 2 * 2
    record = found["records"][0]
    assert {"strategy", "budget", "k", "recall", "low", "high", "calls", "seconds"} <= record.keys()
    assert (record["strategy"], record["budget"], record["k"], record["calls"]) == ("rerank, dense", 10, 1, 10)
    data = found["header"]["data"]
    assert (data["data"], data["queries"], data["train queries"], data["seed"]) == ("tiny", 12, 9, 0)
    assert data["offline calls, fitted vectors"] == 4 * 60
    assert "crossknn" in data["versions"]
    assert found["header"]["command"].startswith("crossknn bench matrix tiny --budgets 10,20 --k 1,5")
    origin = found["provenance"]
    assert (origin["command"], origin["seed"]) == (found["header"]["command"], 0)
    assert {"python", "crossknn", "numpy"} <= origin["versions"].keys()
    assert "crossknn/strategies/axn.py" in origin["sources"]
    assert str(tmp_path) not in json.dumps(found)


def test_strategies_queries_and_a_report(folder, tmp_path):
    names = ["--strategies", "rerank:retriever=bm25,axn:mix=0.8:first=bm25", "--queries", 3]
    result = invoke("bench", "matrix", folder, *SMALL, *names, "--report", tmp_path / "report")
    assert "3 queries" in result.stdout
    assert "↳ axn, λ 0.8, bm25 first" in result.stdout
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "axn, λ 0.8, bm25 first" in page
    assert (tmp_path / "report" / "recall.png").read_bytes().startswith(b"\x89PNG")
    drawn = {"recall", "rounds", "mix", "latency", "distributions"}
    assert {path.stem for path in (tmp_path / "report").glob("*.png")} == drawn
    assert page.count("<figure>") == len(drawn)
    assert "Left out: sampling (no offline calls per item were allowed (--index-calls-per-item)); quality" in page


def test_studies_are_chosen_by_name_and_go_into_the_file(folder, tmp_path):
    command = [
        "bench",
        "matrix",
        folder,
        *SMALL,
        "--strategies",
        "rerank",
        "--queries",
        3,
        "--json",
        tmp_path / "out.json",
    ]
    invoke(*command, "--studies", "mix,sampling")
    studies = json.loads((tmp_path / "out.json").read_text())["studies"]
    assert set(studies) == {"mix", "left_out"}
    assert list(studies["left_out"]) == ["sampling"]
    assert "--index-calls-per-item" in studies["left_out"]["sampling"]
    assert (studies["mix"]["budget"], {curve["k"] for curve in studies["mix"]["curves"]}) == (20, {1, 5})
    for more in (["--studies", "none", "--report", tmp_path / "report"], []):
        invoke(*command, *more)
        assert "studies" not in json.loads((tmp_path / "out.json").read_text())
    assert [path.name for path in (tmp_path / "report").glob("*.png")] == ["recall.png"]


def write_judged(folder):
    """A folder of scores in which the best item is relevant to every other query, and the third best to the others."""
    world = write_scores(folder, train=9)
    order = np.argsort(-world.scores[9:], axis=1)
    rows = [[int(line[2 * (query % 2)])] for query, line in enumerate(order)]
    (folder / "test_relevant_rows.json").write_text(json.dumps(rows))
    return folder


def test_a_matrix_with_judgments_has_its_quality(tmp_path):
    command = ["bench", "matrix", write_judged(tmp_path / "judged"), *SMALL, "--strategies", "rerank"]
    assert "By the judgments" in invoke(*command).stdout
    named = [*command, "--json", tmp_path / "out.json", "--studies", "quality"]
    assert "By the judgments" in invoke(*named).stdout
    found = json.loads((tmp_path / "out.json").read_text())
    assert [(one["strategy"], one["budget"]) for one in found["quality"]] == [
        ("bm25", 0),
        ("dense", 0),
        ("fused", 0),
        ("rerank, fused", 10),
        ("rerank, fused", 20),
        ("exact", None),
    ]
    levels = found["studies"]["quality"]["levels"]
    assert [one["values"]["nDCG@10"] for one in levels] == [one["nDCG@10"] for one in found["quality"][3:]]
    exact = {"nDCG@10": (1 + 1 / 2) / 2, "MRR@10": (1 + 1 / 3) / 2, "accuracy": 1 / 2}
    assert {name: found["quality"][-1][name] for name in exact} == pytest.approx(exact)
    invoke(*command, "--report", tmp_path / "report", "--studies", "quality")
    assert (tmp_path / "report" / "quality.png").exists()


def test_judgments_need_an_extra_only_where_quality_is_asked_for(tmp_path, monkeypatch, capsys):
    command = ["bench", "matrix", write_judged(tmp_path / "judged"), *SMALL, "--strategies", "rerank"]
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    assert "By the judgments" not in invoke(*command).stdout
    code, said = fail(monkeypatch, capsys, *command, "--json", tmp_path / "out.json", "--studies", "quality")
    assert code == 2
    assert "pip install 'crossknn[bench]'" in said


def test_a_set_is_scored_searched_and_judged(tmp_path, bert_folder):
    write_beir(tmp_path / "set")
    options = ["--scorer", bert_folder, "--encoder", ENCODER, "--index-calls-per-item", 2, "--queries", 3]
    command = ["bench", "set", tmp_path / "set", *SMALL, *options, "--json", tmp_path / "out.json"]
    result = invoke(*command, "--strategies", "rerank,axn,adacur", "--studies", "quality,latency,sampling")
    assert "By the judgments" in result.stdout
    assert "study sampling" in result.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert {record["strategy"] for record in found["records"]} == {"rerank, fused", "axn", "axn, fitted", "adacur"}
    strategies = {one["strategy"] for one in found["quality"] if one["budget"] != 0}
    assert strategies == {"rerank, fused", "axn", "axn, fitted", "adacur", "exact"}
    assert all(0 <= one["nDCG@10"] <= 1 for one in found["quality"])
    assert found["header"]["data"]["offline calls, CUR"] == 2 * 40
    assert found["header"]["data"]["train part"] == "train"
    assert list((tmp_path / "set.work" / "exact").glob("*.npy"))
    studies = found["studies"]
    assert [one["calls"] for one in studies["sampling"]["indexes"]] == [80, 78, 160, 162]  # 6 train queries
    best = {(one["strategy"], one["budget"]): one["values"] for one in studies["quality"]["levels"]}
    assert best["exact", None]["true top 5"] == 1
    for record in found["records"]:
        beside = best[record["strategy"], record["budget"]]
        assert beside[f"true top {record['k']}"] == record["recall"]
        assert record["seconds"] in [one["seconds"] for one in studies["latency"]["times"]]
    again = invoke(*command, "--strategies", "rerank,axn,adacur")
    assert again.stdout.split("budget 10")[0] == result.stdout.split("budget 10")[0]
    before, after = found["records"], json.loads((tmp_path / "out.json").read_text())["records"]
    assert [record["recall"] for record in after] == [record["recall"] for record in before]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--strategies", "nax"], "got 'nax'"),
        (["--strategies", ""], "must be comma-separated names"),
        (["--strategies", "axn:mxi=1"], "axn:mxi=1: the strategy 'axn' has no setting 'mxi'"),
        (["--strategies", "rerank:retriever=tfidf"], "there is no retriever 'tfidf'"),
        (["--strategies", "rerank:retriever=fitted"], "there are no fitted vectors."),
        (["--budgets", ""], "--budgets must be distinct positive integers"),
        (["--budgets", "10,ten"], "--budgets must be distinct positive integers"),
        (["--budgets", "10,10"], "--budgets must be distinct positive integers"),
        (["--k", "0"], "--k must be distinct positive integers"),
        (["--json", "nowhere/out.json"], "--json must be a file in an existing folder"),
        (["--report", "FILE"], "--report must be a folder"),
        (["--studies", "rounds"], "--studies needs --report or --json"),
        (
            ["--studies", "round", "--report", "new"],
            "comma-separated names among rounds, mix",
        ),
        (
            ["--studies", "mix,quality", "--report", "new"],
            "tiny: the study quality needs relevant items",
        ),
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
    assert "item_embeddings.f16.npy: this array of a folder of scores does not exist" in said
    models = ["--scorer", bert_folder, "--encoder", ENCODER]
    code, said = fail(monkeypatch, capsys, "bench", "set", tmp_path / "missing", *models)
    assert code == 2
    assert "missing: does not exist" in said


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
    assert "scores must have shape (12, 60), got (12, 61)" in said


def test_a_matrix_can_be_tuned(folder, tmp_path):
    names = ["--strategies", "rerank:retriever=bm25,axn:first=bm25", "--tune", "--json", tmp_path / "out.json"]
    result = invoke("bench", "matrix", folder, *SMALL, *names, "--report", tmp_path / "report", "--studies", "none")
    assert "↳ axn, bm25 first, tuned" in result.stdout
    assert "↳ axn, bm25 first, oracle" in result.stdout
    assert "not attainable" in result.stdout.replace("\n", " ")
    assert "axn, bm25 first, tuned: axn:first=bm25:mix=0." in result.stdout
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["header"]["data"]["dev queries"] == 1
    assert found["header"]["data"]["train queries"] == 8
    assert found["header"]["command"].endswith(" --tune")
    tuned, oracle = (
        {(one["budget"], one["k"]): one for one in found["records"] if one["strategy"] == f"axn, bm25 first, {which}"}
        for which in ("tuned", "oracle")
    )
    assert len({json.dumps(one["settings"]) for one in tuned.values()}) == 1
    assert all(one["oracle"] and one["recall"] >= tuned[cell]["recall"] for cell, one in oracle.items())
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "not attainable" in page
    assert page.count('class="adaptive oracle"') == 2  # one for each budget
    assert "the best of 4 settings on the dev queries" in page


def test_all_strategies_run(folder):
    names = ["--strategies", "all", "--budgets", "12", "--k", "5", "--index-calls-per-item", 3]
    shown = invoke("bench", "matrix", folder, *names).stdout
    rivals = ("quam", "rgs", "ore", "feedback", "gp", "gp, prior", "rbe", "posterior, prior")
    assert [name for name in rivals if f"↳ {name} " not in shown] == []


def test_all_calls_are_said_before_any_is_made_and_asked_for_above_a_limit(tmp_path, bert_folder, monkeypatch, capsys):
    write_beir(tmp_path / "set", items=60)
    options = ["--scorer", bert_folder, "--encoder", ENCODER, "--strategies", "rerank,axn", "--index-calls-per-item", 2]
    command = ["bench", "set", tmp_path / "set", *SMALL, *options, "--ask-above", 0]
    code, said = fail(monkeypatch, capsys, *command)
    assert code == 2
    assert "360 for exact search (6 queries × 60 items); about 480 for indexes (encoder, fitted)" in said
    assert "Left to make: 840 calls, about" in said
    assert "Pass --yes" in said
    assert not (tmp_path / "set.work" / "exact").exists()
    first = invoke(*command, "--yes")
    assert "Left to make: 840 calls" in first.stderr
    again = invoke(*command)  # what was agreed to and kept needs no answer
    assert "360 of these scores are kept from before" in again.stderr
    assert "Nothing is left to score" in again.stderr
    assert again.stdout.split("budget 10")[0] == first.stdout.split("budget 10")[0]
    for stored in (tmp_path / "set.work" / "exact").glob("*"):
        stored.unlink()
    assert "Left to make: 360 calls" in invoke(*command).stderr  # agreed to before
    code, said = fail(monkeypatch, capsys, *command, "--queries", 5)
    assert code == 2
    assert "Pass --yes" in said


@pytest.mark.parametrize(("answer", "code", "said"), [("y", 0, "went on"), ("n", 1, "")])
def test_on_a_terminal_many_calls_are_asked_for(answer, code, said):
    asking = "from crossknn.cli.console import confirm; confirm('Make 9 calls?', 'no terminal'); print('went on')"
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", asking], stdin=terminal, stdout=subprocess.PIPE, stderr=terminal, text=True
    )
    os.write(screen, f"{answer}\n".encode())
    out, _ = process.communicate(timeout=60)
    assert out.strip() == said
    assert (process.returncode == 0) == (code == 0)
    assert b"Make 9 calls?" in os.read(screen, 10_000)
    os.close(screen)
    os.close(terminal)


def test_a_set_can_be_tuned(tmp_path, bert_folder):
    write_beir(tmp_path / "set", splits=("train", "dev", "test"))
    options = ["--scorer", bert_folder, "--encoder", ENCODER, "--queries", 2, "--strategies", "rerank,tour:loss=mse"]
    command = ["bench", "set", tmp_path / "set", *SMALL, *options, "--tune", "--json", tmp_path / "out.json"]
    result = invoke(*command, "--dev-queries", 3)
    assert "120 for tuning (3 dev queries × 40 items)" in result.stderr
    assert "exact scores of dev queries: 120 done" in result.stderr
    assert "tune on dev queries" in result.stderr
    assert "search for the oracle" in result.stderr
    assert "rerank, oracle" in result.stdout
    data = json.loads((tmp_path / "out.json").read_text())["header"]["data"]
    assert (data["dev queries"], data["dev part"]) == (3, "the split dev")
    assert len(list((tmp_path / "set.work" / "exact").glob("*.npy"))) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tune", "--strategies", "rerank:retriever=bm25"], "there is nothing to tune"),
        (["--tune", "--dev-split", "test"], "must be neither the test nor the train split"),
        (["--tune"], "at least 2 train queries, of which some are held out, got 0"),
        (["--dev-split", "dev"], "--dev-split needs --tune"),
        (["--dev-queries", 9], "--dev-queries needs --tune"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_what_cannot_be_tuned_is_said_before_anything_is_scored(
    tmp_path, bert_folder, options, message, monkeypatch, capsys
):
    splits = ("test",) if options == ["--tune"] else ("train", "test")
    write_beir(tmp_path / "set", splits=splits)
    models = ["--scorer", bert_folder, "--encoder", ENCODER]
    code, said = fail(monkeypatch, capsys, "bench", "set", tmp_path / "set", *models, *options)
    assert code == 2
    assert message in said
    assert not (tmp_path / "set.work").exists()


def test_a_domain_of_zeshel_with_a_scorer_that_reads_its_marks(tmp_path, encoder_folder, monkeypatch):
    write_zeshel(
        tmp_path / "zeshel", *(mention(n, start_index=n, end_index=n, text=WORDS.split()[n]) for n in range(9))
    )
    EmbCrossEncoder(
        encoder_folder,
        query_pooling="mention",
        mention_tokens=("[M]", "[/M]"),
        item_pooling="title",
        title_token="[T]",
    ).save(tmp_path / "emb")
    monkeypatch.chdir(tmp_path)
    models = ["--scorer", tmp_path / "emb", "--encoder", ENCODER, "--strategies", "rerank", "--queries", 2]
    result = invoke("bench", "set", "zeshel:zeshel:yugioh:5", *models, "--budgets", 1, "--k", 1, "--json", "out.json")
    assert "yugioh: 2 items, 2 queries" in result.stdout
    assert json.loads((tmp_path / "out.json").read_text())["header"]["data"]["train queries"] == 5
    assert (tmp_path / "zeshel-zeshel-yugioh-5.work" / "exact").is_dir()
    pair = ["the [M] red tower [/M] who guards", "Tower [T] Tower Tower is red"]
    scored = invoke("score", *pair, "--scorer", tmp_path / "emb", "--json").stdout
    wanted = EmbCrossEncoder(tmp_path / "emb").score(pair[:1], pair[1:])
    assert json.loads(scored)["score"] == pytest.approx(float(wanted[0]), abs=1e-4)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("zeshel:zeshel", "expected zeshel:FOLDER:DOMAIN"),
        ("zeshel:zeshel:yugioh:40", "below the number of mentions of yugioh (20)"),
        ("zeshel:nowhere:yugioh", "nowhere: there are no documents of the domain 'yugioh'"),
        ("ir_datasets:beir/scifact", "pip install 'crossknn[datasets]'"),
    ],
)
def test_sets_that_cannot_be_opened(tmp_path, bert_folder, source, message, monkeypatch, capsys):
    write_zeshel(tmp_path / "zeshel")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    models = ["--scorer", bert_folder, "--encoder", ENCODER]
    code, said = fail(monkeypatch, capsys, "bench", "set", source, *models)
    assert code == 2
    assert message in said
