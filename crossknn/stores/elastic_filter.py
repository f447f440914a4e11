"""Conditions on fields as queries of Elasticsearch and OpenSearch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from crossknn.items.fields import BOOL, FLOAT, INT, LIST, STRING
from crossknn.items.filters import ID, RANGES, Comparison, Logic

RANGE_NAMES: Final = {"lt": "lt", "le": "lte", "gt": "gt", "ge": "gte"}
EXACT_TYPES: Final = {  # types of fields that compare values as crossknn does
    STRING: ("keyword",),
    LIST: ("keyword",),
    INT: ("long", "integer", "short", "byte"),
    FLOAT: ("double",),
    BOOL: ("boolean",),
}


def to_query(condition: Comparison | Logic, types: Mapping[str, str]) -> dict[str, Any] | None:
    """Conditions as a query for a filter context; None where there is none that means the same.

    Args:
        types: The types of the fields of the index, subfields such as `section.keyword` among them.
    """
    if isinstance(condition, Comparison):
        return _compare(condition, types)
    parts = [to_query(part, types) for part in condition.parts]
    if any(part is None for part in parts):
        return None
    if condition.operator == "not":
        return {"bool": {"must_not": [{"bool": {"filter": parts}}]}}
    if condition.operator == "or":
        return {"bool": {"should": parts, "minimum_should_match": 1}}
    return {"bool": {"filter": parts}}


def ids_query(ids: Sequence[str]) -> dict[str, Any]:
    """The documents of these ids."""
    return {"ids": {"values": list(ids)}}


def _compare(comparison: Comparison, types: Mapping[str, str]) -> dict[str, Any] | None:
    kind, operator, values = comparison.kind, comparison.operator, list(comparison.values)
    inverse = operator == "not_in"
    if comparison.field == ID:
        if operator in RANGES:
            return None
        known = ids_query([str(value) for value in values])
        return {"bool": {"must_not": [known]}} if inverse else known
    exact = EXACT_TYPES.get(kind, ())
    names = (comparison.field, f"{comparison.field}.keyword")
    name = next((name for name in names if types.get(name) in exact), None)
    if name is None or (inverse and kind == LIST):  # an empty list is as no value there
        return None
    if operator in RANGES:
        return {"range": {name: {RANGE_NAMES[operator]: values[0]}}}
    terms = {"terms": {name: values}} if values else {"match_none": {}}
    exists = {"exists": {"field": name}}
    return {"bool": {"filter": [exists], "must_not": [terms]}} if inverse else terms
