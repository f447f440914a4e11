"""Conditions on the command line, such as `--where "size < 5000"`, as filters by field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from crossknn.errors import InputError

OPERATORS: Final = {"=": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge", "in": "in", "not in": "not_in"}
CONDITION: Final = re.compile(
    r"\s*(?P<field>.+?)\s*(?P<operator>!=|<=|>=|=|<|>|\s(?:not\s+)?in\s)\s*(?P<value>.*)", re.DOTALL
)
BOOLEANS: Final = {"true": True, "false": False}


def parse_conditions(conditions: Sequence[str], kinds: Mapping[str, str]) -> dict[str, Any]:
    """The filter that all conditions make; `kinds` are the names and types of the items' fields."""
    return {"and": [_parse_condition(one, kinds) for one in conditions]}


def _parse_condition(condition: str, kinds: Mapping[str, str]) -> dict[str, Any]:
    found = CONDITION.fullmatch(condition)
    if found is None:
        raise InputError(
            f"--where must be a field, an operator ({', '.join(OPERATORS)}) and a value, as in 'size < 5000', "
            f"got {condition!r}."
        )
    field, operator = found["field"], OPERATORS[" ".join(found["operator"].split())]
    read = _READERS.get(kinds.get(field, ""), _read_string)
    value = found["value"].strip()
    if operator not in ("in", "not_in"):
        return {field: {operator: _read(read, value)}}
    values = _read_list(value)
    return {field: {operator: [_read(read, one) if isinstance(one, str) else one for one in values]}}


def _read_list(value: str) -> list[Any]:
    """A list as JSON, or its values with commas between them."""
    try:
        values = json.loads(value)
    except ValueError:
        values = None
    return values if isinstance(values, list) else [one.strip() for one in value.split(",")]


def _read(read: Callable[[str], Any], value: str) -> Any:
    """The value; as it stands where it is none of the field's type, which the filter then says."""
    try:
        return read(value)
    except (ValueError, KeyError):
        return value


def _read_string(value: str) -> str:
    """The text, without quotes around it."""
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted else value


def _read_number(value: str) -> float:
    try:
        return int(value)
    except ValueError:
        return float(value)


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "int64": _read_number,
    "float64": _read_number,
    "bool": lambda value: BOOLEANS[value.lower()],
}
