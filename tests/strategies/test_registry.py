"""The registry: names, settings, texts and plain data of every strategy, and strategies that are added to it."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest

from crossknn.errors import InputError
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Round, Settings, Strategy
from crossknn.strategies.cur import AnnCur
from crossknn.strategies.exact import Exact
from crossknn.strategies.gar import Gar
from crossknn.strategies.gp import Gp
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.registry import (
    STRATEGIES,
    first_stage_setting,
    make_strategy,
    parse_strategy,
    requirements_of,
    settings_of,
    strategy_from_dict,
    strategy_to_dict,
)
from crossknn.strategies.rerank import Rerank
from crossknn.strategies.tour import Tour
from tests.worlds import World, all_rows

SPECS = {
    "posterior:rounds=5:first=bm25:estimates=true:stop_at=0.9": Posterior(40, 5, "bm25", True, 0.9),
    "rerank:retriever=bm25": Rerank(40, "bm25"),
    "axn:mix=0.8:shortlist=200": Axn(40, None, 0.8, None, 200),
    "anncur:anchors=7:seed=3": AnnCur(40, anchors=7, seed=3),
    "tour:loss=mse:learning_rate=0.5": Tour(40, None, "mse", 0.5),
    "gar:neighbors=3": Gar(40, None, 3),
    "gp:kernel=linear:beta=0.5": Gp(40, kernel="linear", beta=0.5),
    "exact": Exact(),
}


@pytest.mark.parametrize(("spec", "strategy"), SPECS.items())
def test_a_text_gives_name_and_settings(spec, strategy):
    name, settings = parse_strategy(spec)
    assert make_strategy(name, settings, budget=40) == strategy


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_is_made_by_name_and_has_its_requirements(name):
    strategy = make_strategy(name, budget=5)
    assert isinstance(strategy, Strategy)
    assert strategy.budget == (None if name == "exact" else 5)
    assert requirements_of(STRATEGIES[name]) == STRATEGIES[name].requires
    assert requirements_of(STRATEGIES[name]) <= {"query_vectors", "item_vectors", "cur_factors"}


@pytest.mark.parametrize("strategy", [*SPECS.values(), *(kind() for kind in STRATEGIES.values())], ids=repr)
def test_plain_data_gives_the_strategy_back(strategy):
    data = strategy_to_dict(strategy)
    assert type(strategy) is STRATEGIES[data["name"]]
    assert strategy_from_dict(data) == strategy


def test_settings_are_read_from_the_dataclass():
    settings = settings_of(Tour)
    assert list(settings) == ["budget", "rounds", "loss", "learning_rate", "steps"]
    assert (settings["loss"].type, settings["loss"].choices, settings["loss"].default) == (str, ("ce", "mse"), "ce")
    assert (settings["learning_rate"].type, settings["learning_rate"].optional) == (float, True)
    assert settings["rounds"].type_name == "integer"
    assert settings_of(Exact) == {}
    assert [first_stage_setting(kind) for kind in (Rerank, Axn, Exact)] == ["retriever", "first", None]


def test_rounds_that_are_not_given_fit_the_budget():
    assert (make_strategy("axn", budget=3), Axn(3).round_count, Axn(30).round_count) == (Axn(3), 3, 10)
    assert make_strategy("axn", {"rounds": 2}, budget=3) == Axn(3, 2)
    assert make_strategy("axn", {"budget": 7}, budget=3) == Axn(7)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("rerankk", "`strategy` must be one of posterior"),
        ("axn:lambda=0.5", "the strategy 'axn' has no setting 'lambda'; its settings are budget"),
        ("exact:budget=5", "it has no settings"),
        ("axn:mix=0.5:mix=0.6", "'mix' is given twice"),
        ("axn:mix=half", "`mix` must be of type number, got 'half'"),
        ("axn:rounds=2.5", "`rounds` must be of type integer"),
        ("posterior:estimates=1", "`estimates` must be true or false"),
    ],
)
def test_a_text_that_names_nothing_is_rejected(spec, message):
    with pytest.raises(InputError, match=message):
        parse_strategy(spec)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("axn", {"lambda": 1}, "has no setting 'lambda'"),
        ("axn", {"mix": "0.5"}, "`mix` must be of type number"),
        ("axn", {"rounds": True}, "`rounds` must be of type integer"),
        ("axn", {"mix": float("nan")}, "`mix` must be of type number"),
        ("axn", {"mix": 1.5}, "`mix` must be between 0 and 1"),
        ("gar", {"neighbors": None}, "`neighbors` must be of type integer"),
        ("tour", {"loss": "kl"}, "`loss` must be one of"),
    ],
)
def test_settings_of_a_wrong_name_type_or_value_are_rejected(name, settings, message):
    with pytest.raises(InputError, match=message):
        make_strategy(name, settings, budget=20)


def test_only_registered_strategies_become_plain_data():
    with pytest.raises(InputError, match="only registered strategies"):
        strategy_to_dict(Last(5))
    with pytest.raises(InputError, match="`strategy` must be one of"):
        strategy_from_dict({"budget": 5})


@dataclass(frozen=True, repr=False)
class Last(Settings):
    """Scores the last rows."""

    requires: ClassVar[frozenset[str]] = frozenset()

    budget: int = 10
    order: Literal["up", "down"] = "up"

    def flow(self, context):
        _, proposals = context.propose("dense", context.items)
        yield Round([type(one)(one.rows[-self.budget :], one.estimates[-self.budget :]) for one in proposals], "last")


def test_a_strategy_is_added_with_one_line(monkeypatch):
    monkeypatch.setitem(STRATEGIES, "last", Last)
    name, settings = parse_strategy("last:order=down")
    strategy = make_strategy(name, settings, budget=4)
    assert strategy == Last(4, "down") == strategy_from_dict(strategy_to_dict(strategy))
    world = World.low_rank()
    for found, scores in zip(world.run(strategy), world.query_vectors @ world.vectors.T, strict=True):
        assert all_rows(found) == np_order(scores)[-4:]


def np_order(values):
    return sorted(range(len(values)), key=lambda row: (-values[row], row))
