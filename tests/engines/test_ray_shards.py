"""Vectors held by Ray actors: the same results as without, also when an actor is lost."""

import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from crossknn.encoders.precomputed import load_vectors
from crossknn.engines.ray import RayEngine
from crossknn.errors import EngineError, InputError
from crossknn.strategies.axn import Axn
from crossknn.testing import check_vector_search
from crossknn.vectors import exact, sharded
from crossknn.vectors.sharded import cut_rows, ray_shards
from tests.worlds import World, all_rows

ITEMS = 300


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors") / "v.npy"
    np.save(path, np.random.default_rng(0).normal(size=(ITEMS, 8)).astype(np.float16))
    return path


@pytest.fixture(scope="module")
def shards(ray, path):
    """Two shards, though so few rows would be one block; once for all tests, for an actor imports torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharded, "BLOCK_ROWS", 200)
        search = ray_shards(partial(load_vectors, path), shards=2, engine=RayEngine(cpus_per_worker=0.2))
    yield search
    search.close()


def test_contract_with_and_without_appended_columns(shards, path):
    vectors = np.load(path).astype(np.float32)
    assert [len(part) for part in shards.parts] == [200, 100]
    check_vector_search(shards, vectors)
    columns = np.random.default_rng(1).normal(size=(ITEMS, 3)).astype(np.float32)
    check_vector_search(shards.with_columns(columns[:, :2], columns[:, 2:]), np.concatenate([vectors, columns], axis=1))
    check_vector_search(shards, vectors)


def test_errors_of_a_search_come_as_they_are(shards):
    with pytest.raises(InputError, match=r"must have shape \(queries, 8\)"):
        shards.search(np.ones((1, 7), np.float32), 3)


def test_a_node_that_finds_other_vectors_is_refused(shards):
    with pytest.raises(InputError, match=r"must return shape \(301, 8\) on every node, got \(300, 8\)"):
        shards.parts[0].check(301, 8)


def test_a_whole_search_finds_the_same_though_an_actor_is_killed(shards, path, ray):
    world = World.low_rank(items=ITEMS, dim=8)
    world.vectors = np.load(path).astype(np.float32)
    columns = np.zeros((ITEMS, 1), np.float32)
    context = replace(world.context(), item_vectors=lambda: shards)
    wide = shards.with_columns(columns)
    wide.take(np.arange(ITEMS))
    os.kill(ray.get(shards.parts[1]._actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
    for mine, its in zip(world.run(Axn(40, 4)), world.run(Axn(40, 4), context=context), strict=True):
        assert all_rows(mine) == all_rows(its)
    assert wide.take(np.array([299])).shape == (1, 9)  # an actor that was started again gets the columns again


def test_an_actor_that_is_gone_for_good_is_an_error(shards):
    shards.close()
    with pytest.raises(EngineError, match="A shard of the vectors was lost"):
        [shards.take(np.array([1, 299])) for _ in range(100)]  # actors end asynchronously


def test_shards_are_cut_as_without_ray():
    assert cut_rows(ITEMS, 3) == [(0, ITEMS)]  # one block
    assert cut_rows(3 * exact.BLOCK_ROWS + 1, 2) == [(0, 131_072), (131_072, 196_609)]
