"""Names of strategies become contenders, and errors name what cannot be compared."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from crossknn.errors import InputError
from crossknn.evaluate.contenders import (
    AvailableData,
    default_names,
    named_strategies,
    resolve_strategies,
    split_names,
)
from crossknn.evaluate.tuning import make_candidates
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import RETRIEVERS, Grid
from crossknn.strategies.cur import AnnCur
from crossknn.strategies.gar import Gar
from crossknn.strategies.registry import STRATEGIES
from crossknn.strategies.rerank import Rerank
from crossknn.strategies.tour import Tour

AVAILABLE = AvailableData(("random", "dense", "bm25", "fused"), fitted=True, cur=True)


def make(text, *, available=AVAILABLE, budgets=(20,), **settings):
    return resolve_strategies(split_names(text), available, budgets=budgets, **settings)


def test_a_name_with_settings_is_that_strategy():
    entries = make("rerank, axn:mix=0.8:first=bm25, anncur:anchors=7, tour:loss=mse, gar:neighbors=3", seed=5)
    made = {entry.contender.name: entry.contender.make(20) for entry in entries}
    assert made == {
        "rerank, fused": Rerank(20, "fused"),
        "axn, λ 0.8, bm25 first": Axn(20, 10, 0.8, "bm25"),
        "axn, λ 0.8, bm25 first, fitted": Axn(20, 10, 0.8, "bm25"),
        "anncur, anchors 7": AnnCur(20, 7, seed=5),
        "tour, mse": Tour(20, 10, "mse"),
        "gar, neighbors 3": Gar(20, 10, 3, "fused"),
    }
    assert [entry.vectors for entry in entries] == ["encoder", "encoder", "fitted", "cur", "encoder", "encoder"]


def test_the_baseline_is_reranking_with_the_same_first_stage():
    entries = make(
        "axn:first=dense,rerank,rerank:retriever=dense,tour,adacur:first=bm25",
        available=AvailableData(AVAILABLE.retrievers, cur=True),
    )
    assert {entry.contender.name: entry.contender.baseline for entry in entries} == {
        "axn, dense first": "rerank, dense",
        "rerank, fused": None,
        "rerank, dense": None,
        "tour": "rerank, dense",
        "adacur, bm25 first": "rerank, fused",
    }
    assert make("axn")[0].contender.baseline is None


def test_a_budget_below_the_rounds_has_a_call_in_each():
    (entry, _) = make("axn:rounds=30", budgets=(5, 50))
    assert entry.contender.make(5).rounds == 5
    assert entry.contender.make(50).rounds == 30
    (entry,) = make("gar", budgets=(5,), rounds=7)
    assert entry.contender.make(5).rounds == 5


def test_the_defaults_are_all_strategies_that_the_data_allow():
    assert default_names(AVAILABLE) == [
        "rerank:retriever=dense",
        "rerank:retriever=bm25",
        "rerank:retriever=fused",
        "axn",
        "anncur",
        "adacur",
        "tour:loss=ce",
        "tour:loss=mse",
        "gar",
        "posterior",
    ]
    assert default_names(AvailableData(("random", "dense"))) == [
        "rerank:retriever=dense",
        "axn",
        "tour:loss=ce",
        "tour:loss=mse",
        "gar",
    ]
    assert len(make(",".join(default_names(AVAILABLE)))) == 12


def test_all_are_those_that_only_run_where_they_are_asked_for_too():
    usual, everything = default_names(AVAILABLE), named_strategies("all", AVAILABLE)
    rivals = {"quam", "rgs", "ore", "feedback", "gp", "rbe"}
    assert set(everything) == {*usual, *rivals}
    assert (everything[0], everything[-1]) == ("rerank:retriever=dense", "posterior")
    assert named_strategies(None, AVAILABLE) == usual
    assert named_strategies("axn, gar", AVAILABLE) == ["axn", "gar"]
    plain = AvailableData(("random", "dense"))
    assert set(named_strategies("all", plain)) == {*default_names(plain), "quam", "rgs", "feedback"}
    assert "gp, prior" in [entry.contender.name for entry in make("gp")]
    with pytest.raises(InputError, match="gp: needs the retrievers dense and bm25; there are random, dense"):
        make("gp", available=plain)


def test_a_strategy_brings_its_place_in_a_benchmark_and_its_search_space(monkeypatch):
    """A registered class is enough: nothing in the benchmark names it."""

    @dataclass(frozen=True, repr=False)
    class Wide(Gar):
        by_default = False
        search_space: ClassVar[Grid] = {"neighbors": (2, 3), "first": RETRIEVERS}

    monkeypatch.setitem(STRATEGIES, "wide", Wide)
    assert "wide" not in default_names(AVAILABLE)
    assert "wide" in named_strategies("all", AVAILABLE)
    (family,) = make_candidates(["wide:first=bm25"], AVAILABLE, budgets=[20])
    assert [one.contender.make(20) for one in family.candidates] == [Wide(20, 10, 2, "bm25"), Wide(20, 10, 3, "bm25")]


def test_the_fitted_retriever_searches_with_fitted_vectors():
    (entry,) = make("rerank:retriever=fitted")
    assert (entry.contender.name, entry.vectors) == ("rerank, fitted", "fitted")
    assert [entry.vectors for entry in make("axn:first=fitted")] == ["fitted"]


PLAIN = AvailableData(("random", "dense"))


@pytest.mark.parametrize(
    ("text", "available", "message"),
    [
        ("", AVAILABLE, "comma-separated names"),
        ("axn,,rerank", AVAILABLE, "comma-separated names"),
        (
            "nax",
            AVAILABLE,
            "got 'nax'",
        ),
        (
            "axn:mxi=0.5",
            AVAILABLE,
            "axn:mxi=0.5: the strategy 'axn' has no setting 'mxi'",
        ),
        ("axn:budget=5", AVAILABLE, "the setting 'budget' cannot be chosen"),
        ("posterior:stop_at=0.9", AVAILABLE, "the setting 'stop_at' cannot be chosen"),
        ("exact", AVAILABLE, "got 'exact'"),
        ("axn:mix=half", AVAILABLE, "axn:mix=half: `mix` must be"),
        ("axn:rounds=1.5", AVAILABLE, "`rounds` must be"),
        ("axn:mix", AVAILABLE, "`mix` must be"),
        ("axn:mix=1:mix=0", AVAILABLE, "the setting 'mix' is given twice"),
        ("axn:mix=2", AVAILABLE, "axn:mix=2: "),
        (
            "anncur:anchors=21",
            AVAILABLE,
            "anncur:anchors=21: `anchors` must be between 1 and `budget` (20)",
        ),
        ("tour:loss=huber", AVAILABLE, "tour:loss=huber: "),
        ("rerank:retriever=bm52", AVAILABLE, "no retriever 'bm52', only random, dense, bm25, fused"),
        ("rerank:retriever=bm25", PLAIN, "no retriever 'bm25', only random, dense"),
        ("rerank:retriever=fitted", PLAIN, "there are no fitted vectors."),
        ("adacur:first=fitted", AVAILABLE, "CUR has vectors of its own"),
        ("adacur", PLAIN, "adacur: CUR needs all scores of some train queries, and there are none."),
        ("posterior", PLAIN, "posterior: needs the retrievers dense and bm25"),
        ("axn,axn", AVAILABLE, "strategies must be distinct, got 'axn' twice"),
        ("rerank,rerank:retriever=fused", AVAILABLE, "strategies must be distinct"),
    ],
)
def test_what_cannot_be_compared_says_why(text, available, message):
    with pytest.raises(InputError) as error:
        make(text, available=available)
    assert message in str(error.value)


def test_no_strategy_is_an_error():
    with pytest.raises(InputError, match="must not be empty"):
        resolve_strategies([], AVAILABLE, budgets=[10])
