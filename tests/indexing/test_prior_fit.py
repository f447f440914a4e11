"""The prior of posterior search: what it finds in scores whose law is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from crossknn.errors import InputError
from crossknn.indexing.prior_fit import fit_prior
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
PROPOSED = [top_rows(line, ITEMS) for line in SIGNAL]


def propose(name, n):
    assert name == "signal"
    return [proposal.first(n) for proposal in PROPOSED]


def make_entries(scores, *, per_item=6, per_query=15):
    sizes = {"n_queries": QUERIES, "n_items": ITEMS}
    best = sample_per_query(PerQuery(items=per_query, retriever="signal"), **sizes, propose=propose)
    pairs = merge(sample_per_item(PerItem(queries=per_item), **sizes), best)
    return SparseScores(pairs, scores[pairs.queries, pairs.rows].astype(np.float32))


def make_scores(*, bias=1.0, vectors=0.5, noise=0.3, growth=0.0):
    weights = RNG.normal(size=(QUERIES, DIM)) * np.sqrt(vectors)
    said = 2.0 * np.arcsinh(SIGNAL) - 3.0
    off = weights @ VECTORS.T + np.sqrt(noise) * RNG.normal(size=SIGNAL.shape)
    return said + bias * BIAS + (1 + growth * np.maximum(said + 3, 0)) * off


def fit(scores, **options):
    return fit_prior(make_entries(scores, **options), ["signal"], propose, VECTORS)


def say(prior, query):
    """(items,) what the retriever lets expect of a query's scores, but for the biases."""
    columns = signal_features([PROPOSED[query]], [ranks_in(PROPOSED[query], np.arange(ITEMS))])
    return (columns - prior.center) / prior.spread @ prior.weights + prior.intercept


def test_finds_the_law_of_the_scores():
    scores = make_scores()
    prior = fit(scores)
    said = say(prior, 0)
    assert np.corrcoef(said, np.arcsinh(SIGNAL[0]))[0, 1] > 0.99
    assert np.corrcoef(prior.bias, BIAS)[0, 1] > 0.85
    assert 0.25 < prior.vector_variance < 1.0
    assert 0.2 < prior.noise < 0.45
    assert prior.gamma_max < 1.5  # scores lie as far from the mean everywhere


def test_finds_that_scores_of_good_items_lie_further_from_the_mean():
    prior = fit(make_scores(bias=0.0, growth=1.0))
    assert prior.gamma_slope > 0.2
    assert prior.gamma_max > 2


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_biases_are_shrunk_where_there_are_none(bias):
    spread = fit(make_scores(bias=bias)).bias.std()
    assert (spread > 0.7) if bias else (spread < 0.15)


def test_an_item_that_was_never_scored_has_the_bias_that_its_vector_lets_expect_and_no_traits():
    liked = 3 * VECTORS[:, 0]
    scores = make_scores(bias=0.0, vectors=0.05) + liked
    entries = make_entries(scores)
    unscored = np.arange(0, ITEMS, 4)
    prior = fit_prior(entries.take(~np.isin(entries.pairs.rows, unscored)), ["signal"], propose, VECTORS)
    assert np.corrcoef(prior.bias[unscored], liked[unscored])[0, 1] > 0.9
    assert not prior.latent_factors[unscored].any()
    grown = prior.add(VECTORS[unscored])
    np.testing.assert_allclose(grown.bias[ITEMS:], prior.bias[unscored], atol=1e-4)
    assert grown.latent_factors.shape == (ITEMS + len(unscored), LATENT_FACTORS)


def test_finds_traits_that_vectors_do_not_show():
    """Each query likes one of three hidden traits; held-out queries tell how much traits are worth."""
    hidden = RNG.normal(size=(ITEMS, 3))
    tastes = RNG.normal(size=(QUERIES, 3))
    plain = make_scores(bias=0.0)
    prior, without = fit(plain + tastes @ hidden.T, per_item=20), fit(plain, per_item=20)
    traits = prior.latent_factors.astype(np.float32)
    explained = np.linalg.lstsq(traits, hidden, rcond=None)[0]
    assert np.corrcoef((traits @ explained).ravel(), hidden.ravel())[0, 1] > 0.85
    assert (traits**2).sum(1).mean() > 1.5  # of 3
    assert (without.latent_factors**2).sum(1).mean() < 0.1
    assert prior.noise < 0.8


def test_pairs_near_the_top_count_as_much_as_all_others():
    """Far from the top the signal says nothing: most pairs are there, but its slope is not lost."""
    said = np.maximum(np.arcsinh(SIGNAL) - 1.0, 0) * 4
    scores = said + 0.3 * RNG.normal(size=SIGNAL.shape)
    prior = fit(scores, per_query=40)
    best = PROPOSED[0].rows[:10]
    expected = say(prior, 0) + prior.bias
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


def test_facts_and_bias_bring_it_back():
    prior = fit(make_scores())
    back = Prior.from_dict(prior.to_dict(), bias=prior.bias, latent_factors=prior.latent_factors)
    heard, same = (
        RetrieverFeatures([PROPOSED[:3]], one, items=ITEMS, device=torch.device("cpu")) for one in (prior, back)
    )
    for one, other in zip((*heard.terms, heard.bias), (*same.terms, same.bias), strict=True):
        np.testing.assert_array_equal(one, other)
    assert replace(back, bias=prior.bias).to_dict() == prior.to_dict()


def test_no_scores_no_prior():
    with pytest.raises(InputError, match=r"needs the scores of some pairs\. Got 0"):
        fit_prior(make_entries(make_scores()).take(slice(0, 0)), ["signal"], propose, VECTORS)
