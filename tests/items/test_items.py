"""Items: what every reader accepts and refuses, and the laws that hold for all of them."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import logging
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import crossknn.items.items
from crossknn.errors import InputError
from crossknn.items import readers, string_column
from crossknn.items.items import Items
from crossknn.types import Rows

WORLD = {"a": "rivers freeze", "b": "lakes thaw", "ü": "ice — 冰"}

Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file and return its path; `.gz` names are compressed."""

    def write_file(name: str, content: str | bytes) -> Path:
        raw = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return tmp_path / name

    return write_file


def refusal(read: Callable[..., Any], *args: Any, **options: Any) -> str:
    """The message of the InputError that a call raises, folders of paths cut off."""
    with pytest.raises(InputError) as caught:
        read(*args, **options)
    folder = str(Path(args[0]).parent) + os.sep if args and isinstance(args[0], Path) else "\0"
    return str(caught.value).replace(folder, "")


def contents(items: Items) -> dict[str, str]:
    return dict(zip(items.ids, items.texts, strict=True))


def write_jsonl(path: Path, world: Mapping[str, str]) -> Path:
    lines = [json.dumps({"_id": id_, "text": text}) for id_, text in world.items()]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def write_csv(path: Path, world: Mapping[str, str], delimiter: str = ",") -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([("_id", "text"), *world.items()])
    return path


def write_parquet(path: Path, world: Mapping[str, str]) -> Path:
    pq.write_table(pa.table({"_id": list(world), "text": list(world.values())}), path, row_group_size=3)
    return path


class TestFromPython:
    def test_ids_default_to_row_numbers(self) -> None:
        assert contents(Items(["x", "y"])) == {"0": "x", "1": "y"}

    def test_ids_are_given(self) -> None:
        assert contents(Items(iter(["x", "y"]), ids=iter(["p", 7]))) == {"p": "x", "7": "y"}

    def test_from_dict_keeps_order(self) -> None:
        assert list(Items.from_dict(WORLD).ids) == list(WORLD)

    def test_from_records_joins_the_fields_of_beir(self) -> None:
        records = [{"_id": 1, "title": "T", "text": "body"}, {"_id": 2, "title": "", "text": " body "}]
        assert contents(Items.from_records(records)) == {"1": "T body", "2": "body"}

    def test_more_ids_than_texts(self) -> None:
        message = "`ids` must be as many as `texts`, got 1 texts and more ids."
        assert refusal(Items, ["x"], ids=["a", "b"]) == message

    def test_more_texts_than_ids(self) -> None:
        message = "`ids` must be as many as `texts`, got 1 ids and more texts."
        assert refusal(Items, ["x", "y"], ids=["a"]) == message

    @pytest.mark.parametrize("texts", ["corpus.jsonl", b"x", {"a": "x"}, 3, None])
    def test_texts_that_are_not_a_sequence(self, texts: Any) -> None:
        assert refusal(Items, texts).startswith("`texts` must be a sequence of strings, got ")

    def test_ids_that_are_a_string(self) -> None:
        assert refusal(Items, ["x"], ids="a").startswith("`ids` must be a sequence of strings, got str 'a'.")

    def test_a_text_that_is_no_string(self) -> None:
        message = "item 1: a text must be a string, got int 3."
        assert refusal(Items, ["x", 3]) == message

    def test_a_record_that_is_no_mapping(self) -> None:
        assert refusal(Items.from_records, ["x"]) == (
            "item 0: a record must be a mapping with an id and a text, got str 'x'."
        )

    def test_records_that_are_a_mapping(self) -> None:
        assert "`records` must be a sequence of mappings, got dict" in refusal(Items.from_records, {"a": "x"})

    def test_from_dict_of_a_list(self) -> None:
        assert refusal(Items.from_dict, ["x"]).startswith("`texts` must be a mapping of ids to texts, got list")

    @pytest.mark.parametrize("bad", ["", None, 1.5, True, ["a"]])
    def test_ids_that_are_not_ids(self, bad: Any) -> None:
        message = refusal(Items, ["x", "y"], ids=["a", bad])
        assert message.startswith("item 1: an id must be a nonempty string or an integer, got ")

    def test_lone_surrogate(self) -> None:
        message = refusal(Items, ["fine", "a\ud800"])
        assert message.startswith("item 1: a lone surrogate \\ud800 at character 1. ")

    def test_duplicates_name_both_places(self) -> None:
        message = refusal(Items, ["x", "y", "z"], ids=["1", "2", 1])
        assert message.startswith("item 2: the id '1' is not unique, first at item 0.")

    def test_no_items(self) -> None:
        message = "items: no items. At least one is needed."
        assert refusal(Items, []) == message
        assert refusal(Items.from_dict, {}) == message

    @pytest.mark.parametrize("options", [{"text": ()}, {"text": ("",)}, {"id": ""}, {"id": 3}, {"join": None}])
    def test_fields_that_name_nothing(self, options: Any) -> None:
        assert " must " in refusal(Items.from_records, [{"_id": "a", "text": "x"}], **options)


