import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.items.items import Items
from crossknn.retrievers.fused import Fused
from crossknn.retrievers.simple import Given, Random

ITEMS = Items([f"text {row}" for row in range(6)])


def listed(*ids):
    return Given({"q": [str(id_) for id_ in ids]})


def test_by_hand():
    (found,) = Fused([listed(1, 0, 2), listed(2, 1)], constant=60).fit(ITEMS).retrieve(["q"], 6)
    assert found.rows.tolist() == [1, 2, 0]
    np.testing.assert_allclose(found.estimates, [1 / 61 + 1 / 62, 1 / 63 + 1 / 61, 1 / 62], rtol=1e-6)


def test_the_same_ranks_from_other_members_tie_and_go_to_the_lower_row():
    members = [listed(3, 4, 5), listed(4, 5, 3), listed(5, 3, 4)]
    (found,) = Fused(members).fit(ITEMS).retrieve(["q"], 6)
    assert found.rows.tolist() == [3, 4, 5]
    assert len(set(found.estimates.tolist())) == 1


def test_rows_below_the_depth_follow_without_rising():
    # At depth 1 rows 0 and 1 are found; at depth 2 row 2, second for both, would score above them.
    (found,) = Fused([listed(0, 2, 3), listed(1, 2, 4)], constant=60, depth=1).fit(ITEMS).retrieve(["q"], 6)
    assert found.rows.tolist() == [0, 1, 2, 3, 4]
    assert found.estimates[2] == found.estimates[1]


@given(
    orders=st.lists(st.permutations(range(6)), min_size=1, max_size=3),
    lengths=st.lists(st.integers(0, 6), min_size=3, max_size=3),
    depth=st.integers(1, 8),
)
def test_a_shorter_list_is_the_beginning_of_a_longer_one(orders, lengths, depth):
    members = [listed(*order[:length]) for order, length in zip(orders, lengths, strict=False)]
    fused = Fused(members, depth=depth).fit(ITEMS)
    (whole,) = fused.retrieve(["q"], 6)
    assert set(whole.rows.tolist()) == {
        row for order, length in zip(orders, lengths, strict=False) for row in order[:length]
    }
    assert (np.diff(whole.estimates) <= 0).all()
    for n in range(7):
        assert fused.retrieve(["q"], n)[0].rows.tolist() == whole.rows.tolist()[:n]


def test_every_item_can_be_reached():
    many = Items([f"text {row}" for row in range(5000)])
    (found,) = Fused([Random(1), Random(2)], depth=100).fit(many).retrieve(["q"], 5000)
    assert sorted(found.rows.tolist()) == list(range(5000))


def test_fit_leaves_fitted_members_alone():
    class Counting(Random):
        fits = 0

        def fit(self, items):
            self.fits += 1
            return super().fit(items)

    ready, fresh = Counting().fit(ITEMS), Counting()
    Fused([ready, fresh]).fit(ITEMS)
    assert (ready.fits, fresh.fits) == (1, 1)
    with pytest.raises(InputError, match="'random' was fitted on 6 items, but there are 1"):
        Fused([ready]).fit(Items(["one"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"retrievers": []}, "at least one retriever"),
        ({"retrievers": ["bm25"]}, "must hold retrievers, got a str"),
        ({"retrievers": [Random()], "constant": -1}, "`constant` must be a nonnegative number, got -1"),
        ({"retrievers": [Random()], "depth": 0}, "`depth` must be a positive integer, got 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        Fused(**arguments)
