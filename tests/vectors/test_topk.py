"""Top-k of each row: against a stable sort, with ties, −∞ and NaN."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from crossknn.errors import InputError
from crossknn.vectors.topk import blockwise_topk, stable_topk

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
VALUES = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0])


@given(arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=VALUES), st.integers(0, 10))
def test_equals_a_stable_sort_but_for_the_order_of_minus_infinity(values, n):
    best, columns = stable_topk(torch.from_numpy(values), n)
    order = np.argsort(-values, axis=1, kind="stable")[:, :n]
    np.testing.assert_array_equal(best, np.take_along_axis(values, order, 1))
    np.testing.assert_array_equal(np.take_along_axis(values, columns.numpy(), 1), best)
    there = np.isfinite(best.numpy())
    np.testing.assert_array_equal(columns.numpy()[there], order[there])
    assert all(len(set(row)) == len(row) for row in columns.tolist())


def test_distinct_values():
    best, columns = stable_topk(torch.tensor([[1.0, 3.0, 2.0], [4.0, -np.inf, -np.inf]]), 3)
    assert best.tolist() == [[3.0, 2.0, 1.0], [4.0, -np.inf, -np.inf]]
    assert columns[0].tolist() == [1, 2, 0]


@pytest.mark.parametrize("row", [[np.nan], [np.nan, -np.inf], [1.0, 2.0, np.nan], [3.0, 3.0, np.nan]])
@pytest.mark.parametrize("n", [1, 3])
def test_nan_is_refused(row, n):
    with pytest.raises(InputError, match="hold NaN"):
        stable_topk(torch.tensor([row, [0.0] * len(row)]), n)


@pytest.mark.parametrize(("width", "block"), [(640, 16), (650, 16), (101, 4)])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_blockwise_topk_equals_topk(width, block, device):
    values = torch.randn(5, width, generator=torch.Generator().manual_seed(0)).to(device)
    values[1, 3:] = -torch.inf
    values[2, -1] = 9.0
    for n in (1, 5, 20):
        best, columns = blockwise_topk(values, n, block)
        assert torch.equal(best, values.topk(n, dim=1).values)
        assert torch.equal(values.gather(1, columns), best)
        assert all(len(set(row)) == n for row in columns.tolist())


@needs_gpu
def test_wide_rows_on_a_gpu_are_as_on_a_cpu():
    values = torch.randn(3, 200_001, generator=torch.Generator().manual_seed(0))
    values[0, ::7] = 9.0  # more ties than n
    values[1, 5:] = -torch.inf
    for n in (1, 10, 300):
        here, there = stable_topk(values, n), stable_topk(values.cuda(), n)
        assert torch.equal(here[0], there[0].cpu())
        finite = torch.isfinite(here[0])
        assert torch.equal(here[1][finite], there[1].cpu()[finite])
    values[2, 150_000] = torch.nan
    with pytest.raises(InputError, match="hold NaN"):
        stable_topk(values.cuda(), 10)
