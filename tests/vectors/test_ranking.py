import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.errors import RetrieverError
from crossknn.types import EMPTY_PROPOSAL, Proposal
from crossknn.vectors.ranking import ranks_in, top_rows

small = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 0.5, 2.0, -np.inf]), max_size=30)


@given(scores=small, n=st.integers(0, 35), data=st.data())
def test_equals_a_full_sort(scores, n, data):
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores))), np.bool_)
    candidates = [row for row in range(len(scores)) if allowed[row] and scores[row] > -np.inf]
    expected = sorted(candidates, key=lambda row: (-scores[row], row))[:n]
    found = top_rows(np.array(scores, np.float32), n, allowed)
    assert found.rows.tolist() == expected
    assert found.estimates.tolist() == [scores[row] for row in expected]
    assert found.rows.dtype == np.int64
    assert found.estimates.dtype == np.float32


def test_ties_at_the_border_go_to_the_lower_rows():
    assert top_rows(np.array([1, 2, 1, 1, 2]), 3).rows.tolist() == [1, 4, 0]


def test_scores_that_are_equal_as_float32_are_ties():
    assert top_rows(np.array([1.0, 1.0 + 1e-12]), 2).rows.tolist() == [0, 1]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_must_be_finite(bad):
    with pytest.raises(RetrieverError, match="Row 1: "):
        top_rows(np.array([0, bad]), 1)
    with pytest.raises(RetrieverError):
        top_rows(np.array([0, bad]), 0)


@given(st.lists(st.integers(0, 40), unique=True, max_size=20), st.lists(st.integers(0, 40), max_size=10))
def test_places_are_those_of_a_list(proposed, rows):
    proposal = Proposal(np.array(proposed, np.int64), np.zeros(len(proposed), np.float32))
    expected = [proposed.index(row) if row in proposed else len(proposed) for row in rows]
    assert ranks_in(proposal, np.array(rows, np.int64)).tolist() == expected


def test_places_in_an_empty_proposal():
    assert ranks_in(EMPTY_PROPOSAL, np.array([3, 0])).tolist() == [0, 0]


@pytest.mark.parametrize("different", [2, 50, 10**9])
@pytest.mark.parametrize("n", [1, 7, 100, 1000, 4999, 5000])
def test_many_values_are_not_all_partitioned(different: int, n: int) -> None:
    """Against a plain sort, with few and with many ties, rising, and in no order."""
    rng = np.random.default_rng(n)
    drawn = rng.integers(0, different, 5000).astype(np.float32)
    for values in (
        drawn,
        np.sort(drawn),
        np.where(rng.random(5000) < 0.99, 0, drawn),
        np.where(drawn > 0, drawn, -np.inf),
    ):
        expected = np.lexsort((np.arange(5000), -values))[:n]
        found = top_rows(values, n)
        assert found.rows.tolist() == expected[np.isfinite(values[expected])].tolist()
