"""Strategy registry: the name, settings and requirements of every strategy, all read from its dataclass fields.

A new strategy is a module with a frozen dataclass derived from `Settings`, and one line in `STRATEGIES`. The command
line, the service, the benchmark with its tuning and the integrations take it from there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from crossknn._checks import invalid
from crossknn.errors import InputError
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Requirement, Strategy
from crossknn.strategies.cur import AdaCur, AnnCur
from crossknn.strategies.exact import Exact
from crossknn.strategies.feedback import Feedback
from crossknn.strategies.gar import Gar
from crossknn.strategies.gp import Gp
from crossknn.strategies.ore import Ore
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.quam import Quam
from crossknn.strategies.rbe import Rbe
from crossknn.strategies.rerank import Rerank
from crossknn.strategies.rgs import Rgs
from crossknn.strategies.tour import Tour

STRATEGIES: Final[dict[str, type[Any]]] = {
    "posterior": Posterior,
    "rerank": Rerank,
    "axn": Axn,
    "anncur": AnnCur,
    "adacur": AdaCur,
    "tour": Tour,
    "gar": Gar,
    "quam": Quam,
    "rgs": Rgs,
    "ore": Ore,
    "feedback": Feedback,
    "gp": Gp,
    "rbe": Rbe,
    "exact": Exact,
}
TYPE_NAMES: Final[Mapping[type, str]] = {int: "integer", float: "number", str: "string", bool: "boolean"}
FIRST_STAGE: Final = ("retriever", "first")  # how strategies call the setting that names their first-stage retriever


class Setting(NamedTuple):
    """One setting of a strategy: the type, default and choices of a dataclass field."""

    name: str
    type: type
    default: Any
    optional: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def type_name(self) -> str:
        """The JSON name of its type."""
        return TYPE_NAMES[self.type]

    def check(self, value: object) -> None:
        """Raise `InputError` unless `value` has the setting's type."""
        if value is None and self.optional:
            return
        accepted: tuple[type, ...] = (int, float) if self.type is float else (self.type,)
        fits = isinstance(value, accepted) and (self.type is bool or not isinstance(value, bool))
        if not fits or (isinstance(value, float) and not math.isfinite(value)):
            raise invalid(self.name, f"of type {self.type_name}{' or null' * self.optional}", value)

    def parse(self, text: str) -> Any:
        """The value that `text` stands for on a command line."""
        if self.type is bool:
            if text.lower() not in ("true", "false"):
                raise invalid(self.name, "true or false", text)
            return text.lower() == "true"
        try:
            return self.type(text)
        except ValueError as error:
            raise invalid(self.name, f"of type {self.type_name}", text) from error


def settings_of(strategy: type[Any]) -> dict[str, Setting]:
    """The settings of a strategy class by name; none for one that is not a dataclass."""
    if not is_dataclass(strategy):
        return {}
    hints = get_type_hints(strategy)
    return {field.name: _read_setting(field.name, hints[field.name], field.default) for field in fields(strategy)}


def _read_setting(name: str, hint: Any, default: Any) -> Setting:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    optional = NoneType in options
    kind = next(option for option in options if option is not NoneType)
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    return Setting(name, type(choices[0]) if choices else kind, default, optional, choices)


def first_stage_setting(strategy: type[Any]) -> str | None:
    """The setting that names the first-stage retriever; None where there is none."""
    return next((name for name in FIRST_STAGE if name in settings_of(strategy)), None)


def requirements_of(strategy: type[Any]) -> frozenset[Requirement]:
    """What a search must provide for this strategy."""
    requires: frozenset[Requirement] = getattr(strategy, "requires", frozenset())
    return requires


def strategy_class(name: str) -> type[Any]:
    """The strategy class of this name."""
    if name not in STRATEGIES:
        raise invalid("strategy", f"one of {', '.join(STRATEGIES)}", name)
    return STRATEGIES[name]


def parse_strategy(spec: str) -> tuple[str, dict[str, Any]]:
    """The name and settings in a text such as `axn:mix=0.8:first=bm25`."""
    name, *parts = spec.split(":")
    known = settings_of(strategy_class(name))
    settings: dict[str, Any] = {}
    for part in parts:
        setting, _, value = part.partition("=")
        if setting not in known:
            raise InputError(f"{spec}: {_unknown_setting(name, setting, known)}")
        if setting in settings:
            raise InputError(f"{spec}: the setting {setting!r} is given twice.")
        try:
            settings[setting] = known[setting].parse(value)
        except InputError as error:
            raise InputError(f"{spec}: {error}") from error
    return name, settings


def make_strategy(name: str, settings: Mapping[str, Any] | None = None, *, budget: int | None = None) -> Strategy:
    """The strategy of this name with these settings, which are checked by name and type.

    `budget` counts for strategies that have one and no such setting.
    """
    kind = strategy_class(name)
    known, given = settings_of(kind), dict(settings or {})
    if budget is not None and "budget" in known:
        given.setdefault("budget", budget)
    for setting, value in given.items():
        if setting not in known:
            raise InputError(_unknown_setting(name, setting, known))
        known[setting].check(value)
    strategy: Strategy = kind(**given)
    return strategy


def _unknown_setting(name: str, setting: str, known: Mapping[str, Setting]) -> str:
    takes = f"its settings are {', '.join(known)}" if known else "it has no settings"
    return f"the strategy {name!r} has no setting {setting!r:.80}; {takes}."


def strategy_to_dict(strategy: Strategy) -> dict[str, Any]:
    """A strategy as plain data: its registered name and its settings. `strategy_from_dict` reads it back."""
    for name, kind in STRATEGIES.items():
        if type(strategy) is kind:
            return {"name": name, **(asdict(strategy) if is_dataclass(strategy) else {})}
    raise InputError(f"only registered strategies ({', '.join(STRATEGIES)}) can be serialized, got {strategy!r}.")


def strategy_from_dict(data: Mapping[str, Any]) -> Strategy:
    """The strategy that `strategy_to_dict` described."""
    settings = dict(data)
    return make_strategy(str(settings.pop("name", None)), settings)
