"""Retrievers by name: fitted once on first use, the caller's own first."""

import pytest

from crossknn.encoders.base import function_encoder
from crossknn.errors import InputError
from crossknn.items.items import Items
from crossknn.retrievers.bm25 import Bm25
from crossknn.retrievers.dense import Dense
from crossknn.retrievers.fused import Fused
from crossknn.retrievers.registry import BUILT_IN, RetrieverRegistry
from crossknn.retrievers.simple import Random
from crossknn.retrievers.tfidf import TfIdf

ITEMS = Items(["a river froze", "bread rises", "the sea"])
ENCODER = function_encoder(lambda texts: [[len(text), 1.0] for text in texts])


def make(**options) -> RetrieverRegistry:
    return RetrieverRegistry(ITEMS, fitted={"dense": lambda: Dense(ENCODER).fit(ITEMS)}, **options)


@pytest.mark.parametrize(
    ("name", "kind"), [("bm25", Bm25), ("tfidf", TfIdf), ("random", Random), ("dense", Dense), ("fused", Fused)]
)
def test_built_in_retrievers_are_fitted_once(name, kind):
    registry = make()
    retriever = registry.get(name)
    assert type(retriever) is kind
    assert retriever.n_items == len(ITEMS)
    assert registry.get(name) is retriever
    assert registry.ready[name] is retriever


def test_nothing_is_fitted_before_it_is_requested():
    registry = make()
    assert registry.names == set(BUILT_IN)
    assert not registry.ready
    registry.get("fused")
    assert set(registry.ready) == {"fused", "dense", "bm25"}


def test_the_members_of_fused_are_those_of_the_registry():
    own = Bm25(k1=2.0)
    registry = make(own=[own])
    assert registry.get("fused").retrievers == (registry.get("dense"), own)


def test_your_own_take_precedence():
    own = [Random(3, name="dense"), Random(4, name="mine")]
    registry = make(own=own)
    assert registry.get("dense") is own[0]
    assert registry.get("mine") is own[1]
    assert own[0].n_items == own[1].n_items == len(ITEMS)
    assert registry.own_names == ["dense", "mine"]
    assert registry.names == {*BUILT_IN, "mine"}


def test_fitted_ones_replace_built_in_ones():
    bm25 = Bm25().fit(ITEMS)
    registry = RetrieverRegistry(ITEMS, fitted={"bm25": lambda: bm25, "learned": lambda: bm25})
    assert registry.get("bm25") is registry.get("learned") is bm25


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match=r"no retriever named 'splade'.*bm25"):
        make().get("splade")
    with pytest.raises(InputError, match="no retriever named 'dense'"):
        RetrieverRegistry(ITEMS).get("fused")  # without an encoder there is no dense retriever
