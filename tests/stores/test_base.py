"""What all stores share: vectors that are kept for later rounds, and columns beside a store."""

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.stores import base
from crossknn.stores.base import ProposedRowsSearch
from crossknn.vectors.base import recall_against_exact
from crossknn.vectors.exact import ExactSearch
from tests.stores.test_importing import ListStore
from tests.stores.world import DIM, ITEMS, QUERIES, ROWS, VECTORS

RNG = np.random.default_rng(1)
COLUMNS = RNG.normal(size=(ROWS, 3)).astype(np.float32)
WIDE = np.concatenate([QUERIES, RNG.normal(size=(len(QUERIES), 3))], axis=1).astype(np.float32)


def test_vectors_are_read_once(monkeypatch):
    store = ListStore()
    rows = np.array([7, 3, 7, 200])
    for _ in range(2):
        np.testing.assert_array_equal(store.take(rows), VECTORS[rows])
    assert store.read == [3, 7, 200]
    monkeypatch.setattr(base, "CACHE_BYTES", 4 * DIM * 4)  # four vectors
    np.testing.assert_array_equal(store.take(np.array([3, 4, 5])), VECTORS[[3, 4, 5]])
    np.testing.assert_array_equal(store.take(np.arange(20)), VECTORS[:20])
    np.testing.assert_array_equal(store.take(np.array([5, 4, 3])), VECTORS[[5, 4, 3]])
    assert store.read == [3, 7, 200, 4, 5, *range(3), *range(6, 20)]
    assert store.take(np.empty(0, np.int64)).shape == (0, DIM)


def test_columns_beside_a_store_find_what_either_part_proposes(monkeypatch):
    monkeypatch.setattr(base, "MIN_PROPOSED", 1)
    exact, beside = ExactSearch(VECTORS).with_columns(COLUMNS), ProposedRowsSearch(ExactSearch(VECTORS), COLUMNS)
    assert recall_against_exact(beside, exact, WIDE, 10).mean() > 0.9
    by_columns = np.concatenate([np.zeros_like(QUERIES), 100 * WIDE[:, DIM:]], axis=1)
    for query in (WIDE, by_columns):
        allowed = np.arange(ROWS) % 2 == 0
        candidates = [np.arange(number, 60) for number in range(len(query))]
        found, products = beside.search_with_candidates(query, 10, candidates, allowed=allowed)
        expected, own = exact.search_with_candidates(query, 10, candidates, allowed=allowed)
        for one, other in zip(products, own, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
        for one, rows, vector in zip(found, candidates, query, strict=True):
            assert not set(one.rows) & set(rows)
            assert allowed[one.rows].all()
            np.testing.assert_allclose(one.estimates, exact.take(one.rows) @ vector, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(found[0].rows, expected[0].rows)  # by columns alone, none is missed


def test_columns_need_a_row_for_each_item():
    with pytest.raises(InputError, match=rf"one row per item \({ROWS}\)"):
        ListStore().with_columns(COLUMNS[:-1])


def test_a_mask_tells_its_conditions_and_a_mask_made_of_it_does_not():
    mask = ITEMS.mask({"lang": "de"})
    assert mask.condition is not None
    assert mask.items is ITEMS
    assert (mask & True).condition is None
    assert mask[:5].condition is None
    with pytest.raises(ValueError, match="read-only"):
        mask[0] = False
