"""The largest values of each line: against a plain sort, and values that have no order."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from crossknn.errors import InputError
from crossknn.largest import largest

VALUES = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0])


@given(arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=VALUES), st.integers(0, 10))
def test_as_a_plain_sort_but_for_the_order_of_what_is_minus_infinity(values, n):
    best, columns = largest(torch.from_numpy(values), n)
    order = np.argsort(-values, axis=1, kind="stable")[:, :n]
    np.testing.assert_array_equal(best, np.take_along_axis(values, order, 1))
    np.testing.assert_array_equal(np.take_along_axis(values, columns.numpy(), 1), best)
    there = np.isfinite(best.numpy())
    np.testing.assert_array_equal(columns.numpy()[there], order[there])
    assert all(len(set(line)) == len(line) for line in columns.tolist())


def test_values_that_differ_are_not_sorted_twice(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "sort", None)
    best, columns = largest(torch.tensor([[1.0, 3.0, 2.0], [4.0, -np.inf, -np.inf]]), 3)
    assert best.tolist() == [[3.0, 2.0, 1.0], [4.0, -np.inf, -np.inf]]
    assert columns[0].tolist() == [1, 2, 0]


@pytest.mark.parametrize("line", [[np.nan], [np.nan, -np.inf], [1.0, 2.0, np.nan], [3.0, 3.0, np.nan]])
@pytest.mark.parametrize("n", [1, 3])
def test_what_is_not_a_number_is_refused(line, n):
    with pytest.raises(InputError, match="hold NaN"):
        largest(torch.tensor([line, [0.0] * len(line)]), n)
