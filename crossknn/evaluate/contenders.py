"""Contenders of a benchmark by the names of strategies, such as `axn:mix=0.8:first=bm25`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from crossknn._checks import invalid
from crossknn.errors import InputError
from crossknn.evaluate.comparison import Contender
from crossknn.strategies.base import Strategy
from crossknn.strategies.posterior.prior import SIGNALS
from crossknn.strategies.registry import (
    STRATEGIES,
    first_stage_setting,
    make_strategy,
    parse_strategy,
    requirements_of,
    settings_of,
)

VectorSource = Literal["encoder", "fitted", "cur", "prior"]
"""The item vectors of a strategy: the encoder's, with a prior or without, fitted ones, or those of CUR."""

EVERYTHING: Final = "all"
REFUSED_SETTINGS: Final = ("budget", "estimates", "stop_at")  # they make no sense in a benchmark
DISPLAY: Final = {"retriever": "{}", "first": "{} first", "loss": "{}", "mix": "λ {}"}  # others with their name


@dataclass(frozen=True)
class AvailableData:
    """What the data of a benchmark provide for strategies."""

    retrievers: tuple[str, ...]  # by name; the last one is the default first stage
    fitted: bool = False  # whether there are item vectors fitted to scores
    cur: bool = False  # whether there are those of CUR

    @property
    def default_retriever(self) -> str:
        return self.retrievers[-1]

    @property
    def signals(self) -> bool:
        """Whether there are all retrievers that posterior search takes evidence from."""
        return set(SIGNALS) <= set(self.retrievers)


class ResolvedStrategy(NamedTuple):
    """A contender and what its name stands for."""

    contender: Contender
    kind: str  # the registered name of its strategy
    vectors: VectorSource  # that it searches with
    first: str  # its first-stage retriever
    settings: Mapping[str, Any]  # those that were given
    family: str  # the contender's name with these settings only


def strategy_names() -> list[str]:
    """The strategies that can be benchmarked: all registered ones with a budget, so not exact search."""
    return [name for name, kind in STRATEGIES.items() if "budget" in settings_of(kind)]


def default_names(available: AvailableData, *, tuned: bool = False, everything: bool = False) -> list[str]:
    """The strategies that the data allow, reranking first and the default strategy last.

    Args:
        tuned: Leave settings open that are tuned, so that reranking stands there once.
        everything: Also those that a benchmark runs only where they are asked for.
    """
    names = [
        (name, variant)
        for name in sorted(strategy_names(), key=_order)
        for variant in _variants(STRATEGIES[name], available, tuned=tuned)
        if (everything or STRATEGIES[name].by_default) and _is_possible(STRATEGIES[name], available)
    ]
    return [f"{name}:{variant}" if variant else name for name, variant in names]


def _order(name: str) -> int:
    """Reranking is the baseline of the others; the default strategy is what they are compared with."""
    return {"rerank": 0, "posterior": 2}.get(name, 1)


def _variants(kind: type[Any], available: AvailableData, *, tuned: bool) -> list[str]:
    """The settings that a strategy runs with by default, as far as the data have their retrievers."""
    if tuned and any(variant.partition("=")[0] in kind.grid({}) for variant in kind.variants):
        return [""]
    first_stage = first_stage_setting(kind)
    possible = {f"{first_stage}={name}" for name in available.retrievers}
    return [one for one in kind.variants if one.partition("=")[0] != first_stage or one in possible]


def _is_possible(kind: type[Any], available: AvailableData) -> bool:
    needs_cur = "cur_factors" in requirements_of(kind)
    return (available.cur or not needs_cur) and (available.signals or not kind.uses_signals)


def named_strategies(text: str | None, available: AvailableData, *, tuned: bool = False) -> list[str]:
    """The names in a comma-separated list; None is the default ones, and "all" every one that the data allow."""
    if text is None or text.strip() == EVERYTHING:
        return default_names(available, tuned=tuned, everything=text is not None)
    return split_names(text)


