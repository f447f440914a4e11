"""Gaussian-process search against scikit-learn, a plain reading of its rounds, and degenerate data."""

import re
from dataclasses import replace

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.strategies.exact import Exact
from crossknn.strategies.gaussian_process import GaussianProcess
from crossknn.strategies.gp import Gp, prior_mean
from crossknn.strategies.posterior.prior import NOISE_VARIANCE, Prior
from crossknn.strategies.posterior.strategy import Posterior
from tests.strategies.posterior.test_strategy import make_prior
from tests.worlds import World, all_rows, best

gaussian_process = pytest.importorskip("sklearn.gaussian_process")
kernels = pytest.importorskip("sklearn.gaussian_process.kernels")


def unit_vectors(count=60, dim=5, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(count, dim))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def theirs(rbf, linear, length_scale):
    """Scikit-learn's kernel; RBF of unit vectors is exp((cos − 1) / length_scale²)."""
    kernel = kernels.ConstantKernel(rbf) * kernels.RBF(length_scale)
    return kernel + kernels.ConstantKernel(linear) * kernels.DotProduct(sigma_0=1e-6) if linear else kernel


@pytest.mark.parametrize(("rbf", "linear", "length_scale"), [(1.0, 0.0, 1.0), (0.7, 0.0, 0.4), (0.5, 1.5, 0.8)])
def test_mean_and_deviation_equal_scikit_learn(rbf, linear, length_scale):
    vectors, scores = unit_vectors(), np.random.default_rng(1).normal(size=60)
    known = np.random.default_rng(2).permutation(60)[:25]
    regressor = gaussian_process.GaussianProcessRegressor(
        theirs(rbf, linear, length_scale), alpha=0.2, optimizer=None
    ).fit(vectors[known], scores[known])
    mean, deviation = regressor.predict(vectors, return_std=True)
    process = GaussianProcess(3 * vectors, rbf, linear, length_scale=length_scale, noise=0.2)  # of any length
    for batch in np.split(known, [1, 8, 20]):
        process.observe(batch, np.column_stack([np.ones(len(batch)), scores[batch]]))
    np.testing.assert_allclose(process.mean(np.array([0.0, 1.0])), mean, atol=1e-4)
    np.testing.assert_allclose(process.deviation(), deviation, atol=1e-4)


def test_posterior_search_with_vectors_alone_is_scikit_learns_linear_kernel():
    world = World.low_rank(queries=3, items=80, dim=6, seed=3)
    vector, constant, noise = 0.5, 0.4, 0.2
    world.prior = make_prior(
        80,
        bias=np.zeros(80, np.float32),
        latent_factors=np.zeros((80, 0), np.float32),
        variances=np.array([vector, 0.0, 0.0, 0.0, constant]),
        noise=noise,
        gamma_slope=0.0,
    )
    found = world.run(Posterior(30, rounds=3, estimates=True))
    kernel = kernels.ConstantKernel(vector) * kernels.DotProduct(sigma_0=(constant / vector) ** 0.5)
    lists = world.context().propose("dense", 80)[1]
    for query, (one, proposal) in enumerate(zip(found, lists, strict=True)):
        _, mean, _ = prior_mean(world.prior, [proposal], np.arange(len(world.vectors)))
        rows = all_rows(one)
        regressor = gaussian_process.GaussianProcessRegressor(kernel, alpha=noise, optimizer=None)
        regressor.fit(world.vectors[rows], world.scores[query, rows] - mean[rows])
        np.testing.assert_allclose(one.all_estimates, mean + regressor.predict(world.vectors), rtol=1e-3, atol=1e-3)


def context_of(world, **changes):
    return replace(world.context(**changes), signals=("dense", "random"))


def standardized_mean(context, query):
    lists = [context.propose(name, context.items)[1][query] for name in context.signals]
    return prior_mean(Prior.weakly_informative(context.signals), lists, np.arange(context.items)).mean


@pytest.mark.parametrize("kernel", ["rbf", "rbf+linear", "linear"])
@pytest.mark.parametrize(("mean", "beta"), [("signals", 0.0), ("signals", 1.5), ("query", 0.7)])
def test_equals_a_plain_reading(kernel, mean, beta):
    """Every round: scikit-learn's regression on all scores so far, and the rows of largest bound."""
    world = World.low_rank(queries=3, items=90, dim=6, seed=5)
    settings = Gp(36, 4, kernel=kernel, length_scale=0.8, variance=1.3, noise=0.3, beta=beta, mean=mean)
    context = context_of(world)
    found = world.run(settings, context=context)
    vectors = world.vectors / np.linalg.norm(world.vectors, axis=1, keepdims=True)
    rbf, linear = {"rbf": (1.3, 0), "linear": (0, 1.3), "rbf+linear": (0.65, 0.65)}[kernel]
    for query, one in enumerate(found):
        asked = world.query_vectors[query][None] / np.linalg.norm(world.query_vectors[query])
        prior = standardized_mean(context, query) if mean == "signals" else np.zeros(90)
        for number in range(4):
            rows, scores = (np.concatenate([[], *part[:number]]) for part in (one.rows, one.scores))
            rows = rows.astype(int)
            scale = scores.std() if number else 1.0
            offset = 0.0
            if number:
                offset = scores.mean() - scale * prior[rows].mean() if mean == "signals" else scores.min()
            inputs, targets = vectors[rows], (scores - offset) / scale - prior[rows]
            if mean == "query":
                inputs = np.concatenate([inputs, asked])
                targets = np.append(targets, max(1.0, np.ptp(scores) / scale) if number else 1.0)
            value = np.tile(offset + scale * prior, (1, 1))[0]
            if len(inputs):
                kernel_ = theirs(rbf, linear, 0.8) if rbf else kernels.ConstantKernel(linear) * kernels.DotProduct(1e-6)
                process = gaussian_process.GaussianProcessRegressor(kernel_, alpha=0.3, optimizer=None)
                center, deviation = process.fit(inputs, targets).predict(vectors, return_std=True)
                value = offset + scale * (prior + center + beta * deviation)
            else:
                value = value + beta * 1.3**0.5
            value[rows] = -np.inf
            chosen = one.rows[number]
            others = np.setdiff1d(np.arange(90), chosen)
            assert value[chosen].min() >= value[others].max() - 1e-3
            assert len(chosen) == 9


