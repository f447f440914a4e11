"""Options that several commands share, and progress on the console."""

import re
from io import StringIO

import pytest
from rich.console import Console

import crossknn as ck
from crossknn.cli.console import ProgressBars
from crossknn.cli.options import EngineName, EngineOptions, ScorerOptions
from crossknn.engines.local import LOCAL
from crossknn.errors import InputError
from tests.scorers import tiny_rerankers

MODELS = ScorerOptions("my-model")


def test_the_engine_that_the_options_name():
    assert EngineOptions().make(MODELS) is LOCAL
    pytest.importorskip("ray")
    made = EngineOptions(EngineName.ray, address="head:6379", workers=3).make(MODELS)
    assert made == ck.engines.RayEngine(address="head:6379", workers=3)


@pytest.mark.parametrize(
    ("engine", "models", "message"),
    [
        (EngineOptions(address="head:6379"), MODELS, "--address applies to --engine ray only"),
        (EngineOptions(workers=2), MODELS, "--workers applies to --engine ray only"),
        (EngineOptions(EngineName.ray), ScorerOptions("http://127.0.0.1:80/rerank"), "--engine ray runs local models"),
        (EngineOptions(EngineName.ray), ScorerOptions("my-model", device="cuda:1"), "--device must be cuda"),
    ],
)
def test_options_that_contradict_the_engine_are_refused(engine, models, message):
    with pytest.raises(ck.InputError, match=message):
        engine.make(models)


def test_progress_without_a_terminal_is_logged_or_silent(capsys):
    for bars in (ProgressBars(), ProgressBars(log=True)):
        bars("before", 1, 2)
        with bars:
            for done in (400, 1000, 2000, 2000):
                bars("[b]score[/b]", done, 2000)
        with bars:
            bars.from_zero("again", 1, 3)
    said = capsys.readouterr().err.splitlines()
    assert [re.sub(r"\d\.\d", "0.0", line) for line in said] == [
        "[b]score[/b]: 2,000 (400 done before) …",
        "[b]score[/b]: 2,000 done in 0.0 s",
        "again: 3 …",
    ]


def test_progress_bars_start_at_what_an_earlier_run_has_done(monkeypatch):
    terminal = Console(file=StringIO(), force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr("crossknn.cli.console.err", terminal)
    with ProgressBars(keep=True, log=True) as bars:
        bars("exact search", 400, 2000)
    (last,) = [line for line in terminal.file.getvalue().splitlines() if "exact search" in line][-1:]
    assert " 400/2000 -:--:--" in last  # no time left: what an earlier run has done says nothing about the speed
    with bars:
        bars("exact search", 400, 2000)
        bars("exact search", 2000, 2000)
    last = [line for line in terminal.file.getvalue().splitlines() if "exact search" in line][-1]
    assert "2000/2000" in last


def test_prompt_options_reach_the_cross_encoder(tmp_path):
    pytest.importorskip("transformers")
    tokenizer = tiny_rerankers.qwen_tokenizer(None)
    config = tiny_rerankers.config_of("qwen3", tokenizer, head_dim=8)
    folder = str(tiny_rerankers.save(tmp_path / "lm", config, tokenizer, auto="AutoModelForCausalLM"))
    options = {"template": "{instruction}\n{query}\n{item}\n", "instruction": "Find ice.", "true_token": "yes"}
    loaded = ScorerOptions(folder, **options).load_scorer()
    assert loaded.fingerprint == ck.CrossEncoder(folder, **options).fingerprint


@pytest.mark.parametrize("option", ["template", "instruction", "true_token", "false_token"])
def test_a_server_has_its_own_prompt(option):
    with pytest.raises(InputError, match=f"--{option.replace('_', '-')} applies to local models and completion"):
        ScorerOptions("http://127.0.0.1:80/rerank", **{option: "x"}).load_scorer()
