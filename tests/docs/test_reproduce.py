"""docs/reproduce.md: commands with options that exist, code that runs, and numbers that are those of the results."""

import json
import re
import shlex
import sys

import pytest
import typer

import crossknn as ck
from benchmarks import index_quality, score_folder
from crossknn.cli import app
from crossknn.evaluate.contenders import AvailableData, resolve_strategies, split_names
from crossknn.evaluate.studies import parse_studies
from crossknn.evaluate.tuning import make_candidates
from crossknn.indexing.factorization.inductive import Inductive
from crossknn.indexing.factorization.transductive import Transductive
from tests.evaluate.test_datasets import mention, write_zeshel
from tests.paths import ROOT
from tests.scorers import tiny
from tools import train_source

PAGE = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
LINES = "\n".join(block for language, block in BLOCKS if not language).replace("\\\n", " ").splitlines()
COMMANDS = [shlex.split(line, comments=True) for line in LINES if line.startswith(("crossknn ", "python "))]
SCRIPTS = {"benchmarks.index_quality": index_quality, "benchmarks.score_folder": score_folder}
ANYTHING = AvailableData(("random", "tfidf", "dense", "bm25", "fused"), fitted=True, cur=True)


def parse(words):
    """What the command line makes of a command, without running it."""
    command, context = typer.main.get_command(app), None
    while hasattr(command, "commands"):
        name, *words = words
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
        command = command.commands[words[0]]
    return command.make_context(words[0], words[1:], parent=context).params


def named(command):
    return " ".join(command)[:70]


def test_there_is_something_to_check():
    assert len(COMMANDS) > 20
    assert {command[0] for command in COMMANDS} == {"crossknn", "python"}


@pytest.mark.parametrize("command", [command for command in COMMANDS if command[0] == "crossknn"], ids=named)
def test_a_command_has_only_options_that_exist(command):
    given = parse(command)
    if "bench" in command:
        budgets = [int(budget) for budget in given["budgets"].split(",")]
        make = make_candidates if given["tune"] else resolve_strategies
        assert make(split_names(given["strategies"]), ANYTHING, budgets=budgets, rounds=given["rounds"])
        parse_studies(given["studies"] or "none")
    if given.get("preset"):
        kind = Inductive if given["factors"] == "inductive" else Transductive
        assert kind.preset(given["preset"])


def test_an_option_that_does_not_exist_is_found():
    with pytest.raises(Exception, match="--buggets"):
        parse(["crossknn", "bench", "set", "scidocs", "--buggets", "100"])


@pytest.mark.parametrize("command", [command for command in COMMANDS if command[0] == "python"], ids=named)
def test_a_benchmark_has_only_options_that_exist(command, monkeypatch):
    assert command[:2] == ["python", "-m"]
    name, *arguments = command[2:]
    if name == "tools.train_source":
        assert train_source.read_options(arguments)
        return
    monkeypatch.setattr(sys, "argv", command[2:])
    given = SCRIPTS[name].read_options()
    if name == "benchmarks.index_quality":
        assert Transductive.preset(given.preset)
        assert set(given.without) <= {"MF_trns/Q", "MF_trns/I", "MF_trns ALS/I", "MF_ind/Q", "MF_ind/I", "DE_dstl/Q"}


def save_bert(folder):
    """A small BERT whose tokenizer has the marks of ZeShEL in its vocabulary."""
    import transformers

    tokenizer = tiny.bert_tokenizer()
    tokenizer.add_tokens(["[unused0]", "[unused1]", "[unused2]"])
    config = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=tiny.LENGTH, **tiny.SIZE)
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def test_the_code_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_bert("bert-zeshel")
    save_bert("minilm-msmarco")
    for domain in ("yugioh", "star_trek"):
        write_zeshel(tmp_path / "zeshel", *(mention(number, corpus=domain) for number in range(2010)))
        (tmp_path / "zeshel" / "mentions" / "test.json").rename(tmp_path / "zeshel" / "mentions" / f"{domain}.json")
    documents = tmp_path / "zeshel" / "documents"
    (documents / "star_trek.json").write_bytes((documents / "yugioh.json").read_bytes())
    names = {}
    for language, block in BLOCKS:
        if language == "python":
            exec(block, names)
    printed = capsys.readouterr().out
    assert "Dataset('star_trek', 2 items, queries: 2000 train, 10 test)" in printed
    assert "learning_rate=0.005" in printed
    pair = ["a [unused0] red tower [unused1] in a land"], ["Tower [unused2] it is red"]
    assert ck.EmbCrossEncoder("emb-ce-zeshel").score(*pair) == pytest.approx(names["zeshel"].score(*pair), abs=1e-5)
    assert ck.EmbCrossEncoder("emb-ce-msmarco").pooling.item_pooling == "sep"


def test_the_table_of_settings_is_that_of_the_presets():
    rows = re.findall(r"^\| (.+?) \| (MF_\w+) \| ([\d.]+) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 5
    for _, kind, rate, epochs, presets in rows:
        wanted = [int(number) for number in re.findall(r"(?:^|else )(\d+)", epochs)]
        made = [
            {"MF_ind": Inductive, "MF_trns": Transductive}[kind].preset(one.strip("`")) for one in presets.split(", ")
        ]
        assert [(one.learning_rate, one.epochs) for one in made] == [(float(rate), number) for number in wanted]


def test_our_numbers_are_those_of_the_results():
    sets = json.loads((ROOT / "benchmarks" / "results" / "paper_search.json").read_text())["sets"]
    for found in sets:
        row = re.search(rf"^\| {found['set']} \| (.+) \|$", PAGE, re.MULTILINE)[1].split(" | ")
        recall = {(one["strategy"], one["budget"]): one["recall"] for one in found["records"]}
        shown = []
        for k, budget in (("1", 100), ("100", 500)):
            mixes = {mix: recall[f"Axn dense λ={mix} αβ=train", budget][k] for mix in ("0", "0.5", "0.8")}
            best = max(mixes, key=mixes.__getitem__)
            rerank = recall["Rerank dense", budget][k]
            assert mixes["0"] < rerank < recall["Rerank fused", budget][k]
            shown += [f"{rerank:.1f}", f"{mixes[best]:.1f} ({best})"]
        assert row == shown


def test_the_calls_of_the_truth_are_queries_times_items():
    items = {"YuGiOh": 10_031, "Star Trek": 34_430, "SciDocs": 25_657, "HotpotQA": 5_233_329}
    rows = re.findall(r"^\| ([\w ]+?)(?:, 500 train queries)? \| ([\d,]+) \| ([\d,]+) \|$", PAGE, re.MULTILINE)
    assert [name for name, _, _ in rows] == list(items)
    for name, queries, calls in rows:
        assert int(queries.replace(",", "")) * items[name] == int(calls.replace(",", ""))
