"""Predictive standard deviations, expected recall and early stopping of posterior search."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from crossknn.errors import InputError
from crossknn.strategies.base import RoundScores, drive
from crossknn.strategies.posterior import diagnostics as module
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.types import EMPTY_PROPOSAL
from tests.strategies.posterior.test_strategy import features_of, make_prior
from tests.worlds import World, all_rows


def make_world(queries: int = 4, items: int = 300, dim: int = 16, seed: int = 3, factors: float = 0.0) -> World:
    """Scores drawn from the prior itself, so that the model is true."""
    world = World.low_rank(queries=queries, items=items, dim=dim, seed=seed)
    world.vectors /= np.linalg.norm(world.vectors, axis=1, keepdims=True)
    world.prior = make_prior(items, variances=np.array([2.0, 0.2, 0.1, 0.1, 0.4]), noise=0.3)
    world.prior = replace(world.prior, latent_factors=np.float32(factors) * world.prior.latent_factors)
    rng = np.random.default_rng(seed)
    for query in range(queries):
        mean, gamma, phi = features_of(world, query)
        noise = 0.3**0.5 * rng.normal(size=items)
        world.scores[query] = mean + gamma * (phi @ rng.normal(size=phi.shape[1]) + noise)
    return world


def search(world: World, strategy: Posterior, k: int | None, *, only: slice = slice(None)):
    return world.run(strategy, only=only, context=replace(world.context(only=only), k=k))


def measure(world: World, found, k: int) -> np.ndarray:
    truth = np.argsort(-world.scores, axis=1, kind="stable")[:, :k]
    return np.array([np.isin(best, all_rows(one)).mean() for best, one in zip(truth, found, strict=True)])


def test_deviations_equal_a_plain_reading_of_the_formula():
    world = make_world(factors=1.0)
    for query, found in enumerate(world.run(Posterior(40, 4))):
        _, gamma, phi = features_of(world, query)
        known = phi[[]]
        for rows, deviations in zip(found.rows, found.deviations, strict=True):
            inverse = np.linalg.inv(known @ known.T + 0.3 * np.eye(len(known)))
            across = phi[rows] @ known.T
            left = (phi[rows] ** 2).sum(1) - np.einsum("ij,jk,ik->i", across, inverse, across) + 0.3
            np.testing.assert_allclose(deviations, gamma[rows] * np.sqrt(left), rtol=1e-4)
            known = np.concatenate([known, phi[rows]])


def test_scores_are_as_far_from_their_estimates_as_the_deviations_say():
    found = make_world(queries=40).run(Posterior(60, 6))
    parts = [(f.scores[n] - f.estimates[n]) / f.deviations[n] for f in found for n in range(6)]
    assert 0.9 < np.sqrt(np.mean(np.concatenate(parts) ** 2)) < 1.1


def test_deviations_without_a_prior_are_on_the_scale_of_scores():
    world = make_world()
    world.prior = None
    plain = world.run(Posterior(40, 4))
    world.scores = 1000 * world.scores - 70_000
    for before, after in zip(plain, world.run(Posterior(40, 4)), strict=True):
        assert np.isnan(before.deviations[0]).all()  # of a retriever
        for mine, its in zip(before.deviations[1:], after.deviations[1:], strict=True):
            np.testing.assert_allclose(its, 1000 * mine, rtol=1e-3)


@pytest.mark.parametrize("k", [1, 5, 20])
@pytest.mark.parametrize("budget", [20, 60])
def test_expected_recall_is_not_too_high_and_little_too_low_where_the_prior_is_right(k, budget):
    """Too low, since real scores have more outliers than this world's."""
    world = make_world(queries=120)
    found = search(world, Posterior(budget, 5), k)
    expected, measured = np.array([one.expected_recall for one in found]), measure(world, found, k)
    assert -0.13 < expected.mean() - measured.mean() < 0.03
    sure = expected > np.median(expected)
    assert measured.min() == 1 or k == 1 or measured[sure].mean() > measured[~sure].mean()


