"""Checks of settings that every part of the package makes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from crossknn.errors import InputError
from crossknn.types import Engine


def check_positive(name: str, value: object) -> None:
    """An error unless `value` is a whole number of at least one."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1. Got {value!r} instead.")


def check_seed(value: object) -> None:
    """An error unless `value` is a whole number that is not negative."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InputError(f"seed must be a whole number of at least 0. Got {value!r} instead.")


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """An error unless `value` is one of these."""
    if value not in tuple(choices):
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}. Got {value!r} instead.")


def check_engine(value: object) -> None:
    """An error unless `value` is an engine."""
    if not isinstance(value, Engine):
        raise InputError(f"engine must be an Engine, such as RayEngine(…). Got {value!r} instead.")


def check_share(name: str, value: object) -> None:
    """An error unless `value` is a number above 0 and at most 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise InputError(f"{name} must be above 0 and at most 1. Got {value!r} instead.")


def check_signals(signals: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """The names of retrievers, if all of them are known."""
    listed = isinstance(signals, Sequence) and not isinstance(signals, str)
    names = tuple(signals) if listed and all(isinstance(name, str) for name in signals) else ()
    if not names or len(set(names)) != len(names):
        raise InputError(
            f"signals must be a list of different retrievers' names, at least one. Got {signals!r} instead."
        )
    for name in names:
        if name not in known:
            raise InputError(
                "signals must name retrievers that are built in or given in retrievers=[…]. Known here: "
                f"{', '.join(sorted(known))}. Got {name!r} instead."
            )
    return names
