"""Filters by field: every operator on every type, nulls, logic, and conditions that are refused."""

from __future__ import annotations

import operator
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.items.filters import MAX_DEPTH
from crossknn.items.items import Items

FIELDS: dict[str, list[Any]] = {
    "section": ["utils", "io", None, "Utils"],
    "size": [5, None, 2**62, -7],
    "rate": [0.5, 2.0, None, -1.0],
    "free": [True, False, None, True],
    "day": [date(2024, 5, 1), None, date(2024, 5, 2), date(1969, 1, 1)],
    "at": [datetime(2024, 5, 1, 12), None, datetime(2024, 5, 1, 13), datetime(1969, 1, 1)],
    "utc": [datetime(2024, 5, 1, 12, tzinfo=UTC), None, datetime(2024, 5, 1, 13, tzinfo=UTC), None],
    "tags": [["a", "b"], ["b", None], [], None],
}


@pytest.fixture(scope="module", params=["compared", "indexed"])
def items(request: pytest.FixtureRequest) -> Items:
    items = Items(["w", "x", "y", "z"], ids=[*"abcd"], fields=FIELDS)
    return items.index_fields(*FIELDS) if request.param == "indexed" else items


def found(items: Items, condition: Any) -> list[int]:
    mask = items.mask(condition)
    assert (mask.dtype, mask.shape) == (np.bool_, (len(items),))
    return np.flatnonzero(mask).tolist()


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ({"section": "utils"}, [0]),
        ({"section": {"eq": "utils"}}, [0]),
        ({"section": {"ne": "utils"}}, [1, 3]),
        ({"section": ["utils", "io"]}, [0, 1]),
        ({"section": {"in": ("utils", "none")}}, [0]),
        ({"section": {"not_in": {"utils", "io"}}}, [3]),
        ({"section": {"in": []}}, []),
        ({"section": {"not_in": []}}, [0, 1, 3]),
        ({"section": {"ge": "io"}}, [0, 1]),
        ({"section": {"lt": "a"}}, [3]),
        ({"size": 5}, [0]),
        ({"size": 5.0}, [0]),
        ({"size": 5.5}, []),
        ({"size": {"in": [5.5, 2**62, 2**80]}}, [2]),
        ({"size": {"ne": 5.5}}, [0, 2, 3]),
        ({"size": {"lt": 5.5}}, [0, 3]),
        ({"size": {"gt": -7, "le": 5}}, [0]),
        ({"size": {"gt": 2**62 - 1}}, [2]),
        ({"size": {"gt": 2**62}}, []),
        ({"size": {"lt": 2**80}}, [0, 2, 3]),
        ({"size": np.int64(5)}, [0]),
        ({"rate": 2}, [1]),
        ({"rate": {"ge": 0.5}}, [0, 1]),
        ({"rate": {"not_in": [2, -1]}}, [0]),
        ({"free": True}, [0, 3]),
        ({"free": {"ne": True}}, [1]),
        ({"free": [True, False]}, [0, 1, 3]),
        ({"day": "2024-05-01"}, [0]),
        ({"day": {"gt": date(2024, 5, 1)}}, [2]),
        ({"day": {"lt": "2024-05-02"}}, [0, 3]),
        ({"at": {"ge": "2024-05-01T12:00"}}, [0, 2]),
        ({"at": {"gt": "2024-05-01"}}, [0, 2]),
        ({"at": datetime(2024, 5, 1, 15, tzinfo=timezone(timedelta(hours=2)))}, [2]),
        ({"utc": {"gt": "2024-05-01T12:00:00Z"}}, [2]),
        ({"utc": "2024-05-01T14:00:00+02:00"}, [0]),
        ({"utc": datetime(2024, 5, 1, 12)}, [0]),
        ({"tags": "b"}, [0, 1]),
        ({"tags": {"ne": "a"}}, [1, 2]),
        ({"tags": ["a", "c"]}, [0]),
        ({"tags": {"not_in": ["a", "c"]}}, [1, 2]),
        ({"section": "utils", "size": {"lt": 0}}, []),
        ({"free": True, "size": {"lt": 0}}, [3]),
        ({"and": [{"free": True}, {"size": {"lt": 0}}]}, [3]),
        ({"or": [{"size": 5}, {"rate": 2}]}, [0, 1]),
        ({"not": {"size": 5}}, [1, 2, 3]),
        ({"not": {"or": [{"size": 5}, {"rate": 2}]}, "free": True}, [3]),
        ({"_id": "b"}, [1]),
        ({"_id": ["b", "d", "of another corpus"], "free": True}, [3]),
        ({"_id": {"not_in": ["b", "d"]}}, [0, 2]),
        ({"_id": {"gt": "b"}}, [2, 3]),
        ({}, [0, 1, 2, 3]),
    ],
)
def test_conditions(items: Items, condition: Any, rows: list[int]) -> None:
    assert found(items, condition) == rows