class TestJsonl:
    def test_beir_fields(self, write: Write) -> None:
        path = write(
            "c.jsonl", '{"_id": "a", "title": "T", "text": "body"}\n{"_id": 2, "text": "alone", "more": [1]}\n'
        )
        assert contents(Items.from_jsonl(path)) == {"a": "T body", "2": "alone"}

    def test_null_and_empty_fields_are_left_out(self, write: Write) -> None:
        path = write("c.jsonl", '{"_id": "a", "title": null, "text": "x"}\n{"_id": "b", "title": "T", "text": ""}')
        assert contents(Items.from_jsonl(path)) == {"a": "x", "b": "T"}

    def test_named_fields_and_join(self, write: Write) -> None:
        path = write("c.jsonl", '{"key": "a", "t": "x", "u": "y", "v": "z"}')
        assert contents(Items.from_jsonl(path, id="key", text=("u", "t"), join=" | ")) == {"a": "y | x"}

    def test_one_field_is_taken_as_it_is(self, write: Write) -> None:
        path = write("c.jsonl", '{"_id": "a", "text": "  x "}')
        assert contents(Items.from_jsonl(path, text="text")) == {"a": "  x "}
        assert contents(Items.from_jsonl(path)) == {"a": "x"}

    def test_bom_crlf_and_blank_lines(self, write: Write) -> None:
        path = write("c.jsonl", b'\xef\xbb\xbf{"_id": "a", "text": "x"}\r\n\r\n  \n{"_id": "b", "text": "y"}\r\n')
        assert contents(Items.from_jsonl(path)) == {"a": "x", "b": "y"}

    def test_separators_of_unicode_do_not_end_lines(self, write: Write) -> None:
        path = write("c.jsonl", '{"_id": "a", "text": "x\u2028y\u0085z"}\n')
        assert contents(Items.from_jsonl(path)) == {"a": "x\u2028y\u0085z"}

    def test_nul_is_a_character(self, write: Write) -> None:
        path = write("c.jsonl", '{"_id": "a\\u0000", "text": "x\\u0000y"}')
        assert contents(Items.from_jsonl(path)) == {"a\0": "x\0y"}

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("{}", "no id field '_id' among its fields (none at all). Name it with `id`."),
            ('{"id": "a", "text": "x"}', "no id field '_id' among its fields ('id', 'text'). Name it with `id`."),
            ('{"_id": "a", "body": "x"}', "no text field 'title' or 'text' among its fields ('_id', 'body'). "),
            ('{"_id": "a", "text": 3}', "a text must be a string, got int 3."),
            ('{"_id": "a", "title": ["x"]}', "a text must be a string, got list ['x']."),
            ('{"_id": "", "text": "x"}', "an id must be a nonempty string or an integer, got str ''."),
            ('{"_id": null, "text": "x"}', "an id must be a nonempty string or an integer, got null."),
            ('{"_id": 1.0, "text": "x"}', "an id must be a nonempty string or an integer, got float 1.0."),
            ('{"_id": true, "text": "x"}', "an id must be a nonempty string or an integer, got bool True."),
            ('["a", "x"]', "a line must be a JSON object, got list ['a', 'x']."),
            ('{"_id": "a", "text": "\\ud800"}', "a lone surrogate \\ud800 "),
            ('{"_id": "\\udfff", "text": "x"}', "a lone surrogate \\udfff "),
            ('{"_id": ' + "9" * 5000 + "}", "JSON that cannot be read ("),
            ("[" * 100_000, "JSON that cannot be read ("),
        ],
    )
    def test_bad_records_name_their_line(self, write: Write, line: str, message: str) -> None:
        path = write("c.jsonl", f'{{"_id": "fine", "text": "x"}}\n\n{line}\n')
        assert refusal(Items.from_jsonl, path).startswith(f"c.jsonl:3: {message}")

    def test_invalid_json_names_the_column(self, write: Write) -> None:
        path = write("c.jsonl", '{"_id": "a", "text": "x"}\n{"_id": "b" "text": "y"}\n')
        assert refusal(Items.from_jsonl, path).startswith("c.jsonl:2:13: invalid JSON (Expecting ',' delimiter).")

    def test_surrogates_can_be_replaced(self, write: Write) -> None:
        path = write("c.jsonl", '{"_id": "a", "text": "x\\ud800y \\ud83d\\ude00"}')
        assert contents(Items.from_jsonl(path, errors="replace")) == {"a": "x\ufffdy 😀"}

    def test_duplicates_name_both_lines(self, write: Write) -> None:
        path = write("c.jsonl", "".join(f'{{"_id": "{i}", "text": "x"}}\n\n' for i in "abcba"))
        message = refusal(Items.from_jsonl, path)
        assert message.startswith("c.jsonl:7: the id 'b' is not unique, first at c.jsonl:3.")


