"""Quality by judgments on cases worked out by hand, and how sure a difference is."""

import math
import re
import sys

import numpy as np
import pytest
from crossknn.evaluate.quality import accuracy, measure_quality

from crossknn.errors import InputError, MissingExtra
from crossknn.evaluate.measures import bootstrap_interval, paired_difference
from crossknn.evaluate.splits import Split

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
        (FOUND[:2], ["accuracy"], "found must have one entry for each of the 3 queries. Got 2 instead."),
        ([["a", "a"], [], []], ["accuracy"], "found must hold every id once per query. Query 'q1' has one twice."),
        (["a", "b", "c"], ["accuracy"], "found must hold ids, as in hits.ids. Query 'q1' has something else."),
        ([[0], [], []], ["accuracy"], "found must hold ids, as in hits.ids. Query 'q1' has something else."),
        (
            FOUND,
            ["nDCG"],
            "a measure must be nDCG@k, MRR@k, recall@k or accuracy, such as nDCG@10. Got 'nDCG' instead.",
        ),
        (FOUND, ["recall@0"], "Got 'recall@0' instead."),
        (FOUND, [], "measures must be a list of different names, at least one. Got [] instead."),
        (FOUND, "nDCG@10", "measures must be a list of different names"),
        (FOUND, ["MRR@10", "MRR@10"], "measures must be a list of different names"),
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
    assert paired_difference([1, 1], [0, 1]) == (0.5, 0.0, 1.0)
    assert paired_difference([0.5, 0.75], [0.25, 0.5]) == (0.25, 0.25, 0.25)
    assert paired_difference([1, 0, 1], [1, 0, 1]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ([1, 2], [1], r"one number for each of the same queries. Got arrays of shape (2,) and (1,) instead."),
        ([], [], "at least one query"),
        ([float("nan")], [1], "one finite number per query"),
    ],
)
def test_a_paired_difference_needs_the_same_queries(ours, theirs, message):
    with pytest.raises(InputError, match=re.escape(message)):
        paired_difference(ours, theirs)
