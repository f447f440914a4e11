"""Queries in threads: the same rows and estimates, and errors are not lost."""

import numpy as np
import pytest

from crossknn.items.items import Items
from crossknn.retrievers import side_by_side
from crossknn.retrievers.bm25 import Bm25
from crossknn.retrievers.tfidf import TfIdf

WORDS = ["red", "green", "blue", "round", "square", "small", "large", "heavy", "light", "old"]
ITEMS = Items([" ".join(np.random.default_rng(row).choice(WORDS, 5)) for row in range(400)])
QUERIES = [f"{one} {other}" for one in WORDS for other in WORDS]


@pytest.mark.parametrize("retriever", [Bm25(), Bm25(method="bm25+"), TfIdf()], ids=["bm25", "bm25+", "tfidf"])
def test_threads_find_what_one_finds(retriever, monkeypatch):
    retriever.fit(ITEMS)
    alone = [retriever.retrieve([query], 20)[0] for query in QUERIES]
    monkeypatch.setattr(side_by_side, "WORTH", 1)
    monkeypatch.setattr(side_by_side, "_cores", lambda: 4)
    for one, other in zip(alone, retriever.retrieve(QUERIES, 20), strict=True):
        np.testing.assert_array_equal(one.rows, other.rows)
        np.testing.assert_array_equal(one.estimates, other.estimates)


@pytest.mark.parametrize("worth", [1, 1 << 20])
def test_an_error_comes_through(worth, monkeypatch):
    monkeypatch.setattr(side_by_side, "WORTH", worth)
    with pytest.raises(ZeroDivisionError):
        side_by_side.map_queries(lambda _: 1 // 0, QUERIES, 10)


def test_there_are_cores():
    assert side_by_side._cores() >= 1
