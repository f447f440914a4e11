"""Ranking by score fusion against plain numpy, weights fitted to judgments, and errors."""

import asyncio

import numpy as np
import pytest

from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.errors import InputError
from crossknn.indexing.index import Index
from crossknn.items.items import Items
from crossknn.retrievers.simple import Given
from crossknn.search.fusion import fit_weights
from crossknn.search.searcher import Searcher
from crossknn.strategies.exact import Exact
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.testing import MatrixScorer
from tests.search.test_searcher import STRATEGIES, Setup


def z(values):
    return (values - values.mean()) / values.std()


def plain_order(setup, query, rows, weights):
    """Rows in the fused order of score, dense and BM25, in plain numpy."""
    rows = np.array(sorted(rows))
    dense = setup.world.vectors[rows] @ setup.world.query_vectors[query]
    (bm25,) = setup.searcher._resources.retriever("bm25").retrieve([setup.queries[query]], 120)
    words = np.array([bm25.estimates[bm25.rows.tolist().index(row)] for row in rows])
    columns = [setup.world.scores[query, rows], dense, words]
    fused = sum(w * z(c.astype(float)) for w, c in zip(weights, columns, strict=True) if np.ptp(c) > 0)
    return rows[np.argsort(-fused, kind="stable")].tolist()


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_the_first_k_of_all_that_was_scored_by_the_sum_of_z_scores(strategy):
    setup = Setup()
    every = setup.searcher.search_many(setup.queries, k=30, strategy=strategy)
    fused = setup.searcher.search_many(setup.queries, k=8, strategy=strategy, rank_by="fused")
    for query, (hits, scored) in enumerate(zip(fused, every, strict=True)):
        rows = range(120) if strategy == Exact() else [hit.row for hit in scored.trace]
        assert [hit.row for hit in hits] == plain_order(setup, query, rows, [1, 1, 1])[:8]
        assert [hit.score for hit in hits] == [setup.world.scores[query, hit.row] for hit in hits]
        assert hits.calls == scored.calls


def test_every_way_to_search_has_it_and_the_default_is_the_score():
    setup = Setup()
    strategy = Posterior(budget=30, rounds=3)
    (many,) = setup.searcher.search_many(setup.queries[:1], strategy=strategy, rank_by="fused")
    one = setup.searcher.search(setup.queries[0], strategy=strategy, rank_by="fused")
    later = asyncio.run(setup.searcher.asearch(setup.queries[0], strategy=strategy, rank_by="fused"))
    plain = setup.searcher.search(setup.queries[0], strategy=strategy)
    assert many.ids == one.ids == later.ids != plain.ids
    assert plain.ids == setup.searcher.search(setup.queries[0], strategy=strategy, rank_by="score").ids
    assert [hit.row for hit in one.trace] == [hit.row for hit in plain.trace]  # the same search, another order


def test_given_weights_count_and_name_the_retrievers():
    setup = Setup(rank_weights={"dense": 0.2, "score": 2, "bm25": 0})
    strategy = Rerank(budget=30, retriever="random")
    hits = setup.searcher.search(setup.queries[0], k=30, strategy=strategy, rank_by="fused")
    rows = [hit.row for hit in hits.trace]
    assert [hit.row for hit in hits] == plain_order(setup, 0, rows, [2, 0.2, 0])
    by_score = Setup(rank_weights={"score": 1}).searcher.search(setup.queries[0], strategy=strategy, rank_by="fused")
    assert by_score.ids == setup.searcher.search(setup.queries[0], strategy=strategy).ids


def test_what_a_retriever_did_not_propose_counts_as_its_last():
    items = Items([f"item {row}" for row in range(4)])
    scorer = MatrixScorer(np.array([[1.0, 2.0, 3.0, 4.0]]), queries=["q"], items=list(items.texts))
    given = Given({"q": [("0", 9.0), ("2", 1.0)]})
    searcher = Searcher(items, scorer=scorer, retrievers=[given], rank_weights={"score": 1, "given": 10})
    assert [hit.row for hit in searcher.search("q", k=4, strategy=Exact(), rank_by="fused")] == [0, 3, 2, 1]


def test_equal_sums_keep_the_order_of_the_scores():
    items = Items([f"item {row}" for row in range(3)])
    scorer = MatrixScorer(np.array([[1.0, 3.0, 2.0]]), queries=["q"], items=list(items.texts))
    searcher = Searcher(items, scorer=scorer, retrievers=[Given({})], rank_weights={"score": 0, "given": 1})
    assert [hit.row for hit in searcher.search("q", k=3, strategy=Exact(), rank_by="fused")] == [1, 2, 0]


def test_without_an_encoder_only_bm25_counts_beside_the_score():
    setup = Setup(encoder=None, vectors=None)
    strategy = Rerank(budget=30, retriever="random")
    hits = setup.searcher.search(setup.queries[0], k=30, strategy=strategy, rank_by="fused")
    assert [hit.row for hit in hits] == plain_order(setup, 0, [hit.row for hit in hits.trace], [1, 0, 1])
    assert set(hits[0].ranks) == {"random", "bm25"}