class TestBytes:
    """What holds for every text file, whatever its format."""

    def test_bytes_that_are_not_utf8(self, write: Write) -> None:
        path = write("c.txt", b"caf\xc3\xa9\ncaf\xe9\n")
        message = refusal(Items.from_lines, path)
        assert message.startswith("c.txt:2: not UTF-8: byte 0xe9 at byte offset 9 of the file.")

    def test_bytes_that_are_not_utf8_can_be_replaced(self, write: Write) -> None:
        path = write("c.txt", b"caf\xc3\xa9\ncaf\xe9\n")
        assert contents(Items.from_lines(path, errors="replace")) == {"1": "café", "2": "caf\ufffd"}

    @pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
    def test_longest_line(self, write: Write, end: bytes) -> None:
        path = write("c.txt", b"one\n" + b"x" * 10 + end)
        assert Items.from_lines(path, max_line_bytes=10).text(1) == "x" * 10
        message = refusal(Items.from_lines, path, max_line_bytes=9)
        assert message.startswith("c.txt:2: the line is longer than 9 bytes.")

    def test_a_long_line_is_not_read_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "c.txt"
        with path.open("wb") as file:
            file.truncate(100 * 2**20)  # zeros, which take no space on disk
        tracemalloc.start()
        message = refusal(Items.from_lines, path, max_line_bytes=100)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert message.startswith("c.txt:1: the line is longer than 100 bytes.")
        assert peak < 10 * 2**20

    @pytest.mark.parametrize("name", ["c.jsonl.gz", "C.NDJSON.GZ", "c.csv.gz", "c.tsv.gz", "c.txt.gz"])
    def test_gzip(self, write: Write, name: str) -> None:
        plain = {
            "jsonl": '{"_id": "1", "text": "x"}',
            "ndjson": '{"_id": "1", "text": "x"}',
            "csv": "id,text\n1,x",
            "tsv": "id\ttext\n1\tx",
            "txt": "x",
        }[name.lower().split(".")[1]]
        path = write(name.lower(), plain).rename(write("empty", "").with_name(name))
        assert contents(Items.from_path(path)) == {"1": "x"}

    def test_truncated_gzip(self, tmp_path: Path) -> None:
        path = tmp_path / "c.txt.gz"
        noise = np.random.default_rng(0).integers(97, 122, 100_000).astype(np.uint8).tobytes()
        path.write_bytes(gzip.compress(b"one\n" + noise)[:-5000])
        assert refusal(Items.from_path, path).startswith("c.txt.gz:2: cannot be read (")

    def test_damaged_gzip(self, tmp_path: Path) -> None:
        path = tmp_path / "c.txt.gz"
        raw = bytearray(gzip.compress(b"line\n" * 1000))
        raw[20:24] = b"\xff\xff\xff\xff"
        path.write_bytes(raw)
        assert refusal(Items.from_path, path).startswith("c.txt.gz:1: cannot be read (")

    def test_gzip_that_is_none(self, tmp_path: Path) -> None:
        path = tmp_path / "c.txt.gz"
        path.write_text("plain")
        assert refusal(Items.from_path, path).startswith("c.txt.gz:1: cannot be read (Not a gzipped file")

    @pytest.mark.parametrize("read", [Items.from_jsonl, Items.from_csv, Items.from_lines, Items.from_parquet])
    def test_files_that_cannot_be_opened(self, read: Callable[..., Items], write: Write, tmp_path: Path) -> None:
        gone = tmp_path / "gone"
        assert refusal(read, gone) == "gone: cannot be opened (No such file or directory). Check the path."
        (tmp_path / "folder").mkdir()
        assert refusal(read, tmp_path / "folder").startswith("folder: is a folder, not a file. ")
        below_a_file = write("file", "") / "x"
        assert refusal(read, below_a_file) == "x: cannot be opened (Not a directory). Check the path."

    @pytest.mark.parametrize("read", [Items.from_jsonl, Items.from_lines])
    def test_no_items(self, read: Callable[..., Items], write: Write) -> None:
        message = "c: no items. At least one is needed."
        assert refusal(read, write("c", "")) == message
        assert refusal(read, write("c", "\n \r\n")) == message

    @pytest.mark.parametrize("read", [Items.from_jsonl, Items.from_csv, Items.from_lines])
    def test_options_are_checked(self, read: Callable[..., Items], write: Write) -> None:
        path = write("c", "x")
        assert refusal(read, path, errors="ignore") == "`errors` must be one of 'strict', 'replace', got 'ignore'."
        assert refusal(read, path, max_line_bytes=0) == "`max_line_bytes` must be a positive integer, got 0."

    def test_a_pipe_is_read(self, tmp_path: Path) -> None:
        read_end, write_end = os.pipe()
        os.write(write_end, b'{"_id": "a", "text": "x"}\n')
        os.close(write_end)
        steps: list[tuple[str, int, int]] = []
        pipe = Path(f"/dev/fd/{read_end}")
        if not pipe.exists():
            pytest.skip("no /dev/fd here")
        items = Items.from_jsonl(pipe, progress=lambda *step: steps.append(step))
        os.close(read_end)
        assert contents(items) == {"a": "x"}
        assert steps[-1][1:] == (26, 26)


class TestLines:
    def test_ids_are_physical_lines(self, write: Write) -> None:
        path = write("c.txt", " one \r\n\r\n\t\nfour")
        assert contents(Items.from_lines(path)) == {"1": " one ", "4": "four"}


