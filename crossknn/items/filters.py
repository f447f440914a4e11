"""Filters by field: conditions such as `{"section": "utils", "size": {"lt": 5000}}` as a mask of items."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crossknn.errors import InputError
from crossknn.items.field_order import FieldOrder
from crossknn.items.fields import (
    BOOL,
    DATE,
    FLOAT,
    INT,
    INT64,
    LIST,
    STRING,
    TIMESTAMP,
    UTC_TIMESTAMP,
    FieldColumn,
    as_utc,
    bits_of,
    make_array,
    valid_of,
)
from crossknn.items.readers import describe
from crossknn.types import Mask, Rows

MAX_DEPTH: Final = 32
RANGES: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "lt": pc.less,
    "le": pc.less_equal,
    "gt": pc.greater,
    "ge": pc.greater_equal,
}
OPERATORS: Final = ("eq", "ne", "in", "not_in", *RANGES)
LOGIC: Final = ("and", "or", "not")
ID: Final = "_id"  # names the items' ids in a filter
OPERANDS: Final = {
    STRING: "a string",
    INT: "a number",
    FLOAT: "a number",
    BOOL: "true or false",
    DATE: "a date, such as 2024-05-01",
    TIMESTAMP: "a time, such as 2024-05-01T12:00:00",
    UTC_TIMESTAMP: "a time, such as 2024-05-01T12:00:00Z",
    LIST: "a string",
}


@dataclass(frozen=True)
class Comparison:
    """A checked comparison of one field with values of its kind.

    `operator` is "in", "not_in" or one of `RANGES`, which have one value. Items whose field is null meet none.
    """

    field: str
    kind: str
    operator: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Logic:
    """Conditions that hold all ("and"), or one of which holds ("or"), or all of which do not hold together ("not")."""

    operator: str
    parts: tuple[Comparison | Logic, ...]


class ConditionMask(np.ndarray[Any, np.dtype[np.bool_]]):
    """A mask that knows the conditions it was made of, and of whose fields, for stores that apply them themselves."""

    condition: Logic | None
    items: object

    def __array_finalize__(self, source: object) -> None:
        self.condition, self.items = None, None  # a mask derived from this one is that of other conditions


def condition_of(allowed: Mask, items: object) -> Logic | None:
    """The conditions that a mask was made of, if they are on the fields of these items."""
    return allowed.condition if isinstance(allowed, ConditionMask) and allowed.items is items else None


def fields_of(condition: Comparison | Logic) -> set[str]:
    """The names of the fields that a condition compares."""
    if isinstance(condition, Comparison):
        return {condition.field}
    return set().union(*map(fields_of, condition.parts))


def parse_filter(condition: Mapping[str, Any], kinds: Mapping[str, str], *, depth: int = 0) -> Logic:
    """Conditions on fields of these kinds, checked, as a tree."""
    if depth > MAX_DEPTH:
        raise InputError(f"`filter` must be nested at most {MAX_DEPTH} deep.")
    parts: list[Comparison | Logic] = []
    for name, wanted in condition.items():
        if name in LOGIC:
            inner = [wanted] if name == "not" else wanted
            if not isinstance(inner, list | tuple) or not inner:
                raise InputError(f"`filter` must have a list of conditions for {name!r}, got {describe(inner)}.")
            checked = (_check_condition(name, part) for part in inner)
            parts.append(Logic(name, tuple(parse_filter(part, kinds, depth=depth + 1) for part in checked)))
        else:
            kind = _kind_of(name, kinds)
            parts += [_comparison(name, kind, *operation) for operation in _operations(name, wanted)]
    return Logic("and", tuple(parts))


def _comparison(name: str, kind: str, operator: str, operand: Any) -> Comparison:
    if operator in RANGES:
        if kind in (BOOL, LIST):
            raise _wrong_operator(name, kind, operator)
        bound = _convert(name, kind, operand)
        if kind == INT and isinstance(bound, float):
            operator, bound = _whole_bound(operator, bound)
        return Comparison(name, kind, operator, (bound,))
    wanted = [operand] if operator in ("eq", "ne") else _check_operands(name, operand)
    if name != ID:  # ids that are no strings are those of no item, or numbers
        wanted = [_convert(name, kind, value) for value in wanted]
        wanted = [value for value in wanted if not (kind == INT and isinstance(value, float))]  # equal to no integer
    return Comparison(name, kind, "not_in" if operator in ("ne", "not_in") else "in", tuple(wanted))


def _kind_of(name: object, kinds: Mapping[str, str]) -> str:
    if name == ID:
        return STRING
    if not isinstance(name, str) or name not in kinds:
        known = ", ".join(f"{name!r} ({kind})" for name, kind in kinds.items())
        known = f"Their fields: {known}." if known else "They have none: read them with their columns."
        raise InputError(f"`filter` names the field {name!r:.80}, which the items do not have. {known}")
    return kinds[name]


class FieldFilter:
    """Finds the items that meet a condition on their fields.

    Args:
        fields: Of all items, by name.
        ids: The items' ids.
        rows_of: The rows of ids, without unknown ones.
        orders: Of indexed fields, by name, which are bisected; other fields are compared value by value.
    """

    def __init__(
        self,
        fields: Mapping[str, FieldColumn],
        ids: pa.LargeStringArray,
        rows_of: Callable[[Iterable[Any]], Rows],
        *,
        orders: Mapping[str, FieldOrder] | None = None,
    ) -> None:
        self._fields, self._ids, self._rows_of, self._orders = fields, ids, rows_of, orders or {}

    def mask(self, condition: Mapping[str, Any]) -> ConditionMask:
        """(items,) True where all parts of the condition hold."""
        parsed = parse_filter(condition, {name: column.kind for name, column in self._fields.items()})
        mask = self._evaluate(parsed).view(ConditionMask)
        mask.condition = parsed
        mask.flags.writeable = False
        return mask

    def _evaluate(self, condition: Comparison | Logic) -> Mask:
        if isinstance(condition, Comparison):
            return self._compare_ids(condition) if condition.field == ID else self._compare(condition)
        found = np.full(len(self._ids), condition.operator != "or", np.bool_)
        for part in condition.parts:
            mask = self._evaluate(part)
            found = found | mask if condition.operator == "or" else found & mask
        return ~found if condition.operator == "not" else found

    def _compare(self, comparison: Comparison) -> Mask:
        array, kind, operator = self._fields[comparison.field].array, comparison.kind, comparison.operator
        values = make_array(STRING if kind == LIST else kind, comparison.values)
        order = self._orders.get(comparison.field)
        if operator in RANGES:
            if order is not None:
                return self._mask_of(order.rows_in(operator, values))
            return _to_mask(RANGES[operator](array, values[0]))
        if order is not None:
            found = self._mask_of(order.rows_of(values))
        else:
            found = (_contains_any if kind == LIST else _any_of)(array, values)
        inverse = operator == "not_in"
        valid = valid_of(array) if inverse or kind == LIST else None
        found = ~found if inverse else found
        return found if valid is None else found & valid

    def _compare_ids(self, comparison: Comparison) -> Mask:
        if comparison.operator in RANGES:
            bound = make_array(STRING, comparison.values)[0]
            return _to_mask(RANGES[comparison.operator](self._ids, bound))
        found = self._mask_of(self._rows_of(comparison.values))
        return ~found if comparison.operator == "not_in" else found

    def _mask_of(self, rows: Rows) -> Mask:
        found = np.zeros(len(self._ids), np.bool_)
        found[rows] = True
        return found


def _operations(name: str, wanted: Any) -> list[tuple[str, Any]]:
    """The operators and operands of a condition on one field."""
    if not isinstance(wanted, Mapping):
        return [("eq" if isinstance(wanted, str | bytes) or not isinstance(wanted, Collection) else "in", wanted)]
    for operator in wanted:
        if operator not in OPERATORS:
            raise InputError(
                f"`filter` must compare {name!r:.80} by one of {', '.join(OPERATORS)}, got {operator!r:.80}."
            )
    if not wanted:
        raise InputError(f"`filter` must compare {name!r:.80} by one of {', '.join(OPERATORS)}, got none.")
    return list(wanted.items())


def _check_condition(name: str, condition: Any) -> Mapping[str, Any]:
    if not isinstance(condition, Mapping):
        raise InputError(
            f"`filter` must have conditions such as {{field: value}} in {name!r}, got {describe(condition)}."
        )
    return condition


def _check_operands(name: str, operands: Any) -> list[Any]:
    if isinstance(operands, str | bytes | Mapping) or not isinstance(operands, Collection):
        raise InputError(f"`filter` must have a list of values for {name!r}, got {describe(operands)}.")
    return list(operands)


def _wrong_operator(name: str, kind: str, operator: str) -> InputError:
    known = ", ".join(one for one in OPERATORS if one not in RANGES)
    return InputError(f"`filter` must compare {name!r} ({kind}) by one of {known}, got {operator!r}.")


def _convert(name: str, kind: str, operand: Any) -> Any:
    """An operand as a value of this kind; a float for a number that is none of int64."""
    if isinstance(operand, np.generic):
        operand = operand.item()
    is_number = isinstance(operand, int | float) and not isinstance(operand, bool)
    try:
        if kind in (INT, FLOAT) and is_number and math.isfinite(operand):
            whole = kind == INT and operand == int(operand) and INT64.min <= operand <= INT64.max
            return int(operand) if whole else float(operand)
        if kind in (STRING, LIST) and isinstance(operand, str):
            operand.encode()
            return operand
        if kind == BOOL and isinstance(operand, bool):
            return operand
        if kind == DATE:
            found = date.fromisoformat(operand) if isinstance(operand, str) else operand
            if isinstance(found, date) and not isinstance(found, datetime):
                return found
        if kind in (TIMESTAMP, UTC_TIMESTAMP):
            found = datetime.fromisoformat(operand) if isinstance(operand, str) else operand
            if isinstance(found, date):
                return as_utc(found if isinstance(found, datetime) else datetime(found.year, found.month, found.day))
    except (ValueError, OverflowError):
        pass
    hint = " Values that are null match no comparison." if operand is None else ""
    raise InputError(f"`filter` must compare {name!r} ({kind}) with {OPERANDS[kind]}, got {describe(operand)}.{hint}")


def _whole_bound(operator: str, bound: float) -> tuple[str, int]:
    """The comparison of integers that says the same as one with a number that is none of int64."""
    below = operator in ("lt", "le")
    if bound > INT64.max:
        return ("le" if below else "gt"), INT64.max
    if bound < INT64.min:
        return ("lt" if below else "ge"), INT64.min
    return ("le", math.floor(bound)) if below else ("ge", math.ceil(bound))


def _any_of(array: pa.Array, values: pa.Array) -> Mask:
    """Where the array has one of the values, which null is not."""
    return _to_mask(pc.equal(array, values[0]) if len(values) == 1 else pc.is_in(array, value_set=values))


def _contains_any(lists: pa.LargeListArray, values: pa.Array) -> Mask:
    """Where a list has one of the values; of null any."""
    matches = np.concatenate([np.zeros(1, np.int64), np.cumsum(_any_of(lists.values, values))])
    offsets = np.frombuffer(lists.buffers()[1], np.int64)[lists.offset :][: len(lists) + 1]
    return matches[offsets[1:]] > matches[offsets[:-1]]


def _to_mask(array: pa.BooleanArray) -> Mask:
    """True where the array is true, and not null. Its `to_numpy` would import pandas."""
    found = bits_of(array.buffers()[1], array.offset, len(array))
    valid = valid_of(array)
    return found if valid is None else found & valid
