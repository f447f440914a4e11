"""Building, planning, searching and changing an index on the command line: real models, real files, exit codes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import crossknn as ck
from crossknn.cli.index import _print_plan
from crossknn.cli.options import default_work_dir
from crossknn.indexing.planner import BuildPlan, Cost
from crossknn.storage.score_log import ScoreLog
from tests.cli.test_cli import as_json, fail, invoke
from tests.scorers import tiny
from tests.scorers.remote.rerank_server import lengths, serving

TEXTS = [*tiny.SENTENCES, *(tiny.words(seed, 12) for seed in range(34))]
TRAIN = [tiny.words(1000 + seed, 5) for seed in range(20)]


def write_corpus(path, rows):
    path.write_text("".join(json.dumps({"_id": f"d{row}", "text": TEXTS[row]}) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with corpus.jsonl (30 items), more.jsonl (10 others) and train.txt."""
    folder = tmp_path_factory.mktemp("files")
    write_corpus(folder / "corpus.jsonl", range(30))
    write_corpus(folder / "more.jsonl", range(30, 40))
    (folder / "train.txt").write_text("\n".join(TRAIN))
    return folder


@pytest.fixture(scope="module")
def models(bert_folder):
    return ["--scorer", bert_folder, "--encoder", "embedded"]


@pytest.fixture(scope="module")
def built(files, models):
    """What `crossknn build` said, as JSON, and its index."""
    command = ["build", files / "corpus.jsonl", "-o", files / "built.ck", "--queries", files / "train.txt"]
    (said,) = as_json(invoke(*command, *models, "--json"))
    return said


@pytest.fixture
def index(built, tmp_path):
    """A copy of the index, to be changed."""
    return Path(shutil.copytree(built["folder"], tmp_path / "copy.ck"))


def test_a_build_equals_the_librarys(built, files, bert_folder):
    library = ck.Index.build(
        ck.Items.from_jsonl(files / "corpus.jsonl"),
        scorer=ck.CrossEncoder(bert_folder),
        encoder=ck.SentenceEncoder("embedded"),
        queries=TRAIN,
    )
    loaded = ck.Index.load(files / "built.ck")
    assert list(loaded.queries) == TRAIN
    assert loaded.factors.items == pytest.approx(library.factors.items, abs=1e-3)
    assert loaded.report.calls == library.report.calls
    assert loaded.prior.signals == library.prior.signals == ("dense", "bm25")  # a prior is the default
    assert (loaded.scorer, loaded.encoder) == (library.scorer, library.encoder)
    assert 7 * 30 < built["report"]["calls_made"] == loaded.report.calls <= 8 * 30
    assert built["work_dir"] == str(files / "built.ck.work")
    assert (
        ScoreLog.open(files / "built.ck.work" / "scores", scorer=loaded.scorer).verify().scores == loaded.report.calls
    )


