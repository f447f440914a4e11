"""Exact vector search: the contract, ties, exclusions, storage types, memory."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.testing import check_vector_search
from crossknn.types import VectorSearch
from crossknn.vectors import exact
from crossknn.vectors.base import AugmentedSearch
from crossknn.vectors.exact import ExactSearch

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def random_vectors(items: int = 50, dim: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(items, dim)).astype(np.float32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_contract_in_every_storage_type(dtype, device):
    stored = torch.from_numpy(random_vectors()).to(dtype)
    search = ExactSearch(stored, device=device)
    assert isinstance(search, VectorSearch)
    check_vector_search(search, stored.float().numpy())


@pytest.mark.parametrize("device", DEVICES)
def test_many_blocks_equal_one_block(monkeypatch, device):
    vectors, queries = random_vectors(500), random_vectors(7, seed=1)
    whole = ExactSearch(vectors, device=device).search(queries, 20)
    monkeypatch.setattr(exact, "BLOCK_ROWS", 33)
    monkeypatch.setattr(exact, "BLOCK_PRODUCTS", {"cpu": 1, "cuda": 1})
    monkeypatch.setattr(exact, "BLOCK_QUERIES", 2)
    monkeypatch.setattr(exact, "CONVERT_BYTES", {"cpu": 8 * 4 * 10, "cuda": 8 * 4 * 10})
    blocked = ExactSearch(vectors, device=device)
    check_vector_search(blocked, vectors)
    for one, other in zip(whole, blocked.search(queries, 20), strict=True):
        assert np.array_equal(one.rows, other.rows)


@pytest.mark.parametrize("device", DEVICES[1:])
def test_vectors_too_large_for_a_gpu_are_streamed(monkeypatch, device):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (1_000, 1_000_000))  # almost no memory is free
    monkeypatch.setattr(exact, "BLOCK_ROWS", 33)
    monkeypatch.setattr(exact, "BLOCK_PRODUCTS", {"cpu": 1, "cuda": 1})
    vectors, before = random_vectors(500), torch.cuda.memory_allocated()
    search = ExactSearch(vectors, device=device)
    assert torch.cuda.memory_allocated() == before
    check_vector_search(search, vectors)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 45), st.integers(1, 9), st.data())
def test_ties_go_to_the_lower_row(values, n, block, data):
    """Against a plain sort, on values with many ties, over block borders and with exclusions."""
    banned = data.draw(st.sets(st.integers(0, len(values) - 1)))
    patch = pytest.MonkeyPatch()
    patch.setattr(exact, "BLOCK_ROWS", block)
    patch.setattr(exact, "BLOCK_PRODUCTS", {"cpu": 1, "cuda": 1})
    try:
        search = ExactSearch(np.array(values, np.float32)[:, None])
        found = search.search(np.ones((1, 1)), n, exclude=[np.array(sorted(banned), np.int64)])[0]
    finally:
        patch.undo()
    expected = sorted(set(range(len(values))) - banned, key=lambda row: (-values[row], row))[:n]
    assert found.rows.tolist() == expected
    assert found.estimates.tolist() == [values[row] for row in expected]


@pytest.mark.parametrize("device", DEVICES)
def test_appended_columns_count_as_part_of_the_vectors(device):
    vectors, columns = random_vectors(dim=5), random_vectors(dim=3, seed=1)
    plain = ExactSearch(vectors.astype(np.float16), device=device)
    augmented = plain.with_columns(columns[:, :2], np.empty((50, 0), np.float32), columns[:, 2:])
    check_vector_search(augmented, np.concatenate([vectors.astype(np.float16).astype(np.float32), columns], axis=1))
    assert (plain.dim, augmented.dim) == (5, 8)
    check_vector_search(AugmentedSearch(plain, columns), np.concatenate([vectors.astype(np.float16), columns], axis=1))
    with pytest.raises(InputError, match=r"one row per item \(50\)"):
        plain.with_columns(columns[:-1])


def test_candidates_may_be_in_any_block(monkeypatch):
    monkeypatch.setattr(exact, "BLOCK_ROWS", 7)
    monkeypatch.setattr(exact, "BLOCK_PRODUCTS", {"cpu": 1, "cuda": 1})
    check_vector_search(ExactSearch(random_vectors()), random_vectors())


def test_vectors_without_a_weight_count_for_nothing():
    """Before the first scores only the bias has a weight."""
    plain, bias = ExactSearch(random_vectors().astype(np.float16)), random_vectors(dim=1, seed=1)
    only_bias = np.eye(1, 9, 8, dtype=np.float32)
    np.testing.assert_array_equal(plain.with_columns(bias).estimates(only_bias)[0], bias[:, 0])
    assert not plain.estimates(np.zeros((2, 8))).any()


def test_memory_mapped_file(tmp_path):
    vectors = random_vectors().astype(np.float16)
    np.save(tmp_path / "v.npy", vectors)
    check_vector_search(ExactSearch(np.load(tmp_path / "v.npy", mmap_mode="r")), vectors)


def test_memory_does_not_grow_with_the_items(tmp_path):
    """400 MB of mapped vectors are searched with little memory of our own (mapped pages are the system's)."""
    script = f"""
        import numpy as np, resource
        vectors = np.lib.format.open_memmap({str(tmp_path / "v.npy")!r}, "w+", np.float16, (1_000_000, 200))
        from crossknn.vectors.exact import ExactSearch
        search = ExactSearch(vectors)
        def anonymous():
            return int(next(l for l in open("/proc/self/status") if l.startswith("RssAnon")).split()[1]) / 1024
        search.search(np.ones((4, 200), np.float32), 10)
        before = anonymous()
        import threading, time
        peak, done = [0.0], threading.Event()
        def watch():
            while not done.is_set():
                peak[0] = max(peak[0], anonymous()); time.sleep(0.005)
        threading.Thread(target=watch).start()
        search.search(np.ones((64, 200), np.float32), 10)
        done.set()
        print(peak[0] - before)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 200  # MB; converting everything at once would take 800


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.zeros(3, np.float32), r"`vectors` must have shape \(items, dim\), got \(3,\)"),
        (np.zeros((3, 2), np.int64), "`vectors` must be float16, bfloat16 or float32, got int64"),
        ([[1.0]], "`vectors` must be a floating-point array or tensor, got list"),
    ],
)
def test_unusable_vectors_are_refused(vectors, message):
    with pytest.raises(InputError, match=message):
        ExactSearch(vectors)


def test_unusable_queries_and_masks_are_refused():
    search = ExactSearch(random_vectors())
    with pytest.raises(InputError, match=r"must have shape \(queries, 8\), got \(1, 7\)"):
        search.search(np.ones((1, 7)), 3)
    with pytest.raises(InputError, match=r"`exclude` must hold one array of rows per query \(1\), got 2"):
        search.search(np.ones((1, 8)), 3, exclude=[np.array([1]), np.array([2])])
    with pytest.raises(InputError, match=r"`allowed` must hold one value per item \(50\), got 3"):
        search.search(np.ones((1, 8)), 3, allowed=np.ones(3, bool))
    with pytest.raises(InputError, match="hold NaN"):
        search.search(np.full((1, 8), np.nan), 3)