def expected_recall(best, k, means, deviations, stride=1) -> float:
    """Of one query, in a batch with one that has fewer scores and fewer unscored rows."""
    best, means, deviations = (torch.from_numpy(np.stack([line, line])) for line in (best, means, deviations))
    best[1, 1:] = -torch.inf
    means[1, 1:] = -torch.inf
    found = module.expected_recall(module.count_above(best, means, deviations, stride=stride), best, k)
    above = module.count_above(best[1:, :1], means[1:, :1], deviations[1:, :1], stride=stride)
    alone = module.expected_recall(above, best[1:, :1], k)
    assert found[1].item() == pytest.approx(alone.item())
    return float(found[0])


def error_scale(rounds) -> float:
    """Of one query, in a batch with one without errors."""
    known = torch.tensor([[True], [False]])
    errors = torch.from_numpy(np.concatenate([np.empty(0), *rounds])).expand(2, -1)
    one, other = module.error_scale(errors, known.expand(errors.shape), [len(one) for one in rounds])[:, 0]
    assert other == 1
    return float(one)


def test_expected_recall_is_what_drawing_the_others_gives():
    rng = np.random.default_rng(0)
    best, means, deviations = np.array([3.0, 2.0, 1.5, 1.0, 0.5], np.float32), rng.normal(-2, 1, 400), np.full(400, 0.8)
    drawn = means + deviations * rng.logistic(scale=np.sqrt(3) / np.pi, size=(4000, 400))
    above = (drawn[:, :, None] > best).sum(1)
    recall = (above <= 4 - np.arange(5)).mean(0).sum() / 5
    assert expected_recall(best, 5, means, deviations) == pytest.approx(recall, abs=0.01)
    assert expected_recall(best, 5, means[::2], deviations[::2], stride=2) == pytest.approx(recall, abs=0.05)


@pytest.mark.parametrize(
    ("best", "k", "means", "recall"),
    [
        ([2.0, 1.0], 2, [], 1.0),  # nothing else is there
        ([2.0, 1.0], 4, [], 0.5),
        ([2.0, 1.0], 2, [-1e9] * 50, 1.0),
        ([2.0, 1.0], 2, [1e9] * 50, 0.0),
        ([2.0], 1, [2.0], np.exp(-0.5)),
    ],
)
def test_expected_recall_of_cases_that_can_be_told(best, k, means, recall):
    found = expected_recall(np.array(best, np.float32), k, np.array(means), np.ones(len(means)))
    assert found == pytest.approx(recall, abs=1e-9)


def test_expected_recall_of_many_is_interpolated_between_levels():
    rng = np.random.default_rng(1)
    best, means = np.sort(rng.normal(2, 1, 300))[::-1].astype(np.float32), rng.normal(0, 1, 1000)
    above = (1 / (1 + np.exp(np.pi / 3**0.5 * (best[:, None] - means)))).sum(1)
    normal = np.array([(rng.poisson(count, 2000) <= 299 - place).mean() for place, count in enumerate(above)])
    assert expected_recall(best, 300, means, np.ones(1000)) == pytest.approx(normal.mean(), abs=0.01)


def test_larger_errors_make_it_less_sure_and_late_ones_count_more():
    small, large = np.full(10, 0.5), np.full(10, 3.0)
    assert error_scale([]) == 1
    assert error_scale([small]) < 1 < error_scale([large])
    assert error_scale([small, large]) > error_scale([large, small])


def test_expected_recall_is_none_without_k_or_without_a_model():
    world = make_world()
    assert all(found.expected_recall is None for found in search(world, Posterior(20, 2), None))
    assert all(found.expected_recall is None for found in search(world, Rerank(20, "dense"), 5))


def test_a_batch_expects_and_stops_as_each_query_alone():
    world = make_world()
    for strategy in (Posterior(40, 4), Posterior(60, 6, stop_at=0.8)):
        for query, found in enumerate(search(world, strategy, 5)):
            (alone,) = search(world, strategy, 5, only=slice(query, query + 1))
            assert all_rows(alone) == all_rows(found)
            assert alone.expected_recall == pytest.approx(found.expected_recall, abs=1e-4)


