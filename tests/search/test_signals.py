"""Signals: the retrievers whose evidence posterior search uses, named by the user, in a build and in a search."""

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.evaluate.matrices import PrecomputedRetriever
from crossknn.indexing.index import Index
from crossknn.indexing.sampling import PerItem
from crossknn.strategies.exact import Exact
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from tests.indexing.test_index import Setup, score_all

FOUR = ("dense", "bm25", "tfidf", "mine")
SEARCH = Posterior(budget=30, rounds=3)


class Known(Setup):
    """With a retriever "mine" that nearly knows the scores."""

    def __init__(self):
        super().__init__(items=200)
        queries = [*self.queries, *self.new_queries]
        lines = score_all(queries, self.texts)
        noise = np.random.default_rng(5).normal(size=lines.shape)
        self.lines = dict(zip(queries, (lines + noise).astype(np.float32), strict=True))

    def rank(self, name="mine"):
        return PrecomputedRetriever(self.lines, name=name)

    def recall(self, searcher):
        truth = searcher.search_many(self.new_queries, k=20, strategy=Exact())
        found = searcher.search_many(self.new_queries, k=20, strategy=SEARCH)
        return np.mean([len(set(one.ids) & set(other.ids)) / 20 for one, other in zip(truth, found, strict=True)])


@pytest.fixture(scope="module")
def setup():
    return Known()


@pytest.fixture(scope="module")
def index(setup):
    return setup.build(None, prior=True, signals=FOUR, retrievers=[setup.rank()])


def test_a_prior_learns_from_the_signals_that_are_named(setup, index):
    assert index.prior.signals == FOUR
    assert index.prior.weights.shape == (2 * len(FOUR),)
    told = np.abs(index.prior.weights).reshape(4, 2).sum(1)
    assert np.argmax(told) == 3  # "mine" knows most
    plain = setup.build(None, prior=True)
    assert plain.prior.signals == ("dense", "bm25")
    searcher = setup.searcher(index, retrievers=[setup.rank()])
    assert setup.recall(searcher) > setup.recall(setup.searcher(plain)) + 0.05
    assert set(searcher.search(setup.new_queries[0], strategy=SEARCH)[0].ranks) >= set(FOUR)


def test_loaded_is_saved(setup, index, tmp_path):
    index.save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index")
    assert loaded.prior.signals == FOUR
    found = [
        [hits.ids for hits in setup.searcher(one, retrievers=[setup.rank()]).search_many(setup.new_queries)]
        for one in (index, loaded)
    ]
    assert found[0] == found[1]


def test_a_searcher_without_the_retriever_of_a_prior_says_so_before_a_call(setup, index):
    searcher = setup.searcher(index)
    setup.scored.clear()
    for options in ({}, {"strategy": SEARCH}, {"strategy": Rerank(30, "dense"), "rank_by": "fused"}):
        with pytest.raises(InputError, match="no retriever named 'mine', which the prior of the index needs"):
            searcher.search(setup.new_queries[0], **options)
    assert not setup.scored
    assert len(searcher.search(setup.new_queries[0], strategy=Rerank(30, "dense"))) == 10


def test_without_an_index_a_search_uses_the_signals_that_are_named(setup):
    models = {"scorer": setup.scorer, "encoder": setup.encoder, "retrievers": [setup.rank()]}
    plain, told = (setup.searcher(setup.items, **models, signals=signals) for signals in (None, ("mine", "tfidf")))
    assert setup.recall(told) > setup.recall(plain) + 0.05
    first = told.search(setup.new_queries[0], strategy=SEARCH)[0].ranks
    assert set(first) == {"mine", "tfidf"}  # mine is the first round's, too
    same = setup.searcher(setup.items, **models, signals=["dense", "bm25"])
    both = [one.search(setup.new_queries[0], strategy=SEARCH) for one in (plain, same)]
    assert both[0].ids == both[1].ids


def test_the_fused_order_counts_the_signals(setup):
    searcher = setup.searcher(setup.items, retrievers=[setup.rank()], signals=("mine",))
    hits = searcher.search(setup.new_queries[0], k=30, strategy=Rerank(30, "random"), rank_by="fused")
    rows = np.array(sorted(hit.row for hit in hits))
    columns = [score_all(setup.new_queries[:1], setup.texts)[0], setup.lines[setup.new_queries[0]]]
    sums = sum((column[rows] - column[rows].mean()) / column[rows].std() for column in columns)
    assert [hit.row for hit in hits] == rows[np.argsort(-sums)].tolist()
    judged = [[hits.ids[0]] for hits in searcher.search_many(setup.new_queries, strategy=Exact())]
    assert list(searcher.fit_rank_weights(setup.new_queries, judged, strategy=Exact())) == ["score", "mine"]


@pytest.mark.parametrize(
    ("signals", "message"),
    [
        (("dense", "yours"), "`signals` must be names of retrievers"),
        ("dense", "`signals` must be a nonempty list of distinct retriever names"),
        ((), "`signals` must be a nonempty list of distinct retriever names"),
        (5, "`signals` must be a nonempty list of distinct retriever names"),
        (("dense", ["bm25"]), "`signals` must be a nonempty list of distinct retriever names"),
        (("dense", "dense"), "`signals` must be a nonempty list of distinct retriever names"),
    ],
)
def test_signals_that_do_not_exist_are_refused_before_a_call(setup, signals, message):
    setup.scored.clear()
    with pytest.raises(InputError, match=message):
        setup.build(None, prior=True, signals=signals, retrievers=[setup.rank()])
    with pytest.raises(InputError, match=message):
        setup.searcher(setup.items, signals=signals, retrievers=[setup.rank()])
    assert not setup.scored


def test_signals_go_with_a_prior_and_with_no_other(setup, index):
    with pytest.raises(InputError, match="prior=True"):
        setup.build(None, signals=("dense",))
    with pytest.raises(InputError, match="was learned from dense, bm25, tfidf, mine"):
        setup.searcher(index, retrievers=[setup.rank()], signals=("dense", "bm25"))
    setup.searcher(index, retrievers=[setup.rank()], signals=FOUR)


def test_an_own_dense_retriever_takes_the_place_of_the_built_in(setup):
    class Asked(PrecomputedRetriever):
        def retrieve(self, queries, n, **options):
            asked.update(queries)
            return super().retrieve(queries, n, **options)

    asked, given = set(), {"prior": True, "signals": ("dense",)}
    mine = setup.build(None, **given, sampling=PerItem(), retrievers=[Asked(setup.lines, name="dense")])
    assert asked == set(setup.queries)
    searcher = setup.searcher(mine, retrievers=[setup.rank("dense")])
    assert setup.recall(searcher) > setup.recall(setup.searcher(setup.build(None, **given))) + 0.05
