"""Argument checks that share one error template: "`rounds` must be between 1 and `budget` (100), got 200."

Argument names stand in backquotes, so that the command line can replace them by its own options (`--rounds`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeGuard

from crossknn.errors import InputError

MAX_SECONDS: Final = 1_000_000  # eleven days


def invalid(name: str, requirement: str, value: object, hint: str = "") -> InputError:
    """The error for an argument that must be `requirement`, such as "a positive integer"; the hint says what to do."""
    return InputError(f"`{name}` must be {requirement}, got {value!r}.{f' {hint}' if hint else ''}")


def check_positive(name: str, value: object) -> None:
    """Raise `InputError` unless `value` is an integer of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise invalid(name, "a positive integer", value)


def check_seed(value: object) -> None:
    """Raise `InputError` unless `value` is a nonnegative integer."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise invalid("seed", "a nonnegative integer", value)


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise `InputError` unless `value` is one of `choices`."""
    if value not in tuple(choices):
        raise invalid(name, f"one of {', '.join(map(repr, choices))}", value)


def is_finite(value: object) -> TypeGuard[float]:
    """Whether `value` is an integer or a float that stands for a number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def check_number(name: str, value: object, *, above: float = 0.0) -> None:
    """Raise `InputError` unless `value` is a finite number greater than `above`."""
    if not is_finite(value) or not above < value:
        raise invalid(name, "a positive number" if above == 0 else f"a number greater than {above:g}", value)


def check_seconds(name: str, value: object) -> None:
    """Raise `InputError` unless `value` is a time that sockets, locks and event loops can wait for."""
    if not is_finite(value) or not 0 < value <= MAX_SECONDS:
        raise invalid(name, f"a positive number of seconds, at most {MAX_SECONDS:,}", value)


def check_range(name: str, value: object, low: float = -math.inf, high: float = math.inf) -> None:
    """Raise `InputError` unless `value` is a finite number from `low` to `high`."""
    if not is_finite(value) or not low <= value <= high:
        within = "a nonnegative number" if low == 0 else "a finite number"
        raise invalid(name, within if high == math.inf else f"between {low:g} and {high:g}", value)


def check_fraction(name: str, value: object) -> None:
    """Raise `InputError` unless `value` is a number in (0, 1]."""
    if not is_finite(value) or not 0 < value <= 1:
        raise invalid(name, "greater than 0 and at most 1", value)


def check_engine(value: object) -> None:
    """Raise `InputError` unless `value` is an `Engine`."""
    from crossknn.types import Engine  # which imports numpy, and the command line starts without

    if not isinstance(value, Engine):
        raise invalid("engine", "an Engine such as RayEngine(…)", value)


def check_queries(queries: Sequence[str]) -> list[str]:
    """The queries as a list, if all of them are nonempty strings."""
    if isinstance(queries, str | Mapping):
        raise invalid("queries", "a list of strings, one per query", queries)
    for position, query in enumerate(queries):
        if not isinstance(query, str) or not query.strip():
            raise InputError(f"a query must be a nonempty string, got {query!r} at position {position}.")
    return list(queries)


def check_signals(signals: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """The names of retrievers as a tuple, if they are distinct and all `known`."""
    listed = isinstance(signals, Sequence) and not isinstance(signals, str)
    names = tuple(signals) if listed and all(isinstance(name, str) for name in signals) else ()
    if not names or len(set(names)) != len(names):
        raise invalid("signals", "a nonempty list of distinct retriever names", signals)
    for name in names:
        if name not in known:
            raise invalid("signals", f"names of retrievers ({', '.join(sorted(known))}, or your own)", name)
    return names
