"""Strategies as a command line names them, such as `axn:mix=0.8:first=bm25`, made into contenders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from crossknn.errors import InputError
from crossknn.evaluate.compare import Contender
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Strategy
from crossknn.strategies.cur import AdaCur, AnnCur
from crossknn.strategies.gar import Gar
from crossknn.strategies.posterior.prior import SIGNALS
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.strategies.tour import Tour

Vectors = Literal["encoder", "fitted", "cur", "prior"]
"""What a strategy searches with: the encoder's item vectors, with a prior or without, fitted ones, or CUR's."""


class Kind(NamedTuple):
    """A strategy, and the settings that its name may carry, each with what reads it."""

    make: Callable[..., Strategy]
    settings: Mapping[str, Callable[[str], Any]]

    @property
    def begins_with(self) -> str | None:
        """The setting that names its first retriever; None where it has none."""
        return next((name for name in ("retriever", "first") if name in self.settings), None)


def _make_anncur(budget: int, *, share: float | None = None, anchors: int | None = None, seed: int = 0) -> AnnCur:
    """With a number of anchors, or a share of the budget."""
    if share is None:
        return AnnCur(budget, anchors, seed=seed)
    if anchors is not None:
        raise InputError("anchors and share both say how many anchors there are. Give one of them.")
    if not 0 < share <= 1:
        raise InputError(f"share must be above 0 and at most 1. Got {share} instead.")
    return AnnCur(budget, max(1, round(share * budget)), seed=seed)


KINDS: Final = {
    "rerank": Kind(Rerank, {"retriever": str}),
    "axn": Kind(Axn, {"mix": float, "first": str, "rounds": int, "shortlist": int}),
    "anncur": Kind(_make_anncur, {"anchors": int, "share": float}),
    "adacur": Kind(AdaCur, {"first": str, "rounds": int}),
    "tour": Kind(Tour, {"loss": str, "learning_rate": float, "rounds": int}),
    "gar": Kind(Gar, {"first": str, "neighbors": int, "rounds": int}),
    "posterior": Kind(Posterior, {"first": str, "rounds": int}),
}
FROM_CUR: Final = ("anncur", "adacur")
SHOWN: Final = {"retriever": "{}", "first": "{} first", "loss": "{}", "mix": "λ {}"}  # others with their name


@dataclass(frozen=True)
class Offer:
    """What the data of a benchmark have for strategies.

    retrievers  by name; the best general one last, which strategies begin with unless told otherwise
    fitted      whether there are item vectors fitted to scores
    cur         whether there are CUR's
    """

    retrievers: tuple[str, ...]
    fitted: bool = False
    cur: bool = False

    @property
    def default(self) -> str:
        return self.retrievers[-1]

    @property
    def signals(self) -> bool:
        """Whether there is all that posterior search takes evidence from."""
        return set(SIGNALS) <= set(self.retrievers)


class Entry(NamedTuple):
    """A contender, and what its name says of it.

    vectors   whose item vectors it searches with
    first     the retriever that it begins with
    settings  those that were given
    family    its name with no settings but these
    """

    contender: Contender
    vectors: Vectors
    first: str
    settings: Mapping[str, Any]
    family: str


def default_names(offer: Offer) -> list[str]:
    """Reranking with each retriever, the paper's search and its baselines, as far as the data have what they need."""
    rerank = [f"rerank:retriever={name}" for name in offer.retrievers if name in ("dense", "bm25", "fused")]
    posterior = ["posterior"] if offer.signals else []
    return [*rerank, "axn", *(FROM_CUR if offer.cur else ()), "tour:loss=ce", "tour:loss=mse", "gar", *posterior]


