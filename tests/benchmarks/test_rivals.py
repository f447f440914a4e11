"""The benchmark of rivals: its comparisons on made recalls, and a run on a small folder that resumes."""

import argparse

import numpy as np
import pytest

from benchmarks import rivals
from benchmarks.rival_tables import arrow
from benchmarks.rivals import compare_recall, measure_folder
from tests.paths import ROOT


def test_every_side_is_compared_at_equal_offline_calls():
    rng = np.random.default_rng(0)
    base = rng.normal(50, 5, 100)
    gains = {"rerank, fused": 0.0, "posterior": 5.0, "posterior, prior": 20.0, "gp": 5.0, "gp, prior": 5.0}
    shares = {(name, 10, 100): base + gain + rng.normal(size=100) for name, gain in gains.items()}
    (cell,), facts = compare_recall(shares)
    shown = {name: one["shown"] for name, one in cell["− posterior"].items()}
    assert shown == {"rerank, fused": -1, "gp": 0, "gp, prior": -1}
    assert {name: one["shown"] for name, one in cell["− rerank, fused"].items()} == dict.fromkeys(
        ["posterior", "posterior, prior", "gp", "gp, prior"], 1
    )
    assert [facts[name]["comparisons"] for name in ("posterior", "rerank, fused")] == [3, 4]


@pytest.mark.parametrize(
    ("difference", "mark"),
    [
        ({"low": 1, "high": 2, "shown": 1}, "▲"),
        ({"low": 1, "high": 2, "shown": 0}, "△"),
        ({"low": -2, "high": -1, "shown": 0}, "▽"),
        ({"low": -2, "high": -1, "shown": -1}, "▼"),
        ({"low": -2, "high": 1, "shown": 0}, ""),
        (None, ""),
    ],
)
def test_marks_of_differences(difference, mark):
    assert arrow(difference) == mark


def test_a_run_is_resumed(tmp_path, monkeypatch):
    options = argparse.Namespace(
        queries=10, dev_queries=3, budgets=[10], strategies=None, seed=0, work=tmp_path, device="cpu"
    )
    for name, value in {"RESIDUAL_ITEMS": 0, "NAMES": (*rivals.NAMES[:3], "ore"), "FROM_ALL": ()}.items():
        monkeypatch.setattr(rivals, name, value)
    folder = ROOT / "tests" / "data" / "wordnet-scores"
    found = measure_folder(folder, "ours", options)
    assert (found["scorer"], found["items"], found["test_queries"]) == ("ours", 1000, 10)
    assert set(found["chosen"]) == {"rerank, fused", "posterior", "posterior, prior", "rerank", "ore", "rbe, 8"}
    assert found["offline_calls_per_item"]["posterior, prior"] > 1
    assert {one["strategy"] for one in found["quality"]} == set(found["chosen"])
    monkeypatch.setattr(rivals, "measure_side", refuse)
    monkeypatch.setattr(rivals, "tune_side", refuse)
    assert measure_folder(folder, "ours", options) == found


def refuse(*_):
    raise AssertionError("what is kept is not made again")
