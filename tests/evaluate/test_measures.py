"""Measures on cases worked out by hand, and the laws they keep."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.evaluate.measures import bootstrap_interval, top_k_recall


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
        ([rows(1)], [], 1, "truth and found must have one entry per query. Got 1 and 0 instead."),
        ([rows(1)], [rows(1)], 0, "k must be a whole number of at least 1. Got 0 instead."),
        ([rows(1), rows()], [rows(1)] * 2, 1, "every query needs at least one true row. Query 1 has none."),
    ],
)
def test_recall_refuses_what_has_no_meaning(truth, found, k, message):
    with pytest.raises(InputError) as error:
        top_k_recall(truth, found, k)
    assert str(error.value) == message


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
        ([0.5], {"level": 95}, "level must be between 0 and 1. Got 95 instead."),
        ([0.5], {"draws": 0}, "draws must be a whole number of at least 1"),
    ],
)
def test_an_interval_needs_values_and_sense(values, options, message):
    with pytest.raises(InputError, match=message):
        bootstrap_interval(values, **options)
