"""Conditions on the fields of items as SQL on the `metadata` of their table."""

from __future__ import annotations

from typing import Any, Final

from crossknn.items.fields import BOOL, FLOAT, INT, LIST, STRING
from crossknn.items.filters import ID, RANGES, Comparison, Logic

OPERATORS: Final = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# By kind of field: its value in SQL, null where the metadata have none, and the type of arrays of such values.
# A number outside of float64 is null, as in Python. Strings are ordered by their bytes.
VALUES: Final = {
    STRING: ("CASE jsonb_typeof({field}) WHEN 'string' THEN {field} #>> '{{}}' END COLLATE \"C\"", "text[]"),
    INT: ("CASE jsonb_typeof({field}) WHEN 'number' THEN ({field})::numeric END", "numeric[]"),
    FLOAT: (
        "CASE WHEN jsonb_typeof({field}) = 'number' AND abs(({field})::numeric) < 1.79e308 THEN ({field})::float8 END",
        "float8[]",
    ),
    BOOL: ("CASE jsonb_typeof({field}) WHEN 'boolean' THEN ({field})::boolean END", "boolean[]"),
    LIST: ("CASE WHEN jsonb_typeof({field}) IN ('array', 'string') THEN {field} END", "text[]"),
}


def to_sql(condition: Comparison | Logic, values: dict[str, Any]) -> str | None:
    """An expression that is true for the items that meet a condition, else false; None where SQL has none like it.

    What it compares with is added to `values`.
    """
    if isinstance(condition, Comparison):
        return _compare(condition, values)
    parts = [to_sql(part, values) for part in condition.parts]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if condition.operator == "or":
        return f"({' OR '.join(known)})"
    all_hold = " AND ".join(known) or "true"
    return f"NOT ({all_hold})" if condition.operator == "not" else f"({all_hold})"


def _compare(comparison: Comparison, values: dict[str, Any]) -> str | None:
    operands = comparison.values
    if any(isinstance(operand, str) and "\0" in operand for operand in operands):
        return None  # which PostgreSQL cannot be sent
    if comparison.field == ID:
        if not all(isinstance(operand, str) for operand in operands):
            return None
        value, array = 'id COLLATE "C"', "text[]"
    elif comparison.kind in VALUES:
        field = f"(metadata -> {_add(values, comparison.field)}::text)"
        value, array = (part.format(field=field) for part in VALUES[comparison.kind])
    else:
        return None  # dates are strings there
    given = f"{_add(values, list(operands))}::{array}"
    if comparison.operator in RANGES:
        return f"COALESCE(({value}) {OPERATORS[comparison.operator]} ({given})[1], false)"
    found = f"({value}) ?| {given}" if comparison.kind == LIST else f"({value}) = ANY({given})"
    return f"COALESCE(({value}) IS NOT NULL AND {'NOT ' * (comparison.operator == 'not_in')}({found}), false)"


def _add(values: dict[str, Any], value: Any) -> str:
    """The placeholder of one more value."""
    name = f"crossknn_{len(values)}"
    values[name] = value
    return f"%({name})s"