class TestCsv:
    def test_default_columns(self, write: Write) -> None:
        assert contents(Items.from_csv(write("c.csv", "_id,id,text\na,b,x\n"))) == {"a": "x"}
        assert contents(Items.from_csv(write("c.csv", "id,text,title\nb,x,T\n"))) == {"b": "T x"}
        assert contents(Items.from_csv(write("c.csv", "title,id\n T ,b\n"))) == {"b": " T "}

    def test_named_columns(self, write: Write) -> None:
        path = write("c.csv", "key;one;two\n1;x;y\n")
        assert contents(Items.from_csv(path, delimiter=";", id="key", text=("two", "one"), join="/")) == {"1": "y/x"}

    def test_tabs_by_suffix(self, write: Write) -> None:
        assert contents(Items.from_csv(write("c.tsv", "id\ttext\na\tx, y\n"))) == {"a": "x, y"}

    def test_quotes_bom_and_crlf(self, write: Write) -> None:
        path = write("c.csv", '\ufeffid,text\r\na,"x, ""y""\r\nz"\r\n\r\nb,w\r\n')
        assert contents(Items.from_csv(path)) == {"a": 'x, "y"\r\nz', "b": "w"}

    def test_quotes_can_be_plain(self, write: Write) -> None:
        path = write("c.tsv", 'id\ttext\na\t"x" and "y\nb\t5" pipe\n')
        assert contents(Items.from_csv(path, quote=None)) == {"a": '"x" and "y', "b": '5" pipe'}

    def test_long_fields(self, write: Write) -> None:
        path = write("c.csv", f"id,text\na,{'x' * 200_000}\n")
        assert len(Items.from_csv(path).text(0)) == 200_000

    def test_a_record_is_named_by_the_line_it_starts_on(self, write: Write) -> None:
        path = write("c.csv", 'id,text\na,"1\n2\n3"\n\nb,"x\ny"\na,z\n')
        assert refusal(Items.from_csv, path).startswith("c.csv:8: the id 'a' is not unique, first at c.csv:2.")
        path = write("c.csv", 'id,text\na,"1\n2"\nb,"x\ny",z\n')
        assert refusal(Items.from_csv, path).startswith("c.csv:4: 3 fields where the header has 2. ")

    @pytest.mark.parametrize(("row", "got"), [("b", 1), ("b,x,y", 3)])
    def test_short_and_long_rows(self, write: Write, row: str, got: int) -> None:
        path = write("c.csv", f"id,text\na,x\n{row}\n")
        assert refusal(Items.from_csv, path).startswith(f"c.csv:3: {got} fields where the header has 2. ")

    @pytest.mark.parametrize("content", ['id,text\na,"x\nb,y\n', 'id,text\na,"x"y\n', "id,text\na,x\rb,y\n"])
    def test_bad_quoting(self, write: Write, content: str) -> None:
        message = refusal(Items.from_csv, write("c.csv", content))
        assert message.startswith("c.csv:2: the record is not quoted as in RFC 4180 (")
        assert message.endswith("pass quote=None.")

    def test_an_unclosed_quote_does_not_swallow_the_file(self, write: Write) -> None:
        path = write("c.csv", 'id,text\na,"x\n' + "b,y\n" * 1000)
        message = refusal(Items.from_csv, path, max_line_bytes=50)
        assert message.startswith("c.csv:2: the record is longer than 50 bytes. Look for an unclosed quote")

    def test_bytes_that_are_not_utf8_name_their_own_line(self, write: Write) -> None:
        path = write("c.csv", b'id,text\na,"x\n\xff"\n')
        assert refusal(Items.from_csv, path).startswith("c.csv:3: not UTF-8: byte 0xff at byte offset 13 ")

    def test_header(self, write: Write) -> None:
        assert refusal(Items.from_csv, write("c.csv", "")).startswith("c.csv: the file is empty; a header line ")
        assert refusal(Items.from_csv, write("c.csv", "id,text\n")).startswith("c.csv: no items.")
        message = refusal(Items.from_csv, write("c.csv", "key,text\n"))
        assert message.startswith("c.csv: no column named '_id' among 'key', 'text'.")
        path = write("c.csv", "id,text,text\na,x,y\n")
        assert "more than one column named 'text' among" in refusal(Items.from_csv, path)
        assert "no column named 'body' among" in refusal(Items.from_csv, path, text=("id", "body"))

    def test_an_empty_id(self, write: Write) -> None:
        message = refusal(Items.from_csv, write("c.csv", "id,text\n,x\n"))
        assert message.startswith("c.csv:2: an id must be a nonempty string or an integer")

    @pytest.mark.parametrize("options", [{"delimiter": "::"}, {"delimiter": ""}, {"delimiter": "\n"}, {"quote": "''"}])
    def test_delimiter_and_quote_are_one_character(self, write: Write, options: Any) -> None:
        assert "` must be one character, got " in refusal(Items.from_csv, write("c.csv", "id,text\na,x\n"), **options)


class TestParquet:
    def test_only_the_columns_needed(self, tmp_path: Path) -> None:
        table = pa.table({"id": [3, 4], "title": ["T", None], "text": ["x", "y"], "other": [[1.0], [2.0]]})
        pq.write_table(table, tmp_path / "c.parquet")
        assert contents(Items.from_parquet(tmp_path / "c.parquet")) == {"3": "T x", "4": "y"}
        assert contents(Items.from_parquet(tmp_path / "c.parquet", text="title")) == {"3": "T", "4": ""}

    @pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
    def test_types_of_string(self, tmp_path: Path, type_: Any) -> None:
        pq.write_table(
            pa.table({"_id": pa.array(["a"], type_), "text": pa.array(["x"], type_)}), tmp_path / "c.parquet"
        )
        assert contents(Items.from_parquet(tmp_path / "c.parquet")) == {"a": "x"}

    @pytest.mark.parametrize(
        ("ids", "texts", "message"),
        [
            (["a", None], ["x", "y"], "an id must be a nonempty string or an integer, got null."),
            (["a", "b"], [[], [1]], "a text must be a string, got list []."),
            (["a", "a"], ["x", "y"], "the id 'a' is not unique, first at c.parquet:row 0. "),
        ],
    )
    def test_bad_records_name_their_row(self, tmp_path: Path, ids: Any, texts: Any, message: str) -> None:
        pq.write_table(pa.table({"_id": ids, "text": texts}), tmp_path / "c.parquet")
        row = 0 if "list" in message else 1
        assert refusal(Items.from_parquet, tmp_path / "c.parquet").startswith(f"c.parquet:row {row}: {message}")

    def test_bytes_that_are_not_utf8(self, tmp_path: Path) -> None:
        offsets = pa.py_buffer(np.array([0, 1, 4], np.int64))
        bad = pa.LargeStringArray.from_buffers(2, offsets, pa.py_buffer(b"xa\xffb"))
        pq.write_table(pa.table({"_id": ["a", "b"], "text": bad}), tmp_path / "c.parquet")
        message = refusal(Items.from_parquet, tmp_path / "c.parquet")
        assert message.startswith("c.parquet:row 1: not UTF-8: byte 0xff at byte 1 of the value.")
        assert Items.from_parquet(tmp_path / "c.parquet", errors="replace").text(1) == "a\ufffdb"

    def test_a_file_that_is_no_parquet(self, write: Write) -> None:
        message = refusal(Items.from_parquet, write("c.parquet", "hello, this is text"))
        assert message.startswith("c.parquet: not a readable Parquet file (")

    def test_a_column_name_that_is_not_utf8(self, tmp_path: Path) -> None:
        path = tmp_path / "c.parquet"
        Items(["x"]).to_parquet(path)
        path.write_bytes(path.read_bytes().replace(b"text", b"\xf4ext"))
        message = refusal(Items.from_parquet, path)
        assert message.startswith("c.parquet: not a readable Parquet file ('utf-8' codec can't")

    def test_to_parquet_and_back(self, tmp_path: Path) -> None:
        items = Items([" kept as it is ", ""], ids=["a", "b"])
        items.to_parquet(tmp_path / "c.parquet")
        assert Items.from_parquet(tmp_path / "c.parquet").fingerprint == items.fingerprint