def test_with_an_index_the_priors_signals_count():
    setup = Setup()
    names = MatrixScorer(setup.world.scores)
    encoder = PrecomputedEncoder(
        queries=(names.queries, setup.world.query_vectors), items=(names.items, setup.world.vectors), fingerprint="e"
    )
    index = Index.build(
        setup.items, scorer=names, encoder=encoder, queries=names.queries, factors=None, prior=True, seed=0
    )
    searcher = Searcher(index, scorer=names, encoder=encoder)
    hits = searcher.search(names.queries[0], k=5, strategy=Rerank(budget=30, retriever="random"), rank_by="fused")
    assert set(hits[0].ranks) == {"random", *index.prior.signals}


def judge(setup, by):
    """The ids of the three rows that are best by a line of numbers, for every query."""
    return [[f"id-{row}" for row in np.argsort(-line)[:3]] for line in by]


def test_fitted_weights_follow_the_judgments_and_are_kept():
    setup = Setup()
    dense = setup.world.query_vectors @ setup.world.vectors.T
    for by, name, other in ((dense, "dense", "score"), (setup.world.scores, "score", "dense")):
        setup.searcher.rank_weights = None
        weights = setup.searcher.fit_rank_weights(setup.queries, judge(setup, by), strategy=Exact())
        assert list(weights) == ["score", "dense", "bm25"]
        assert sum(map(abs, weights.values())) == pytest.approx(1)
        assert weights[name] > weights[other]
        assert setup.searcher.rank_weights == weights
    setup.searcher.search(setup.queries[0], rank_by="fused")


def test_fitting_costs_the_budget_of_each_query():
    setup = Setup()
    setup.searcher.fit_rank_weights(setup.queries, judge(setup, setup.world.scores), budget=20)
    assert setup.scorer.calls == 6 * 20


def made_up(queries, seed, weights=(2.0, 1.0, 0.0), items=60):
    """Judgments drawn from a logistic model with these weights."""
    rng = np.random.default_rng(seed)
    for _ in range(queries):
        columns = rng.normal(size=(items, 3))
        chance = 1 / (1 + np.exp(3 - columns @ np.array(weights)))
        yield columns, rng.random(items) < chance


def test_many_judgments_find_the_weights_and_few_leave_them_nearly_equal():
    many = fit_weights(list(made_up(400, seed=0)))
    np.testing.assert_allclose(many, [2 / 3, 1 / 3, 0], atol=0.05)
    few = fit_weights(list(made_up(2, seed=1)))
    np.testing.assert_allclose(few, [1 / 3, 1 / 3, 1 / 3], atol=0.15)


def test_weights_are_finite_where_the_judged_are_told_apart_or_nothing_is():
    columns = np.arange(-5.0, 5.0)[:, None] * np.ones(3)
    np.testing.assert_allclose(fit_weights([(columns, columns[:, 0] > 2)]), [1 / 3] * 3, atol=1e-9)
    np.testing.assert_allclose(fit_weights([(np.zeros((4, 2)), np.arange(4) < 1)]), [0.5, 0.5])


def test_a_score_that_speaks_against_relevance_gets_a_weight_below_zero():
    assert fit_weights(list(made_up(300, seed=2, weights=(-2.0, 1.0, 1.0))))[0] < 0


@pytest.mark.parametrize("value", ["fuzed", "", None, 3, ["score"]])
def test_an_order_that_does_not_exist_is_refused_before_a_call(value):
    setup = Setup()
    with pytest.raises(InputError, match="`rank_by` must be one of 'score', 'fused'"):
        setup.searcher.search(setup.queries[0], rank_by=value)
    assert setup.scorer.calls == 0


@pytest.mark.parametrize("weights", [{}, {"bm25": 1}, {"score": np.nan}, {"score": "1"}, [1, 2], {"score": np.inf}])
def test_weights_that_cannot_be_used(weights):
    with pytest.raises(InputError, match="`rank_weights` must have a finite number for 'score'"):
        Setup(rank_weights=weights)


def test_a_weight_of_a_retriever_that_does_not_exist_is_refused_before_a_call():
    setup = Setup(rank_weights={"score": 1, "bm52": 1})
    with pytest.raises(InputError, match="there is no retriever named 'bm52'"):
        setup.searcher.search(setup.queries[0], rank_by="fused")
    assert setup.scorer.calls == 0


@pytest.mark.parametrize(
    ("queries", "relevant", "message"),
    [
        ([], [], "there must be a query"),
        (["query 0"], [], "got 0 lists for 1 queries"),
        (["query 0"], ["id-1"], "got a string"),
        (["query 0"], [["nobody"]], "has the id 'nobody'"),
        ("query 0", [["id-1"]], "must be a list of strings"),
    ],
)
def test_judgments_that_cannot_be_used_are_refused_before_a_call(queries, relevant, message):
    setup = Setup()
    with pytest.raises(InputError, match=message):
        setup.searcher.fit_rank_weights(queries, relevant)
    assert setup.scorer.calls == 0


def test_judgments_of_items_that_no_search_scored_teach_nothing():
    setup = Setup()
    strategy = Rerank(budget=5, retriever="dense")
    scored = setup.searcher.search(setup.queries[0], k=5, strategy=strategy).ids
    other = next(f"id-{row}" for row in range(120) if f"id-{row}" not in scored)
    with pytest.raises(InputError, match=r"got 0 relevant of 5\. Use more queries"):
        setup.searcher.fit_rank_weights([setup.queries[0]], [[other]], strategy=strategy)
    assert setup.searcher.rank_weights is None
