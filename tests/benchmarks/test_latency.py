"""The latency benchmark from end to end, with few items and calls."""

import json

import pytest

pytest.importorskip("sentence_transformers")

from benchmarks import latency


def test_every_side_is_measured(tmp_path, monkeypatch):
    sizes = ["--items", "300", "--queries", "2", "--together", "2", "--budgets", "10", "--seconds", "0"]
    monkeypatch.setattr("sys.argv", ["latency", *sizes, "--out", str(tmp_path / "latency.json")])
    latency.main()
    found = json.loads((tmp_path / "latency.json").read_text())
    assert set(found["one query"]) == set(latency.SIDES)
    assert all(0 < side["scorer_p50_ms"] <= side["p50_ms"] <= side["p99_ms"] for side in found["one query"].values())
    assert [cell["strategy"] for cell in found["together"]] == list(latency.SIDES)
    assert {"side by side, p50_ms", "one after the other, p50_ms"} == set(found["first stage"])
    assert found["after prepare"]["first_ms"] > 0