def test_a_search_ends_where_enough_is_expected_and_the_others_go_on():
    world = make_world(queries=30)
    whole, calls = world.run(Posterior(100, 10)), set()
    for long, short in zip(whole, search(world, Posterior(100, 10, stop_at=0.9), 5), strict=True):
        assert all_rows(short) == all_rows(long)[: short.calls]
        assert short.calls == 100 or short.expected_recall >= 0.9
        assert short.stopped is None
        calls.add(short.calls)
    assert min(calls) < 100
    assert len(calls) > 2


def test_it_ends_no_later_with_less_to_find():
    world = make_world(queries=20)
    low, high = (search(world, Posterior(100, 10, stop_at=at), 5) for at in (0.7, 0.95))
    assert all(mine.calls <= its.calls for mine, its in zip(low, high, strict=True))
    assert sum(found.calls for found in low) < sum(found.calls for found in high)


@pytest.mark.parametrize("stop_at", [0, -0.5, 1.01, float("nan"), True, "0.9"])
def test_an_invalid_stop_at_is_rejected(stop_at):
    with pytest.raises(InputError, match="`stop_at` must be greater than 0 and at most 1"):
        Posterior(100, 10, stop_at=stop_at)


def test_stop_at_needs_k():
    with pytest.raises(InputError, match="search with `k`"):
        make_world().run(Posterior(20, 2, stop_at=0.9))


def test_a_deadline_leaves_what_was_known_last_and_a_query_that_was_done():
    world = make_world(queries=30)
    strategy, context, asks = Posterior(100, 10, stop_at=0.9), replace(world.context(), k=5), []

    def answer(rows):
        asks.append(rows)
        if len(asks) == 4:
            return RoundScores([np.empty(0, np.float32)] * 30, "deadline")
        return RoundScores([line[mine].astype(np.float32) for line, mine in zip(world.scores, rows, strict=True)])

    found = drive(strategy, context, answer)
    for one, rows in zip(found, asks[-1], strict=True):
        assert one.stopped == ("deadline" if len(rows) else None)
        assert (one.expected_recall < 0.9) == bool(len(rows))
    assert {one.stopped for one in found} == {None, "deadline"}


@pytest.mark.parametrize("prior", [True, False])
def test_all_is_found_where_all_is_scored(prior):
    world = make_world(items=40)
    world.prior = world.prior if prior else None
    for k in (1, 10, 100):
        for found in search(world, Posterior(60, 6), k):
            assert found.calls == 40
            assert found.expected_recall == pytest.approx(1)


@pytest.mark.parametrize("prior", [True, False])
@pytest.mark.parametrize("scores", ["constant", "huge", "tiny"])
@pytest.mark.parametrize("vectors", ["different", "the same"])
def test_odd_scores_and_items_that_are_all_the_same(prior, scores, vectors):
    world = make_world()
    world.prior = world.prior if prior else None
    if vectors == "the same":
        world.vectors[:] = world.vectors[0]
    odd = {"constant": 0 * world.scores + 3, "huge": 1e30 * world.scores, "tiny": 1e-30 * world.scores}
    world.scores = odd[scores].astype(np.float32)
    with np.errstate(all="raise", under="ignore"):
        found = search(world, Posterior(100, 10, stop_at=0.999), 10)
    for one in found:
        assert 0 <= one.expected_recall <= 1
        assert np.isfinite(np.concatenate(one.deviations[1:])).all()


def test_one_item():
    world = make_world(items=2)
    world.vectors, world.scores, world.prior = world.vectors[:1], world.scores[:, :1], None
    for found in search(world, Posterior(10, 2, stop_at=0.5), 3):
        assert (found.calls, found.expected_recall) == (1, pytest.approx(1))


def test_a_query_that_finds_nothing_expects_nothing_and_leaves_the_others_alone():
    world = make_world(queries=3)
    world.prior = None
    context = replace(world.context(), k=5)

    def propose(name, n):
        found, (_, *others) = context.propose(name, n)
        return found, [EMPTY_PROPOSAL, *others]

    silent, *others = world.run(Posterior(20, 4), context=replace(context, propose=propose))
    assert (silent.calls, silent.expected_recall) == (0, 0)
    for one, same in zip(others, world.run(Posterior(20, 4), context=context)[1:], strict=True):
        assert all_rows(one) == all_rows(same)
        assert one.expected_recall == pytest.approx(same.expected_recall)
