"""Posterior search against plain numpy formulas, its equalities with other strategies, and degenerate data."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from crossknn.errors import InputError
from crossknn.strategies.exact import Exact
from crossknn.strategies.posterior import session
from crossknn.strategies.posterior import strategy as posterior
from crossknn.strategies.posterior.features import RetrieverFeatures
from crossknn.strategies.posterior.prior import Prior, signal_features
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.types import EMPTY_PROPOSAL, Proposal
from crossknn.vectors.base import AugmentedSearch
from crossknn.vectors.device import DeviceSearch, HostTensorAdapter
from crossknn.vectors.ranking import ranks_in, reciprocal_rank_fusion
from tests.worlds import World, all_rows

CPU = torch.device("cpu")


def make_prior(items: int, **changes) -> Prior:
    """One signal, the dual encoder, with every part of the model in use."""
    values = {
        "signals": ("dense",),
        "center": np.array([0.5, -4.0]),
        "spread": np.array([2.0, 1.5]),
        "weights": np.array([1.0, 0.7]),
        "intercept": 0.3,
        "bias": np.random.default_rng(5).normal(size=items).astype(np.float32),
        "latent_factors": 0.5 * np.random.default_rng(6).normal(size=(items, 3)).astype(np.float32),
        "bias_weights": np.zeros(17),
        "variances": np.array([0.5, 0.2, 0.1, 0.3, 0.4]),
        "noise": 0.2,
        "gamma_start": 0.0,
        "gamma_slope": 0.5,
        "gamma_max": 3.0,
    }
    return Prior(**{**values, **changes})


def make_world(items: int = 300, **changes) -> World:
    world = World.low_rank(queries=4, items=items, dim=16, seed=3)
    world.prior = make_prior(items, **changes)
    return world


def features_of(world: World, query: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """m, γ and φ of the world's prior for every item, in plain numpy."""
    prior = world.prior
    dense = world.vectors @ world.query_vectors[query]
    order, ranks = np.argsort(-dense, kind="stable"), np.empty(len(dense))
    ranks[order] = np.minimum(np.arange(len(dense)), posterior.RETRIEVER_DEPTH)
    dense[order[posterior.RETRIEVER_DEPTH :]] = dense[order[: posterior.RETRIEVER_DEPTH]].min()
    columns = (np.column_stack([np.arcsinh(dense), -np.log(ranks + 10)]) - prior.center) / prior.spread
    signal_mean = columns @ prior.weights + prior.intercept
    gamma = np.clip(1 + prior.gamma_slope * (signal_mean - prior.gamma_start), 1, prior.gamma_max)
    parts = np.column_stack([columns, prior.bias / prior.bias.std(), np.ones(len(dense))])
    phi = np.concatenate(
        [world.vectors * prior.variances[0] ** 0.5, parts * prior.variances[1:] ** 0.5, prior.latent_factors], axis=1
    )
    return signal_mean + prior.bias, gamma, phi


def expected_scores(world: World, query: int, rows: list[int]) -> np.ndarray:
    """The formula `m + γ φ Φᵀ (Φ Φᵀ + noise)⁻¹ r`, in plain numpy."""
    mean, gamma, phi = features_of(world, query)
    known = phi[rows]
    residuals = (world.scores[query, rows] - mean[rows]) / gamma[rows]
    weights = known.T @ np.linalg.solve(known @ known.T + world.prior.noise * np.eye(len(rows)), residuals)
    return mean + gamma * (phi @ weights)


@pytest.mark.parametrize("search", ["exact", "plain"])
@pytest.mark.parametrize("depth", [1000, 25, 3])
@pytest.mark.parametrize(("budget", "rounds"), [(30, 3), (60, 6), (8, 4)])
def test_equals_a_plain_reading_of_the_formula(budget, rounds, depth, search, monkeypatch):
    """Also where retrievers propose few rows, and with a search that has no `search_with_candidates`."""
    monkeypatch.setattr(posterior, "RETRIEVER_DEPTH", depth)
    world, share = make_world(), budget // rounds
    context = world.context()
    if search == "plain":
        wide = AugmentedSearch(context.item_vectors(), *world.prior.item_columns)
        context = replace(context, augmented_vectors=lambda: wide)
    for query, found in enumerate(world.run(Posterior(budget, rounds), context=context)):
        hedge = np.argsort(-world.vectors @ world.query_vectors[query], kind="stable")[: min(10, depth)].tolist()
        scored: list[int] = []
        for number in range(rounds):
            order = np.argsort(-expected_scores(world, query, scored), kind="stable").tolist()
            count = (number + 1) * share // 10 - number * share // 10 if number else 0
            front = [row for row in hedge if row not in scored][:count]
            scored += front + [row for row in order if row not in scored + front][: share - len(front)]
        assert all_rows(found) == scored


