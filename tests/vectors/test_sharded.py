"""Sharded search: the contract, and the results of one search over all vectors, to the last bit."""

from dataclasses import replace

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.strategies.axn import Axn
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.testing import check_vector_search
from crossknn.vectors import exact, sharded
from crossknn.vectors.base import AugmentedSearch
from crossknn.vectors.exact import ExactSearch
from crossknn.vectors.sharded import ShardedSearch, cut_rows
from tests.strategies.posterior.test_strategy import make_world
from tests.worlds import all_rows


def random_vectors(items: int = 50, dim: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(items, dim)).astype(np.float32)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(exact, "BLOCK_ROWS", 16)
    monkeypatch.setattr(exact, "BLOCK_PRODUCTS", {"cpu": 1, "cuda": 1})
    monkeypatch.setattr(sharded, "BLOCK_ROWS", 16)


@pytest.mark.parametrize("sizes", [[50], [1, 49], [20, 0, 30], [7] * 7 + [1]])
def test_contract_whatever_the_parts_hold(sizes):
    vectors = random_vectors()
    parts = np.split(vectors, np.cumsum(sizes)[:-1])
    check_vector_search(ShardedSearch([ExactSearch(part) for part in parts]), vectors)
    check_vector_search(
        ShardedSearch([AugmentedSearch(ExactSearch(part[:, :5]), part[:, 5:]) for part in parts]), vectors
    )


@pytest.mark.parametrize("shards", [1, 2, 3, 100])
def test_equals_one_search_to_the_last_bit(shards):
    vectors, queries = random_vectors(500).astype(np.float16), random_vectors(6, seed=1)
    vectors[100:200] = vectors[:100]  # ties, over the borders of shards
    whole, parts = ExactSearch(vectors), ShardedSearch.split(vectors, shards)
    assert len(parts.parts) == min(shards, 32)
    rng = np.random.default_rng(2)
    exclude, candidates = ([rng.permutation(500)[:40] for _ in queries] for _ in range(2))
    allowed = rng.random(500) < 0.5
    one, other = (
        s.search_with_candidates(queries, 90, candidates, exclude=exclude, allowed=allowed) for s in (whole, parts)
    )
    for mine, its in zip(one[0], other[0], strict=True):
        np.testing.assert_array_equal(mine.rows, its.rows)
        np.testing.assert_array_equal(mine.estimates, its.estimates)
    np.testing.assert_array_equal(one[1], other[1])
    np.testing.assert_array_equal(whole.estimates(queries), parts.estimates(queries))
    np.testing.assert_array_equal(whole.take(candidates[0]), parts.take(candidates[0]))


@pytest.mark.parametrize("strategy", [Axn(40, 4), Posterior(40, 4, estimates=True)])
def test_a_whole_search_finds_the_same(strategy):
    world = make_world()
    whole = world.run(strategy)
    vectors = ShardedSearch.split(world.vectors, 5)
    profiles = vectors.with_columns(*world.prior.item_columns)
    assert profiles.dim == 16 + 3 + 1
    context = replace(world.context(), item_vectors=lambda: vectors, augmented_vectors=lambda: profiles)
    for mine, its in zip(whole, world.run(strategy, context=context), strict=True):
        assert all_rows(mine) == all_rows(its)
        for one, other in zip(mine.estimates, its.estimates, strict=True):
            np.testing.assert_array_equal(one, other)


def test_shards_are_whole_blocks_of_like_size():
    assert cut_rows(100, 3) == [(0, 48), (48, 96), (96, 100)]
    assert cut_rows(100, 2) == [(0, 64), (64, 100)]
    assert cut_rows(5, 4) == [(0, 5)]


def test_unusable_parts_and_arguments_are_refused():
    vectors = random_vectors()
    search = ShardedSearch.split(vectors, 2)
    with pytest.raises(InputError, match="at least one search"):
        ShardedSearch([])
    with pytest.raises(InputError, match=r"same dimension, got \[8, 7\]"):
        ShardedSearch([ExactSearch(vectors), ExactSearch(vectors[:, 1:])])
    with pytest.raises(InputError, match="`shards` must be"):
        ShardedSearch.split(vectors, 0)
    with pytest.raises(InputError, match=r"one row per item \(50\)"):
        search.with_columns(vectors[1:])
    with pytest.raises(InputError, match=r"`candidates` must hold one array of rows per query \(1\), got 2"):
        search.search_with_candidates(vectors[:1], 3, [np.array([1])] * 2)
    with pytest.raises(InputError, match=r"one value per item \(50\), got 3"):
        search.search(vectors[:1], 3, allowed=np.ones(3, bool))
