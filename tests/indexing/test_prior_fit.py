"""Empirical Bayes fit of the prior: recovers the parameters of synthetic scores; its PCA has the textbook posterior."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from crossknn.errors import InputError
from crossknn.indexing.prior_fit import ItemScores, ProbabilisticPca, fit_prior
from crossknn.indexing.sampling import PerItem, PerQuery, merge, sample_per_item, sample_per_query
from crossknn.indexing.score_matrix import SparseScores
from crossknn.strategies.posterior.features import RetrieverFeatures
from crossknn.strategies.posterior.prior import LATENT_FACTORS, Prior, signal_features
from crossknn.vectors.ranking import ranks_in, top_rows

QUERIES, ITEMS, DIM = 60, 800, 8
RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(ITEMS, DIM)).astype(np.float32) / np.sqrt(DIM)
SIGNAL = RNG.normal(size=(QUERIES, ITEMS)).astype(np.float32)
BIAS = RNG.normal(size=ITEMS)
PROPOSED = [top_rows(estimates, ITEMS) for estimates in SIGNAL]


def propose(name, n):
    assert name == "signal"
    return [proposal.first(n) for proposal in PROPOSED]


def score_sampled_pairs(scores, *, per_item=6, per_query=15):
    sizes = {"n_queries": QUERIES, "n_items": ITEMS}
    best = sample_per_query(PerQuery(items=per_query, retriever="signal"), **sizes, propose=propose)
    pairs = merge(sample_per_item(PerItem(queries=per_item), **sizes), best)
    return SparseScores(pairs, scores[pairs.queries, pairs.rows].astype(np.float32))


def make_scores(*, bias=1.0, vectors=0.5, noise=0.3, growth=0.0):
    weights = RNG.normal(size=(QUERIES, DIM)) * np.sqrt(vectors)
    mean = 2.0 * np.arcsinh(SIGNAL) - 3.0
    off = weights @ VECTORS.T + np.sqrt(noise) * RNG.normal(size=SIGNAL.shape)
    return mean + bias * BIAS + (1 + growth * np.maximum(mean + 3, 0)) * off


def fit(scores, **options):
    return fit_prior(score_sampled_pairs(scores, **options), ["signal"], propose, VECTORS)


def prior_mean(prior, query):
    """(items,) the prior mean of a query's scores without the biases."""
    columns = signal_features([PROPOSED[query]], [ranks_in(PROPOSED[query], np.arange(ITEMS))])
    return (columns - prior.center) / prior.spread @ prior.weights + prior.intercept


def test_recovers_the_parameters():
    scores = make_scores()
    prior = fit(scores)
    mean = prior_mean(prior, 0)
    assert np.corrcoef(mean, np.arcsinh(SIGNAL[0]))[0, 1] > 0.99
    assert np.corrcoef(prior.bias, BIAS)[0, 1] > 0.85
    assert 0.25 < prior.vector_variance < 1.0
    assert 0.2 < prior.noise < 0.45
    assert prior.gamma_max < 1.5  # residuals have the same deviation everywhere


def test_gamma_grows_where_top_items_have_larger_residuals():
    prior = fit(make_scores(bias=0.0, growth=1.0))
    assert prior.gamma_slope > 0.2
    assert prior.gamma_max > 2


def test_what_holds_for_train_queries_only_is_not_believed():
    """Signal and biases explain the first queries only, as vectors do that were trained on them."""
    scores, trained = make_scores(noise=0.1, vectors=0.1), np.arange(QUERIES) < 40
    scores[~trained] = RNG.normal(size=scores[~trained].shape)
    entries, held_out = score_sampled_pairs(scores), np.flatnonzero(~trained)
    believing = fit_prior(entries, ["signal"], propose, VECTORS)
    fitted = fit_prior(entries, ["signal"], propose, VECTORS, held_out=held_out)
    assert prior_mean(believing, 0).std() > 0.8
    assert prior_mean(fitted, 0).std() < 0.2
    assert fitted.bias.std() < 0.3 * believing.bias.std()
    assert 0.7 < fitted.noise + fitted.vector_variance + fitted.variances[1:-1].sum() < 1.4


def test_held_out_queries_like_the_others_change_little():
    entries = score_sampled_pairs(make_scores())
    every = fit_prior(entries, ["signal"], propose, VECTORS)
    some = fit_prior(entries, ["signal"], propose, VECTORS, held_out=np.arange(0, QUERIES, 2))
    assert np.corrcoef(every.bias, some.bias)[0, 1] > 0.99
    assert some.bias.std() == pytest.approx(every.bias.std(), rel=0.15)
    np.testing.assert_allclose(prior_mean(some, 0), prior_mean(every, 0), atol=0.3)


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_biases_are_shrunk_to_zero_if_there_are_none(bias):
    spread = fit(make_scores(bias=bias)).bias.std()
    assert (spread > 0.7) if bias else (spread < 0.15)


