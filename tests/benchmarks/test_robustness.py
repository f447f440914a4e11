"""What the conditions of the robustness benchmark change, and what they leave as it is."""

import numpy as np
import pytest

from benchmarks import robustness
from benchmarks.robustness import CONDITIONS, FUSED, Scored, World, by_difficulty, mean_log_ranks, search_world
from tests.worlds import World as LowRank


def make_world(items=300, queries=24):
    made = LowRank.low_rank(queries=2 * queries, items=items, dim=8, seed=1)
    bm25 = np.maximum(made.scores, 0)
    train, test = (
        Scored(made.query_vectors[part], made.scores[part].astype(np.float32), bm25[part].astype(np.float32))
        for part in (slice(queries), slice(queries, None))
    )
    return World(made.vectors.astype(np.float32), train, test)


@pytest.fixture(scope="module")
def world():
    return make_world()


def change(world, name):
    return CONDITIONS[name](world, np.random.default_rng(0))


def test_rotated_queries_leave_the_items_and_the_scores(world):
    changed = change(world, "rotated queries")
    assert changed.items is world.items
    assert changed.test.scores is world.test.scores
    lengths = [np.linalg.norm(one.test.vectors, axis=1) for one in (world, changed)]
    np.testing.assert_allclose(*lengths, rtol=1e-4)
    assert mean_log_ranks(changed).mean() > mean_log_ranks(world).mean() + 1


def test_the_true_scores_have_no_noise(world):
    changed = change(world, "noisy scorer")
    assert changed.truth is world.test.scores
    noise = changed.test.scores - world.test.scores
    np.testing.assert_allclose(noise.std(1), 0.5 * world.test.scores.std(1), rtol=0.2)


def test_copies_are_near_their_items(world):
    changed = change(world, "near-duplicates")
    assert len(changed.items) == len(world.items) + 2 * 60
    first, second = changed.items[300:360], changed.items[360:]
    similarity = (first * second).sum(1)
    assert np.abs(similarity - 0.98**2).max() < 0.1
    assert changed.test.scores.shape == changed.test.bm25.shape == (24, 420)


def test_some_items_suit_every_query():
    world = make_world(items=1_000)
    changed = change(world, "suits every query")
    raised = (changed.test.scores != world.test.scores).all(0)
    assert raised.sum() == 5
    ranks = (changed.test.scores[:, None, ~raised] > changed.test.scores[:, raised, None]).sum(2)
    assert np.median(ranks) < 30


def test_strategies_are_searched_and_split_by_difficulty(monkeypatch):
    monkeypatch.setattr(robustness, "BUDGETS", (25, 100))
    world = make_world(items=100)
    found = search_world(CONDITIONS["as it is"], world, 0)
    assert {"posterior", "posterior, prior", "gp", "gp, prior", FUSED} <= set(found)
    assert all(len(values) == 24 for cells in found.values() for values in cells.values())
    assert found["posterior"]["10@100"] == [100.0] * 24  # as many calls as items
    thirds = by_difficulty(world, found)
    means = [thirds[third]["posterior"]["10@25"]["mean"] for third in ("easy", "middle", "hard")]
    assert np.mean(means) == pytest.approx(np.mean(found["posterior"]["10@25"]), abs=0.1)
