"""Retrieval in parallel over queries: the same rows and estimates, and errors are raised."""

import os

import numpy as np
import pytest

from crossknn.items.items import Items
from crossknn.retrievers import base
from crossknn.retrievers.bm25 import Bm25
from crossknn.retrievers.tfidf import TfIdf

WORDS = ["red", "green", "blue", "round", "square", "small", "large", "heavy", "light", "old"]
ITEMS = Items([" ".join(np.random.default_rng(row).choice(WORDS, 5)) for row in range(400)])
QUERIES = [f"{one} {other}" for one in WORDS for other in WORDS]


@pytest.mark.parametrize("retriever", [Bm25(), Bm25(method="bm25+"), TfIdf()], ids=["bm25", "bm25+", "tfidf"])
def test_threads_find_the_same(retriever, monkeypatch):
    retriever.fit(ITEMS)
    alone = [retriever.retrieve([query], 20)[0] for query in QUERIES]
    monkeypatch.setattr(base, "MIN_PARALLEL_SCORES", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)), raising=False)
    for one, other in zip(alone, retriever.retrieve(QUERIES, 20), strict=True):
        np.testing.assert_array_equal(one.rows, other.rows)
        np.testing.assert_array_equal(one.estimates, other.estimates)


@pytest.mark.parametrize("threshold", [1, 1 << 20])
def test_errors_are_raised(threshold, monkeypatch):
    monkeypatch.setattr(base, "MIN_PARALLEL_SCORES", threshold)

    class Broken(TfIdf):
        def scores(self, query):
            return 1 // 0

    with pytest.raises(ZeroDivisionError):
        Broken().fit(ITEMS).retrieve(QUERIES, 10)


def test_a_system_that_does_not_say_how_many_cores_it_has(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    monkeypatch.setattr(base, "MIN_PARALLEL_SCORES", 1)
    assert all(len(found) == 20 for found in TfIdf().fit(ITEMS).retrieve(QUERIES, 20))
