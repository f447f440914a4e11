"""Relevance-based embeddings: greedy support items and the regression from their scores, on worlds of low rank."""

import re

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.strategies.rbe import Rbe, support_items
from tests.worlds import World, all_rows


def cur_world(queries=3, items=120, train=40, rank=4, seed=0):
    """Scores of a low rank; an item's vector is its scores with the train queries, as in a CUR index."""
    rng = np.random.default_rng(seed)
    hidden, asked, known = (rng.normal(size=(n, rank)) for n in (items, queries, train))
    bias = 3 * rng.normal(size=items)
    vectors = (hidden @ known.T + bias[:, None]).astype(np.float32)
    return World((asked @ hidden.T + bias).astype(np.float32), vectors, np.zeros((queries, train), np.float32))


def test_as_many_support_items_as_the_rank_find_the_exact_top():
    world = cur_world()
    settings = Rbe(30, share=0.5, ridge=1e-6)
    for query, one in enumerate(world.run(settings)):
        top = np.argsort(-world.scores[query], kind="stable")[:15]
        assert np.isin(top, all_rows(one)).all()
        np.testing.assert_allclose(one.estimates[1], world.scores[query, one.rows[1]], atol=0.3)
        assert one.proposed_by == ["support", "rbe"]


def plain_choice(vectors, count):
    """Each step: the item that leaves the smallest sum of squares, by least squares on all chosen ones."""
    centered = vectors.astype(np.float64) - vectors.mean(1, keepdims=True)
    chosen = []
    for _ in range(count):
        errors = []
        for row in range(len(vectors)):
            basis = centered[[*chosen, row]].T
            fit = basis @ np.linalg.lstsq(basis, centered.T, rcond=None)[0]
            errors.append(np.square(centered.T - fit).sum() if row not in chosen else np.inf)
        chosen.append(int(np.argmin(errors)))
    return chosen


def test_the_choice_is_greedy():
    world = cur_world(items=30, train=12, rank=8, seed=3)
    assert support_items(world.context(), 5).tolist() == plain_choice(world.vectors, 5)


def test_the_estimates_are_ridge_regression():
    world = cur_world(rank=9, seed=1)
    rows = support_items(world.context(), 6)
    wide = world.vectors.astype(np.float64)
    centered = wide - wide.mean(1, keepdims=True)
    gram = centered[rows] @ centered[rows].T
    inverse = np.linalg.inv(gram + 0.5 * np.trace(gram) / 6 * np.eye(6))
    for query, one in enumerate(world.run(Rbe(20, share=0.3, ridge=0.5))):
        assert one.rows[0].tolist() == rows.tolist()
        known = world.scores[query, rows] - wide[rows].mean(1)
        expected = wide.mean(1) + centered @ centered[rows].T @ inverse @ known
        np.testing.assert_allclose(one.estimates[1], expected[one.rows[1]], rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_more_support_items_than_train_queries_and_a_filter(share):
    world = cur_world(train=6)
    allowed = np.arange(120) % 4 == 0
    for one in world.run(Rbe(100, share=share), allowed=allowed):
        assert sorted(all_rows(one)) == np.flatnonzero(allowed).tolist()


def test_train_queries_that_score_all_items_alike_are_no_error():
    world = cur_world()
    world.vectors[:] = 2.0
    assert {one.calls for one in world.run(Rbe(40))} == {40}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 0.0}, "`share` must be greater than 0 and at most 1, got 0.0"),
        ({"ridge": 0.0}, "`ridge` must be a positive number, got 0.0"),
    ],
)
def test_invalid_settings_are_rejected(settings, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Rbe(**settings)