def split_names(text: str) -> list[str]:
    """The names in a comma-separated list."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise invalid("strategies", "comma-separated names, such as rerank,axn:mix=0.8:first=bm25", text)
    return names


def resolve_strategies(
    names: Sequence[str], available: AvailableData, *, budgets: Sequence[int], rounds: int = 10, seed: int = 0
) -> list[ResolvedStrategy]:
    """The contenders of these names, in their order, each with its baseline.

    With fitted vectors, `axn` also runs as "axn, fitted" and `posterior` as "posterior, prior". Every strategy must be
    valid for each of the budgets. `rounds` is for strategies that do not set their own, lowered to a smaller budget.
    """
    resolved = [
        one for name in names for one in resolve_strategy(name, available, budgets=budgets, rounds=rounds, seed=seed)
    ]
    if not resolved:
        raise InputError("`strategies` must not be empty.")
    check_distinct([one.contender.name for one in resolved])
    return assign_baselines(resolved)


def resolve_strategy(
    spec: str, available: AvailableData, *, budgets: Sequence[int], rounds: int, seed: int
) -> list[ResolvedStrategy]:
    """The contenders of one name, without baselines."""
    name = spec.partition(":")[0]
    if name not in strategy_names():
        raise invalid("strategies", f"names among {', '.join(strategy_names())}", name)
    _, given = parse_strategy(spec)
    for setting in REFUSED_SETTINGS:
        if setting in given:
            raise InputError(f"{spec}: the setting {setting!r} cannot be chosen in a benchmark.")
    kind = STRATEGIES[name]
    known, first_stage, settings = settings_of(kind), first_stage_setting(kind), dict(given)
    for setting, value in {"rounds": rounds, "seed": seed}.items():
        if setting in known:
            settings.setdefault(setting, value)
    if first_stage is not None:
        first = settings.setdefault(first_stage, available.default_retriever)
    else:
        first = "dense" if "query_vectors" in requirements_of(kind) else available.default_retriever
    display = _display_name(name, {"retriever": first, **given} if name == "rerank" else given)
    contender = Contender(display, partial(_make, name, settings))
    for budget in budgets:
        try:
            contender.make(budget)
        except InputError as error:
            raise InputError(f"{spec}: {error}") from error
    family = _display_name(name, given)
    return [
        ResolvedStrategy(replace(contender, name=display + suffix), name, vectors, first, given, family + suffix)
        for vectors, suffix in _choose_vectors(spec, name, first, available).items()
    ]


def check_distinct(names: Sequence[str]) -> None:
    """An error if a name occurs twice."""
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(f"strategies must be distinct, got {name!r} twice.")


def assign_baselines(resolved: Sequence[ResolvedStrategy]) -> list[ResolvedStrategy]:
    """The contenders with their baselines: reranking with the same first-stage retriever, else the first reranking."""
    reranking = [one for one in resolved if one.kind == "rerank"]
    if not reranking:
        return list(resolved)
    baselines = {one.first: one.contender.name for one in reversed(reranking)}
    default = reranking[0].contender.name
    return [
        one
        if one.kind == "rerank"
        else one._replace(contender=replace(one.contender, baseline=baselines.get(one.first, default)))
        for one in resolved
    ]


def _make(name: str, settings: Mapping[str, Any], budget: int) -> Strategy:
    if "rounds" in settings:
        settings = {**settings, "rounds": min(settings["rounds"], budget)}
    return make_strategy(name, settings, budget=budget)


def _choose_vectors(spec: str, name: str, first: str, available: AvailableData) -> dict[VectorSource, str]:
    """The item vectors that a strategy runs with, each with the suffix of its name."""
    needs_cur = "cur_factors" in requirements_of(STRATEGIES[name])
    if needs_cur and not available.cur:
        raise InputError(f"{spec}: CUR needs all scores of some train queries, and there are none. Leave it out.")
    kind = STRATEGIES[name]
    if kind.uses_signals and not available.signals:
        known = ", ".join(available.retrievers)
        raise InputError(f"{spec}: needs the retrievers {' and '.join(SIGNALS)}; there are {known}.")
    if kind.uses_prior:
        return {"encoder": "", "prior": ", prior"} if available.fitted else {"encoder": ""}
    if first == "fitted":
        if not available.fitted:
            raise InputError(f"{spec}: there are no fitted vectors. Allow them offline calls per item.")
        if needs_cur:
            raise InputError(f"{spec}: CUR has vectors of its own. Choose another first retriever than 'fitted'.")
        return {"fitted": ""}
    if first not in available.retrievers:
        raise InputError(f"{spec}: there is no retriever {first!r}, only {', '.join(available.retrievers)}.")
    if needs_cur:
        return {"cur": ""}
    return {"encoder": "", "fitted": ", fitted"} if name == "axn" and available.fitted else {"encoder": ""}


def _display_name(name: str, given: Mapping[str, Any]) -> str:
    values = {setting: f"{value:g}" if isinstance(value, float) else value for setting, value in given.items()}
    parts = (DISPLAY.get(setting, f"{setting} {{}}").format(value) for setting, value in values.items())
    return ", ".join([name, *parts])
