"""benchmarks/round_time.py: the paper's search asks for what `Axn` asks for, and figures follow from the seconds."""

import numpy as np
import pytest

from benchmarks import round_time
from benchmarks.round_time import PAPER, ROUNDS, World, outside, search_as_in_the_paper, smallest, summarise
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import RoundScores, drive


@pytest.fixture(scope="module")
def world():
    return World.of(300, 3, "cpu")


def test_the_papers_search_scores_what_axn_scores_without_a_mix(world):
    def told(asked, *, first=0):
        return RoundScores([line[rows] for line, rows in zip(world.scores[first:], asked, strict=False)])

    found = search_as_in_the_paper(world, 3, 45, told)
    wanted = drive(Axn(45, ROUNDS, mix=0), world.context(3), told)
    for mine, theirs in zip(found, wanted, strict=True):
        assert len(set(mine.tolist())) == 45
        assert set(mine.tolist()) == set(np.concatenate(theirs.rows).tolist())


def test_time_in_the_scorer_does_not_count(world, monkeypatch):
    monkeypatch.setattr("time.monotonic", iter([0.0, 3.0, 7.0, 10.0]).__next__)  # in the scorer from 3 to 7
    assert outside(world, lambda told: told([np.array([1])])) == 6.0


def test_vectors_do_not_depend_on_the_size_of_blocks(monkeypatch):
    whole = round_time.make_vectors(250, np.random.default_rng(0))
    monkeypatch.setattr(round_time, "BLOCK", 100)
    np.testing.assert_array_equal(round_time.make_vectors(250, np.random.default_rng(0)), whole)


def test_what_is_slow_is_done_once():
    assert smallest(iter([11.0]).__next__, times=3, slow=10) == 11
    assert smallest(iter([9.0, 5.0, 4.0, 6.0]).__next__, times=3, slow=10) == 4


def test_ratios_are_of_whole_searches():
    took = {"Rerank": 0.5, "Axn": 2.0, "Posterior": 4.0, PAPER: 8.0}
    found = summarise(took, 2, {"small": 40.0, "large": 80.0})
    assert found["ms"] == {"Rerank": 250, "Axn": 100, "Posterior": 200, PAPER: 400}
    assert found["seconds"] == took
    assert found["times Axn"] == {"Rerank": 0.25, "Posterior": 2, PAPER: 4}
    assert found["times Rerank"] == {"Axn": 4, "Posterior": 8, PAPER: 16}
    assert found["times the paper"] == {"Rerank": 0.06, "Axn": 0.25, "Posterior": 0.5}
    assert found["share_of_scoring"]["small"] == {"Rerank": 0.0125, "Axn": 0.05, "Posterior": 0.1, PAPER: 0.2}
    assert found["share_of_scoring"]["large"]["Axn"] == 0.025
    assert "share_of_scoring" not in summarise(took, 2, {})
