"""benchmarks/index_memory.py: what it counts as an index's pages, on an index made without a model."""

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.big_index import DIM, ENCODER, SCORER, build_index, read_items
from benchmarks.index_memory import memory
from crossknn.indexing.index import Index
from crossknn.search.searcher import Searcher
from crossknn.strategies.axn import Axn

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system has no smaps")
ITEMS = 4000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index") / "items.ck"
    build_index(read_items(None, ITEMS), folder, prior=False)
    return folder


def test_pages_of_the_index_are_counted_once_they_are_looked_at(folder):
    assert memory(os.getpid(), folder)["index_mb"] == 0
    index = Index.load(folder)
    searcher = Searcher(index, scorer=SCORER, encoder=ENCODER)
    searcher.search("some words", k=5, strategy=Axn(20, 4, first="dense"))
    found = memory(os.getpid(), folder)
    vectors = ITEMS * DIM * 2 / 2**20
    assert vectors <= found["index_mb"] < 2 * vectors
    assert 0 < found["own_mb"] < found["resident_mb"]
    assert found["pss_mb"] <= found["resident_mb"]


def test_made_texts_and_vectors_are_always_the_same(folder):
    items, index = read_items(None, ITEMS), Index.load(folder)
    assert list(items.texts[:3]) == list(index.items.texts[:3])
    np.testing.assert_array_equal(ENCODER.encode_items(items.texts[:3]).astype(np.float16), index.vectors[:3])
