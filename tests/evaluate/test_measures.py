"""Measures and intervals on cases worked out by hand, and the laws they keep."""

import math
import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.errors import InputError, MissingExtra
from crossknn.evaluate.measures import accuracy, bootstrap_interval, measure_quality, paired_difference, top_k_recall
from crossknn.evaluate.splits import Split


def rows(*values):
    return np.array(values, np.int64)


def test_recall_is_the_share_of_the_first_k_true_rows_that_were_found():
    truth = [rows(5, 3, 9, 1), rows(2, 7, 4, 0)]
    found = [rows(9, 8, 5), rows(0, 1)]
    assert top_k_recall(truth, found, 1).tolist() == [1, 0]
    assert top_k_recall(truth, found, 3).tolist() == pytest.approx([2 / 3, 0])
    assert top_k_recall(truth, found, 4).tolist() == [0.5, 0.25]


def test_where_fewer_than_k_items_exist_the_share_is_of_those_there_are():
    assert top_k_recall([rows(4, 2)], [rows(2, 3)], 10).tolist() == [0.5]


def test_nothing_found_is_nothing_and_no_queries_give_no_shares():
    assert top_k_recall([rows(1)], [rows()], 1).tolist() == [0]
    assert top_k_recall([], [], 1).shape == (0,)


@pytest.mark.parametrize(
    ("truth", "found", "k", "message"),
    [
        ([rows(1)], [], 1, "must have one entry per query, got 1 and 0"),
        ([rows(1)], [rows(1)], 0, "`k` must be a positive integer, got 0"),
        ([rows(1), rows()], [rows(1)] * 2, 1, "got none for query 1"),
    ],
)
def test_recall_refuses_what_has_no_meaning(truth, found, k, message):
    with pytest.raises(InputError) as error:
        top_k_recall(truth, found, k)
    assert message in str(error.value)


@given(st.permutations(range(12)), st.sets(st.integers(0, 11)), st.integers(1, 11))
def test_recall_ignores_order_and_more_found_is_never_worse(truth, found, k):
    given_rows, some = rows(*truth), rows(*found)
    share = top_k_recall([given_rows], [some], k)
    assert share == top_k_recall([given_rows], [some[::-1]], k)
    assert top_k_recall([given_rows], [rows(*range(12))], k) == 1
    assert 0 <= share <= top_k_recall([given_rows], [np.append(some, given_rows[0])], k) <= 1


def test_the_interval_is_the_one_of_the_binomial_and_always_the_same():
    values = [1.0] * 60 + [0.0] * 40
    low, high = bootstrap_interval(values)
    assert (low, high) == bootstrap_interval(values)
    assert (low, high) == pytest.approx((0.504, 0.696), abs=0.02)  # 0.6 ± 1.96 √(0.6·0.4/100)
    narrow = bootstrap_interval(values, level=0.5)
    assert low < narrow[0] < 0.6 < narrow[1] < high
    assert bootstrap_interval([0.25] * 7) == (0.25, 0.25)


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([], {}, "at least one query"),
        ([0.5, float("nan")], {}, "one finite number per query"),
        ([[0.5]], {}, "one finite number per query"),
        ([0.5], {"level": 95}, "`level` must be between 0 and 1"),
        ([0.5], {"draws": 0}, "`draws` must be a positive integer"),
    ],
)
def test_an_interval_needs_values_and_sense(values, options, message):
    with pytest.raises(InputError, match=message):
        bootstrap_interval(values, **options)


SPLIT = Split(
    ids=("q1", "q2", "q3"),
    texts=("one", "two", "three"),
    judgments=({"a": 2, "b": 1, "z": 0}, {"c": 1}, {"d": 1}),
)
FOUND = [["b", "x", "a"], ["z", "c"], []]


def test_the_measures_are_those_worked_out_by_hand():
    values = measure_quality(
        SPLIT, FOUND, measures=["nDCG@10", "nDCG@1", "MRR@10", "recall@2", "recall@10", "accuracy"]
    )
    best = 2 + 1 / math.log2(3)
    assert values["nDCG@10"].tolist() == pytest.approx([(1 + 2 / math.log2(4)) / best, 1 / math.log2(3), 0])
    assert values["nDCG@1"].tolist() == pytest.approx([0.5, 0, 0])
    assert values["MRR@10"].tolist() == [1, 0.5, 0]
    assert values["recall@2"].tolist() == [0.5, 1, 0]
    assert values["recall@10"].tolist() == [1, 1, 0]
    assert values["accuracy"].tolist() == accuracy(SPLIT, FOUND).tolist() == [1, 0, 0]
    assert list(values) == ["nDCG@10", "nDCG@1", "MRR@10", "recall@2", "recall@10", "accuracy"]


def test_what_is_past_the_cut_does_not_count():
    found = [[*map(str, range(10)), "a"], ["c"], ["d"]]
    values = measure_quality(SPLIT, found, measures=["nDCG@10", "MRR@10", "recall@10", "recall@11"])
    assert [values[name][0] for name in values] == [0, 0, 0, 0.5]
    assert [values[name][1] for name in values] == [1, 1, 1, 1]


def test_no_hits_at_all_and_perfect_hits():
    assert {values.sum() for values in measure_quality(SPLIT, [[], [], []]).values()} == {0}
    assert {values.mean() for values in measure_quality(SPLIT, [["a", "b"], ["c"], ["d"]]).values()} == {1}