def test_an_unscored_item_has_the_bias_predicted_from_its_vector_and_no_latent_factors():
    liked = 3 * VECTORS[:, 0]
    scores = make_scores(bias=0.0, vectors=0.05) + liked
    entries = score_sampled_pairs(scores)
    unscored = np.arange(0, ITEMS, 4)
    prior = fit_prior(entries.take(~np.isin(entries.pairs.rows, unscored)), ["signal"], propose, VECTORS)
    assert np.corrcoef(prior.bias[unscored], liked[unscored])[0, 1] > 0.9
    assert not prior.latent_factors[unscored].any()
    grown = prior.add(VECTORS[unscored])
    np.testing.assert_allclose(grown.bias[ITEMS:], prior.bias[unscored], atol=1e-4)
    assert grown.latent_factors.shape == (ITEMS + len(unscored), LATENT_FACTORS)


def test_recovers_latent_factors_that_are_not_in_the_vectors():
    """Three latent factors per item; held-out queries determine their variance."""
    hidden = RNG.normal(size=(ITEMS, 3))
    loadings = RNG.normal(size=(QUERIES, 3))
    plain = make_scores(bias=0.0)
    prior, without = fit(plain + loadings @ hidden.T, per_item=20), fit(plain, per_item=20)
    factors = prior.latent_factors.astype(np.float32)
    explained = np.linalg.lstsq(factors, hidden, rcond=None)[0]
    assert np.corrcoef((factors @ explained).ravel(), hidden.ravel())[0, 1] > 0.85
    assert (factors**2).sum(1).mean() > 1.5  # of 3
    assert (without.latent_factors**2).sum(1).mean() < 0.1
    assert prior.noise < 0.8


def test_top_pairs_weigh_as_much_as_all_others():
    """Below the top, where most pairs are, the signal is uninformative, but its slope is not lost."""
    mean = np.maximum(np.arcsinh(SIGNAL) - 1.0, 0) * 4
    scores = mean + 0.3 * RNG.normal(size=SIGNAL.shape)
    prior = fit(scores, per_query=40)
    best = PROPOSED[0].rows[:10]
    expected = prior_mean(prior, 0) + prior.bias
    assert expected[best].mean() > 0.6 * scores[0, best].mean()


@pytest.mark.parametrize("scores", ["constant", "huge"])
def test_odd_scores_give_finite_numbers(scores):
    values = np.full((QUERIES, ITEMS), 2.0) if scores == "constant" else 1e5 * make_scores()
    prior = fit(values)
    numbers = [
        prior.weights,
        prior.variances,
        prior.bias,
        prior.latent_factors,
        prior.bias_weights,
        [prior.noise, prior.gamma_start, prior.gamma_slope, prior.gamma_max],
    ]
    assert all(np.isfinite(part).all() for part in numbers)
    assert prior.noise > 0
    assert (prior.variances > 0).all()


def test_random_pairs_alone_are_enough():
    prior = fit(make_scores(), per_query=1)
    assert 0.2 < prior.noise < 0.6


def test_the_same_seed_gives_the_same_prior():
    scores = make_scores()
    one, other = fit(scores), fit(scores)
    assert one.to_dict() == other.to_dict()
    np.testing.assert_array_equal(one.bias, other.bias)
    np.testing.assert_array_equal(one.latent_factors, other.latent_factors)


def test_loaded_from_its_facts_and_arrays():
    prior = fit(make_scores())
    back = Prior.from_dict(prior.to_dict(), bias=prior.bias, latent_factors=prior.latent_factors)
    features, same = (
        RetrieverFeatures([PROPOSED[:3]], one, items=ITEMS, device=torch.device("cpu")) for one in (prior, back)
    )
    for one, other in zip((*features.terms, features.bias), (*same.terms, same.bias), strict=True):
        np.testing.assert_array_equal(one, other)
    assert replace(back, bias=prior.bias).to_dict() == prior.to_dict()


def test_a_prior_needs_scores():
    with pytest.raises(InputError, match="at least two pairs, got 0"):
        fit_prior(score_sampled_pairs(make_scores()).take(slice(0, 0)), ["signal"], propose, VECTORS)


@pytest.mark.parametrize("count", [0, 1, 7, LATENT_FACTORS, 40])
def test_means_and_covariances_of_latent_factors_match_the_posterior_formula(count):
    rng = np.random.default_rng(count)
    queries, rows, values = np.tile(np.arange(count), 3), np.repeat(np.arange(3), count), rng.normal(size=3 * count)
    loadings, noise = rng.normal(size=(40, LATENT_FACTORS)), 0.3
    scores = ItemScores.group(queries, rows, values, 3)
    ((part, means, gain, observed),) = ProbabilisticPca(scores, loadings, noise)._posterior(np.arange(3))
    assert part.tolist() == [0, 1, 2]
    covariance = np.linalg.inv(loadings[:count].T @ loadings[:count] / noise + np.eye(LATENT_FACTORS))
    for row in range(3):
        right = loadings[:count].T @ values[rows == row] / noise
        np.testing.assert_allclose(means[row], covariance @ right, atol=1e-9)
        np.testing.assert_allclose(np.eye(LATENT_FACTORS) - gain[row] @ observed[row], covariance, atol=1e-9)
