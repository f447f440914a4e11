"""Calls and seconds of a scorer, its measured speed, and the stored speed."""

import json
import math
import time
from types import SimpleNamespace

import pytest

from crossknn.errors import InputError, ScorerError
from crossknn.scorers.base import function_scorer
from crossknn.scorers.cached import Cached
from crossknn.scorers.timing import Speed, Timed, load_speed, measure_speed, save_speed
from crossknn.testing import MatrixScorer, check_scorer

WORLD = MatrixScorer([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
KNOWN = {"scorer": "one", "machine": "two cores"}


def test_contract():
    check_scorer(Timed(WORLD), WORLD.queries, WORLD.items)
    assert Timed(WORLD).fingerprint == WORLD.fingerprint


def test_calls_and_seconds_are_those_of_the_scorer():
    told = []

    def slow(pairs):
        time.sleep(0.02)
        return [1.0] * len(pairs)

    timed = Timed(function_scorer(slow), on_calls=told.append)
    assert (timed.calls, timed.seconds, timed.calls_per_second) == (0, 0.0, None)
    timed.score(["a"] * 3, ["x", "y", "z"])
    timed.score([], [])
    timed.score(["a"], ["x"])
    assert (timed.calls, told) == (4, [3, 1])
    assert timed.seconds >= 0.04
    assert timed.calls_per_second == timed.calls / timed.seconds


def test_inside_a_cache_only_real_calls_count(tmp_path):
    timed = Timed(WORLD)
    cache = Cached(timed, tmp_path / "scores.db")
    for _ in range(2):
        cache.score([WORLD.queries[0]] * 3, WORLD.items)
    assert timed.calls == 3


def test_a_call_that_fails_is_not_counted():
    timed = Timed(function_scorer(lambda pairs: []))
    with pytest.raises(ScorerError):
        timed.score(["a"], ["x"])
    assert timed.calls == 0


def test_a_speed_is_made_of_rounds_and_calls():
    speed = Speed(0.5, 0.01)
    assert speed.seconds([100]) == pytest.approx(1.5)
    assert speed.seconds([10] * 10) == pytest.approx(6.0)
    assert speed.seconds([0, 0]) == speed.seconds([]) == 0
    assert speed.calls_per_second == pytest.approx(100)


@pytest.mark.parametrize(("per_round", "per_call"), [(-1.0, 1.0), (0.0, 0.0), (math.nan, 1.0), (0.0, math.inf)])
def test_an_impossible_speed_is_rejected(per_round, per_call):
    with pytest.raises(InputError, match=r"must be a (positive|nonnegative) number"):
        Speed(per_round, per_call)


def test_both_parts_are_measured(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("crossknn.scorers.timing.time.perf_counter", lambda: clock.now)

    def slow(pairs):
        clock.now += 0.03 + 0.001 * len(pairs)
        return [1.0] * len(pairs)

    speed = measure_speed(function_scorer(slow), ["a"] * 1000, ["x"] * 1000)
    bulk = 1000 - 32 - 90
    assert speed.per_call == pytest.approx(0.001 + 0.03 / bulk)
    assert speed.per_round == pytest.approx(0.04 - 10 * speed.per_call)
    with pytest.raises(InputError, match="at least 222 pairs, got 5"):
        measure_speed(function_scorer(slow), ["a"] * 5, ["x"] * 5)


def test_a_speed_is_read_back_for_the_same_scorer_and_machine(tmp_path):
    path = tmp_path / "speed.json"
    assert load_speed(path, **KNOWN) is None
    save_speed(path, Speed(0.1, 0.002), **KNOWN)
    assert load_speed(path, **KNOWN) == Speed(0.1, 0.002)
    assert load_speed(path, scorer="other", machine="two cores") is None
    assert load_speed(path, scorer="one", machine="a laptop") is None
    assert [file.name for file in tmp_path.iterdir()] == ["speed.json"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"per_call": "fast"}', "null", b"\xff\xfe", '{"scorer": "one", "machine": 2}']
)
def test_a_damaged_file_is_ignored(tmp_path, content):
    path = tmp_path / "speed.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert load_speed(path, **KNOWN) is None


def test_an_impossible_stored_speed_is_ignored(tmp_path):
    path = tmp_path / "speed.json"
    path.write_text(json.dumps({"per_round": 0.0, "per_call": -1.0, **KNOWN}))
    assert load_speed(path, **KNOWN) is None
