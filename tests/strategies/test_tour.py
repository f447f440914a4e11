"""TouR: its gradients against torch, its rounds against a plain reading, and its equalities."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.strategies.exact import Exact
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.rerank import Rerank
from crossknn.strategies.tour import Tour, kl_gradient, squared_error_gradient
from tests.worlds import World, all_rows, best

NOISY = Normalization(alpha=-3.0, beta=0.7)


def loss_of(loss, estimates, scores):
    """The loss as torch has it; its target is a distribution for "ce" and the normalized scores for "mse"."""
    if loss == "mse":
        return torch.nn.functional.mse_loss(estimates, scores)
    return torch.nn.functional.kl_div(estimates.log_softmax(0), scores.softmax(0), reduction="sum")


def autograd(loss, vectors, u, scores):
    wanted = torch.tensor(u, dtype=torch.float64, requires_grad=True)
    loss_of(
        loss, torch.tensor(vectors, dtype=torch.float64) @ wanted, torch.tensor(scores, dtype=torch.float64)
    ).backward()
    return wanted.grad.numpy()


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 10_000), st.sampled_from([0.1, 1.0, 30.0]))
def test_gradients_equal_autograd(rows, dim, seed, scale):
    rng = np.random.default_rng(seed)
    vectors, u, scores = rng.normal(size=(rows, dim)), rng.normal(size=dim), scale * rng.normal(size=rows)
    for loss, gradient in (("ce", kl_gradient), ("mse", squared_error_gradient)):
        np.testing.assert_allclose(gradient(vectors, u, scores), autograd(loss, vectors, u, scores), atol=1e-9)


def plain_tour(world, query, budget, rounds, loss, rate):
    share = budget // rounds
    start = u = world.query_vectors[query].astype(np.float64)
    scored = []
    for _ in range(rounds):
        order = np.argsort(-(world.vectors @ u), kind="stable").tolist()
        new = [row for row in order if row not in set(scored)][:share]
        scored += new
        targets = world.scores[query, new].astype(np.float64)
        if loss == "mse":
            early = scored[: max(share, 10)]  # where no α and β are given, they come from the query's first scores
            norm = world.normalization or Normalization.fit(world.scores[query, early], world.vectors[early] @ start)
            targets = norm.beta * (targets - norm.alpha)
        u = u - rate * autograd(loss, world.vectors[new], u, targets)
    return scored


@pytest.mark.parametrize(("loss", "rate"), [("ce", None), ("ce", 0.5), ("mse", None), ("mse", 0.05)])
@pytest.mark.parametrize("normalization", [NOISY, None])
@pytest.mark.parametrize(("budget", "rounds"), [(30, 3), (60, 6), (8, 4)])
def test_equals_a_plain_reading(budget, rounds, normalization, loss, rate):
    world = World.low_rank(items=300, dim=16, seed=1)
    world.normalization = normalization
    found = world.run(Tour(budget=budget, rounds=rounds, loss=loss, learning_rate=rate))
    for query, one in enumerate(found):
        paper = {"ce": 0.1, "mse": 0.001}[loss]
        assert all_rows(one) == plain_tour(world, query, budget, rounds, loss, rate or paper)
        assert set(one.proposed_by) == {"tour"}


@pytest.mark.parametrize(("loss", "rate"), [("ce", 0.1), ("mse", 0.05)])
def test_its_steps_find_more_than_rerank(loss, rate):
    world = World.low_rank(queries=20, items=2000, dim=16)
    truth = np.argsort(-world.scores, axis=1)[:, :50]

    def recall(strategy):
        return np.mean([np.isin(t, all_rows(f)).mean() for t, f in zip(truth, world.run(strategy), strict=True)])

    assert recall(Tour(budget=100, loss=loss, learning_rate=rate)) > recall(Rerank(100, "dense")) + 0.05


@pytest.mark.parametrize("loss", ["ce", "mse"])
def test_one_round_is_rerank(loss):
    world = World.low_rank()
    rerank = world.run(Rerank(budget=20, retriever="dense"))
    for one, other in zip(world.run(Tour(budget=20, rounds=1, loss=loss)), rerank, strict=True):
        assert np.array_equal(one.rows, other.rows)


@pytest.mark.parametrize("loss", ["ce", "mse"])
@pytest.mark.parametrize("budget", [100, 250])
def test_a_budget_of_all_items_is_exact(loss, budget):
    world = World.low_rank(items=100)
    for one, other in zip(world.run(Tour(budget=budget, loss=loss)), world.run(Exact()), strict=True):
        assert best(one, 100) == best(other, 100)
        assert one.calls == 100


@pytest.mark.parametrize("loss", ["ce", "mse"])
def test_a_batch_is_its_queries_one_by_one(loss):
    world = World.low_rank(queries=6)
    strategy = Tour(budget=23, rounds=4, loss=loss)
    together = world.run(strategy)
    assert [asked[0] for asked in world.asked] == [6, 6, 6, 5]
    for query in range(6):
        assert all_rows(world.run(strategy, only=slice(query, query + 1))[0]) == all_rows(together[query])


def test_estimates_of_mse_are_on_the_scale_of_scores_and_those_of_ce_as_they_are():
    world = World.low_rank()
    world.normalization = NOISY
    for loss, scale in (("mse", NOISY), ("ce", Normalization())):
        for query, one in enumerate(world.run(Tour(budget=20, rounds=2, loss=loss))):
            dots = world.vectors[one.rows[0]] @ world.query_vectors[query]
            np.testing.assert_allclose(one.estimates[0], scale.restore(dots), rtol=1e-4, atol=1e-4)


def test_ties_go_to_the_lower_row():
    world = World.low_rank(items=30)
    world.vectors[:] = 1.0
    assert all_rows(world.run(Tour(budget=20, rounds=4))[0]) == list(range(20))


def test_the_encoders_vectors_are_left_alone():
    world = World.low_rank()
    before = world.query_vectors.copy()
    world.run(Tour(budget=20, rounds=4))
    assert np.array_equal(world.query_vectors, before)


@given(st.data())
def test_no_setting_breaks_the_budget_the_filter_or_asks_twice(data):
    """And none leaves a call unused while an allowed item is left."""
    items = data.draw(st.integers(1, 60), "items")
    budget = data.draw(st.integers(1, 80), "budget")
    rounds = data.draw(st.integers(1, budget), "rounds")
    loss = data.draw(st.sampled_from(["ce", "mse"]), "loss")
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=items, max_size=items), "allowed"))
    world = World.low_rank(queries=3, items=items, dim=4)
    world.vectors[: items // 2] = world.vectors[0]  # duplicates
    world.normalization = data.draw(st.sampled_from([None, Normalization()]), "normalization")
    for one in world.run(Tour(budget, rounds, loss), allowed=allowed):
        rows = np.concatenate([np.empty(0, np.int64), *one.rows])
        assert len(rows) == len(set(rows.tolist())) == min(budget, allowed.sum())
        assert allowed[rows].all()


def test_query_vectors_are_needed():
    world = World.low_rank()
    with pytest.raises(InputError, match="Tour needs query vectors"):
        world.run(Tour(), context=replace(world.context(), query_vectors=None))


def test_diverging_steps_are_an_error():
    world = World.low_rank()
    with pytest.raises(InputError, match=r"diverged. Lower `learning_rate` \(1e\+30\)"):
        world.run(Tour(budget=60, rounds=6, loss="mse", learning_rate=1e30))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 5, "rounds": 6}, "`rounds` must be between 1 and `budget` (5), got 6"),
        ({"budget": 0}, "`budget` must be a positive integer, got 0"),
        ({"loss": "kl"}, "`loss` must be one of 'ce', 'mse', got 'kl'"),
        ({"learning_rate": 0}, "`learning_rate` must be a positive number, got 0"),
        ({"learning_rate": float("nan")}, "`learning_rate` must be a positive number, got nan"),
    ],
)
def test_invalid_settings_are_rejected(settings, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Tour(**settings)


def test_the_repr_is_a_short_name():
    assert repr(Tour(budget=50, loss="mse")) == "Tour(budget=50, loss='mse')"


def test_two_rounds_with_many_steps_are_refit():
    """One list is reranked, torch descends the KL divergence, and the query retrieves again."""
    world = World.low_rank(seed=2)
    for query, one in enumerate(world.run(Tour(40, 2, learning_rate=0.005, steps=100))):
        order = np.argsort(-(world.vectors @ world.query_vectors[query]), kind="stable")
        assert one.rows[0].tolist() == order[:20].tolist()
        vector = torch.tensor(world.query_vectors[query], dtype=torch.float64, requires_grad=True)
        vectors = torch.tensor(world.vectors[order[:20]], dtype=torch.float64)
        scores = torch.tensor(world.scores[query, order[:20]], dtype=torch.float64)
        optimizer = torch.optim.SGD([vector], lr=0.005)
        for _ in range(100):
            optimizer.zero_grad()
            loss_of("ce", vectors @ vector, scores).backward()
            optimizer.step()
        refined = world.vectors @ vector.detach().numpy()
        refined[order[:20]] = -np.inf
        assert one.rows[1].tolist() == np.argsort(-refined, kind="stable")[:20].tolist()
