"""Model check of posterior search: a fallback to the retriever where the model does not fit, and only there."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from crossknn.strategies.exact import Exact
from crossknn.strategies.posterior import session
from crossknn.strategies.posterior.diagnostics import _correlate, _rank_products, order_deficit
from crossknn.strategies.posterior.features import RetrieverFeatures
from crossknn.strategies.posterior.model import BayesianLinearModel
from crossknn.strategies.posterior.prior import Prior
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.types import Proposal
from tests.worlds import World, all_rows


def make_world(kind: str, items: int = 2000, dim: int = 64) -> World:
    """Scores that item vectors explain no better than the dual encoder does, or completely."""
    rng = np.random.default_rng(0)
    world = World.low_rank(queries=20, items=items, dim=dim, seed=1)
    world.vectors /= np.linalg.norm(world.vectors, axis=1, keepdims=True)
    ranks = np.argsort(np.argsort(-world.query_vectors @ world.vectors.T))
    unexplained = -np.log(ranks + 10) + rng.normal(size=ranks.shape)
    hidden = 8 * rng.normal(size=(20, dim)) @ world.vectors.T
    world.scores = {
        "retriever": unexplained,
        "wide": np.exp(3 * unexplained) * 1e6,
        "linear": hidden,
        "flipped": -unexplained,
    }[kind].astype(np.float32)
    return world


def fallback_share(found) -> float:
    return float(np.mean([name == "dense" for one in found for name in one.proposed_by[1:]]))


def recall(world: World, found, k: int = 100) -> np.ndarray:
    truth = np.argsort(-world.scores, axis=1)[:, :k]
    return np.array([np.isin(best, all_rows(one)).mean() for best, one in zip(truth, found, strict=True)])


def as_batch(*values: np.ndarray) -> list[torch.Tensor]:
    """A batch of two queries, the second with the first half of the values only, and the mask."""
    count = len(values[0])
    valid = np.stack([np.ones(count, bool), np.arange(count) < count // 2])
    return [torch.from_numpy(array) for array in (*(np.stack([value, value]) for value in values), valid)]


def test_order_deficit_in_standard_errors():
    scores = np.arange(50, dtype=np.float32)
    noise = np.random.default_rng(0).normal(size=50).astype(np.float32)
    assert (order_deficit(*as_batch(noise, scores, scores)) > [10, 7]).all()
    assert (order_deficit(*as_batch(scores, noise, scores)) < [-10, -7]).all()
    assert order_deficit(*as_batch(noise, noise, scores)).tolist() == [0, 0]
    assert order_deficit(*as_batch(noise, scores, np.zeros(50, np.float32))).tolist() == [0, 0]
    assert order_deficit(*as_batch(noise[:18], scores[:18], scores[:18]))[1] == 0  # too few to tell


def rank_correlation(one: torch.Tensor, other: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """In a batch with a constant variable."""
    found, nothing = _correlate(_rank_products([one, torch.zeros_like(one), other], valid))
    assert not nothing.any()
    return found


def test_rank_correlation_ignores_padding():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 60)).astype(np.float32)
    both, half = rank_correlation(*as_batch(one, other))
    assert half == pytest.approx(float(rank_correlation(*as_batch(one[:30], other[:30]))[0]))
    assert half != pytest.approx(float(both))


@pytest.mark.parametrize("steps", [lambda x: x, np.exp, lambda x: x**3])
def test_rank_correlation_looks_at_the_order_only(steps):
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 30)).astype(np.float32)
    assert rank_correlation(*as_batch(one, steps(one))).tolist() == pytest.approx([1, 1])
    assert rank_correlation(*as_batch(one, -steps(one))).tolist() == pytest.approx([-1, -1])
    plain = rank_correlation(*as_batch(one, other))
    assert rank_correlation(*as_batch(one, steps(other))).tolist() == pytest.approx(plain.tolist())
    assert rank_correlation(*as_batch(one, np.ones(30, np.float32))).tolist() == [0, 0]


@pytest.mark.parametrize("kind", ["retriever", "wide"])
def test_falls_back_to_the_retriever_where_vectors_explain_nothing_more(kind, monkeypatch):
    world = make_world(kind)
    checked = world.run(Posterior(200, 10))
    monkeypatch.setattr(session, "MIN_LOG_LIKELIHOOD_RATIO", -np.inf)  # now every model fits
    monkeypatch.setattr(session, "MAX_ORDER_DEFICIT", np.inf)
    alone = world.run(Posterior(200, 10))
    assert fallback_share(checked) > 0.5
    assert fallback_share(alone) == 0
    rerank = recall(world, world.run(Rerank(200, "dense"))).mean()
    assert recall(world, checked).mean() > rerank - 0.01
    assert recall(world, alone).mean() < rerank - 0.025


def test_does_not_fall_back_where_vectors_explain_the_scores():
    world = make_world("linear")
    found = world.run(Posterior(200, 10))
    assert fallback_share(found) < 0.02
    assert recall(world, found).mean() > recall(world, world.run(Rerank(200, "dense"))).mean() + 0.3


def test_does_not_fall_back_to_a_retriever_that_is_wrong():
    world = make_world("flipped")
    found = world.run(Posterior(200, 10))
    assert fallback_share(found) < 0.1
    assert recall(world, found).mean() > recall(world, world.run(Rerank(200, "dense"))).mean()


def test_the_fallback_is_decided_for_each_query():
    world, other = make_world("retriever"), make_world("linear")
    world.scores[::2] = other.scores[::2]
    found = world.run(Posterior(200, 10))
    assert fallback_share(found[1::2]) > 0.5
    assert fallback_share(found[::2]) < 0.02
    for query, one in enumerate(found):
        (alone,) = world.run(Posterior(200, 10), only=slice(query, query + 1))
        assert all_rows(alone) == all_rows(one)
        assert alone.proposed_by == one.proposed_by


def test_a_short_list_of_the_retriever_is_completed_by_the_model():
    world = make_world("retriever", items=120)
    context = world.context()

    def propose(name, n):
        found, proposals = context.propose(name, n)
        few = 30 if name is None else n
        return found, [Proposal(one.rows[:few], one.estimates[:few]) for one in proposals]

    found = world.run(Posterior(120, 6), context=replace(context, propose=propose))
    assert fallback_share(found) > 0
    for exact, one in zip(world.run(Exact()), found, strict=True):
        assert sorted(all_rows(one)) == sorted(all_rows(exact))


def test_rows_of_a_retriever_have_estimates_of_their_scores():
    for one in make_world("retriever").run(Posterior(200, 10)):
        rounds = [n for n, name in enumerate(one.proposed_by) if n and name == "dense"]
        errors = [(one.scores[n] - one.estimates[n]) / one.deviations[n] for n in rounds]
        assert not errors or np.abs(np.concatenate(errors)).mean() < 2


def test_the_log_likelihood_ratio_equals_that_of_two_gaussians_on_their_best_scales():
    """Also for a query with fewer scores than the other of the batch, and over several updates."""
    rng = np.random.default_rng(2)
    world = make_world("linear", items=300, dim=8)
    proposals = world.context().propose("dense", 300)[1][:2]
    prior = Prior.weakly_informative(["dense"])
    retrieved = RetrieverFeatures([proposals], prior, items=300, device=torch.device("cpu"), near=proposals)
    model = BayesianLinearModel(prior, retrieved, 8)
    rows = np.stack([rng.permutation(300)[:40] for _ in proposals])
    valid = torch.from_numpy(np.arange(40) < np.array([[40], [25]]))
    for part in (slice(10), slice(10, 40)):
        some = torch.from_numpy(rows[:, part]).masked_fill(~valid[:, part], 300)
        scores = torch.from_numpy(np.take_along_axis(world.scores[:2], rows, 1)[:, part])
        model.update(model.candidate_features(some, torch.from_numpy(world.vectors[rows[:, part]])), scores)
    for query, count in enumerate((40, 25)):
        own = rows[query, :count]
        columns = retrieved.terms.features[query, own].double().numpy()
        vectors = 0.3**0.5 * world.vectors[own]
        scores, mean = world.scores[query, own].astype(np.float64), retrieved.terms.mean[query, own].double().numpy()
        residuals = (scores - scores.mean()) / scores.std() - (mean - mean.mean())

        def likelihood(covariance, residuals=residuals, count=count):
            scale = residuals @ np.linalg.solve(covariance, residuals) / count
            zero, whole = torch.zeros(count).double(), torch.from_numpy(scale * covariance)
            normal = torch.distributions.MultivariateNormal(zero, whole)
            return float(normal.log_prob(torch.from_numpy(residuals)))

        whole = columns @ columns.T + vectors @ vectors.T + 0.2 * np.eye(count)
        plain = columns @ columns.T + (0.2 + (vectors**2).sum(1).mean()) * np.eye(count)
        ratio = float(model.evidence.to_numpy().log_likelihood_ratio()[query])
        assert ratio == pytest.approx(likelihood(whole) - likelihood(plain), abs=1e-3)
        assert ratio > 5