def deep(depth: int) -> Any:
    condition: Any = {"size": 5}
    for _ in range(depth):
        condition = {"not": condition}
    return condition


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (
            {"sise": 5},
            "`filter` names the field 'sise', which the items do not have. Their fields: 'section' (string), ",
        ),
        ({3: 5}, "`filter` names the field 3"),
        ({"size": "5"}, "`filter` must compare 'size' (int64) with a number, got str '5'."),
        ({"size": True}, "`filter` must compare 'size' (int64) with a number, got bool True."),
        ({"size": None}, "got null. Values that are null match no comparison."),
        ({"size": {"lt": float("nan")}}, "with a number, got float nan."),
        ({"size": {"lt": 10**400}}, "with a number"),
        ({"rate": {"lt": float("inf")}}, "with a number, got float inf."),
        ({"section": 5}, "'section' (string) with a string, got int 5."),
        ({"section": "\ud800"}, "with a string"),
        ({"free": 1}, "'free' (bool) with true or false, got int 1."),
        ({"free": {"lt": True}}, "must compare 'free' (bool) by one of eq, ne, in, not_in, got 'lt'."),
        ({"tags": {"ge": "a"}}, "must compare 'tags' (list of strings) by one of eq, ne, in, not_in, got 'ge'."),
        ({"day": "May 1st"}, "with a date, such as 2024-05-01, got str 'May 1st'."),
        ({"day": datetime(2024, 5, 1)}, "with a date, such as"),
        ({"at": "noon"}, "with a time, such as"),
        ({"size": {"like": 5}}, "must compare 'size' by one of eq, ne, in, not_in, lt, le, gt, ge, got 'like'."),
        ({"size": {}}, "must compare 'size' by one of eq, ne, in, not_in, lt, le, gt, ge, got none."),
        ({"size": {"in": 5}}, "must have a list of values for 'size', got int 5."),
        ({"section": {"in": "utils"}}, "must have a list of values for 'section', got str 'utils'."),
        ({"size": [[5]]}, "with a number, got list [5]."),
        ({"and": []}, "must have a list of conditions for 'and', got list []."),
        ({"or": {"size": 5}}, "must have a list of conditions for 'or', got dict"),
        ({"not": [{"size": 5}]}, "in 'not', got list"),
        ({"and": ["size"]}, "in 'and', got str 'size'."),
        (deep(MAX_DEPTH + 1), f"must be nested at most {MAX_DEPTH} deep."),
    ],
)
def test_conditions_that_are_refused(items: Items, condition: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        items.mask(condition)
    assert message in str(caught.value)


def test_a_condition_that_holds_itself_is_refused(items: Items) -> None:
    condition: dict[str, Any] = {}
    condition["not"] = condition
    with pytest.raises(InputError, match="nested at most"):
        items.mask(condition)
    assert len(found(items, deep(MAX_DEPTH))) == 1


def test_items_without_fields_say_so() -> None:
    with pytest.raises(InputError, match="They have none: read them with their columns"):
        Items(["x"]).mask({"size": 5})


def test_stored_fields_are_filtered_alike(items: Items, tmp_path: Any) -> None:
    items.to_arrow(tmp_path / "c.arrow")
    stored = Items.from_arrow(tmp_path / "c.arrow")
    part = items.take([1, 0, 3, 2]).take([1, 0, 3, 2])
    for condition in ({"tags": "b"}, {"section": {"ge": "io"}}, {"free": True}, {"at": {"gt": "2024-05-01"}}):
        assert found(stored, condition) == found(items, condition) == found(part, condition)


COMPARE = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}


@given(
    values=st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
    operand=st.integers(-(2**70), 2**70) | st.floats(-1e19, 1e19),
    name=st.sampled_from(sorted(COMPARE)),
)
def test_integers_compare_as_python_does(values: list[int | None], operand: float, name: str) -> None:
    if not any(value is not None for value in values):
        values = [*values, 0]
    items = Items(["x"] * len(values), fields={"f": values})
    expected = [row for row, value in enumerate(values) if value is not None and COMPARE[name](value, operand)]
    assert found(items, {"f": {name: operand}}) == expected
    assert found(items.index_fields("f"), {"f": {name: operand}}) == expected


TEXTS = st.text(alphabet="aAé🧊\0", max_size=3)


@given(
    values=st.lists(st.none() | TEXTS, min_size=1, max_size=20),
    lists=st.lists(st.none() | st.lists(TEXTS, max_size=3), min_size=20, max_size=20),
    operand=TEXTS,
    name=st.sampled_from(sorted(COMPARE)),
)
def test_an_indexed_field_finds_what_comparing_finds(
    values: list[str | None], lists: list[list[str] | None], operand: str, name: str
) -> None:
    items = Items(["x"] * len(values), fields={"f": [*values], "tags": lists[: len(values)]})
    indexed = items.index_fields("f", "tags")
    assert found(indexed, {"f": {name: operand}}) == found(items, {"f": {name: operand}})
    if items.fields["tags"] == "list of strings":
        assert found(indexed, {"tags": [operand, "a"]}) == found(items, {"tags": [operand, "a"]})


def test_items_that_are_taken_and_added_keep_their_indexes() -> None:
    items = Items(["x", "y"], fields={"f": [2, 1], "g": ["a", "b"]}).index_fields("f").index_fields("g")
    more = items.take([1]).extend(Items(["z"], fields={"f": [1]}, ids=["of more"]))
    assert items.take([1]).indexed_fields == more.indexed_fields == ("f", "g")
    assert found(more, {"f": 1}) == [0, 1]
    assert found(more, {"g": "a"}) == []
    with pytest.raises(InputError, match=r"no field 'h'\. Their fields: 'f', 'g'"):
        items.index_fields("h")