def test_many_queries_keep_their_order():
    ids = tuple(f"q{n}" for n in range(30))
    split = Split(ids, ids, tuple({f"d{n}": 1} for n in range(30)))
    found = [[f"d{n}"] if n % 3 else ["other"] for n in range(30)]
    for values in measure_quality(split, found).values():
        assert values.tolist() == [float(bool(n % 3)) for n in range(30)]


@pytest.mark.parametrize(
    ("found", "measures", "message"),
    [
        (FOUND[:2], ["accuracy"], "one entry for each of the 3 queries, got 2"),
        ([["a", "a"], [], []], ["accuracy"], "distinct ids per query; query 'q1'"),
        (["a", "b", "c"], ["accuracy"], "must hold ids"),
        ([[0], [], []], ["accuracy"], "must hold ids"),
        (
            FOUND,
            ["nDCG"],
            "got 'nDCG'",
        ),
        (FOUND, ["recall@0"], "got 'recall@0'"),
        (FOUND, [], "a nonempty list of distinct names, got []"),
        (FOUND, "nDCG@10", "a nonempty list of distinct names"),
        (FOUND, ["MRR@10", "MRR@10"], "a nonempty list of distinct names"),
    ],
)
def test_what_has_no_meaning_is_refused(found, measures, message):
    with pytest.raises(InputError, match=re.escape(message)):
        measure_quality(SPLIT, found, measures=measures)


def test_without_ir_measures_its_extra_is_named_and_accuracy_still_works(monkeypatch):
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    with pytest.raises(MissingExtra, match=r"pip install 'crossknn\[bench\]'"):
        measure_quality(SPLIT, FOUND)
    assert measure_quality(SPLIT, FOUND, measures=["accuracy"])["accuracy"].mean() == pytest.approx(1 / 3)


def test_a_paired_difference_is_surer_than_two_intervals():
    hard = np.random.default_rng(1).uniform(size=200)
    ours, theirs = hard + 0.05 + np.random.default_rng(2).normal(scale=0.02, size=200), hard
    difference = paired_difference(ours, theirs)
    assert difference == paired_difference(ours, theirs)
    assert difference.mean == pytest.approx((ours - theirs).mean())
    assert 0.04 < difference.low < difference.mean < difference.high < 0.06
    assert bootstrap_interval(ours)[0] < bootstrap_interval(theirs)[1]  # the two alone would overlap
    other_way = paired_difference(theirs, ours)
    assert (other_way.mean, other_way.low, other_way.high) == pytest.approx(
        (-difference.mean, -difference.high, -difference.low), abs=1e-3
    )


def test_a_paired_difference_worked_out_by_hand():
    """Of two queries that differ by 0 and 1 half the draws take one of each, a quarter twice the same."""
    assert paired_difference([1, 1], [0, 1]) == (0.5, 0.0, 1.0, 2)
    assert paired_difference([0.5, 0.75], [0.25, 0.5]) == (0.25, 0.25, 0.25, 2)
    assert paired_difference([1, 0, 1], [1, 0, 1]) == (0, 0, 0, 3)


def test_a_difference_is_shown_by_an_interval_without_zero_of_enough_queries():
    above = paired_difference([0.75] * 20, [0.5] * 20)
    assert (above.sign, above.shown) == (1, True)
    assert paired_difference([0.5] * 20, [0.75] * 20).sign == -1
    assert not paired_difference([0.75] * 19, [0.5] * 19).shown
    assert not paired_difference([1, 0] * 20, [0, 1] * 20).shown
    assert above.to_json() == {"mean": 0.25, "low": 0.25, "high": 0.25, "queries": 20, "shown": True}


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ([1, 2], [1], "one number for each query, got shapes (2,) and (1,)"),
        ([], [], "at least one query"),
        ([float("nan")], [1], "one finite number per query"),
    ],
)
def test_a_paired_difference_needs_the_same_queries(ours, theirs, message):
    with pytest.raises(InputError, match=re.escape(message)):
        paired_difference(ours, theirs)


def test_ndcg_and_mrr_are_those_of_sentence_transformers():
    """Its reranking evaluator, with a model that knows the scores, on queries with several relevant items."""
    evaluation = pytest.importorskip("sentence_transformers.cross_encoder.evaluation")
    rng = np.random.default_rng(0)
    names = [f"d{number}" for number in range(40)]
    scores = {f"q{query}": dict(zip(names, rng.permutation(40).astype(float), strict=True)) for query in range(12)}
    relevant = {query: rng.choice(names, rng.integers(1, 8), replace=False).tolist() for query in scores}

    class Lookup:
        model_card_data = None

        def predict(self, pairs, **settings):
            return np.array([scores[query][item] for query, item in pairs])

    samples = [{"query": query, "positive": relevant[query], "documents": names} for query in scores]
    evaluator = evaluation.CrossEncoderRerankingEvaluator(samples, at_k=10, write_csv=False)
    evaluator.store_metrics_in_model_card_data = lambda *given: None  # there is no model card
    theirs = evaluator(Lookup())
    split = Split(tuple(scores), tuple(scores), tuple(dict.fromkeys(relevant[query], 1) for query in scores))
    found = [sorted(names, key=lambda item, query=query: -scores[query][item]) for query in scores]
    ours = measure_quality(split, found, measures=["nDCG@10", "MRR@10"])
    assert ours["nDCG@10"].mean() == pytest.approx(theirs["ndcg@10"])
    assert ours["MRR@10"].mean() == pytest.approx(theirs["mrr@10"])