def test_one_of_what_the_retriever_finds_best_is_scored_in_every_round_after_the_first():
    world = make_world(weights=np.array([-1.0, -0.7]))
    world.scores = -world.query_vectors @ world.vectors.T  # so that the model never would
    for vector, found in zip(world.query_vectors, world.run(Posterior(50, 5)), strict=True):
        best = np.argsort(-world.vectors @ vector, kind="stable").tolist()
        assert [rows[0] for rows in found.rows[1:]] == best[:4]
        assert len(set(best[:50]) & set(all_rows(found))) == 4


@pytest.mark.parametrize(("budget", "hedges"), [(10, 1), (25, 2), (50, 5)])
def test_a_tenth_of_few_calls_is_hedged(budget, hedges):
    world = make_world(weights=np.array([-1.0, -0.7]))
    world.scores = -world.query_vectors @ world.vectors.T
    for vector, found in zip(world.query_vectors, world.run(Posterior(budget, 10)), strict=True):
        best = np.argsort(-world.vectors @ vector, kind="stable").tolist()
        assert len(set(best[:50]) & set(all_rows(found))) == hedges


def test_estimates_are_the_posterior_mean_of_every_item():
    world = make_world()
    for query, found in enumerate(world.run(Posterior(20, 4, estimates=True))):
        expected = expected_scores(world, query, all_rows(found))
        np.testing.assert_allclose(found.all_estimates, expected, atol=2e-4)


def test_one_round_reranks_the_priors_own_order():
    world = make_world()
    for query, found in enumerate(world.run(Posterior(25, 1))):
        assert all_rows(found) == np.argsort(-expected_scores(world, query, []), kind="stable")[:25].tolist()


def test_without_noise_the_scores_that_were_seen_are_explained():
    """As AXN interpolates, but with the prior wherever nothing was scored."""
    world = make_world(noise=1e-9)
    for line, found in zip(world.scores, world.run(Posterior(12, 3, estimates=True)), strict=True):
        rows = all_rows(found)
        np.testing.assert_allclose(found.all_estimates[rows], line[rows], atol=1e-2)


def test_a_budget_for_everything_is_exact_search():
    world = make_world(items=40)
    for exact, found in zip(world.run(Exact()), world.run(Posterior(60, 5)), strict=True):
        assert sorted(all_rows(found)) == sorted(all_rows(exact))


def test_a_batch_searches_as_each_query_alone():
    world = make_world()
    together = world.run(Posterior(40, 4))
    for query, found in enumerate(together):
        (alone,) = world.run(Posterior(40, 4), only=slice(query, query + 1))
        assert all_rows(alone) == all_rows(found)


def test_a_filter_holds_in_every_round():
    world = make_world()
    allowed = np.zeros(300, bool)
    allowed[::7] = True
    for found in world.run(Posterior(20, 4), allowed=allowed):
        assert len(all_rows(found)) == 20
        assert allowed[all_rows(found)].all()


def test_finds_more_than_the_prior_alone_where_the_dual_encoder_is_off():
    world = World.low_rank(queries=20, items=2000, dim=16, noise=1.0)
    flat = {"center": np.array([0.0, 0.0]), "weights": np.array([2.0, 0.0]), "bias": np.zeros(2000, np.float32)}
    world.prior = make_prior(
        2000, variances=np.array([1.0, 0.1, 0.1, 0.1, 0.1]), gamma_slope=0.0, gamma_max=1.0, **flat
    )
    truth = np.argsort(-world.scores, axis=1)[:, :50]

    def recall(rounds):
        found = world.run(Posterior(100, rounds))
        return np.mean([np.isin(t, all_rows(f)).mean() for t, f in zip(truth, found, strict=True)])

    assert recall(10) > recall(1) + 0.2