@pytest.mark.parametrize(
    ("options", "kind", "calls"),
    [
        (["--factors", "none", "--no-prior"], "encoder", 20 * 30),
        (["--factors", "inductive", "--preset", "paper", "--per-query", "4"], "inductive", 20 * 4),
        (["--factors", "cur", "--anchors", "5"], "cur", 5 * 30),
        (["--preset", "paper", "--sampling", "per-item", "--per-item", "3"], "transductive", 3 * 30),
        (["--sampling", "per-query", "--from", "bm25"], "transductive", 20 * 30),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_of_a_build(built, files, models, tmp_path, options, kind, calls):
    work = ["--work-dir", built["work_dir"]]  # shared: what one build scored the others reuse
    command = [files / "corpus.jsonl", "-o", tmp_path / "new.ck", "--queries", files / "train.txt", *work]
    (said,) = as_json(invoke("build", *command, *models, *options, "--json"))
    assert (said["vectors"], said["report"]["calls"]) == (kind, calls)
    assert not default_work_dir(tmp_path / "new.ck").exists()


def test_posterior_search_in_an_index_with_a_prior(files, models, bert_folder, tmp_path):
    command = ["build", files / "corpus.jsonl", "-o", tmp_path / "prior.ck", "--queries", files / "train.txt"]
    invoke(*command, *models, "--factors", "none", "--prior")
    options = ["-k", 3, "--budget", 12, "--strategy", "posterior", "--rounds", 3, "--json"]
    (found,) = as_json(invoke("search", tmp_path / "prior.ck", TRAIN[0], *options, *models))
    models_of = {"scorer": ck.CrossEncoder(bert_folder), "encoder": ck.SentenceEncoder("embedded")}
    searcher = ck.Searcher(ck.Index.load(tmp_path / "prior.ck"), **models_of)
    hits = searcher.search(TRAIN[0], k=3, strategy=ck.Posterior(budget=12, rounds=3))
    assert [hit["id"] for hit in found["hits"]] == hits.ids
    assert found["calls"] == hits.calls == 12


def test_a_prior_learns_from_the_signals_that_are_named(built, files, models, tmp_path):
    command = ["build", files / "corpus.jsonl", "-o", tmp_path / "new.ck", "--queries", files / "train.txt"]
    command += [*models, "--work-dir", built["work_dir"], "--factors", "none", "--prior"]
    invoke(*command, "--signal", "dense", "--signal", "tfidf")
    assert ck.Index.load(tmp_path / "new.ck").prior.signals == ("dense", "tfidf")
    (found,) = as_json(invoke("search", tmp_path / "new.ck", TRAIN[0], "--budget", 12, "--explain", "--json", *models))
    assert {"dense", "tfidf"} <= set(found["hits"][0]["ranks"])
    invoke(*command)
    assert ck.Index.load(tmp_path / "new.ck").prior.signals == ("dense", "bm25")


def test_a_build_says_what_it_costs_what_it_did_and_what_it_keeps(built, files, models, tmp_path):
    shutil.copytree(built["work_dir"], tmp_path / "new.ck.work")
    command = ["build", files / "corpus.jsonl", "-o", tmp_path / "new.ck", "--queries", files / "train.txt"]
    result = invoke(*command, *models)
    assert "up to 20 calls of the cross-encoder for vectors and a prior" in result.stderr  # others are known
    assert "30 items, 20 train queries" in result.stdout
    calls = built["report"]["calls"]
    assert f"{calls} calls, 0 of them in this run: 7." in result.stdout
    assert f"index: {tmp_path / 'new.ck'}, " in result.stdout
    assert f"scoring: {calls}" in result.stderr
    assert str(tmp_path / "new.ck.work") in result.stderr


def test_workers_score_their_parts_and_the_last_run_scores_nothing(files, models, tmp_path):
    command = ["build", files / "corpus.jsonl", "-o", tmp_path / "new.ck", "--queries", files / "train.txt"]
    command += [*models, "--chunk", 50, "--no-prior", "--json"]
    made = [as_json(invoke(*command, "--worker", f"{number}/2"))[0]["calls_made"] for number in (1, 2)]
    assert made == [140, 100]
    assert not (tmp_path / "new.ck").exists()
    (said,) = as_json(invoke(*command))
    assert (said["report"]["calls"], said["report"]["calls_made"]) == (240, 0)


def test_the_plan_is_what_the_build_makes(built, files, models):
    corpus = [files / "corpus.jsonl", "--queries", files / "train.txt", *models]
    fresh = as_json(invoke("plan", *corpus, "--json"))
    assert [(line["way"], line["calls"]) for line in fresh] == [
        ("transductive and prior, 7 queries per item, 1 item per query from fused", 230),
        ("taught encoder, 200 lists", 6000),
        ("encoder’s vectors only, 100 items per query", 600),
        ("transductive, 8 queries per item", 240),
        ("transductive, 32 queries per item", 600),
        ("inductive, 100 items per query", 600),
        ("cur, 500 anchors", 600),
    ]
    assert fresh[0]["to_make"] == fresh[0]["calls"] >= built["report"]["calls_made"]
    assert fresh[0]["disk"] == pytest.approx(built["bytes"], rel=0.1)
    assert fresh[0]["calls_per_second"] > 0
    assert not default_work_dir(files / "corpus.jsonl").exists()
    asked = as_json(invoke("plan", *corpus, "--json", "--factors", "none", "--prior"))[0]
    assert asked["way"] == "encoder’s vectors and prior, 7 queries per item, 1 item per query from fused"
    assert (asked["calls"], asked["at_most"]) == (230, True)


def test_the_plan_as_a_table(capsys):
    cost = Cost("cur, 5 anchors", 1000, 1000, False, 90.0, 30.0, 0.0, 2_000_000, 34_000_000)
    _print_plan(BuildPlan([cost], 512, 1000.0, 250.0))
    shown = capsys.readouterr().out
    assert "cur, 5 anchors  1,000    1.5     0.5  0.0  2.0      2      34" in shown
    assert "Measured with 512 calls (1,000 a second) and a few items (250 a second)." in " ".join(shown.split())
    _print_plan(BuildPlan([replace(cost, to_make=400, at_most=True), cost], 0, None, 250.0))
    shown = " ".join(capsys.readouterr().out.split())
    assert "cur, 5 anchors ≤ 1,000 ≤ 400 1.5" in shown
    assert "cur, 5 anchors 1,000 1,000 1.5" in shown
    assert "Measured with no calls and a few items" in shown


def test_info(built):
    (facts,) = as_json(invoke("info", built["folder"], "--json"))
    assert facts == {key: value for key, value in built.items() if key != "work_dir"}
    assert (facts["items"], facts["dimensions"], facts["vectors"], facts["queries"]) == (30, 384, "transductive", 20)
    shown = invoke("info", built["folder"]).stdout
    for name in ("items", "fields", "α, β", "scorer", "encoder", "taught", "prior", "bytes", "report"):
        assert name in shown
    for told in (built["scorer"], "SentenceEncoder('embedded'", "items.arrow", "from dense, bm25"):
        assert told in " ".join(shown.split())
    assert (facts["prior"], facts["teaching"], facts["models"]["encoder"]["name"]) == (
        ["dense", "bm25"],
        None,
        "embedded",
    )
    assert sum(facts["files"].values()) == facts["bytes"]


def test_search_in_an_index_equals_the_library(built, models, bert_folder):
    options = ["-k", 3, "--budget", 10, "--retriever", "fitted", "--json", *models]
    (found,) = as_json(invoke("search", built["folder"], "ice and snow", *options))
    searcher = ck.Searcher(
        ck.Index.load(built["folder"]), scorer=ck.CrossEncoder(bert_folder), encoder=ck.SentenceEncoder("embedded")
    )
    wanted = searcher.search("ice and snow", k=3, strategy=ck.Rerank(budget=10, retriever="fitted"))
    assert [hit["id"] for hit in found["hits"]] == wanted.ids
    assert {hit["proposed_by"] for hit in found["hits"]} == {"fitted"}
    adaptive = invoke("search", built["folder"], "ice", "-k", 3, "--budget", 10, "--strategy", "axn", *models)
    assert "10 calls in 10 rounds" in adaptive.stdout


def test_another_model_is_refused_unless_any_is_taken(built, encoder_folder, models, monkeypatch, capsys, tmp_path):
    other = tiny.save_cross_encoder(tmp_path / "other", "roberta")
    command = ["search", built["folder"], "ice", "--budget", 10, "--scorer", other, "--encoder", "none"]
    code, said = fail(monkeypatch, capsys, *command)
    assert code == 2
    assert "built with another scorer" in said
    assert "--any-model" in said
    assert "10 calls" in invoke(*command, "--any-model").stdout


def test_add_and_remove(index, files, models, tmp_path):
    result = invoke("add", index, files / "more.jsonl", "--per-item", 4, *models)
    assert "added 10 items with 40 calls: 40 items now" in result.stdout
    assert len(ck.Index.load(index)) == 40
    (tmp_path / "ids.txt").write_text("d1\nd35\n")
    assert "removed 2 items: 38 items now" in invoke("remove", index, "--ids", tmp_path / "ids.txt").stdout
    (said,) = as_json(invoke("remove", index, "d0", "d39", "--json"))
    assert (said["removed"], said["items"]) == (2, 36)
    assert list(ck.Index.load(index).items.ids) == [f"d{row}" for row in range(40) if row not in (0, 1, 35, 39)]


def test_verify(built, index, monkeypatch, capsys):
    said = invoke("verify", index, "--work-dir", built["work_dir"]).stdout
    assert f"{index}: intact, {built['bytes']:,} bytes read" in said
    assert f"{built['work_dir']}: intact" in said
    vectors = next(index.glob("vectors-*"))
    vectors.write_bytes(vectors.read_bytes()[:-1] + b"\x7f")
    code, said = fail(monkeypatch, capsys, "verify", index)
    assert code == 2
    assert f"{vectors}: damaged: its hash is" in said
    for command in (["info", index], ["remove", index, "d0"], ["add", index, "none.jsonl"], ["search", index, "ice"]):
        code, said = fail(monkeypatch, capsys, *command, "--verify")
        assert code == 2
        assert f"{vectors}: damaged: its hash is" in said
    vectors.unlink()
    assert f"{vectors}: missing" in fail(monkeypatch, capsys, "verify", index)[1]


@pytest.mark.parametrize("command", ["info", "verify", "search"])
def test_a_named_pipe_in_the_place_of_the_manifest_is_refused_at_once(index, command, monkeypatch, capsys):
    (index / "index.json").unlink()
    os.mkfifo(index / "index.json")
    code, said = fail(monkeypatch, capsys, command, index, *(["ice"] if command == "search" else []))
    assert code == 2
    assert f"{index}/index.json: must be a regular file, and is a named pipe" in said.replace("\n", "")


def test_verify_finds_a_damaged_score(built, index, tmp_path, monkeypatch, capsys):
    work = Path(shutil.copytree(built["work_dir"], tmp_path / "work"))
    chunk = next((work / "scores").glob("*.parquet"))
    chunk.write_bytes(chunk.read_bytes()[:-1])
    code, said = fail(monkeypatch, capsys, "verify", index, "--work-dir", work)
    assert code == 2
    assert f"{chunk}: damaged" in said


def test_verify_reports_on_a_work_folder_alone(built, tmp_path, monkeypatch, capsys):
    work = Path(shutil.copytree(built["work_dir"], tmp_path / "work"))
    assert f"{work}: intact, " in invoke("verify", "--work-dir", work).stdout
    vectors = next(work.glob("vectors-*.npy"))
    vectors.write_bytes(vectors.read_bytes()[:-40] + bytes(40))
    code, said = fail(monkeypatch, capsys, "verify", "--work-dir", work)
    assert code == 2
    assert f"{vectors}: damaged" in said
    assert "--work-dir" in fail(monkeypatch, capsys, "verify")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "INDEX", "ice", "--vectors", "v.npy"], "--vectors applies to items only"),
        (["search", "INDEX", "ice", "--train-queries", "t.txt"], "--train-queries applies to items only"),
        (["search", "INDEX", "ice", "--text-field", "text"], "--text-field applies to items only"),
        (["search", "CORPUS", "ice", "--any-model"], "--any-model applies to indexes only"),
        (["search", "CORPUS", "ice", "--verify"], "--verify applies to indexes only"),
        (["search", "CORPUS", "ice", "--retriever", "fitted"], "fitted"),
        (["build", "CORPUS", "-o", "FILES"], "no index"),
        (["build", "CORPUS", "-o", "new", "--work-dir", "new"], "--work-dir must be another folder"),
        (["build", "CORPUS", "-o", "new", "--worker", "3/2"], "--worker must be I/N with I between 1 and N, such as"),
        (["build", "CORPUS", "-o", "new", "--worker", "0/2"], "--worker must be I/N with I between 1 and N, such as"),
        (["build", "CORPUS", "-o", "new", "--preset", "mine"], "paper-large"),
        (
            ["build", "CORPUS", "-o", "new", "--factors", "cur", "--preset", "paper"],
            "--preset applies to --factors transductive or inductive only",
        ),
        (["build", "CORPUS", "-o", "new", "--anchors", "5"], "--anchors applies to --factors cur only"),
        (["build", "CORPUS", "-o", "new", "--factors", "cur", "--per-item", "5"], "Leave --per-item out."),
        (
            ["build", "CORPUS", "-o", "new", "--sampling", "per-item", "--from", "bm25"],
            "--from does not apply to --sampling per-item",
        ),
        (["build", "CORPUS", "-o", "new", "--encoder", "none"], "--encoder must be"),
        (
            ["build", "CORPUS", "-o", "new", "--no-prior", "--signal", "tfidf"],
            "--signal applies to --prior only, got tfidf",
        ),
        (
            ["build", "CORPUS", "-o", "new", "--encoder", "embedded", "--prior", *["--signal", "bm25"] * 2],
            "--signal must be a nonempty list of distinct retriever names",
        ),
        (["build", "nowhere.jsonl", "-o", "new"], "nowhere.jsonl"),
        (["plan", "CORPUS", "--anchors", "5"], "--anchors applies to --factors cur only"),
        (["info", "FILES"], "index.json"),
        (["info", "nowhere"], "nowhere"),
        (["verify", "INDEX", "--work-dir", "FILES"], "no work folder"),
        (["remove", "INDEX"], "either as arguments or in a file with --ids"),
        (["remove", "INDEX", "d0", "nobody"], "nobody"),
        (["add", "INDEX", "CORPUS", "--encoder", "embedded"], "'d0'"),
        (["add", "CORPUS", "CORPUS"], "index.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_input_ends_with_exit_code_2(
    built, files, bert_folder, arguments, message, monkeypatch, capsys, tmp_path
):
    monkeypatch.chdir(tmp_path)
    places = {"INDEX": built["folder"], "CORPUS": files / "corpus.jsonl", "FILES": files}
    given = [places.get(argument, argument) for argument in arguments]
    if given[0] in ("search", "build", "plan", "add"):
        given += ["--scorer", bert_folder]
        given += ["--encoder", "none"] if given[0] == "search" and "--vectors" not in given else []
    before = sorted(path.name for path in Path(built["folder"]).iterdir())
    code, said = fail(monkeypatch, capsys, *given)
    assert code == 2
    assert message in said
    assert sorted(path.name for path in Path(built["folder"]).iterdir()) == before


