"""Names of strategies become the strategies that they say, and what cannot be said is an error that tells why."""

import pytest

from crossknn.errors import InputError
from crossknn.evaluate.contenders import Offer, default_names, make_entries, split_names
from crossknn.strategies.axn import Axn
from crossknn.strategies.cur import AnnCur
from crossknn.strategies.gar import Gar
from crossknn.strategies.rerank import Rerank
from crossknn.strategies.tour import Tour

OFFER = Offer(("random", "dense", "bm25", "fused"), fitted=True, cur=True)


def make(text, *, offer=OFFER, budgets=(20,), **settings):
    return make_entries(split_names(text), offer, budgets=budgets, **settings)


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


def test_each_adaptive_strategy_stands_beside_the_reranking_that_begins_as_it_does():
    entries = make(
        "axn:first=dense,rerank,rerank:retriever=dense,tour,adacur:first=bm25", offer=Offer(OFFER.retrievers, cur=True)
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


def test_the_defaults_are_what_the_data_have_something_for():
    assert default_names(OFFER) == [
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
    assert default_names(Offer(("random", "dense"))) == [
        "rerank:retriever=dense",
        "axn",
        "tour:loss=ce",
        "tour:loss=mse",
        "gar",
    ]
    assert len(make(",".join(default_names(OFFER)))) == 12


def test_the_fitted_retriever_searches_with_fitted_vectors():
    (entry,) = make("rerank:retriever=fitted")
    assert (entry.contender.name, entry.vectors) == ("rerank, fitted", "fitted")
    assert [entry.vectors for entry in make("axn:first=fitted")] == ["fitted"]


PLAIN = Offer(("random", "dense"))


@pytest.mark.parametrize(
    ("text", "offer", "message"),
    [
        ("", OFFER, "strategies must be names between commas"),
        ("axn,,rerank", OFFER, "strategies must be names between commas"),
        (
            "nax",
            OFFER,
            "there is no strategy 'nax' to compare. Known: rerank, axn, anncur, adacur, tour, gar, posterior.",
        ),
        ("axn:mxi=0.5", OFFER, "axn:mxi=0.5: there is no setting 'mxi'. Known here: mix, first, rounds, shortlist."),
        ("axn:budget=5", OFFER, "there is no setting 'budget'"),
        ("axn:mix=half", OFFER, "axn:mix=half: mix must be a number. Got 'half' instead."),
        ("axn:rounds=1.5", OFFER, "rounds must be a whole number. Got '1.5' instead."),
        ("axn:mix", OFFER, "mix must be a number. Got '' instead."),
        ("axn:mix=1:mix=0", OFFER, "the setting 'mix' comes twice."),
        ("axn:mix=2", OFFER, "axn:mix=2: `mix` must be between 0 and 1"),
        ("anncur:anchors=21", OFFER, "anncur:anchors=21: `anchors` must be between 1 and `budget` (20)"),
        ("tour:loss=huber", OFFER, "`loss` must be one of"),
        ("rerank:retriever=bm52", OFFER, "no retriever 'bm52' here. Known: random, dense, bm25, fused."),
        ("rerank:retriever=bm25", PLAIN, "no retriever 'bm25' here. Known: random, dense."),
        ("rerank:retriever=fitted", PLAIN, "there are no fitted vectors."),
        ("adacur:first=fitted", OFFER, "CUR's vectors are searched instead of fitted ones."),
        ("adacur", PLAIN, "adacur: CUR needs all scores of some train queries, and there are none."),
        ("posterior", PLAIN, "posterior: it needs the retrievers dense and bm25. Known here: random, dense."),
        ("axn,axn", OFFER, "strategies must be different. 'axn' comes twice."),
        ("rerank,rerank:retriever=fused", OFFER, "strategies must be different."),
    ],
)
def test_what_cannot_be_compared_says_why(text, offer, message):
    with pytest.raises(InputError) as error:
        make(text, offer=offer)
    assert message in str(error.value)


def test_no_strategy_is_an_error():
    with pytest.raises(InputError, match="there must be at least one strategy"):
        make_entries([], OFFER, budgets=[10])
