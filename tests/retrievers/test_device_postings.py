"""BM25 that ranks with torch gives the proposals of BM25 on the host, to the last bit."""

import numpy as np
import pytest
import torch

from crossknn.items.items import Items
from crossknn.retrievers.bm25 import METHODS, Bm25
from crossknn.retrievers.registry import RetrieverRegistry

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
QUERIES = ["w1", "w2 w7 w2", "w3 w49 w12 w5", "unknown", ""]


@pytest.fixture(scope="module")
def items():
    rng = np.random.default_rng(0)
    return Items(
        [" ".join(f"w{word}" for word in rng.zipf(1.5, size=size) % 50) for size in rng.integers(0, 30, size=2_000)]
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [0, 1, 20, 700, 2_000, 5_000])
def test_proposals_are_those_of_the_host(items, device, method, n):
    bm25 = Bm25(method=method, stemmer=None, stopwords=None).fit(items)
    allowed = np.random.default_rng(1).random(len(items)) < 0.3
    for mask in (None, allowed, np.zeros(len(items), bool)):
        for mine, theirs in zip(
            bm25.to(device).retrieve(QUERIES, n, allowed=mask), bm25.retrieve(QUERIES, n, allowed=mask), strict=True
        ):
            np.testing.assert_array_equal(mine.rows, theirs.rows)
            np.testing.assert_array_equal(mine.estimates, theirs.estimates)


def test_no_queries(items):
    assert Bm25().fit(items).to("cpu").retrieve([], 5) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_registry_on_a_gpu_places_bm25_there(items):
    assert RetrieverRegistry(items).get("bm25").on_host
    assert not RetrieverRegistry(items, device="cuda").get("bm25").on_host
