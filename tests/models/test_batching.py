"""Batches hold every text once, within their token budget."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from crossknn.models.batching import batches_in_order, length_buckets


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 200))
def test_batches_hold_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    array = np.array(lengths)
    batches = list(length_buckets(array, budget))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert all(len(rows) == 1 or len(rows) * array[rows].max() <= budget for rows in batches)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 200))
def test_batches_in_order_are_contiguous_and_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = [lengths[rows] for rows in batches_in_order(np.array(lengths), budget)]
    assert [length for batch in batches for length in batch] == lengths
    assert all(len(batch) == 1 or sum(batch) <= budget for batch in batches)