def split_names(text: str) -> list[str]:
    """The names between commas."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InputError(
            f"strategies must be names between commas, such as rerank,axn:mix=0.8:first=bm25. Got {text!r} instead."
        )
    return names


def make_entries(
    names: Sequence[str], offer: Offer, *, budgets: Sequence[int], rounds: int = 10, seed: int = 0
) -> list[Entry]:
    """What the names mean, in their order; every strategy can be made for every budget.

    `axn` comes a second time, as "axn, fitted", where there are fitted vectors, and `posterior` as "posterior, prior".
    `rounds` holds for strategies that do not set their own, and is lowered to the budget where that is smaller: a round
    has at least one call.
    """
    entries = [
        entry for name in names for entry in read_entries(name, offer, budgets=budgets, rounds=rounds, seed=seed)
    ]
    if not entries:
        raise InputError("there must be at least one strategy. Got none.")
    check_different([entry.contender.name for entry in entries])
    return with_baselines(entries)


def read_entries(text: str, offer: Offer, *, budgets: Sequence[int], rounds: int, seed: int) -> list[Entry]:
    """The entries of one name, without baselines."""
    name, *parts = text.split(":")
    if name not in KINDS:
        raise InputError(f"there is no strategy {name!r} to compare. Known: {', '.join(KINDS)}.")
    kind = KINDS[name]
    given = _read_settings(text, kind, parts)
    settings = {"rounds": rounds, **given} if "rounds" in kind.settings else dict(given)
    if name == "anncur":
        settings["seed"] = seed
    if kind.begins_with:
        settings.setdefault(kind.begins_with, offer.default)
    first = "dense" if name == "tour" else settings.get(kind.begins_with or "", offer.default)
    shown = _show(name, {"retriever": first, **given} if name == "rerank" else given)
    contender = Contender(shown, partial(_make, kind, settings))
    for budget in budgets:
        try:
            contender.make(budget)
        except InputError as error:
            raise InputError(f"{text}: {error}") from error
    return [
        Entry(replace(contender, name=shown + mark), vectors, first, given, _show(name, given) + mark)
        for vectors, mark in _choose_vectors(text, name, first, offer).items()
    ]


def check_different(names: Sequence[str]) -> None:
    """An error where a name comes twice."""
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(f"strategies must be different. {name!r} comes twice.")


def _read_settings(text: str, kind: Kind, parts: Sequence[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for part in parts:
        setting, _, value = part.partition("=")
        if setting not in kind.settings:
            raise InputError(f"{text}: there is no setting {setting!r}. Known here: {', '.join(kind.settings)}.")
        if setting in given:
            raise InputError(f"{text}: the setting {setting!r} comes twice.")
        read = kind.settings[setting]
        try:
            given[setting] = read(value)
        except ValueError as error:
            what = "a whole number" if read is int else "a number"
            raise InputError(f"{text}: {setting} must be {what}. Got {value!r} instead.") from error
    return given


def _choose_vectors(text: str, name: str, first: str, offer: Offer) -> dict[Vectors, str]:
    """Whose vectors a strategy runs with, each with what its name gets for it."""
    if name in FROM_CUR and not offer.cur:
        raise InputError(f"{text}: CUR needs all scores of some train queries, and there are none. Leave it out.")
    if name == "posterior":
        if not offer.signals:
            raise InputError(
                f"{text}: it needs the retrievers {' and '.join(SIGNALS)}. Known here: {', '.join(offer.retrievers)}."
            )
        return {"encoder": "", "prior": ", prior"} if offer.fitted else {"encoder": ""}
    if first == "fitted":
        if not offer.fitted:
            raise InputError(f"{text}: there are no fitted vectors. Say how many calls per item they may cost.")
        if name in FROM_CUR:
            raise InputError(
                f"{text}: CUR's vectors are searched instead of fitted ones. Begin with another retriever."
            )
        return {"fitted": ""}
    if first not in offer.retrievers:
        raise InputError(f"{text}: there is no retriever {first!r} here. Known: {', '.join(offer.retrievers)}.")
    if name in FROM_CUR:
        return {"cur": ""}
    return {"encoder": "", "fitted": ", fitted"} if name == "axn" and offer.fitted else {"encoder": ""}


def _show(name: str, given: Mapping[str, Any]) -> str:
    values = {setting: f"{value:g}" if isinstance(value, float) else value for setting, value in given.items()}
    return ", ".join(
        [name, *(SHOWN.get(setting, f"{setting} {{}}").format(value) for setting, value in values.items())]
    )


def _make(kind: Kind, settings: Mapping[str, Any], budget: int) -> Strategy:
    if "rounds" in settings:
        settings = {**settings, "rounds": min(settings["rounds"], budget)}
    return kind.make(budget=budget, **settings)


def with_baselines(entries: Sequence[Entry]) -> list[Entry]:
    """Each adaptive strategy with the reranking that begins as it does, else the first reranking there is."""
    reranking = [entry for entry in entries if _is_rerank(entry)]
    if not reranking:
        return list(entries)
    baselines = {entry.first: entry.contender.name for entry in reversed(reranking)}
    return [
        entry
        if _is_rerank(entry)
        else entry._replace(
            contender=replace(entry.contender, baseline=baselines.get(entry.first, reranking[0].contender.name))
        )
        for entry in entries
    ]


def _is_rerank(entry: Entry) -> bool:
    return entry.contender.name.partition(",")[0] == "rerank"
