"""Batches hold every text once, within their token budget, and run without cuDNN's attention."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.models.batching import batches_in_order, length_buckets, without_cudnn_attention

torch = pytest.importorskip("torch")
kernels = torch.backends.cuda


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


@pytest.fixture
def _with_cudnn():
    before = kernels.cudnn_sdp_enabled()
    kernels.enable_cudnn_sdp(True)
    yield
    kernels.enable_cudnn_sdp(before)


@pytest.mark.usefixtures("_with_cudnn")
def test_cudnn_attention_is_disabled_on_a_gpu():
    with without_cudnn_attention(torch.device("cuda")):
        assert not kernels.cudnn_sdp_enabled()
        assert kernels.mem_efficient_sdp_enabled()
    assert kernels.cudnn_sdp_enabled()


@pytest.mark.usefixtures("_with_cudnn")
def test_an_error_restores_it():
    with pytest.raises(ValueError, match="broken"), without_cudnn_attention(torch.device("cuda")):
        raise ValueError("broken")
    assert kernels.cudnn_sdp_enabled()


@pytest.mark.usefixtures("_with_cudnn")
def test_it_stays_off_if_the_user_disabled_it():
    kernels.enable_cudnn_sdp(False)
    with without_cudnn_attention(torch.device("cuda")):
        pass
    assert not kernels.cudnn_sdp_enabled()


@pytest.mark.usefixtures("_with_cudnn")
def test_on_a_cpu_nothing_changes():
    with without_cudnn_attention(torch.device("cpu")):
        assert kernels.cudnn_sdp_enabled()


@pytest.mark.usefixtures("_with_cudnn")
def test_the_last_of_several_users_enables_it_again():
    one, other = (without_cudnn_attention(torch.device("cuda")) for _ in range(2))
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert not kernels.cudnn_sdp_enabled()
    other.__exit__(None, None, None)
    assert kernels.cudnn_sdp_enabled()
