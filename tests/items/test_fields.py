"""Fields of items: kept and typed by every reader, stored in Arrow files, and refused where files are crafted."""

from __future__ import annotations

import csv
import json
import math
import pickle
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.items import field_readers
from crossknn.items.fields import ARROW_TYPES, fields_as_json
from crossknn.items.items import Items

ROWS = [
    {"section": "utils", "size": 7, "rate": 0.5, "free": True, "day": date(2024, 5, 1), "tags": ["a", "b"]},
    {"section": None, "size": None, "rate": None, "free": None, "day": None, "tags": None},
    {"section": "ümläut", "size": -3, "rate": 2.0, "free": False, "day": date(1969, 1, 31), "tags": []},
]
KINDS = {
    "section": "string",
    "size": "int64",
    "rate": "float64",
    "free": "bool",
    "day": "date",
    "tags": "list of strings",
}
MORE = {"at": [datetime(2024, 5, 1, 12), None, datetime(1960, 1, 1, microsecond=5)]}
AWARE = {"utc": [datetime(2024, 5, 1, 12, tzinfo=UTC), None, datetime(2024, 5, 1, tzinfo=timezone(timedelta(hours=2)))]}


def columns_of(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


@pytest.fixture
def items() -> Items:
    return Items(["x", "y", "z"], ids=["a", "b", "c"], fields=columns_of(ROWS) | MORE | AWARE)


def all_fields(items: Items) -> list[dict[str, Any]]:
    return items.fields_of(range(len(items)))


def write_jsonl(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return path


def write_csv(path: Path, columns: Mapping[str, list[str]]) -> Path:
    count = len(next(iter(columns.values())))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", *columns])
        writer.writerows(
            [row, f"text {row}", *values] for row, values in enumerate(zip(*columns.values(), strict=True))
        )
    assert count
    return path


def refusal(call: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        call(*args, **options)
    return str(caught.value)


class TestValues:
    def test_names_and_types(self, items: Items) -> None:
        assert items.fields == KINDS | {"at": "timestamp", "utc": "timestamp[UTC]"}
        assert Items(["x"]).fields == {}
        assert "section: string" in repr(items)

    def test_values_come_back(self, items: Items) -> None:
        expected = [row | {"at": at, "utc": utc} for row, at, utc in zip(ROWS, MORE["at"], AWARE["utc"], strict=True)]
        assert all_fields(items) == expected
        assert items.fields_of([2, 0]) == [expected[2], expected[0]]
        assert Items(["x"]).fields_of([0, 0]) == [{}, {}]

    def test_one_field(self, items: Items) -> None:
        sizes = items.field("size")
        assert (len(sizes), list(sizes), sizes[-1], sizes[:2], sizes.kind) == (3, [7, None, -3], -3, [7, None], "int64")
        with pytest.raises(IndexError):
            sizes[3]
        assert refusal(items.field, "sise").startswith("the items have no field 'sise'. Their fields: 'section', ")

    def test_the_fingerprint_is_that_of_ids_and_texts(self, items: Items) -> None:
        assert items.fingerprint == Items(["x", "y", "z"], ids=["a", "b", "c"]).fingerprint

    def test_they_survive_pickling(self, items: Items) -> None:
        assert all_fields(pickle.loads(pickle.dumps(items))) == all_fields(items)

    def test_take_and_extend(self, items: Items) -> None:
        assert all_fields(items.take([2, 0])) == items.fields_of([2, 0])
        both = items.take([0]).extend(Items(["more"], ids=["d"], fields={"size": [1.5], "new": ["n"], "section": [4]}))
        assert list(both.ids) == ["a", "d"]
        assert both.fields["size"] == "float64"
        first, second = all_fields(both)
        assert (first["size"], first["new"], first["section"]) == (7.0, None, "utils")
        assert (second["size"], second["new"], second["section"], second["tags"]) == (1.5, "n", "4", None)

    def test_extend_refuses_other_types(self, items: Items) -> None:
        message = refusal(items.extend, Items(["more"], ids=["d"], fields={"size": ["large"]}))
        assert message.startswith("the field 'size' is int64 in the items so far and string in the new ones.")
        nulls = Items(["more"], ids=["d"], fields={"size": [None]})
        assert items.extend(nulls).field("size")[3] is None
        assert nulls.extend(items).fields["size"] == "int64"

    @pytest.mark.parametrize(
        "fields", [{"a": [1]}, {"a": [{}, {}]}, {"": [1, 2]}, {"a": [[1.5], [2.5]]}, ["a"], {3: [1, 2]}]
    )
    def test_columns_that_are_none(self, fields: Any) -> None:
        assert "field" in refusal(Items, ["x", "y"], fields=fields)

    def test_values_of_other_libraries(self) -> None:
        fields = {
            "numpy": np.array([1, 2], np.uint8),
            "nan": [float("nan"), math.inf],
            "decimal": [Decimal("1.5"), None],
            "arrow": pa.array([True, None]),
            "tuples": [("a",), ()],
        }
        found = Items(["x", "y"], fields=fields)
        kinds = ["int64", "float64", "float64", "bool", "list of strings"]
        assert list(found.fields.values()) == kinds
        assert all_fields(found)[0] == {"numpy": 1, "nan": None, "decimal": 1.5, "arrow": True, "tuples": ["a"]}

    def test_as_json(self, items: Items) -> None:
        written = json.dumps([fields_as_json(fields) for fields in all_fields(items)], allow_nan=False)
        assert json.loads(written)[0] == json.loads(json.dumps(ROWS[0] | {"day": "2024-05-01"})) | {
            "at": "2024-05-01T12:00:00",
            "utc": "2024-05-01T12:00:00+00:00",
        }


class TestJsonl:
    def read(self, path: Path, values: list[Any], **options: Any) -> Items:
        records = [{"id": row, "text": "x", "f": value} for row, value in enumerate(values)]
        return Items.from_jsonl(write_jsonl(path / "c.jsonl", records), **options)

    @pytest.mark.parametrize(
        ("values", "kind", "expected"),
        [
            ([1, None, -2], "int64", [1, None, -2]),
            ([1, 2.5], "float64", [1.0, 2.5]),
            ([True, None], "bool", [True, None]),
            (["2024-05-01", "x"], "string", ["2024-05-01", "x"]),
            ([1, "x", True, 2.5, 2.0], "string", ["1", "x", "true", "2.5", "2"]),
            ([2**70, 1], "string", [str(2**70), "1"]),
            ([["a"], "b", 3, None, [None, "c"]], "list of strings", [["a"], ["b"], ["3"], None, [None, "c"]]),
            ([None, None], "string", [None, None]),
            ([1.0, float("nan")], "float64", [1.0, None]),
        ],
    )
    @pytest.mark.parametrize("block", [1, 100])
    def test_types(
        self, values: Any, kind: str, expected: Any, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever the blocks in which records are read."""
        monkeypatch.setattr(field_readers, "BLOCK_STRINGS", block)
        items = self.read(tmp_path, values)
        assert (items.fields, list(items.field("f"))) == ({"f": kind}, expected)

    @pytest.mark.parametrize("value", [{"a": 1}, [1.5], [["a"]], [{}]])
    def test_other_values_are_left_out_or_refused(self, value: Any, tmp_path: Path) -> None:
        assert self.read(tmp_path, ["x", value]).fields == {}
        assert "c.jsonl:2: the field 'f' cannot be kept" in refusal(self.read, tmp_path, ["x", value], fields=["f"])

    def test_fields_that_come_late_or_are_missing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(field_readers, "BLOCK_STRINGS", 2)
        records = [{"_id": row, "text": "x", f"f{row % 3}": row} for row in range(7)]
        items = Items.from_jsonl(write_jsonl(tmp_path / "c.jsonl", records))
        assert list(items.field("f2")) == [None, None, 2, None, None, 5, None]
        assert Items.from_records(records).fields_of([4]) == [{"f0": None, "f1": 4, "f2": None}]

    def test_which_are_kept(self, tmp_path: Path) -> None:
        records = [{"_id": 1, "id": 2, "title": "T", "text": "x", "a": 1, "b": 2}]
        path = write_jsonl(tmp_path / "c.jsonl", records)
        assert Items.from_jsonl(path).fields_of([0]) == [{"id": 2, "a": 1, "b": 2}]
        assert Items.from_jsonl(path, fields=["title", "b"]).fields_of([0]) == [{"title": "T", "b": 2}]
        assert Items.from_jsonl(path, fields=[]).fields == {}
        assert refusal(Items.from_jsonl, path, fields=["sise"]).endswith(
            "no record has a field 'sise', only '_id', 'a', 'b', 'id', 'text', 'title'."
        )

    @pytest.mark.parametrize("fields", ["a", [""], [3], ["a", "a"], 5])
    def test_names_that_are_none(self, fields: Any, tmp_path: Path) -> None:
        path = write_jsonl(tmp_path / "c.jsonl", [{"_id": 1, "text": "x", "a": 1}])
        assert refusal(Items.from_jsonl, path, fields=fields).startswith("`fields` must be ")

    def test_id_or_underscore_id(self, tmp_path: Path) -> None:
        path = write_jsonl(tmp_path / "c.jsonl", [{"id": "a", "text": "x"}])
        assert list(Items.from_jsonl(path).ids) == ["a"]
        assert list(Items.from_records([{"id": 7, "text": "x"}]).ids) == ["7"]

    def test_lone_surrogates(self, tmp_path: Path) -> None:
        assert "c.jsonl:2: a lone surrogate in a field" in refusal(self.read, tmp_path, ["x", "a\ud800"])
        assert list(self.read(tmp_path, ["x", "a\ud800"], errors="replace").field("f")) == ["x", "a\ufffd"]
        lists = self.read(tmp_path, [["a\ud800", None], None], errors="replace")
        assert list(lists.field("f")) == [["a\ufffd", None], None]
        path = tmp_path / "c.jsonl"
        path.write_text('{"_id": 1, "text": "x", "\\ud800": 1}')
        assert "the name of a field must be text" in refusal(Items.from_jsonl, path)

    def test_too_many(self, tmp_path: Path) -> None:
        records = [{"_id": row, "text": "x", f"f{row}": 1} for row in range(1001)]
        path = write_jsonl(tmp_path / "c.jsonl", records)
        assert "more than 1000 fields. Name those to keep" in refusal(Items.from_jsonl, path)
        assert list(Items.from_jsonl(path, fields=["f3"]).fields) == ["f3"]

    def test_items_that_are_skipped_have_none(self, tmp_path: Path) -> None:
        records = [{"_id": row, "text": "x" if row % 2 else "", "row": row} for row in range(10)]
        items = Items.from_jsonl(write_jsonl(tmp_path / "c.jsonl", records), empty="skip")
        assert list(zip(items.ids, items.field("row"), strict=True)) == [(str(row), row) for row in range(1, 10, 2)]


class TestCsv:
    @pytest.mark.parametrize(
        ("values", "kind", "expected"),
        [
            (["7", "", "-3"], "int64", [7, None, -3]),
            (["7", "0.5", "-1e3"], "float64", [7, 0.5, -1000]),
            (["007", "1"], "string", ["007", "1"]),
            (["1", "-007"], "string", ["1", "-007"]),
            (["1", "0x1f"], "string", ["1", "0x1f"]),
            (["1.5", "007.5"], "string", ["1.5", "007.5"]),
            (["1.5", "+5"], "string", ["1.5", "+5"]),
            (["1", " 2"], "string", ["1", " 2"]),
            (["0", "-0.5", "0.5"], "float64", [0, -0.5, 0.5]),
            (["1.5", "nan"], "string", ["1.5", "nan"]),
            (["1.5", "1e999"], "string", ["1.5", "1e999"]),
            (["1", str(2**70)], "string", ["1", str(2**70)]),
            (["9007199254740993", "1.5"], "string", ["9007199254740993", "1.5"]),
            (["1e300", "2"], "float64", [1e300, 2]),
            (["true", "False", ""], "bool", [True, False, None]),
            (["true", "no"], "string", ["true", "no"]),
            (["2024-05-01", "1969-12-31"], "date", [date(2024, 5, 1), date(1969, 12, 31)]),
            (["2024-05-01", "2024-02-31"], "string", ["2024-05-01", "2024-02-31"]),
            (["2024-05-01T12:00:00", ""], "timestamp", [datetime(2024, 5, 1, 12), None]),
            (["2024-05-01", "2024-05-01 12:00"], "timestamp", [datetime(2024, 5, 1), datetime(2024, 5, 1, 12)]),
            (["2024-05-01T12:00:00Z", ""], "timestamp[UTC]", [datetime(2024, 5, 1, 12, tzinfo=UTC), None]),
            (
                ["2024-05-01T12:00:00Z", "2024-05-01T12:00:00"],
                "string",
                ["2024-05-01T12:00:00Z", "2024-05-01T12:00:00"],
            ),
            (["ümläut", "x"], "string", ["ümläut", "x"]),
            (["", ""], "string", [None, None]),
        ],
    )
    def test_types_are_inferred(self, values: list[str], kind: str, expected: Any, tmp_path: Path) -> None:
        items = Items.from_csv(write_csv(tmp_path / "c.csv", {"f": values, "other": ["x"] * len(values)}))
        assert (items.fields["f"], list(items.field("f"))) == (kind, expected)

    def test_which_are_kept(self, tmp_path: Path) -> None:
        path = write_csv(tmp_path / "c.csv", {"a": ["1"], "": ["0"], "b": ["x"], "c": ["1"]})
        assert Items.from_csv(path).fields_of([0]) == [{"a": 1, "b": "x", "c": 1}]
        assert Items.from_csv(path, fields=["c", "text"]).fields_of([0]) == [{"c": 1, "text": "text 0"}]
        assert Items.from_csv(path, fields=()).fields == {}
        assert "no column named 'd' among" in refusal(Items.from_csv, path, fields=["d"])

    def test_of_the_same_name(self, tmp_path: Path) -> None:
        path = tmp_path / "c.csv"
        path.write_text("id,text,a,a,b\n1,x,1,2,3\n")
        assert Items.from_csv(path).fields == {"b": "int64"}
        assert "more than one column named 'a'" in refusal(Items.from_csv, path, fields=["a"])

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
    @given(values=st.lists(st.text("0123456789.-+eE nax:T", max_size=6), min_size=1, max_size=8))
    def test_whole_numbers_keep_their_digits(self, values: list[str], tmp_path: Path) -> None:
        items = Items.from_csv(write_csv(tmp_path / "c.csv", {"f": values}))
        known = [(text, value) for text, value in zip(values, items.field("f"), strict=True) if text]
        assert len(known) == len([value for value in items.field("f") if value is not None])
        for text, value in known:
            if isinstance(value, int):
                assert text in (str(value), f"-{value}")
            elif isinstance(value, float):
                assert value == float(text)
            else:
                assert text == value


class TestTables:
    def test_parquet(self, tmp_path: Path) -> None:
        table = pa.table(
            {
                "id": ["a", "b"],
                "text": ["x", "y"],
                "int": pa.array([1, None], pa.uint8()),
                "float": pa.array([1.5, float("nan")], pa.float32()),
                "decimal": pa.array([Decimal("1.50"), None]),
                "word": pa.array(["w", "v"]).dictionary_encode(),
                "day": pa.array([date(2024, 5, 1), None], pa.date64()),
                "nanoseconds": pa.array([1_500, None], pa.timestamp("ns")),
                "zone": pa.array([0, None], pa.timestamp("s", "Europe/Berlin")),
                "list": pa.array([["a"], None], pa.list_(pa.string())),
                "vector": pa.array([[1.5], [2.5]]),
                "object": pa.array([{"a": 1}, None]),
                "huge": pa.array([2**64 - 1, 0], pa.uint64()),
                "nothing": pa.nulls(2),
            }
        )
        path = tmp_path / "c.parquet"
        pq.write_table(table, path, row_group_size=1)
        items = Items.from_parquet(path)
        assert items.fields_of([0]) == [
            {
                "int": 1,
                "float": 1.5,
                "decimal": 1.5,
                "word": "w",
                "day": date(2024, 5, 1),
                "nanoseconds": datetime(1970, 1, 1, microsecond=1),
                "zone": datetime(1970, 1, 1, tzinfo=UTC),
                "list": ["a"],
                "nothing": None,
            }
        ]
        assert set(items.fields_of([1])[0].values()) == {None, "v"}
        assert list(Items.from_parquet(path, fields=["int", "text"]).fields) == ["int", "text"]
        for name in ("vector", "object", "huge"):
            assert f"{name!r} cannot be kept" in refusal(Items.from_parquet, path, fields=[name])

    def test_to_parquet_and_back(self, items: Items, tmp_path: Path) -> None:
        with_title = Items(["T x"], fields={"title": ["T"], "id": [7]})
        for number, one in enumerate((items, with_title)):
            path = tmp_path / f"{number}.parquet"
            one.to_parquet(path)
            back = Items.from_parquet(path)
            assert (back.fingerprint, back.fields, all_fields(back)) == (one.fingerprint, one.fields, all_fields(one))
        assert "cannot have a field 'text'" in refusal(Items(["x"], fields={"text": ["y"]}).to_parquet, path)

    def test_strings_that_are_not_utf8(self, tmp_path: Path) -> None:
        offsets = pa.py_buffer(np.array([0, 1, 4], np.int64))
        bad = pa.LargeStringArray.from_buffers(2, offsets, pa.py_buffer(b"xa\xffb"))
        path = tmp_path / "c.parquet"
        pq.write_table(pa.table({"_id": ["a", "b"], "text": ["x", "y"], "f": bad}), path)
        assert "c.parquet:row 1: column 'f' is not UTF-8" in refusal(Items.from_parquet, path)
        assert list(Items.from_parquet(path, errors="replace").field("f")) == ["x", "a\ufffdb"]

    def test_skipped_rows(self, tmp_path: Path) -> None:
        table = pa.table({"_id": [*"abc"], "text": ["x", "", "z"], "f": [1, 2, 3]})
        pq.write_table(table, tmp_path / "c.parquet")
        assert list(Items.from_parquet(tmp_path / "c.parquet", empty="skip").field("f")) == [1, 3]

    def test_pandas(self) -> None:
        pd = pytest.importorskip("pandas")
        frame = pd.DataFrame(
            {
                "text": ["x", "y"],
                "size": [1.0, None],
                "mixed": [1, "a"],
                "at": pd.to_datetime(["2024-05-01T12:00:00.000000001", None]),
                "word": pd.Categorical(["w", None]),
                "objects": [{}, object()],
            },
            index=["a", "b"],
        )
        items = Items.from_pandas(frame)
        assert list(items.ids) == ["a", "b"]
        expected = {"size": 1.0, "mixed": "1", "at": datetime(2024, 5, 1, 12), "word": "w"}
        assert all_fields(items) == [expected, {"size": None, "mixed": "a", "at": None, "word": None}]
        assert list(Items.from_pandas(frame.reset_index(), id="index").ids) == ["a", "b"]
        assert list(Items.from_pandas(frame.assign(id=[3, 4]), fields=[]).ids) == ["3", "4"]
        assert list(Items.from_pandas(frame.reset_index(drop=True)).ids) == ["0", "1"]
        assert "frame:row 1: the id 'a' is not unique" in refusal(Items.from_pandas, frame.assign(id="a"))
        assert "must be a DataFrame" in refusal(Items.from_pandas, [1])

    def test_a_dataset_of_hugging_face(self) -> None:
        datasets = pytest.importorskip("datasets")
        columns = {"text": ["x", "y", "z"], "size": [1, 2, 3], "tags": [["a"], [], ["b", "c"]]}
        dataset = datasets.Dataset.from_dict(columns)
        items = Items.from_dataset(dataset)
        assert (list(items.ids), items.fields) == (["0", "1", "2"], {"size": "int64", "tags": "list of strings"})
        chosen = Items.from_dataset(dataset.select([2, 0]).add_column("id", ["p", "q"]), fields=["size"])
        assert (list(chosen.ids), all_fields(chosen)) == (["p", "q"], [{"size": 3}, {"size": 1}])
        message = refusal(Items.from_dataset, datasets.DatasetDict(train=dataset))
        assert message == "`dataset` must be one split, got 1: 'train'."

    def test_tables_with_to_arrow(self) -> None:
        polars = pytest.importorskip("polars")
        frame = polars.DataFrame({"id": ["a"], "text": ["x"], "size": [3], "day": [date(2024, 5, 1)]})
        assert all_fields(Items.from_dataset(frame)) == [{"size": 3, "day": date(2024, 5, 1)}]
        assert all_fields(Items.from_dataset(frame.to_arrow(), fields=["size"])) == [{"size": 3}]
        assert "`dataset` must be a Dataset" in refusal(Items.from_dataset, [1])


VALUES: dict[str, Any] = {
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "date": st.dates(),
    "timestamp": st.datetimes(),
    "timestamp[UTC]": st.datetimes(timezones=st.just(UTC)),
    "list of strings": st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=3),
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(data=st.data())
def test_every_value_survives_an_arrow_file(data: st.DataObject, tmp_path: Path) -> None:
    count = data.draw(st.integers(1, 9))
    fields = {
        kind: data.draw(st.lists(st.none() | values, min_size=count, max_size=count)) for kind, values in VALUES.items()
    }
    items = Items(["x"] * count, fields=fields)
    items.to_arrow(tmp_path / "c.arrow")
    back = Items.from_arrow(tmp_path / "c.arrow")
    back.check_texts()
    assert back.fields == items.fields
    for name, values in fields.items():
        assert list(back.field(name)) == values
        assert back.field(name).take(np.array([count - 1])) == values[-1:]


def write_arrow(path: Path, field: pa.Array | dict[str, pa.Array]) -> Path:
    """A file whose field is this array, as somebody may have written it."""
    fields = field if isinstance(field, dict) else {"f": field}
    strings = pa.array(["a", "b"], pa.large_string())
    batch = pa.RecordBatch.from_arrays([strings, strings, *fields.values()], names=["_id", "text", *fields])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    return path


class TestCraftedFiles:
    @pytest.mark.parametrize(
        "array",
        [
            pa.array([1, 2], pa.int32()),
            pa.array(["a", "b"], pa.string()),
            pa.array(["a", "b"]).dictionary_encode(),
            pa.array([[1], [2]]),
            pa.array([["a"], []], pa.list_(pa.string())),
            pa.array([0, 1], pa.timestamp("us", "Europe/Berlin")),
            pa.array([{"a": 1}, {}]),
            pa.nulls(2),
        ],
        ids=lambda array: str(array.type),
    )
    def test_other_types_are_refused(self, array: pa.Array, tmp_path: Path) -> None:
        path = write_arrow(tmp_path / "c.arrow", array)
        assert "c.arrow: damaged: " in refusal(Items.from_arrow, path)

    def test_names_are_distinct(self, tmp_path: Path) -> None:
        strings = pa.array(["a", "b"], pa.large_string())
        for names in (["f", "f"], ["f", ""]):
            batch = pa.RecordBatch.from_arrays([strings] * 4, names=["_id", "text", *names])
            path = tmp_path / "c.arrow"
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
                writer.write_batch(batch)
            assert "fields without names, or with the same" in refusal(Items.from_arrow, path)

    @pytest.mark.parametrize("ends", [(0, 2**40, 11), (0, 5, 2**40), (-8, 5, 11), (0, 5, 3)])
    @pytest.mark.parametrize("kind", ["string", "list of strings", "strings of a list"])
    def test_no_value_is_read_from_outside(self, kind: str, ends: tuple[int, ...], tmp_path: Path) -> None:
        values: Any = ["12345", "678901"]
        if kind == "list of strings":
            values = [["x"] * 5, ["x"] * 6]
        elif kind == "strings of a list":
            values = [values, []]
        path = tmp_path / "c.arrow"
        Items(["t", "u"], fields={"f": values}).to_arrow(path)
        whole = path.read_bytes()
        at = whole.index(np.array([0, 5, 11], np.int64).tobytes())
        path.write_bytes(whole[:at] + np.array(ends, np.int64).tobytes() + whole[at + 24 :])
        message = refusal(Items.from_arrow, path)
        assert "c.arrow: damaged: field 'f': " in message
        assert "offset" in message.lower()

    def test_nulls_are_counted_anew(self, tmp_path: Path) -> None:
        """The number that a file claims is not believed."""
        buffers = [pa.py_buffer(b"\1"), pa.py_buffer(np.array([5, 6]))]
        lying = pa.Array.from_buffers(pa.int64(), 2, buffers, null_count=2)
        items = Items.from_arrow(write_arrow(tmp_path / "c.arrow", lying))
        assert (items.field("f").array.null_count, list(items.field("f"))) == (1, [5, None])

    def test_values_are_read_by_check_texts(self, tmp_path: Path) -> None:
        offsets = pa.py_buffer(np.array([0, 1, 2], np.int64))
        crafted = {
            "string": pa.LargeStringArray.from_buffers(2, offsets, pa.py_buffer(b"a\xff")),
            "date": pa.array([0, 2**31 - 1], pa.int32()).cast(pa.date32()),
            "timestamp": pa.array([-(2**63), 0]).cast(pa.timestamp("us")),
        }
        for kind, array in crafted.items():
            items = Items.from_arrow(write_arrow(tmp_path / f"{kind}.arrow", array))
            assert refusal(items.check_texts)
            assert "a stored" in refusal(items.fields_of, [0, 1])

    @pytest.mark.parametrize("compression", ["zstd", "lz4"])
    def test_compressed_fields_are_refused(self, compression: str, tmp_path: Path) -> None:
        strings = pa.array(["a", "b"], pa.large_string())
        batch = pa.RecordBatch.from_arrays([strings, strings, pa.array([1, 2])], names=["_id", "text", "f"])
        options = pa.ipc.IpcWriteOptions(compression=compression)
        path = tmp_path / "c.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        assert "compressed columns" in refusal(Items.from_arrow, path)

    def test_random_damage(self, items: Items, tmp_path: Path) -> None:
        """It is refused in one sentence, or every value can be read: an error, maybe, but never from outside."""
        path, rng = tmp_path / "c.arrow", np.random.default_rng(0)
        items.to_arrow(path)
        whole, outcomes = path.read_bytes(), []
        numbers = [0, 1, -1, 8, 2**31 - 1, 2**40, 2**62, -(2**63)]
        for trial in range(1500):
            raw = bytearray(whole)
            if trial % 3:
                at = 8 * int(rng.integers(len(raw) // 8 - 1))
                raw[at : at + 8] = int(rng.choice(numbers)).to_bytes(8, "little", signed=True)
            else:
                raw[int(rng.integers(len(raw)))] ^= 1 << int(rng.integers(8))
            path.write_bytes(raw)
            outcomes.append(self.read_all(path))
        assert {"refused", "read"} == {*outcomes}
        assert outcomes.count("refused") > 100

    @staticmethod
    def assert_one_sentence(error: InputError, path: Path) -> None:
        assert str(error).startswith(str(path))
        assert "\n" not in str(error)

    def read_all(self, path: Path) -> str:
        try:
            items = Items.from_arrow(path)
        except InputError as error:
            self.assert_one_sentence(error, path)
            return "refused"
        assert set(items.fields.values()) <= set(ARROW_TYPES)
        for name in items.fields:
            column = items.field(name)
            assert len(column) == len(items)
            for read in (column.check_values, lambda column=column: column.take(np.arange(len(items))[::-1])):
                with suppress(InputError):
                    read()
        return "read"


def test_names_that_are_not_kept_cost_nothing():
    """A file may have another name in every record."""

    class Record(dict):
        gets = 0

        def get(self, *given):
            Record.gets += 1
            return super().get(*given)

    records = [Record({"_id": str(row), "text": "a", "size": row, f"name {row}": 1}) for row in range(200)]
    items = Items.from_records(records, fields=["size"])
    assert items.field("size")[:] == list(range(200))
    assert Record.gets < 200 * 5


def test_a_kept_field_may_come_late_and_among_others():
    records = [{"_id": "1", "text": "a"}, {"_id": "2", "other": 1, "text": "b", "size": 2}, {"size": 3, "_id": "3"}]
    items = Items.from_records([*records[:2], {**records[2], "text": "c"}], fields=["size", "_id"])
    assert items.fields_of([0, 1, 2]) == [{"size": size, "_id": id_} for size, id_ in ((None, "1"), (2, "2"), (3, "3"))]


def test_the_type_of_a_column_is_inferred_in_one_pass(tmp_path):
    """Digits that end in a letter would be tried at each digit."""
    (tmp_path / "c.csv").write_text(f"_id,text,code\n1,a,{'1' * 300_000}x\n")
    assert Items.from_csv(tmp_path / "c.csv").fields == {"code": "string"}
