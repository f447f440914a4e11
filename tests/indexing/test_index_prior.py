"""An index with a prior: build, save, add, remove and search."""

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.indexing.builder import Build
from crossknn.indexing.factorization.factors import Cur
from crossknn.indexing.factorization.inductive import Inductive
from crossknn.indexing.factorization.transductive import Transductive
from crossknn.indexing.index import Index
from crossknn.indexing.sampling import PerItem, PerQuery, prior_sampling
from crossknn.items.items import Items
from crossknn.scorers.remote.scorer import RemoteScorer
from crossknn.strategies.exact import Exact
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from tests.indexing.test_index import ALS, Setup, found


@pytest.fixture(scope="module")
def setup():
    return Setup(items=400, queries=40)


@pytest.fixture(scope="module")
def index(setup):
    return setup.build(None, prior=True)


def same_prior(one, other):
    assert one.to_dict() == other.to_dict()
    np.testing.assert_array_equal(one.bias, other.bias)
    np.testing.assert_array_equal(one.latent_factors, other.latent_factors)


def recall(setup, index, strategy):
    searcher = setup.searcher(index)
    truth = searcher.search_many(setup.new_queries, k=20, strategy=Exact())
    hits = searcher.search_many(setup.new_queries, k=20, strategy=strategy)
    return np.mean([len(set(one.ids) & set(other.ids)) / 20 for one, other in zip(truth, hits, strict=True)])


def test_it_costs_about_eight_calls_per_item(setup, index):
    assert 7 * 400 <= index.report.calls <= 8 * 400
    assert index.report.coverage.never_scored == 0
    assert prior_sampling(8, n_queries=40, n_items=400) == [
        PerItem(queries=7),
        PerQuery(items=10, retriever="fused"),
    ]
    assert prior_sampling(1, n_queries=40, n_items=20) == [PerQuery(items=1, retriever="fused")]


def test_posterior_search_finds_more_than_reranking(setup, index):
    assert recall(setup, index, Posterior(60, 6)) > recall(setup, index, Rerank(60, "fused")) + 0.1


def test_all_train_queries_are_used(setup, index):
    assert len(index.queries) == 40
    assert len(setup.build(None).queries) == 40  # fewer than a hundred: α and β take all of them, too


def test_loaded_is_saved(setup, index, tmp_path):
    index.save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index")
    same_prior(loaded.prior, index.prior)
    assert all(isinstance(array.base, np.memmap) for array in (loaded.prior.bias, loaded.prior.latent_factors))
    assert loaded.verify() > 0
    searches = (found(setup.searcher(one), setup.new_queries, Posterior(30, 3)) for one in (index, loaded))
    assert next(searches) == next(searches)


def test_verify_finds_a_nan_bias(index, tmp_path):
    broken = index.remove([])
    broken.prior.bias[3] = np.nan
    broken.save(tmp_path / "index")
    with pytest.raises(InputError, match="bias holds NaN"):
        Index.load(tmp_path / "index").verify()


def test_an_index_without_one_is_searched_with_the_default_prior(setup, tmp_path):
    plain = setup.build(None)
    plain.save(tmp_path / "plain")
    loaded = Index.load(tmp_path / "plain")
    assert loaded.prior is None
    assert recall(setup, loaded, Posterior(60, 6)) > recall(setup, loaded, Rerank(60, "fused"))


@pytest.mark.parametrize(
    ("settings", "fits"),
    [
        ({"factors": ALS}, True),
        ({"factors": "default"}, True),
        ({"factors": None, "sampling": PerQuery(items=20)}, True),  # whose scores are there anyway
        ({"factors": None}, False),
        ({"factors": Inductive(epochs=1)}, False),
        ({"factors": Cur(anchors=12)}, False),
        ({"factors": Transductive(method="als", init="random", dim=7)}, False),
        ({"factors": ALS, "prior": None}, False),
        ({"factors": ALS, "signals": ["dense", "tfidf"]}, True),
    ],
    ids=str,
)
def test_it_is_the_default_where_it_needs_no_more_calls(settings, fits):
    setup = Setup()
    planned = Build(setup.items, scorer=setup.scorer, encoder=setup.encoder, **{"prior": "default", **settings})
    assert planned.with_prior == fits
    assert not setup.scored


def test_a_default_build_fits_it_with_as_many_calls(setup):
    default = setup.build(prior="default")
    assert default.prior.signals == ("dense", "bm25")
    assert default.report.calls <= setup.build(prior=False).report.calls


def test_a_default_build_spends_no_calls_of_a_server_on_a_calibration(setup):
    models = {"scorer": RemoteScorer("http://127.0.0.1:9/rerank"), "encoder": setup.encoder}
    items = Items([f"word1 word2 {row}" for row in range(1000)])
    settings = {**models, "queries": [f"word1 {row}" for row in range(200)], "factors": "default"}
    assert Build(items, **settings, prior="default").calibration_calls == 0
    assert Build(items, **settings, prior="default", calibrate=True).calibration_calls > 0
    assert Build(items, **settings, prior=True).calibration_calls > 0


def test_remove_drops_biases_and_latent_factors(index):
    kept = index.remove(["id-0", "id-7"])
    np.testing.assert_array_equal(kept.prior.bias, np.delete(index.prior.bias, [0, 7]))
    np.testing.assert_array_equal(kept.prior.latent_factors, np.delete(index.prior.latent_factors, [0, 7], axis=0))


def test_added_items_have_the_bias_predicted_from_their_vectors_and_are_found(setup, index):
    more = setup.add(index)
    np.testing.assert_array_equal(more.prior.bias[:-3], index.prior.bias)
    predicted = more.vectors[-3:].astype(np.float64) @ index.prior.bias_weights[:-1] + index.prior.bias_weights[-1]
    np.testing.assert_allclose(more.prior.bias[-3:], predicted, rtol=1e-4)
    assert not more.prior.latent_factors[-3:].any()
    hits = setup.searcher(more).search(setup.new_items.texts[0], k=60, strategy=Posterior(60, 6))
    assert "new-0" in hits.ids


def test_with_fitted_vectors_it_searches_those(setup):
    both = setup.build(ALS, prior=True)
    assert both.factors is not None
    assert recall(setup, both, Posterior(60, 6)) > recall(setup, both, Rerank(60, "fused"))


def test_from_queries_cut_from_the_items(setup):
    cut = setup.build(None, prior=True, queries=None)
    assert cut.report.cut_from_items
    assert recall(setup, cut, Posterior(60, 6)) > recall(setup, cut, Rerank(60, "fused"))


def test_a_killed_build_ends_with_the_same_prior(setup, index, tmp_path):
    class Killed(Exception):
        pass

    def stop(step, done, total):
        if step == "scoring" and done > 1000:
            raise Killed

    with pytest.raises(Killed):
        setup.build(None, prior=True, work_dir=tmp_path, chunk=300, progress=stop)
    again = setup.build(None, prior=True, work_dir=tmp_path, chunk=300)
    assert again.report.calls_made < again.report.calls
    same_prior(again.prior, index.prior)


def test_cur_has_no_prior(setup):
    with pytest.raises(InputError, match="leave out `sampling` and `prior`"):
        setup.build(Cur(anchors=12), prior=True)
