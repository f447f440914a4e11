"""The pairs left unscored, what they stand for, and the estimate of how many of them match."""

import numpy as np
import pytest

import crossknn as ck
from crossknn.matching import unscored
from crossknn.matching.pair_scores import PairScorer
from crossknn.matching.recall_estimate import estimate_recall
from crossknn.matching.records import Records
from crossknn.matching.unscored import Unscored
from crossknn.testing import MatrixScorer
from crossknn.types import Proposal

RECORDS, ITEMS = 40, 900


class World:
    """Pairs of two tables that match by chances that fall with the rank in each record's list of all items."""

    def __init__(self, self_join=False, seed=0):
        rng = np.random.default_rng(seed)
        width = RECORDS * 5 if self_join else ITEMS
        height = width if self_join else RECORDS
        self.ranks = rng.permuted(np.tile(np.arange(1, width + 1), (height, 1)), axis=1)
        matches = rng.random((height, width)) < 1 / (1 + np.exp(1 + 1.1 * np.log(self.ranks)))
        self.scores = np.where(matches, 1.0, -1.0)
        left = Records(ck.Items([f"l {row}" for row in range(height)]))
        right = left if self_join else Records(ck.Items([f"r {row}" for row in range(width)]))
        scorer = MatrixScorer(self.scores, queries=[*left.items.texts], items=[*right.items.texts])
        self.pairs = PairScorer(scorer, left, right, limit=10**6)

    def lists(self, records, length):
        order = np.argsort(self.ranks[records], axis=1)[:, :length]
        return [Proposal(rows, -np.arange(length, dtype=np.float32)) for rows in order]

    def search(self, records, depth):
        for record, one in zip(records, self.lists(records, depth), strict=True):
            self.pairs.score(np.full(depth, record), one.rows)


@pytest.mark.parametrize("seed", range(4))
def test_what_was_missed_is_estimated_from_some_of_the_pairs(seed, monkeypatch):
    monkeypatch.setattr(unscored, "BEST_ROWS", 100)
    monkeypatch.setattr(unscored, "OTHER_ROWS", 100)
    world, records = World(seed=seed), np.arange(RECORDS)
    world.search(records, 3)
    left = Unscored(world.pairs, seed)
    left.add_ranked(records, world.lists(records, 100))
    found = (world.scores > 0)[world.ranks <= 3].sum()
    missed = (world.scores > 0).sum() - found
    estimate = estimate_recall(world.pairs, left, 0.0, sample=2_000, seed=seed)
    assert estimate.sampled == estimate.calls == 2_000
    assert estimate.low <= (found + estimate.matches) / (found + missed) <= estimate.high
    assert estimate.missed == pytest.approx(missed - estimate.matches, rel=0.6)
    assert estimate.high - estimate.low < 0.75


def test_pairs_stand_for_all_that_are_unscored(monkeypatch):
    monkeypatch.setattr(unscored, "BEST_ROWS", 50)
    monkeypatch.setattr(unscored, "OTHER_ROWS", 70)
    world, every = World(), np.arange(RECORDS)
    world.search(every, 5)
    left = Unscored(world.pairs)
    left.add_ranked(every[::4], world.lists(every[::4], 50))  # some records stand for all
    pairs = left.pairs()
    assert np.isnan(world.pairs.known(pairs.records, pairs.rows)).all()
    assert pairs.weights.sum() == pytest.approx(RECORDS * (ITEMS - 5))
    assert len(pairs.rows) < RECORDS * 120


def test_both_records_of_a_self_join_stand_for_half_a_pair():
    world = World(self_join=True)
    every = np.arange(len(world.ranks))
    world.search(every, 4)
    left = Unscored(world.pairs)
    left.add_ranked(every, world.lists(every, 30))
    pairs = left.pairs()
    count = len(every)
    assert pairs.weights.sum() == pytest.approx(count * (count - 1) / 2 - world.pairs.calls, rel=0.01)
    estimate = estimate_recall(world.pairs, left, 0.0, sample=500)
    assert estimate.sampled == estimate.calls == 500  # no pair twice
