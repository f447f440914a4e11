"""Online relevance estimation against a plain reading of its algorithm, and its equalities."""

import re
from dataclasses import replace

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.strategies.ore import Ore
from tests.strategies.test_graph_search import nearest
from tests.worlds import World, all_rows

optimize = pytest.importorskip("scipy.optimize")


def context_of(world, **changes):
    return replace(world.context(**changes), signals=("dense", "random"))


def scaled(values):
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]


def plain_ore(world, query, settings, lists):
    """The algorithm with dictionaries: estimate, take a batch, fit the weights to its scores, and again."""
    graph, similar = nearest(world, settings.neighbors)
    signals = [dict(zip(one.rows.tolist(), scaled(one.estimates.tolist()), strict=True)) for one in lists]
    weights, scored, batch_scores = [0.2, 0.2, 0.2], [], {}
    while len(scored) < settings.budget:
        heads = sorted(scored, key=lambda row: (-world.scores[query, row], row))[: settings.top]
        affinity = {}
        for head in heads:
            for row in graph[head]:
                affinity.setdefault(row, []).append(batch_scores[head] * similar[head, row])
        features = {
            row: [*(values.get(row, 0.0) for values in signals), float(np.mean(affinity.get(row, [0.0])))]
            for row in range(len(world.vectors))
        }
        estimates = {row: np.dot(weights, features[row]) for row in features if row not in scored}
        batch = sorted(estimates, key=lambda row: (-np.float32(estimates[row]), row))
        batch = batch[: min(settings.batch, settings.budget - len(scored))]
        targets = scaled([float(world.scores[query, row]) for row in batch])
        count = 3 if scored else 2
        rows = np.array([features[row][:count] for row in batch])
        weights[:count] = optimize.lsq_linear(rows, targets, bounds=(0, 1), lsq_solver="exact").x
        batch_scores |= dict(zip(batch, targets, strict=True))
        scored += batch
    return scored


@pytest.mark.parametrize(("budget", "batch"), [(30, 10), (50, 16), (20, 40)])
@pytest.mark.parametrize(("top", "neighbors"), [(10, 16), (2, 5)])
def test_equals_a_plain_reading(budget, batch, top, neighbors):
    world = World.low_rank(queries=3, seed=1)
    settings = Ore(budget, batch, top, neighbors)
    context = context_of(world)
    lists = [context.propose(name, 200)[1] for name in context.signals]
    for query, one in enumerate(world.run(settings, context=context)):
        plain = plain_ore(world, query, settings, [found[query] for found in lists])
        for start in range(0, budget, batch):
            assert set(all_rows(one)[start : start + batch]) == set(plain[start : start + batch])


def test_a_signal_that_is_right_gets_all_the_weight():
    """Scores are the dense estimates, so that the batches are its ranking once the weights are fitted."""
    world = World.low_rank(queries=2, noise=0.0)
    dense = world.context().propose("dense", 200)[1]
    for one, ranking in zip(world.run(Ore(64, neighbors=1), context=context_of(world)), dense, strict=True):
        share = np.isin(ranking.rows[:40], all_rows(one)).mean()
        assert share > 0.85


def test_a_filter_holds_and_everything_allowed_can_be_scored():
    world = World.low_rank(items=90)
    allowed = np.arange(90) % 3 == 0
    for one in world.run(Ore(100), context=context_of(world, allowed=allowed)):
        assert sorted(all_rows(one)) == np.flatnonzero(allowed).tolist()


def test_a_batch_is_its_queries_one_by_one():
    world = World.low_rank(queries=4)
    together = world.run(Ore(40), context=context_of(world))
    for query in range(4):
        part = slice(query, query + 1)
        assert all_rows(world.run(Ore(40), only=part, context=context_of(world, only=part))[0]) == all_rows(
            together[query]
        )


def test_equal_scores_are_no_error():
    world = World.low_rank(items=40)
    world.scores[:] = 3.0
    assert {one.calls for one in world.run(Ore(40), context=context_of(world))} == {40}


def test_invalid_settings_are_rejected():
    with pytest.raises(InputError, match=re.escape("`batch` must be a positive integer, got 0")):
        Ore(batch=0)
