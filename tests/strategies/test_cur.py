"""ANNCUR and adaCUR against `ŝ = c U R` in plain numpy, on matrices that CUR recovers and on others."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.encoders.base import function_encoder
from crossknn.errors import InputError
from crossknn.indexing.factorization.factors import Cur
from crossknn.indexing.index import Index
from crossknn.items.items import Items
from crossknn.search.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.cur import AdaCur, AnnCur
from crossknn.strategies.exact import Exact
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.rerank import Rerank
from crossknn.testing import MatrixScorer
from tests.worlds import World, all_rows, best


def cur_world(*, queries=5, items=200, rank=6, train=20, noise=0.0, seed=0):
    """Scores of low rank up to `noise`; the item vectors are the columns of R, the scores of `train` more queries."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(queries + train, rank)) @ rng.normal(size=(rank, items)) - 4
    scores = (scores + noise * rng.normal(size=scores.shape)).astype(np.float32)
    asked, known = scores[:queries], scores[queries:]
    return World(asked, np.ascontiguousarray(known.T), rng.normal(size=(queries, train)).astype(np.float32))


def estimate(world, query, anchors):
    """`ŝ = c U R` with `U = pinv(R_A)`, as CUR is written down."""
    r = world.vectors.T.astype(np.float64)  # (train queries, items)
    c = world.scores[query, anchors].astype(np.float64)
    return c @ np.linalg.pinv(r[:, anchors], rcond=1e-6) @ r


def best_others(estimates, scored, n):
    return [row for row in np.argsort(-estimates, kind="stable").tolist() if row not in set(scored)][:n]