@pytest.mark.parametrize("scores", ["constant", "huge", "tiny"])
def test_odd_scores_and_items_that_are_all_the_same(scores):
    world = make_world()
    world.vectors[:] = world.vectors[0]
    world.prior = replace(world.prior, noise=1e-4)
    world.scores = {
        "constant": np.full_like(world.scores, 3.0),
        "huge": 1e6 * world.scores,
        "tiny": 1e-6 * world.scores,
    }[scores]
    for found in world.run(Posterior(100, 10, estimates=True)):
        assert len(set(all_rows(found))) == 100
        assert np.isfinite(found.all_estimates).all()


def search_without_prior(world: World, query: int, budget: int, rounds: int) -> list[int]:
    """Posterior search without a fitted prior for one query, in plain numpy."""
    dense = world.vectors @ world.query_vectors[query]
    order = np.argsort(-dense, kind="stable")
    ranks = np.empty(len(dense))
    ranks[order] = np.arange(len(dense))
    columns = np.column_stack([np.arcsinh(dense), -np.log(ranks + 10)])
    columns = (columns - columns[order[:1000]].mean(0)) / columns[order[:1000]].std(0)
    mean = columns.mean(1)
    phi = np.concatenate([0.3**0.5 * world.vectors, 0.1**0.5 * columns, np.ones((len(dense), 1))], axis=1)
    scored = order[: budget // rounds].tolist()
    for _ in range(2, rounds + 1):
        known, scores = phi[scored], world.scores[query, scored]
        residuals = (scores - scores.mean()) / scores.std() - (mean[scored] - mean[scored].mean())
        expected = mean + phi @ (known.T @ np.linalg.solve(known @ known.T + 0.2 * np.eye(len(scored)), residuals))
        best = np.argsort(-expected, kind="stable").tolist()
        scored += [row for row in best if row not in set(scored)][: budget // rounds]
    return scored


@pytest.mark.parametrize(("budget", "rounds"), [(30, 3), (60, 6)])
def test_without_a_prior_it_equals_a_plain_reading_on_standardized_scores(budget, rounds):
    world = World.low_rank(queries=4, items=300, dim=16, seed=3, noise=2.0)  # the model fits better than the retriever
    for query, found in enumerate(world.run(Posterior(budget, rounds))):
        assert all_rows(found) == search_without_prior(world, query, budget, rounds)
        assert found.proposed_by == ["dense", *["posterior"] * (rounds - 1)]


def test_without_a_prior_scores_may_have_any_scale():
    world = make_world()
    world.prior = None
    plain = world.run(Posterior(40, 4, estimates=True))
    world.scores = 1000 * world.scores - 70_000
    for before, after in zip(plain, world.run(Posterior(40, 4, estimates=True)), strict=True):
        assert all_rows(before) == all_rows(after)
        np.testing.assert_allclose(after.all_estimates, 1000 * before.all_estimates - 70_000, rtol=1e-3)


def test_without_a_prior_it_finds_more_than_the_dual_encoder_that_is_off():
    world = World.low_rank(queries=20, items=2000, dim=16, noise=1.0)
    truth = np.argsort(-world.scores, axis=1)[:, :50]

    def recall(strategy):
        return np.mean([np.isin(t, all_rows(f)).mean() for t, f in zip(truth, world.run(strategy), strict=True)])

    assert recall(Posterior(100, 10)) > recall(Rerank(100, "dense")) + 0.2


def test_without_a_prior_one_round_is_rerank():
    world = make_world()
    world.prior = None
    for mine, its in zip(world.run(Posterior(25, 1)), world.run(Rerank(25, "dense")), strict=True):
        assert all_rows(mine) == all_rows(its)


def test_without_a_prior_a_first_round_that_proposes_nothing_finds_nothing():
    world = make_world()
    world.prior = None
    context = world.context()
    silent = replace(
        context, propose=lambda name, n: context.propose(name, n) if name else ("none", [EMPTY_PROPOSAL] * 4)
    )
    for found in world.run(Posterior(20, 4), context=silent):
        assert found.calls == 0


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_without_a_prior_scores_may_all_be_the_same(value):
    world = make_world()
    world.prior = None
    world.scores = np.full_like(world.scores, value)
    for found in world.run(Posterior(100, 10, estimates=True)):
        assert len(set(all_rows(found))) == 100
        assert np.isfinite(found.all_estimates).all()


@pytest.mark.parametrize(("budget", "rounds"), [(0, 1), (5, 6), (5, 0)])
def test_invalid_settings_are_rejected(budget, rounds):
    with pytest.raises(InputError):
        Posterior(budget, rounds)


def merge(world: World, depth: int, prior: Prior | None = None) -> tuple[list[list[Proposal]], RetrieverFeatures]:
    """Features of two retrievers, of which the second has half as many rows, and none for the last query."""
    dense, other = (world.context().propose(name, depth)[1] for name in ("dense", "random"))
    lists = [dense, [*(one.first(depth // 2) for one in other[:-1]), EMPTY_PROPOSAL]]
    prior = prior or Prior.weakly_informative(["dense", "random"])
    return lists, RetrieverFeatures(lists, prior, items=300, device=CPU, near=dense)


def test_batched_retriever_features_equal_those_of_each_query():
    lists, retrieved = merge(make_world(), 30)
    for query, proposals in enumerate(zip(*lists, strict=True)):
        rows = np.unique(np.concatenate([one.rows for one in proposals]))
        assert retrieved.rows[query][~retrieved.padding[query]].tolist() == rows.tolist()
        everything = torch.arange(300).expand(4, 300)
        expected = signal_features(proposals, [ranks_in(one, np.arange(300)) for one in proposals])
        raw = retrieved.raw[query, retrieved.positions(everything)[query]]
        np.testing.assert_allclose(raw, expected, atol=1e-6)
        fused = reciprocal_rank_fusion([one.first(20) for one in proposals], constant=60).rows[:7]
        assert retrieved.reciprocal_rank_fusion(7, depth=20, constant=60)[query] == fused.tolist()


def test_a_weakly_informative_prior_standardizes_features_by_the_first_rows():
    lists, retrieved = merge(make_world(), 30)
    positions = retrieved.positions(torch.tensor(np.stack([one.rows for one in lists[0]])))
    near = retrieved.raw[torch.arange(4)[:, None], positions]
    spread = near.double().std(1, correction=0, keepdim=True)
    expected = (retrieved.raw - near.mean(1, keepdim=True)) / torch.where(spread < 1e-6, 1, spread)
    np.testing.assert_allclose(retrieved.terms.mean, expected.mean(2), atol=1e-5)
    np.testing.assert_allclose(retrieved.terms.features[:, :, :-1], 0.1**0.5 * expected, atol=1e-5)


def test_rows_that_were_not_proposed_have_the_last_estimate():
    (dense, _), retrieved = merge(make_world(), 30)
    for query, proposal in enumerate(dense):
        rows = torch.tensor([[proposal.rows[-1], np.setdiff1d(np.arange(300), retrieved.rows[query])[0]]] * 4)
        last, other = retrieved.raw[query, retrieved.positions(rows)[query]]
        assert other[0] == last[0]
        assert other[1] < retrieved.raw[query, :-1, 1].min() or retrieved.rows.shape[1] > 30


@pytest.mark.parametrize("fitted", [True, False])
def test_the_last_expected_recall_needs_no_scan_of_all_items(fitted, monkeypatch):
    """On a CPU the best rows of the last scan are scored again: with all rows of a small world it is the same."""
    world = make_world()
    world.prior = world.prior if fitted else None
    context = replace(world.context(), k=10)
    scanned = [result.expected_recall for result in world.run(Posterior(40, 4), context=context)]
    monkeypatch.setattr(session, "MIN_ITEMS_PER_RESCORED", 0)
    again = [result.expected_recall for result in world.run(Posterior(40, 4), context=context)]
    assert all(0 < value < 1 for value in scanned)
    np.testing.assert_allclose(again, scanned, rtol=1e-6)


@pytest.mark.parametrize("queries", [1, 2])
def test_few_queries_may_have_their_tensors_on_the_host(queries):
    """What a search on a GPU does for few queries, here around a search on a CPU."""
    world = make_world()
    context = world.context(only=slice(queries))
    augmented = HostTensorAdapter(context.augmented_vectors())
    assert isinstance(augmented, DeviceSearch)
    assert augmented.device == CPU
    found = world.run(
        Posterior(40, 4), context=replace(context, augmented_vectors=lambda: augmented), only=slice(queries)
    )
    expected = world.run(Posterior(40, 4), context=context, only=slice(queries))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.concatenate(one.rows), np.concatenate(other.rows))