class TestFromPath:
    @pytest.mark.parametrize("name", ["c.jsonl", "c.ndjson", "c.json", "C.v2.JSONL"])
    def test_json_lines(self, write: Write, name: str) -> None:
        assert contents(Items.from_path(write(name, '{"_id": "a", "text": "x"}'))) == {"a": "x"}

    def test_tables_and_lines(self, write: Write, tmp_path: Path) -> None:
        assert contents(Items.from_path(str(write("c.csv", "id,text\na,x\n")))) == {"a": "x"}
        assert contents(Items.from_path(write("c.tsv", "id\ttext\na\tx\n"))) == {"a": "x"}
        assert contents(Items.from_path(write("c.txt", "x\n"))) == {"1": "x"}
        assert contents(Items.from_path(write_parquet(tmp_path / "c.parquet", {"a": "x"}))) == {"a": "x"}

    def test_options_reach_the_reader(self, write: Write) -> None:
        path = write("c.csv", "key,text\na,x\n")
        assert contents(Items.from_path(path, id="key")) == {"a": "x"}

    def test_options_of_another_reader(self, write: Write) -> None:
        message = refusal(Items.from_path, write("c.txt", "x"), id="key")
        assert message == "c.txt is read by Items.from_lines: got an unexpected keyword argument 'id'."

    @pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz"])
    def test_a_beir_folder(self, write: Write, name: str) -> None:
        assert contents(Items.from_path(write(name, '{"_id": "a", "text": "x"}').parent)) == {"a": "x"}

    def test_another_folder(self, tmp_path: Path) -> None:
        message = refusal(Items.from_path, tmp_path)
        assert message.endswith("a folder without corpus.jsonl. Give a file, or a folder that holds it.")

    def test_a_missing_file(self, tmp_path: Path) -> None:
        message = "c.jsonl: cannot be opened (No such file or directory). Check the path."
        assert refusal(Items.from_path, tmp_path / "c.jsonl") == message

    @pytest.mark.parametrize("name", ["c.xml", "c", "c.gz", "c.parquet.gz"])
    def test_unknown_suffixes(self, write: Write, name: str) -> None:
        message = refusal(Items.from_path, write(name, "x"))
        assert message.startswith(f"{name}: the suffix must be one of .jsonl, .ndjson, .json, .csv, ")


class TestEmptyTexts:
    CONTENT = (
        '{"_id": "a", "text": "x"}\n{"_id": "b", "text": ""}\n'
        '{"_id": "c", "text": " \\n"}\n{"_id": "d", "text": null}\n'
    )

    def test_kept_counted_and_logged_once(self, write: Write, caplog: pytest.LogCaptureFixture) -> None:
        items = Items.from_jsonl(write("c.jsonl", self.CONTENT))
        assert (list(items.ids), items.empty_texts) == (["a", "b", "c", "d"], 3)
        [logged] = [record for record in caplog.records if record.name == "crossknn"]
        assert logged.levelno == logging.WARNING
        assert logged.getMessage().startswith("3 items without text were kept, the first at ")
        assert logged.getMessage().endswith("c.jsonl:2")

    def test_skipped(self, write: Write, caplog: pytest.LogCaptureFixture) -> None:
        items = Items.from_jsonl(write("c.jsonl", self.CONTENT), empty="skip")
        assert (list(items.ids), items.empty_texts, caplog.records) == (["a"], 0, [])

    def test_refused(self, write: Write) -> None:
        message = refusal(Items.from_jsonl, write("c.jsonl", self.CONTENT), empty="error")
        assert message.startswith("c.jsonl:2: no text for id 'b'. ")

    def test_nothing_left(self) -> None:
        assert "no items" in refusal(Items.from_records, [{"_id": "a", "text": ""}], empty="skip")

    def test_unknown_choice(self) -> None:
        message = "`empty` must be one of 'keep', 'skip', 'error', got 'drop'."
        assert refusal(Items.from_records, [{"_id": "a", "text": "x"}], empty="drop") == message