def test_an_interrupt_says_how_to_resume(files, tmp_path, monkeypatch, capsys):
    """It comes while a reranker is at work."""
    interrupts = iter([signal.SIGINT])

    def score(query, items):
        for interrupt in interrupts:
            os.kill(os.getpid(), interrupt)
        return lengths(query, items)

    with serving("tei", score) as server:
        command = ["build", files / "corpus.jsonl", "-o", tmp_path / "new.ck", "--queries", files / "train.txt"]
        code, said = fail(monkeypatch, capsys, *command, "--scorer", server.url, "--encoder", "embedded")
    assert code == 130
    assert "Run the same command again to resume" in said
    assert not (tmp_path / "new.ck").exists()


def count_scores(work, scorer):
    return ScoreLog.open(work / "scores", scorer=scorer).verify().scores if (work / "scores").exists() else 0


def test_a_killed_build_resumes_and_scores_nothing_twice(files, bert_folder, models, tmp_path):
    command = ["build", files / "corpus.jsonl", "-o", tmp_path / "new.ck", "--factors", "cur", "--anchors", 200]
    command += [*models, "--chunk", 500, "--json"]
    line = [sys.executable, "-m", "crossknn", *map(str, command)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    scores = tmp_path / "new.ck.work" / "scores"
    with subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        deadline = time.monotonic() + 60
        while len(list(scores.glob("*.parquet"))) < 3 and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        first.send_signal(signal.SIGKILL)
    assert first.returncode == -signal.SIGKILL
    assert not (tmp_path / "new.ck").exists()
    fingerprint = ck.CrossEncoder(bert_folder).fingerprint
    before, total = count_scores(scores.parent, fingerprint), 200 * 30
    assert 0 < before < total
    (said,) = as_json(invoke(*command))
    assert said["report"]["calls_made"] == total - before
    assert count_scores(scores.parent, fingerprint) == said["report"]["calls"] == total
