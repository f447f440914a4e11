"""Strategies as requests name them, and what a server says about those it offers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

from crossknn.errors import InputError
from crossknn.search.searcher import Searcher
from crossknn.serve.request_schemas import StrategyName
from crossknn.strategies.base import Strategy
from crossknn.strategies.exact import Exact
from crossknn.strategies.registry import STRATEGIES

# A request has fields of its own for two of these, and a wild learning rate leads to numbers past all bounds.
HIDDEN: Final = ("budget", "estimates", "stop_at", "learning_rate")
TYPES: Final[Mapping[type, str]] = {int: "integer", float: "number", str: "string", bool: "boolean"}


class Setting(NamedTuple):
    """What a strategy's setting takes."""

    default: Any
    type: type
    optional: bool

    def check(self, name: str, value: object) -> None:
        """An error unless it takes this value."""
        wanted: tuple[type, ...] = (int, float) if self.type is float else (self.type,)
        if value is None and self.optional:
            return
        fits = isinstance(value, wanted) and (self.type is bool or not isinstance(value, bool))
        if not fits or (isinstance(value, float) and not math.isfinite(value)):
            or_null = " or null" * self.optional
            raise InputError(f"{name} must be of type {TYPES[self.type]}{or_null}. Got {value!r:.80} instead.")


def settings_of(kind: Any) -> dict[str, Setting]:
    """The settings that a request may give."""
    if not is_dataclass(kind):
        return {}
    hints = get_type_hints(kind)
    return {f.name: Setting(f.default, *_read(hints[f.name])) for f in fields(kind) if f.name not in HIDDEN}


def _read(hint: Any) -> tuple[type, bool]:
    """The type of a setting, and whether it may be None."""
    if get_origin(hint) is Literal:
        return type(get_args(hint)[0]), False
    options = get_args(hint) or (hint,)
    return next(option for option in options if option is not NoneType), NoneType in options


def make_strategy(name: StrategyName, given: Mapping[str, Any], *, budget: int, most: int) -> Strategy:
    """The strategy of this name; no number of neighbors is above `most`, the largest budget."""
    known = settings_of(STRATEGIES[name])
    for setting, value in given.items():
        if setting not in known:
            takes = f"takes {', '.join(known)}" if known else "takes no settings"
            raise InputError(f"the strategy {name} {takes}. Got {setting!r:.80} instead.")
        known[setting].check(setting, value)
    if given.get("neighbors", 0) > most:
        raise InputError(f"neighbors must be at most {most}. Got {given['neighbors']} instead.")
    if name == "exact":
        return Exact()
    rounds = {"rounds": min(known["rounds"].default, budget)} if "rounds" in known else {}
    strategy: Strategy = STRATEGIES[name](budget=budget, **{**rounds, **given})
    return strategy


def offered(searcher: Searcher, most: int) -> list[dict[str, Any]]:
    """The strategies that this searcher can run with budgets of at most `most`, as /info tells them."""
    factors = None if searcher.index is None else searcher.index.factors
    has_cur = factors is not None and factors.kind == "cur"
    fits = {
        "rerank": True,
        "gar": searcher.index is not None or searcher.encoder is not None,
        "exact": len(searcher.items) <= most,
        "posterior": searcher.has_query_vectors,
        "axn": searcher.has_query_vectors,
        "tour": searcher.has_query_vectors,
        "anncur": has_cur,
        "adacur": has_cur,
    }
    return [
        {"name": name, "title": kind.__name__, "settings": _told(kind)}
        for name, kind in STRATEGIES.items()
        if fits[name]
    ]


def _told(kind: Any) -> dict[str, dict[str, Any]]:
    return {name: {"default": one.default, "type": TYPES[one.type]} for name, one in settings_of(kind).items()}
