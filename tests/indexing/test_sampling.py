"""Sampling: distinct pseudo-queries and pairs, as many as requested, reproducible by seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.indexing.report import Coverage
from crossknn.indexing.sampling import PerItem, PerQuery, cut_queries, merge, sample_per_item, sample_per_query
from crossknn.indexing.score_matrix import Pairs, SparseScores
from crossknn.items.items import Items
from crossknn.types import Proposal
from crossknn.vectors.exact import ExactSearch

TEXTS = [
    f"Rivers {n} freeze from the top. Ice {n} floats\nbecause it is lighter than the water below." for n in range(50)
]


def make_pairs(queries, rows, n_queries=10, n_items=10):
    return Pairs(np.array(queries, np.int32), np.array(rows, np.int32), n_queries, n_items)


def best_first(n_queries, n_items):
    """A retriever that proposes the highest rows, for every query."""

    def propose(retriever, n):
        assert retriever == "dense"
        rows = np.arange(n_items)[::-1][:n].astype(np.int64)
        return [Proposal(rows, np.zeros(len(rows), np.float32))] * n_queries

    return propose


@given(n_queries=st.integers(0, 12), n_items=st.integers(0, 60), items=st.integers(1, 70), seed=st.integers(0, 5))
def test_per_query_gives_every_query_the_same_number_of_distinct_items(n_queries, n_items, items, seed):
    pairs = sample_per_query(PerQuery(items, seed=seed), n_queries=n_queries, n_items=n_items)
    assert len(np.unique(pairs.keys())) == len(pairs) == n_queries * min(items, n_items)
    assert (np.bincount(pairs.queries, minlength=n_queries) == min(items, n_items)).all()
    assert (np.diff(pairs.keys()) > 0).all()


@given(n_queries=st.integers(1, 40), n_items=st.integers(0, 50), queries=st.integers(1, 45), seed=st.integers(0, 5))
def test_per_item_gives_every_item_the_same_number_of_distinct_queries(n_queries, n_items, queries, seed):
    pairs = sample_per_item(PerItem(queries, seed=seed), n_queries=n_queries, n_items=n_items)
    assert len(np.unique(pairs.keys())) == len(pairs) == n_items * min(queries, n_queries)
    assert (np.bincount(pairs.rows, minlength=n_items) == min(queries, n_queries)).all()
    assert (np.diff(pairs.keys()) > 0).all()


def test_top_items_of_a_retriever_and_some_at_random():
    pairs = sample_per_query(
        PerQuery(10, retriever="dense", at_random=0.3), n_queries=4, n_items=100, propose=best_first(4, 100)
    )
    for query in range(4):
        rows = set(pairs.rows[pairs.queries == query].tolist())
        assert len(rows) == 10
        assert set(range(93, 100)) < rows


def test_random_items_make_up_for_a_retriever_that_proposes_too_few():
    pairs = sample_per_query(
        PerQuery(5, retriever="dense"),
        n_queries=1,
        n_items=50,
        propose=lambda retriever, n: [Proposal(np.array([7]), np.zeros(1, np.float32))],
    )
    assert len(pairs) == 5
    assert 7 in pairs.rows


def test_the_nearest_queries_of_an_item():
    queries = np.eye(6, dtype=np.float32)
    items = queries[[3, 0, 5]] + 0.5 * queries[[4, 1, 2]]
    search = ExactSearch(queries)
    pairs = sample_per_item(PerItem(2, nearest=1.0), n_queries=6, n_items=3, queries=search, item_vectors=items)
    assert [set(pairs.queries[pairs.rows == row].tolist()) for row in range(3)] == [{3, 4}, {0, 1}, {5, 2}]
    mixed = sample_per_item(PerItem(4, nearest=0.5), n_queries=6, n_items=3, queries=search, item_vectors=items)
    for row, near in enumerate(({3, 4}, {0, 1}, {5, 2})):
        mine = mixed.queries[mixed.rows == row].tolist()
        assert near < set(mine)
        assert len(set(mine)) == len(mine) == 4


def test_samples_at_random_are_spread_evenly():
    pairs = sample_per_item(PerItem(8), n_queries=50, n_items=20_000)
    counts = np.bincount(pairs.queries, minlength=50)
    assert counts.min() > 0.9 * counts.mean()
    assert counts.max() < 1.1 * counts.mean()
    pairs = sample_per_query(PerQuery(40), n_queries=500, n_items=100)
    assert np.bincount(pairs.rows, minlength=100).min() > 100


@pytest.mark.parametrize("plan", [PerQuery(5), PerItem(5)])
def test_the_same_seed_is_the_same_sample(plan):
    sample = sample_per_query if isinstance(plan, PerQuery) else sample_per_item
    first, again = (sample(plan, n_queries=30, n_items=40) for _ in range(2))
    other = sample(type(plan)(5, seed=1), n_queries=30, n_items=40)
    assert np.array_equal(first.keys(), again.keys())
    assert not np.array_equal(first.keys(), other.keys())


def test_merged_samples_have_every_pair_once():
    merged = merge(make_pairs([0, 1], [5, 5]), make_pairs([1, 2], [5, 0]))
    assert list(zip(merged.queries.tolist(), merged.rows.tolist(), strict=True)) == [(0, 5), (1, 5), (2, 0)]
    with pytest.raises(InputError, match="of the same queries and items"):
        merge(make_pairs([0], [0]), make_pairs([0], [0], n_items=11))
    with pytest.raises(InputError, match="at least one sample"):
        merge()


def test_coverage():
    coverage = Coverage.of(make_pairs([0, 1, 2, 0], [3, 3, 3, 4], n_items=5))
    assert coverage == Coverage(calls=4, items=5, never_scored=3, fewest=0, median=0.0, most=3)
    assert coverage.calls_per_item == 0.8
    assert Coverage.of(make_pairs([], [], n_items=0)).calls_per_item == 0


def test_held_out_entries_are_disjoint_and_reproducible():
    entries = SparseScores(make_pairs(range(10), range(10)), np.arange(10, dtype=np.float32))
    fit, held = entries.hold_out(0.2, seed=3)
    assert (len(fit), len(held)) == (8, 2)
    assert sorted([*fit.scores, *held.scores]) == list(range(10))
    assert (held.pairs.rows == held.scores).all()
    assert np.array_equal(entries.hold_out(0.2, seed=3)[1].scores, held.scores)
    assert [len(part) for part in entries.hold_out(0, seed=3)] == [10, 0]
    assert [len(part) for part in entries.take(slice(1)).hold_out(0.5, seed=0)] == [1, 0]
    assert [len(part) for part in entries.take(slice(2)).hold_out(0.01, seed=0)] == [1, 1]
    with pytest.raises(InputError, match="`share` must be at least 0"):
        entries.hold_out(1, seed=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PerQuery(0), "`items` must be a positive integer, got 0"),
        (lambda: PerQuery(5, at_random=1.5), "`at_random` must be between 0 and 1, got 1.5"),
        (lambda: PerQuery(5, seed=-1), "`seed` must be a nonnegative integer, got -1"),
        (lambda: PerItem(True), "`queries` must be a positive integer, got True"),
        (lambda: PerItem(5, nearest="all"), "`nearest` must be between 0 and 1, got 'all'"),
        (lambda: sample_per_query(PerQuery(5, "dense"), n_queries=1, n_items=9), "`propose` is required"),
        (lambda: sample_per_item(PerItem(5, nearest=1), n_queries=9, n_items=9), "`nearest` requires the vectors"),
        (
            lambda: sample_per_query(PerQuery(5, "dense"), n_queries=2, n_items=9, propose=best_first(1, 9)),
            "2 proposals, .* got 1",
        ),
        (lambda: make_pairs([10], [0]), "`queries` must be between 0 and 9, got 10"),
        (lambda: make_pairs([0], [-1]), "`rows` must be between 0 and 9, got -1"),
        (lambda: make_pairs([0, 1], [0]), "equal lengths, got 2 and 1"),
        (lambda: Pairs(np.zeros(1), np.zeros(1, np.int32), 1, 1), "one int32 per pair, got float64"),
        (
            lambda: SparseScores(make_pairs([0], [0]), np.zeros(2, np.float32)),
            "one float32 per pair .1., got float32 .2,.",
        ),
        (lambda: SparseScores(make_pairs([0], [0]), np.full(1, np.nan, np.float32)), "`scores` must be finite"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


# --- pseudo-queries


def test_every_query_is_a_part_of_an_item():
    queries = cut_queries(Items(TEXTS), 30)
    assert len(set(queries)) == len(queries) == 30
    flat = [" ".join(text.split()) for text in TEXTS]
    assert all(any(query in text for text in flat) for query in queries)


def test_openings_first_sentences_and_spans_take_turns():
    queries = cut_queries(Items(TEXTS), 30)
    assert all(query.startswith("Rivers ") and 3 <= len(query.split()) <= 8 for query in queries[::3])
    assert all(query.endswith("from the top.") for query in queries[1::3])
    assert any(not query.startswith("Rivers ") for query in queries[2::3])


def test_the_same_seed_cuts_the_same():
    assert cut_queries(Items(TEXTS), 20, seed=4) == cut_queries(Items(TEXTS), 20, seed=4)
    assert cut_queries(Items(TEXTS), 20, seed=4) != cut_queries(Items(TEXTS), 20, seed=5)


def test_few_items_give_several_queries_each_but_never_the_same_one():
    queries = cut_queries(Items(TEXTS[:2]), 9)
    assert len(set(queries)) == len(queries) > 2
    assert cut_queries(Items(["ice"]), 5) == ["ice"]


def test_items_without_text_are_passed_over():
    assert cut_queries(Items(["", "  ", "ice melts"]), 3) == ["ice melts"]


def test_no_text_at_all_is_an_error():
    with pytest.raises(InputError, match="No queries could be cut"):
        cut_queries(Items(["", " \n"]), 3)


def test_a_long_first_sentence_is_cut():
    text = " ".join(f"word{n}" for n in range(100))
    assert max(len(query.split()) for query in cut_queries(Items([text]), 6)) == 24


def test_how_many_must_be_a_number():
    with pytest.raises(InputError, match="`n` must be a positive integer"):
        cut_queries(Items(TEXTS), 0)