class TestLookups:
    @pytest.fixture
    def items(self) -> Items:
        return Items.from_dict(WORLD)

    @pytest.fixture(params=["own hashes", "one hash for all"])
    def crowded(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Items:
        """Fifty items, once with hashes that tell none of them apart."""
        if request.param == "one hash for all":
            # The only way: Python salts its hashes in each process, so no ids that collide can be written down.
            monkeypatch.setattr(string_column, "hash_ids", lambda ids: np.zeros(len(ids), np.int64))
        return Items([f"text {row}" for row in range(50)], ids=[f"id {row}" for row in range(50)])

    def test_rows_to_ids_and_texts(self, items: Items) -> None:
        assert (len(items), items.id(2), items.text(np.int64(1))) == (3, "ü", "lakes thaw")
        assert items.ids_of(np.array([2, 0, 0])) == ["ü", "a", "a"]
        assert items.texts_of([1, 0]) == ["lakes thaw", "rivers freeze"]
        assert items.texts_of([]) == []

    def test_sequences(self, items: Items) -> None:
        assert (items.ids[-1], items.ids[1:], items.texts[::2]) == ("ü", ["b", "ü"], ["rivers freeze", "ice — 冰"])
        assert "b" in items.ids
        with pytest.raises(IndexError):
            items.ids[3]

    def test_blocks(self, items: Items) -> None:
        assert list(items.iter_texts(block=2)) == [["rivers freeze", "lakes thaw"], ["ice — 冰"]]
        assert refusal(items.iter_texts, block=0) == "`block` must be a positive integer, got 0."

    @pytest.mark.parametrize("rows", [[3], [-1], [0, 5]])
    def test_rows_that_do_not_exist(self, items: Items, rows: list[int]) -> None:
        assert refusal(items.texts_of, rows) == f"`rows` must be between 0 and 2, got {rows[-1]}."

    @pytest.mark.parametrize("rows", [[0.5], [True, False, True], [[0]], ["a"], 0])
    def test_rows_that_are_no_rows(self, items: Items, rows: Any) -> None:
        assert refusal(items.ids_of, rows).startswith("`rows` must be a flat sequence of integers, got ")

    def test_ids_to_rows(self, crowded: Items) -> None:
        assert crowded.row("id 49") == 49
        rows: Rows = crowded.rows_of(f"id {row}" for row in (7, 0, 7))
        assert (rows.dtype, rows.tolist()) == (np.int64, [7, 0, 7])
        assert crowded.rows_of(["id 9", "gone", "", "\ud800", "id 1"], missing="skip").tolist() == [9, 1]
        assert crowded.rows_of([]).tolist() == []
        assert ("id 5" in crowded, "id 50" in crowded, "" in crowded, None in crowded) == (True, False, False, False)

    def test_integers_are_ids(self) -> None:
        items = Items(["x", "y"])
        assert (items.row(1), items.rows_of(np.array([1, 0])).tolist(), 1 in items) == (1, [1, 0], True)

    def test_unknown_ids(self, crowded: Items) -> None:
        message = "None of the 50 items has the id 'gone'. "
        assert refusal(crowded.row, "gone").startswith(message)
        assert refusal(crowded.rows_of, ["id 1", "gone", "lost"]).startswith(message)

    def test_ids_that_are_no_ids(self, items: Items) -> None:
        assert refusal(items.rows_of, "a").startswith("`ids` must be a collection of ids, got str 'a'. ")
        assert refusal(items.rows_of, ["a", 1.5]) == "`ids` must be strings or integers, got float 1.5."
        assert refusal(items.rows_of, ["a"], missing="no").startswith("`missing` must be one of 'error', 'skip', ")

    def test_duplicates_among_colliding_hashes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # The only way, as in `crowded`.
        monkeypatch.setattr(string_column, "hash_ids", lambda ids: np.array([len(id_) for id_ in ids], np.int64))
        message = refusal(Items, list("uvwxyz"), ids=["aa", "b", "cc", "dd", "cc", "b"])
        assert message.startswith("item 4: the id 'cc' is not unique, first at item 2. ")

    def test_repr(self, items: Items) -> None:
        assert repr(items) == "Items(3 items, ids 'a', 'b', 'ü')"
        assert repr(Items(["x"] * 4)) == "Items(4 items, ids '0', '1', '2', …)"


class TestMask:
    @pytest.mark.parametrize("ids", [["b", "a", "b"], {"a", "b", "of another corpus"}, {"a": 1, "b": 2}.keys()])
    def test_of_ids(self, ids: Any) -> None:
        mask = Items.from_dict(WORLD).mask(ids)
        assert (mask.dtype, mask.tolist()) == (np.bool_, [True, True, False])

    def test_of_no_ids(self) -> None:
        assert Items.from_dict(WORLD).mask([]).tolist() == [False, False, False]

    def test_of_a_function(self) -> None:
        assert Items.from_dict(WORLD).mask(lambda id_: id_ > "a").tolist() == [False, True, True]

    @pytest.mark.parametrize("bad", ["a", b"a", 3, None])
    def test_of_anything_else(self, bad: Any) -> None:
        message = refusal(Items.from_dict(WORLD).mask, bad)
        assert message.startswith("`filter` must be a mapping of fields to values, a collection of ids, or ")

    def test_a_mapping_is_not_taken_for_its_keys(self) -> None:
        message = refusal(Items.from_dict(WORLD).mask, {"a": True, "b": False})
        assert message.startswith("`filter` names the field 'a', which the items do not have. They have none")

    def test_of_a_mask(self) -> None:
        message = refusal(Items.from_dict(WORLD).mask, np.array([True, False, True]))
        assert message.startswith("`ids` must be strings or integers, got ")


class TestFingerprint:
    def test_is_a_hash_of_lengths_and_bytes(self) -> None:
        """Worked out here once more, and written down: saved indexes depend on it."""
        content = b"crossknn items 1" + struct.pack("<q", len(WORLD))
        for strings in (WORLD.keys(), WORLD.values()):
            raw = [string.encode() for string in strings]
            content += struct.pack("<3q", *map(len, raw)) + b"".join(raw)
        assert Items.from_dict(WORLD).fingerprint == hashlib.blake2b(content, digest_size=16).hexdigest()
        assert Items.from_dict(WORLD).fingerprint == "3d76953d092eb48671774c9904fe0be2"

    @pytest.mark.parametrize(
        ("ids", "texts"),
        [(["a", "b"], ["y", "x"]), (["b", "a"], ["x", "y"]), (["ab", "b"], ["x", "y"]), (["a", "bx"], ["", "y"])],
    )
    def test_differs_where_items_differ(self, ids: list[str], texts: list[str]) -> None:
        assert Items(texts, ids=ids).fingerprint != Items(["x", "y"], ids=["a", "b"]).fingerprint

    def test_does_not_depend_on_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world = {f"id {row}": "é" * row for row in range(40)}
        whole = Items.from_dict(world)
        monkeypatch.setattr(crossknn.items.items, "BLOCK_STRINGS", 7)
        monkeypatch.setattr(crossknn.items.items, "BLOCK_CHARS", 30)
        assert Items.from_dict(world).fingerprint == whole.fingerprint
        assert contents(Items.from_dict(world)) == world

    def test_survives_another_process(self, tmp_path: Path) -> None:
        """Python's hashes differ there, so the lookup must be made anew."""
        items = Items.from_dict(WORLD)
        (tmp_path / "items").write_bytes(pickle.dumps(items))
        code = "import pickle, sys; i = pickle.load(open(sys.argv[1], 'rb')); print(i.row('b'), i.fingerprint)"
        out = run_python(code, str(tmp_path / "items"), PYTHONHASHSEED="123")
        assert out.split() == ["1", items.fingerprint]


class TestProgress:
    @pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz", "c.csv", "c.txt", "c.parquet"])
    def test_counts_bytes(self, name: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(crossknn.items.items, "BLOCK_STRINGS", 10)
        world = {str(row): f"text {row}" for row in range(35)}
        path = {
            "c.jsonl": lambda: write_jsonl(tmp_path / name, world),
            "c.jsonl.gz": lambda: write(name, write_jsonl(tmp_path / "plain", world).read_bytes()),
            "c.csv": lambda: write_csv(tmp_path / name, world),
            "c.txt": lambda: write(name, "\n".join(world.values())),
            "c.parquet": lambda: write_parquet(tmp_path / name, world),
        }[name]()
        steps: list[tuple[str, int, int]] = []
        Items.from_path(path, progress=lambda *step: steps.append(step))
        size = path.stat().st_size
        assert len(steps) == 5
        assert {step for step, _, _ in steps} == {f"read {name}"}
        done = [done for _, done, _ in steps]
        assert done == sorted(done)
        assert steps[-1] == (f"read {name}", size, size)


CHARACTERS = st.text(st.characters(exclude_categories=["Cs"]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(world=st.dictionaries(CHARACTERS.filter(bool), CHARACTERS, min_size=1, max_size=12))
def test_every_reader_gives_back_the_same_items(world: dict[str, str], tmp_path: Path) -> None:
    readings = [
        Items.from_dict(world),
        Items.from_jsonl(write_jsonl(tmp_path / "c.jsonl", world), text="text"),
        Items.from_csv(write_csv(tmp_path / "c.csv", world)),
        Items.from_csv(write_csv(tmp_path / "c.tsv", world, "\t")),
        Items.from_parquet(write_parquet(tmp_path / "c.parquet", world)),
    ]
    for items in readings:
        assert contents(items) == world
        assert items.rows_of(world).tolist() == list(range(len(world)))
    assert len({items.fingerprint for items in readings}) == 1


def run_python(code: str, *args: str, **env: str) -> str:
    """What a new Python process prints, with this package on its path."""
    root = str(Path(crossknn.__file__).parent.parent)
    env = {**os.environ, "PYTHONPATH": root, **env}
    return subprocess.run(
        [sys.executable, "-c", code, *args], env=env, check=True, capture_output=True, text=True
    ).stdout


PEAK = """
import sys, resource
from pathlib import Path
from crossknn.items.items import Items

def peak():  # VmHWM starts anew with the process, ru_maxrss may hold what its parent used
    try:
        return next(int(s.split()[1]) * 1024 for s in Path("/proc/self/status").open() if s.startswith("VmHWM"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

Items.from_path(sys.argv[1])
before = peak()
items = Items.from_path(sys.argv[2])
print(len(items), peak() - before)
"""


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_memory_is_that_of_the_texts(tmp_path: Path, suffix: str) -> None:
    """Short texts on purpose: 300,000 records kept as Python objects would take 80 MB or more."""
    small, large = tmp_path / f"small.{suffix}", tmp_path / f"large.{suffix}"
    with (tmp_path / "large.jsonl").open("w") as file:
        for row in range(300_000):
            file.write(f'{{"_id": "{row:08d}", "text": "text {row:08d}"}}\n')
    size = (tmp_path / "large.jsonl").stat().st_size
    if suffix == "parquet":
        Items.from_jsonl(tmp_path / "large.jsonl").to_parquet(large)
    writer = {"jsonl": write_jsonl, "parquet": write_parquet}[suffix]
    writer(small, {str(row): "x" * 100 for row in range(10_000)})
    count, growth = map(int, run_python(PEAK, str(small), str(large)).split())
    assert count == 300_000
    assert growth < 3 * size + 24 * 2**20, f"{growth / 2**20:.0f} MB for a file of {size / 2**20:.0f} MB"


class TestArrow:
    def test_there_and_back_without_reading(self, tmp_path: Path) -> None:
        items = Items(["x", "", "zü"], ids=["a", "b", "ç"])
        items.to_arrow(tmp_path / "c.arrow")
        back = Items.from_arrow(tmp_path / "c.arrow")
        assert contents(back) == {"a": "x", "b": "", "ç": "zü"}
        assert (back.empty_texts, back.fingerprint) == (1, items.fingerprint)
        assert back.rows_of(["ç", "a"]).tolist() == [2, 0]
        assert pickle.loads(pickle.dumps(back)).rows_of(["b"]).tolist() == [1]
        mapped = back.texts.array.buffers()[2]
        assert items.stored_bytes <= (tmp_path / "c.arrow").stat().st_size
        assert not mapped.is_mutable

    def test_a_file_that_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "c.arrow").write_bytes(b"not an Arrow file, but long enough to be one")
        with pytest.raises(InputError, match=r"c.arrow: damaged: not an Arrow file.* build it again"):
            Items.from_arrow(tmp_path / "c.arrow")
        with pytest.raises(FileNotFoundError):
            Items.from_arrow(tmp_path / "missing.arrow")

    def test_no_string_is_read_from_outside(self, tmp_path: Path) -> None:
        path = tmp_path / "c.arrow"
        Items(["one text", "another"], ids=["first", "second"]).to_arrow(path)
        whole = path.read_bytes()
        at = whole.index(struct.pack("<qqq", 0, 5, 11))  # where the ids begin and end
        for ends in ((0, 2**40, 11), (0, 5, 2**40), (-8, 5, 11), (0, 5, 3)):
            path.write_bytes(whole[:at] + struct.pack("<qqq", *ends) + whole[at + 24 :])
            with pytest.raises(InputError, match=r"c.arrow: damaged: .*offset"):
                Items.from_arrow(path)

    @pytest.mark.parametrize("compression", ["zstd", "lz4"])
    def test_compressed_columns_are_refused_unread(self, tmp_path: Path, compression: str) -> None:
        """A small file could unpack to any size."""
        text = pa.array(["x" * 10_000_000] * 5, pa.large_string())
        batch = pa.record_batch({"_id": pa.array([*"abcde"], pa.large_string()), "text": text})
        options = pa.ipc.IpcWriteOptions(compression=compression)
        path = tmp_path / "c.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        assert path.stat().st_size < 1_000_000
        before = pa.total_allocated_bytes()
        with pytest.raises(InputError, match=r"c.arrow: damaged: compressed columns"):
            Items.from_arrow(path)
        assert pa.total_allocated_bytes() <= before

    @pytest.mark.parametrize("damage", ["cut", "pipe", "empty", "int32 ids", "nulls", "two batches", "no text"])
    def test_files_of_another_kind_are_refused(self, tmp_path: Path, damage: str) -> None:
        path = tmp_path / "c.arrow"
        columns = {"_id": pa.array(["a", "b"], pa.large_string()), "text": pa.array(["x", "y"], pa.large_string())}
        if damage == "int32 ids":
            columns["_id"] = pa.array([1, 2], pa.int32())
        elif damage == "nulls":
            columns["text"] = pa.array(["x", None], pa.large_string())
        elif damage == "no text":
            del columns["text"]
        batch = pa.record_batch(columns)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
            for _ in range(1 + (damage == "two batches")):
                writer.write_batch(batch)
        if damage == "pipe":
            path.unlink()
            os.mkfifo(path)
        elif damage in ("cut", "empty"):
            path.write_bytes(path.read_bytes()[: 300 if damage == "cut" else 0])
        with pytest.raises(InputError, match=r"c.arrow: "):
            Items.from_arrow(path)


class TestUnpackedLimit:
    """Small files that unpack to a lot are refused before they take all memory."""

    @staticmethod
    def pack(path: Path, size: int, *, distinct: bool = False) -> Path:
        texts = [("x" * (size // 10)) + str(row * distinct) for row in range(10)]
        if path.suffix == ".parquet":
            table = pa.table({"_id": [str(row) for row in range(10)], "text": texts})
            pq.write_table(table, path, compression="zstd", use_dictionary=not distinct)
            return path
        lines = {
            ".jsonl": [json.dumps({"_id": str(row), "text": text}) for row, text in enumerate(texts)],
            ".csv": ["_id,text", *(f"{row},{text}" for row, text in enumerate(texts))],
            ".txt": texts,
        }[Path(path.stem).suffix]
        path.write_bytes(gzip.compress("\n".join(lines).encode()))
        return path

    @pytest.mark.parametrize("name", ["c.jsonl.gz", "c.csv.gz", "c.txt.gz", "c.parquet"])
    @pytest.mark.parametrize("distinct", [True, False])
    def test_it_can_be_raised(self, tmp_path: Path, name: str, distinct: bool) -> None:
        path = self.pack(tmp_path / name, 2_000_000, distinct=distinct)
        assert path.stat().st_size < 50_000
        message = refusal(Items.from_path, path, max_unpacked_bytes=1_000_000)
        assert message.startswith(f"{name}: it unpacks to more than 1,000,000 bytes")
        assert message.endswith("raise `max_unpacked_bytes`.")
        assert len(Items.from_path(path, max_unpacked_bytes=3_000_000)) == 10
        assert len(Items.from_path(path)) == 10

    @pytest.mark.parametrize("name", ["c.jsonl.gz", "c.parquet"])
    def test_by_default_it_grows_with_the_file(
        self, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = self.pack(tmp_path / name, 3_000_000)
        monkeypatch.setattr(readers, "MIN_UNPACKED_BYTES", 0)
        monkeypatch.setattr(readers, "UNPACKED_RATIO", 3_000_000 // path.stat().st_size - 20)
        assert "it unpacks to more than" in refusal(Items.from_path, path)
        monkeypatch.setattr(readers, "UNPACKED_RATIO", 3_000_000 // path.stat().st_size + 20)
        assert len(Items.from_path(path)) == 10

    @pytest.mark.parametrize("name", ["text", "section"])
    def test_a_string_that_stands_in_many_rows_counts_in_each(self, tmp_path: Path, name: str) -> None:
        """Such a column is read as it is stored: one string, and a number for each row."""
        once = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000, pa.int32()), pa.array(["x" * 2_000]))
        columns = {"_id": [str(row) for row in range(1_000)], "text": ["a"] * 1_000, name: once}
        pq.write_table(pa.table(columns), tmp_path / "c.parquet")
        message = refusal(Items.from_path, tmp_path / "c.parquet", max_unpacked_bytes=1_000_000)
        assert message.startswith("c.parquet: it unpacks to more than 1,000,000 bytes")
        assert len(Items.from_path(tmp_path / "c.parquet", max_unpacked_bytes=3_000_000)) == 1_000

    def test_many_short_records_count_too(self, tmp_path: Path) -> None:
        path = tmp_path / "c.txt.gz"
        path.write_bytes(gzip.compress(b"a\n" * 10_000))
        assert "it unpacks to more than" in refusal(Items.from_path, path, max_unpacked_bytes=100_000)

    def test_long_values_are_read_in_small_batches(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = self.pack(tmp_path / "c.parquet", 100_000)
        monkeypatch.setattr(readers, "PARQUET_BATCH_BYTES", 1_000)
        assert [len(text) for text in Items.from_path(path).texts] == [10_001] * 10

    def test_a_file_that_is_not_compressed_has_no_limit(self, write: Write) -> None:
        assert len(Items.from_path(write("c.txt", "text\n" * 100), max_unpacked_bytes=10)) == 100

    @pytest.mark.parametrize("limit", [0, -1, 2.5, True])
    def test_it_is_a_positive_integer(self, tmp_path: Path, limit: object) -> None:
        for name in ("c.txt.gz", "c.parquet"):
            message = refusal(Items.from_path, tmp_path / name, max_unpacked_bytes=limit)
            assert "`max_unpacked_bytes` must be a positive integer" in message or "cannot be opened" in message
