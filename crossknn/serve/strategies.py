"""Strategies of requests: those that /info offers, and the one that a request names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from crossknn._checks import invalid
from crossknn.errors import InputError
from crossknn.search.searcher import Searcher
from crossknn.strategies.base import Strategy
from crossknn.strategies.registry import STRATEGIES, Setting, make_strategy, requirements_of, settings_of

# Requests have fields of their own for budget and stop_at, and an extreme learning rate makes numbers overflow.
HIDDEN_SETTINGS: Final = ("budget", "estimates", "stop_at", "learning_rate")


def request_settings(name: str) -> dict[str, Setting]:
    """The settings of a strategy that a request may set."""
    known = settings_of(STRATEGIES[name])
    return {setting: about for setting, about in known.items() if setting not in HIDDEN_SETTINGS}


def requested_strategy(name: str, settings: Mapping[str, Any], *, budget: int, max_budget: int) -> Strategy:
    """The strategy that a request names, with its settings checked."""
    known = request_settings(name)
    for setting in settings:
        if setting not in known:
            takes = f"its settings are {', '.join(known)}" if known else "it has no settings"
            raise InputError(f"the strategy {name!r} has no setting {setting!r:.80}; {takes}.")
    strategy = make_strategy(name, settings, budget=budget)
    if settings.get("neighbors", 0) > max_budget:
        raise invalid("neighbors", f"at most {max_budget}", settings["neighbors"])
    return strategy


def offered_strategies(searcher: Searcher, max_budget: int) -> list[dict[str, Any]]:
    """The strategies that a searcher can run within the largest budget, as /info lists them."""
    factors = None if searcher.index is None else searcher.index.factors
    available = {
        "query_vectors": searcher.has_query_vectors,
        "item_vectors": searcher.index is not None or searcher.encoder is not None,
        "cur_factors": factors is not None and factors.kind == "cur",
    }
    return [
        {
            "name": name,
            "title": kind.__name__,
            "settings": {
                setting: {"default": about.default, "type": about.type_name}
                for setting, about in request_settings(name).items()
            },
        }
        for name, kind in STRATEGIES.items()
        if all(available[requirement] for requirement in requirements_of(kind))
        and ("budget" in settings_of(kind) or len(searcher.items) <= max_budget)
    ]
