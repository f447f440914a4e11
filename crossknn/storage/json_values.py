"""JSON of files that may be damaged or crafted: stricter than Python's own reader, and checked against types."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

MAX_DEPTH: Final = 32  # of nested lists and objects
MAX_INTEGER: Final = 2**63
MAX_FLOAT: Final = sys.float_info.max


def parse_json(data: bytes) -> Any:
    """The value of a JSON text. `ValueError` for NaN, infinity and integers beyond 64 bits, and for deep nesting.

    Also for names that occur twice in an object, and for text that is not UTF-8.
    """
    try:
        value = json.loads(data.decode(), object_pairs_hook=_to_object)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    _check(value, MAX_DEPTH)
    return value


def _to_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return found


def _check(value: Any, depth: int) -> None:
    if isinstance(value, dict | list):
        if not depth:
            raise ValueError("it is nested too deeply")
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            _check(part, depth - 1)
    elif isinstance(value, str):
        value.encode()  # not for a lone surrogate
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"it holds {value}, and numbers must be finite")
    elif isinstance(value, int) and not -MAX_INTEGER <= value < MAX_INTEGER:
        raise ValueError("it holds an integer of more than 64 bits")


def read_as(kind: Any, value: Any, name: str = "content") -> Any:
    """The JSON value as this type: a plain type, a list, a mapping, a dataclass, or one of several.

    `ValueError` names the part that has another type. A dataclass gets its fields; those with defaults may be missing.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        kinds = [one for one in arguments if one is not NoneType]
        return read_as(next((one for one in kinds if type(value) is one), kinds[0]), value, name)
    if is_dataclass(kind) or is_typeddict(kind):
        return _read_fields(kind, value, name)
    if origin is Literal and value in arguments:
        return value
    if origin is list and isinstance(value, list):
        return [read_as(arguments[0], one, f"{name}[{place}]") for place, one in enumerate(value)]
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, dict):
        return {key: read_as(arguments[1], one, f"{name}[{key!r}]") for key, one in value.items()}
    if kind is Any:
        return value
    if kind is float and type(value) is int and abs(value) <= MAX_FLOAT:
        return float(value)
    if origin is None and type(value) is kind:
        return value
    raise _wrong_type(name, kind, value)


def _read_fields(kind: Any, value: Any, name: str) -> Any:
    """A dataclass, or an object with these names."""
    if not isinstance(value, dict):
        raise _wrong_type(name, dict, value)
    types = _types_of(kind)
    optional = set()
    if is_dataclass(kind):
        optional = {field.name for field in fields(kind) if {field.default, field.default_factory} != {MISSING}}
    missing, unknown = types.keys() - value.keys() - optional, value.keys() - types.keys()
    if missing or unknown:
        problem = f"{min(missing)!r} is missing" if missing else f"{min(unknown)!r} is unknown"
        raise ValueError(f"{problem} in {name}")
    found = {one: read_as(types[one], part, f"{name}.{one}") for one, part in value.items()}
    return kind(**found)


@cache
def _types_of(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _wrong_type(name: str, kind: Any, value: Any) -> ValueError:
    return ValueError(f"{name} must be of type {getattr(kind, '__name__', kind)}, got {type(value).__name__}")