@pytest.mark.parametrize(("budget", "anchors"), [(30, 10), (30, None), (60, 40), (20, 20)])
def test_anncur_equals_a_plain_reading(budget, anchors):
    world = cur_world(noise=1.0)
    fixed = None
    for query, one in enumerate(world.run(AnnCur(budget=budget, anchors=anchors, estimates=True))):
        chosen = one.rows[0].tolist()
        fixed = fixed or chosen
        assert chosen == fixed == sorted(chosen)
        assert len(chosen) == (anchors or budget // 2)
        wanted = estimate(world, query, chosen)
        assert all_rows(one) == chosen + best_others(wanted, chosen, budget - len(chosen))
        np.testing.assert_allclose(one.all_estimates, wanted, atol=1e-3 * np.abs(wanted).max())
        assert one.proposed_by == ["anchors", "anncur"][: len(one.rows)]


@pytest.mark.parametrize(("budget", "rounds"), [(30, 3), (60, 6), (8, 4)])
def test_adacur_equals_a_plain_reading(budget, rounds):
    world = cur_world(noise=1.0)
    for query, one in enumerate(world.run(AdaCur(budget=budget, rounds=rounds, first="random", estimates=True))):
        scored = world.context().propose("random", budget // rounds)[1][query].rows.tolist()
        for _ in range(2, rounds + 1):
            scored += best_others(estimate(world, query, scored), scored, budget // rounds)
        assert all_rows(one) == scored
        wanted = estimate(world, query, scored)
        np.testing.assert_allclose(one.all_estimates, wanted, atol=1e-3 * np.abs(wanted).max())
        assert one.proposed_by == ["random"] + ["adacur"] * (rounds - 1)


@pytest.mark.parametrize(
    "strategy",
    [
        AnnCur(budget=30, anchors=15, estimates=True),
        AdaCur(budget=30, rounds=2, first="random", estimates=True),
        AdaCur(budget=30, rounds=3, first="random", estimates=True),
    ],
    ids=repr,
)
def test_a_matrix_of_low_rank_is_recovered(strategy):
    """More anchor queries and items than the rank: the estimates are the scores, and the true top k is found."""
    world = cur_world(items=500)
    for line, one in zip(world.scores, world.run(strategy), strict=True):
        np.testing.assert_allclose(one.all_estimates, line, atol=0.01)
        np.testing.assert_allclose(one.estimates[-1], one.scores[-1], atol=0.01)
        assert best(one, 10) == np.argsort(-line, kind="stable")[:10].tolist()


def test_adacur_is_axn_on_raw_scores():
    world = cur_world(noise=1.0)
    cur = world.run(AdaCur(budget=40, rounds=4, first="random"))
    raw = replace(world.context(), normalization=Normalization())
    axn = world.run(Axn(budget=40, rounds=4, mix=0.0, first="random"), context=raw)
    assert [all_rows(one) for one in cur] == [all_rows(one) for one in axn]


def test_the_scale_of_the_searcher_changes_nothing():
    world = cur_world(noise=1.0)
    for strategy in (AnnCur(budget=40), AdaCur(budget=40, rounds=4)):
        plain = [all_rows(one) for one in world.run(strategy)]
        scaled = replace(world.context(), normalization=Normalization(alpha=5.0, beta=0.1))
        assert [all_rows(one) for one in world.run(strategy, context=scaled)] == plain


def test_no_encoder_is_needed():
    world = cur_world()
    context = replace(world.context(), query_vectors=None)
    for strategy in (AnnCur(budget=20), AdaCur(budget=20, rounds=2, first="random")):
        assert [one.calls for one in world.run(strategy, context=context)] == [20] * 5


def test_one_round_of_adacur_is_rerank():
    world = cur_world()
    rerank = world.run(Rerank(budget=20, retriever="dense"))
    for one, other in zip(world.run(AdaCur(budget=20, rounds=1, first="dense")), rerank, strict=True):
        assert np.array_equal(one.rows, other.rows)
        assert one.proposed_by == other.proposed_by == ["dense"]


@pytest.mark.parametrize("strategy", [AnnCur(250), AnnCur(100, anchors=99), AdaCur(250, 5), AdaCur(100, 100)], ids=repr)
def test_a_budget_of_all_items_is_exact(strategy):
    world = cur_world(items=100)
    for one, other in zip(world.run(strategy), world.run(Exact()), strict=True):
        assert best(one, 100) == best(other, 100)
        assert one.calls == 100


@pytest.mark.parametrize("strategy", [AnnCur(40), AdaCur(40, 4), AdaCur(23, 4, "random")], ids=repr)
def test_a_batch_is_its_queries_one_by_one(strategy):
    world = cur_world(queries=6, noise=1.0)
    together = world.run(strategy)
    for query in range(6):
        assert all_rows(world.run(strategy, only=slice(query, query + 1))[0]) == all_rows(together[query])


def test_anchors_depend_on_the_seed_only():
    world = cur_world()
    anchors = [world.run(AnnCur(budget=20, seed=seed))[0].rows[0].tolist() for seed in (0, 0, 1)]
    assert anchors[0] == anchors[1] != anchors[2]


def test_ties_go_to_the_lower_row():
    world = cur_world()
    world.vectors[:] = 1.0
    anchors, others = world.run(AnnCur(budget=20, anchors=5))[0].rows
    assert others.tolist() == np.setdiff1d(np.arange(200), anchors)[:15].tolist()


def test_what_the_first_round_leaves_over_goes_to_the_others():
    world = cur_world(queries=2)
    context = world.context()

    def shortened(n):
        return replace(context, propose=lambda name, _: ("given", [p.first(n) for p in context.propose(name, 10)[1]]))

    assert [one.calls for one in world.run(AdaCur(budget=20, rounds=4), context=shortened(2))] == [20, 20]
    assert [len(rows) for rows in world.run(AdaCur(budget=20, rounds=4), context=shortened(2))[0].rows] == [2, 6, 6, 6]
    assert [one.calls for one in world.run(AdaCur(budget=20, rounds=4, estimates=True), context=shortened(0))] == [0, 0]


@given(st.data())
def test_no_setting_breaks_the_budget_the_filter_or_asks_twice(data):
    """And none leaves a call unused while an allowed item is left."""
    items = data.draw(st.integers(1, 60), "items")
    budget = data.draw(st.integers(1, 80), "budget")
    rounds = data.draw(st.integers(1, budget), "rounds")
    anchors = data.draw(st.none() | st.integers(1, budget), "anchors")
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=items, max_size=items), "allowed"))
    world = cur_world(queries=3, items=items, rank=3, train=8)
    world.vectors[: items // 2] = world.vectors[0]  # duplicates
    first = data.draw(st.sampled_from(["dense", "random"]), "first")
    for strategy in (AnnCur(budget, anchors, estimates=True), AdaCur(budget, rounds, first, estimates=True)):
        for one in world.run(strategy, allowed=allowed):
            rows = np.concatenate([np.empty(0, np.int64), *one.rows])
            assert len(rows) == len(set(rows.tolist())) == min(budget, allowed.sum())
            assert allowed[rows].all()
            assert np.isfinite(one.all_estimates).all()


def test_through_a_searcher_on_an_index():
    """With all train queries as anchors of an index, both find the true top of queries never seen."""
    world = cur_world(queries=4, items=150, train=12)
    scorer = MatrixScorer(np.concatenate([world.scores, world.vectors.T]))
    asked, train = scorer.queries[:4], scorer.queries[4:]
    encoder = function_encoder(lambda texts: np.array([[len(text), 1.0] for text in texts], np.float32))
    items = Items(scorer.items)
    index = Index.build(items, scorer=scorer, encoder=encoder, queries=train, factors=Cur(anchors=12))
    for searcher in (Searcher(index, scorer=scorer), Searcher(index, scorer=scorer, encoder=encoder)):
        for strategy in (AnnCur(budget=40, anchors=20), AdaCur(budget=40, rounds=4, first="random")):
            for line, hits in zip(world.scores, searcher.search_many(asked, k=10, strategy=strategy), strict=True):
                assert [hit.row for hit in hits] == np.argsort(-line, kind="stable")[:10].tolist()
                assert hits.calls == 40
    anchors = [hit for hit in searcher.search(asked[0], k=40, strategy=AnnCur(budget=40)) if hit.round == 1]
    assert {(hit.estimate, hit.proposed_by) for hit in anchors} == {(None, "anchors")}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AnnCur(budget=0), "`budget` must be a positive integer, got 0"),
        (lambda: AnnCur(anchors=0), "`anchors` must be a positive integer, got 0"),
        (lambda: AnnCur(anchors=101), "`anchors` must be between 1 and `budget` (100), got 101"),
        (lambda: AnnCur(seed=-1), "`seed` must be a nonnegative integer, got -1"),
        (lambda: AdaCur(budget=5, rounds=6), "`rounds` must be between 1 and `budget` (5), got 6"),
        (lambda: AdaCur(rounds=True), "`rounds` must be a positive integer, got True"),
    ],
)
def test_invalid_settings_are_rejected(make, message):
    with pytest.raises(InputError, match=re.escape(message)):
        make()


def test_the_repr_is_a_short_name():
    assert repr(AnnCur(anchors=20)) == "AnnCur(budget=100, anchors=20)"
    assert repr(AdaCur(budget=50, first="bm25")) == "AdaCur(budget=50, first='bm25')"