def test_a_prior_gives_the_mean_and_the_unit():
    """With γ and biases, a fitted prior's noise is the unit of variance, and scores are not standardized."""
    world = World.low_rank(queries=2, items=70, dim=5, seed=2)
    world.prior = make_prior(70, noise=2 * NOISE_VARIANCE)
    found = world.run(Gp(20, 2, kernel="rbf", length_scale=0.9))
    vectors = world.vectors / np.linalg.norm(world.vectors, axis=1, keepdims=True)
    lists = world.context().propose("dense", 70)[1]
    for query, (one, proposal) in enumerate(zip(found, lists, strict=True)):
        _, mean, gamma = prior_mean(world.prior, [proposal], np.arange(len(world.vectors)))
        assert one.rows[0].tolist() == np.lexsort((np.arange(70), -mean))[:10].tolist()
        rows = one.rows[0]
        process = gaussian_process.GaussianProcessRegressor(theirs(2.0, 0, 0.9), alpha=0.4, optimizer=None)
        process.fit(vectors[rows], (world.scores[query, rows] - mean[rows]) / gamma[rows])
        expected = mean + gamma * process.predict(vectors)
        np.testing.assert_allclose(one.estimates[1], expected[one.rows[1]], rtol=1e-3, atol=1e-3)


def test_a_smooth_function_is_found_that_no_line_fits():
    """Items are on a circle, and the score has two peaks: the linear kernel has one direction only."""
    angles = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    vectors = np.column_stack([np.cos(angles), np.sin(angles)]).astype(np.float32)
    scores = np.cos(2 * angles)[None].astype(np.float32)
    world = World(scores, vectors, np.array([[np.cos(0.9), np.sin(0.9)]], np.float32))
    context = replace(world.context(), signals=("dense",))
    shares = {}
    for kernel in ("rbf", "linear"):
        (one,) = world.run(Gp(40, 10, kernel=kernel, length_scale=0.5, mean="query"), context=context)
        shares[kernel] = np.isin(np.argsort(-scores[0], kind="stable")[:20], all_rows(one)).mean()
    assert shares["rbf"] > shares["linear"] + 0.2


@pytest.mark.parametrize("mean", ["signals", "query"])
def test_a_budget_of_all_items_is_exact(mean):
    world = World.low_rank(items=60)
    context = context_of(world)
    for one, other in zip(world.run(Gp(100, mean=mean), context=context), world.run(Exact()), strict=True):
        assert best(one, 60) == best(other, 60)
        assert one.calls == 60


@pytest.mark.parametrize("settings", [{}, {"mean": "query", "beta": 1.0}])
def test_a_batch_is_its_queries_one_by_one(settings):
    world = World.low_rank(queries=4)
    together = world.run(Gp(24, 4, **settings), context=context_of(world))
    for query in range(4):
        part = slice(query, query + 1)
        alone = world.run(Gp(24, 4, **settings), only=part, context=context_of(world, only=part))
        assert all_rows(alone[0]) == all_rows(together[query])


@pytest.mark.parametrize("mean", ["signals", "query"])
def test_equal_scores_and_equal_vectors_are_no_error(mean):
    world = World.low_rank(items=40)
    world.scores[:], world.vectors[:] = 3.0, 1.0
    for one in world.run(Gp(20, 4, mean=mean), context=context_of(world)):
        assert one.calls == 20
        assert np.isfinite(np.concatenate(one.estimates)).all()


def test_candidates_are_all_items_or_the_first_of_every_retriever():
    world = World.low_rank(queries=2, items=120)
    context = context_of(world)
    firsts = [context.propose(name, 30)[1] for name in context.signals]
    for settings, complete in (({"pool": 10}, False), ({}, True)):
        for query, one in enumerate(world.run(Gp(30, 3, **settings), context=context)):
            pool = np.concatenate([lists[query].rows for lists in firsts])
            assert np.isin(all_rows(one), pool).all() != complete


def test_a_filter_holds():
    world = World.low_rank(items=90)
    allowed = np.arange(90) % 3 == 0
    for one in world.run(Gp(50, 5), context=context_of(world, allowed=allowed)):
        assert sorted(all_rows(one)) == np.flatnonzero(allowed).tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel": "matern"}, "`kernel` must be one of 'rbf', 'linear', 'rbf+linear', got 'matern'"),
        ({"mean": "zero"}, "`mean` must be one of 'signals', 'query', got 'zero'"),
        ({"length_scale": 0.0}, "`length_scale` must be a positive number, got 0.0"),
        ({"noise": -1.0}, "`noise` must be a positive number"),
        ({"beta": -1.0}, "`beta` must be a nonnegative number, got -1.0"),
        ({"pool": 0}, "`pool` must be a positive integer, got 0"),
    ],
)
def test_invalid_settings_are_rejected(settings, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Gp(**settings)
