"""Items: what every reader takes, what it refuses and in which words, and the laws that hold for all of them."""

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
        message = "wanted one id per text, got 1 texts and more ids. Give as many of both."
        assert refusal(Items, ["x"], ids=["a", "b"]) == message

    def test_more_texts_than_ids(self) -> None:
        message = "wanted one id per text, got 1 ids and more texts. Give as many of both."
        assert refusal(Items, ["x", "y"], ids=["a"]) == message

    @pytest.mark.parametrize("texts", ["corpus.jsonl", b"x", {"a": "x"}, 3, None])
    def test_texts_that_are_not_a_sequence(self, texts: Any) -> None:
        assert refusal(Items, texts).startswith("texts must be a sequence of strings. Got ")

    def test_ids_that_are_a_string(self) -> None:
        assert refusal(Items, ["x"], ids="a").startswith("ids must be a sequence of strings. Got str 'a' instead.")

    def test_a_text_that_is_no_string(self) -> None:
        message = "item 1: wanted a string as text, got int 3. Make it a string."
        assert refusal(Items, ["x", 3]) == message

    def test_a_record_that_is_no_mapping(self) -> None:
        assert refusal(Items.from_records, ["x"]) == "item 0: wanted a mapping with an id and a text, got str 'x'."

    def test_records_that_are_a_mapping(self) -> None:
        assert "records must be a sequence of mappings. Got dict" in refusal(Items.from_records, {"a": "x"})

    def test_from_dict_of_a_list(self) -> None:
        assert refusal(Items.from_dict, ["x"]).startswith("from_dict takes a mapping of ids to texts. Got list")

    @pytest.mark.parametrize("bad", ["", None, 1.5, True, ["a"]])
    def test_ids_that_are_not_ids(self, bad: Any) -> None:
        message = refusal(Items, ["x", "y"], ids=["a", bad])
        assert message.startswith("item 1: wanted a non-empty string or an integer as the id, got ")

    def test_lone_surrogate(self) -> None:
        message = refusal(Items, ["fine", "a\ud800"])
        assert message.startswith("item 1: wanted whole characters, got the lone surrogate \\ud800 at character 1. ")

    def test_duplicates_name_both_places(self) -> None:
        message = "item 2: wanted every id once, got '1' again, first at item 0. Remove or rename one of the two."
        assert refusal(Items, ["x", "y", "z"], ids=["1", "2", 1]) == message

    def test_no_items(self) -> None:
        message = "items: wanted at least one item, got none. Check that it is the right input."
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
            ("{}", "wanted an id in field '_id', got no fields at all. Name the field with id=."),
            ('{"id": "a", "text": "x"}', "wanted an id in field '_id', got 'id', 'text'. Name the field with id=."),
            ('{"_id": "a", "body": "x"}', "wanted text in field 'title' or 'text', got only '_id', 'body'. "),
            ('{"_id": "a", "text": 3}', "wanted a string as text ('title', 'text'), got int 3. Make it a string."),
            ('{"_id": "a", "title": ["x"]}', "wanted a string as text ('title', 'text'), got list ['x']. "),
            ('{"_id": "", "text": "x"}', "wanted a non-empty string or an integer as the id, got an empty string. "),
            ('{"_id": null, "text": "x"}', "wanted a non-empty string or an integer as the id, got nothing (null). "),
            ('{"_id": 1.0, "text": "x"}', "wanted a non-empty string or an integer as the id, got float 1.0. "),
            ('{"_id": true, "text": "x"}', "wanted a non-empty string or an integer as the id, got bool True. "),
            ('["a", "x"]', "wanted one JSON object per line, got list ['a', 'x']. Write an object."),
            ('{"_id": "a", "text": "\\ud800"}', "wanted whole characters, got the lone surrogate \\ud800 "),
            ('{"_id": "\\udfff", "text": "x"}', "wanted whole characters, got the lone surrogate \\udfff "),
            ('{"_id": ' + "9" * 5000 + "}", "wanted one JSON object per line, got one beyond reason ("),
            ("[" * 100_000, "wanted one JSON object per line, got one beyond reason ("),
        ],
    )
    def test_bad_records_name_their_line(self, write: Write, line: str, message: str) -> None:
        path = write("c.jsonl", f'{{"_id": "fine", "text": "x"}}\n\n{line}\n')
        assert refusal(Items.from_jsonl, path).startswith(f"c.jsonl:3: {message}")

    def test_invalid_json_names_the_column(self, write: Write) -> None:
        path = write("c.jsonl", '{"_id": "a", "text": "x"}\n{"_id": "b" "text": "y"}\n')
        assert refusal(Items.from_jsonl, path) == (
            "c.jsonl:2:13: wanted one JSON object per line, got invalid JSON (Expecting ',' delimiter). "
            "Mend the line; a file that is one JSON array must be written as lines first."
        )

    def test_surrogates_can_be_replaced(self, write: Write) -> None:
        path = write("c.jsonl", '{"_id": "a", "text": "x\\ud800y \\ud83d\\ude00"}')
        assert contents(Items.from_jsonl(path, errors="replace")) == {"a": "x\ufffdy 😀"}

    def test_duplicates_name_both_lines(self, write: Write) -> None:
        path = write("c.jsonl", "".join(f'{{"_id": "{i}", "text": "x"}}\n\n' for i in "abcba"))
        assert refusal(Items.from_jsonl, path) == (
            "c.jsonl:7: wanted every id once, got 'b' again, first at c.jsonl:3. Remove or rename one of the two."
        )


class TestBytes:
    """What holds for every text file, whatever its format."""

    def test_bytes_that_are_not_utf8(self, write: Write) -> None:
        path = write("c.txt", b"caf\xc3\xa9\ncaf\xe9\n")
        assert refusal(Items.from_lines, path) == (
            "c.txt:2: wanted UTF-8, got byte 0xe9 at byte offset 9 of the file. "
            'Convert the file to UTF-8, or pass errors="replace".'
        )

    def test_bytes_that_are_not_utf8_can_be_replaced(self, write: Write) -> None:
        path = write("c.txt", b"caf\xc3\xa9\ncaf\xe9\n")
        assert contents(Items.from_lines(path, errors="replace")) == {"1": "café", "2": "caf\ufffd"}

    @pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
    def test_longest_line(self, write: Write, end: bytes) -> None:
        path = write("c.txt", b"one\n" + b"x" * 10 + end)
        assert Items.from_lines(path, max_line_bytes=10).text(1) == "x" * 10
        assert refusal(Items.from_lines, path, max_line_bytes=9) == (
            "c.txt:2: wanted a line of at most 9 bytes, got a longer one. "
            "Check that records are on lines of their own, or raise max_line_bytes."
        )

    def test_a_long_line_is_not_read_whole(self, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("crossknn.items.readers.BUFFER_BYTES", 4096)
        path = write("c.jsonl", b"x" * 2**20)
        seen: list[int] = []
        source = crossknn.items.items.readers.Lines(path, errors="strict", max_line_bytes=100)
        read_line = source._read_line
        monkeypatch.setattr(source, "_read_line", lambda stream: seen.append(len(raw := read_line(stream))) or raw)
        with pytest.raises(InputError):
            list(source)
        assert seen == [102]

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
        assert refusal(Items.from_path, path) == (
            "c.txt.gz:2: wanted a whole gzip file, got one that ends early. Copy or download it again."
        )

    def test_damaged_gzip(self, tmp_path: Path) -> None:
        path = tmp_path / "c.txt.gz"
        raw = bytearray(gzip.compress(b"line\n" * 1000))
        raw[20:24] = b"\xff\xff\xff\xff"
        path.write_bytes(raw)
        assert refusal(Items.from_path, path).startswith("c.txt.gz:1: could not be read (")

    def test_gzip_that_is_none(self, tmp_path: Path) -> None:
        path = tmp_path / "c.txt.gz"
        path.write_text("plain")
        assert refusal(Items.from_path, path).startswith("c.txt.gz:1: could not be read (Not a gzipped file")

    @pytest.mark.parametrize("read", [Items.from_jsonl, Items.from_csv, Items.from_lines, Items.from_parquet])
    def test_files_that_cannot_be_opened(self, read: Callable[..., Items], write: Write, tmp_path: Path) -> None:
        gone = tmp_path / "gone"
        assert refusal(read, gone) == "gone: wanted a file, got nothing: it does not exist. Check the path."
        (tmp_path / "folder").mkdir()
        assert refusal(read, tmp_path / "folder").startswith("folder: wanted a file, got a directory. ")
        below_a_file = write("file", "") / "x"
        assert refusal(read, below_a_file) == "x: could not be opened (Not a directory). Check its permissions."

    @pytest.mark.parametrize("read", [Items.from_jsonl, Items.from_lines])
    def test_no_items(self, read: Callable[..., Items], write: Write) -> None:
        message = "c: wanted at least one item, got none. Check that it is the right input."
        assert refusal(read, write("c", "")) == message
        assert refusal(read, write("c", "\n \r\n")) == message

    @pytest.mark.parametrize("read", [Items.from_jsonl, Items.from_csv, Items.from_lines])
    def test_options_are_checked(self, read: Callable[..., Items], write: Write) -> None:
        path = write("c", "x")
        assert refusal(read, path, errors="ignore") == (
            "errors must be one of 'strict', 'replace'. Got 'ignore' instead."
        )
        assert refusal(read, path, max_line_bytes=0) == "max_line_bytes must be a positive integer. Got 0 instead."

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
        assert refusal(Items.from_csv, path) == (
            "c.csv:8: wanted every id once, got 'a' again, first at c.csv:2. Remove or rename one of the two."
        )
        path = write("c.csv", 'id,text\na,"1\n2"\nb,"x\ny",z\n')
        assert refusal(Items.from_csv, path).startswith("c.csv:4: wanted 2 fields as in the header, got 3. ")

    @pytest.mark.parametrize(("row", "got"), [("b", 1), ("b,x,y", 3)])
    def test_short_and_long_rows(self, write: Write, row: str, got: int) -> None:
        path = write("c.csv", f"id,text\na,x\n{row}\n")
        assert refusal(Items.from_csv, path) == (
            f"c.csv:3: wanted 2 fields as in the header, got {got}. Quote fields that hold ',', quotes or line breaks."
        )

    @pytest.mark.parametrize("content", ['id,text\na,"x\nb,y\n', 'id,text\na,"x"y\n', "id,text\na,x\rb,y\n"])
    def test_bad_quoting(self, write: Write, content: str) -> None:
        message = refusal(Items.from_csv, write("c.csv", content))
        assert message.startswith("c.csv:2: wanted fields quoted as RFC 4180 has it, got a record that is not (")
        assert message.endswith("Look for an unclosed quote; where quotes are plain characters pass quote=None.")

    def test_an_unclosed_quote_does_not_swallow_the_file(self, write: Write) -> None:
        path = write("c.csv", 'id,text\na,"x\n' + "b,y\n" * 1000)
        assert refusal(Items.from_csv, path, max_line_bytes=50) == (
            "c.csv:2: wanted a record of at most 50 bytes, got a longer one. "
            "Look for an unclosed quote, or raise max_line_bytes."
        )

    def test_bytes_that_are_not_utf8_name_their_own_line(self, write: Write) -> None:
        path = write("c.csv", b'id,text\na,"x\n\xff"\n')
        assert refusal(Items.from_csv, path).startswith("c.csv:3: wanted UTF-8, got byte 0xff at byte offset 13 ")

    def test_header(self, write: Write) -> None:
        message = "c.csv: wanted a header line with the names of the columns, got an empty file."
        assert refusal(Items.from_csv, write("c.csv", "")) == message
        assert refusal(Items.from_csv, write("c.csv", "id,text\n")).startswith("c.csv: wanted at least one item, ")
        assert refusal(Items.from_csv, write("c.csv", "key,text\n")) == (
            "c.csv: wanted a column named '_id', got none among 'key', 'text'. "
            "Name the columns to read with id= and text=."
        )
        path = write("c.csv", "id,text,text\na,x,y\n")
        assert "wanted a column named 'text', got more than one among" in refusal(Items.from_csv, path)
        assert "wanted a column named 'body', got none among" in refusal(Items.from_csv, path, text=("id", "body"))

    def test_an_empty_id(self, write: Write) -> None:
        message = refusal(Items.from_csv, write("c.csv", "id,text\n,x\n"))
        assert message.startswith("c.csv:2: wanted a non-empty string or an integer as the id, got an empty string. ")

    @pytest.mark.parametrize("options", [{"delimiter": "::"}, {"delimiter": ""}, {"delimiter": "\n"}, {"quote": "''"}])
    def test_delimiter_and_quote_are_one_character(self, write: Write, options: Any) -> None:
        assert " must be one character. Got " in refusal(Items.from_csv, write("c.csv", "id,text\na,x\n"), **options)


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
            (["a", None], ["x", "y"], "wanted a non-empty string or an integer as the id, got nothing (null). "),
            (["a", "b"], [[], [1]], "wanted a string as text ('text'), got list []. "),
            (["a", "a"], ["x", "y"], "wanted every id once, got 'a' again, first at c.parquet:row 0. "),
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
        assert refusal(Items.from_parquet, tmp_path / "c.parquet") == (
            "c.parquet:row 1: wanted UTF-8, got byte 0xff at byte 1 of the value. "
            'Write the file again as UTF-8, or pass errors="replace".'
        )
        assert Items.from_parquet(tmp_path / "c.parquet", errors="replace").text(1) == "a\ufffdb"

    def test_a_file_that_is_no_parquet(self, write: Write) -> None:
        message = refusal(Items.from_parquet, write("c.parquet", "hello, this is text"))
        assert message.startswith("c.parquet: wanted a Parquet file, got one that cannot be read (")

    def test_a_column_name_that_is_not_utf8(self, tmp_path: Path) -> None:
        path = tmp_path / "c.parquet"
        Items(["x"]).to_parquet(path)
        path.write_bytes(path.read_bytes().replace(b"text", b"\xf4ext"))
        message = refusal(Items.from_parquet, path)
        assert message.startswith("c.parquet: wanted a Parquet file, got one that cannot be read ('utf-8' codec can't")

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
        assert message.endswith("wanted a file, or a folder that holds corpus.jsonl, got a folder without it.")

    def test_a_missing_file(self, tmp_path: Path) -> None:
        message = "c.jsonl: wanted a file, got nothing: it does not exist. Check the path."
        assert refusal(Items.from_path, tmp_path / "c.jsonl") == message

    @pytest.mark.parametrize(
        ("name", "suffix"), [("c.xml", ".xml"), ("c", "no suffix"), ("c.gz", ".gz"), ("c.parquet.gz", ".gz")]
    )
    def test_unknown_suffixes(self, write: Write, name: str, suffix: str) -> None:
        assert refusal(Items.from_path, write(name, "x")) == (
            f"{name}: wanted a file whose name ends in .jsonl, .ndjson, .json, .csv, .tsv, .parquet, .txt "
            f"(.gz may follow, but for .parquet), got {suffix!r}. "
            "Rename it, or call the reader that fits, such as Items.from_jsonl."
        )


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
        assert logged.getMessage().startswith('3 items without text were kept (empty="keep"), the first at ')
        assert logged.getMessage().endswith("c.jsonl:2")

    def test_skipped(self, write: Write, caplog: pytest.LogCaptureFixture) -> None:
        items = Items.from_jsonl(write("c.jsonl", self.CONTENT), empty="skip")
        assert (list(items.ids), items.empty_texts, caplog.records) == (["a"], 0, [])

    def test_refused(self, write: Write) -> None:
        assert refusal(Items.from_jsonl, write("c.jsonl", self.CONTENT), empty="error") == (
            'c.jsonl:2: wanted text, got none for id \'b\'. Give it text, or pass empty="keep" or empty="skip".'
        )

    def test_nothing_left(self) -> None:
        assert "wanted at least one item" in refusal(Items.from_records, [{"_id": "a", "text": ""}], empty="skip")

    def test_unknown_choice(self) -> None:
        message = "empty must be one of 'keep', 'skip', 'error'. Got 'drop' instead."
        assert refusal(Items.from_records, [{"_id": "a", "text": "x"}], empty="drop") == message


class TestLookups:
    @pytest.fixture
    def items(self) -> Items:
        return Items.from_dict(WORLD)

    @pytest.fixture(params=["own hashes", "one hash for all"])
    def crowded(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Items:
        """Fifty items, once with hashes that tell none of them apart."""
        if request.param == "one hash for all":
            for module in ("items", "strings"):
                monkeypatch.setattr(f"crossknn.{module}.hash_ids", lambda ids: np.zeros(len(ids), np.int64))
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
        assert refusal(items.iter_texts, block=0) == "block must be at least 1. Got 0 instead."

    @pytest.mark.parametrize("rows", [[3], [-1], [0, 5]])
    def test_rows_that_do_not_exist(self, items: Items, rows: list[int]) -> None:
        assert refusal(items.texts_of, rows) == f"rows must be between 0 and 2. Got {rows[-1]} instead."

    @pytest.mark.parametrize("rows", [[0.5], [True, False, True], [[0]], ["a"], 0])
    def test_rows_that_are_no_rows(self, items: Items, rows: Any) -> None:
        assert refusal(items.ids_of, rows).startswith("rows must be a flat sequence of integers. Got ")

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
        message = (
            "wanted the id of an item, got 'gone', which none of the 50 items has. "
            'Check the id; rows_of can leave such ids out with missing="skip".'
        )
        assert refusal(crowded.row, "gone") == message
        assert refusal(crowded.rows_of, ["id 1", "gone", "lost"]) == message

    def test_ids_that_are_no_ids(self, items: Items) -> None:
        assert refusal(items.rows_of, "a").startswith("ids must be a collection of ids. Got str 'a' instead. ")
        assert refusal(items.rows_of, ["a", 1.5]) == "ids must be strings or integers. Got float 1.5 instead."
        assert refusal(items.rows_of, ["a"], missing="no").startswith("missing must be one of 'error', 'skip'. ")

    def test_duplicates_among_colliding_hashes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("items", "strings"):
            monkeypatch.setattr(
                f"crossknn.{module}.hash_ids", lambda ids: np.array([len(id_) for id_ in ids], np.int64)
            )
        message = refusal(Items, list("uvwxyz"), ids=["aa", "b", "cc", "dd", "cc", "b"])
        assert message.startswith("item 4: wanted every id once, got 'cc' again, first at item 2. ")

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
        assert message.startswith("filter must be a collection of ids or a function of one id. Got ")

    def test_of_a_mask(self) -> None:
        message = refusal(Items.from_dict(WORLD).mask, np.array([True, False, True]))
        assert message.startswith("ids must be strings or integers. Got ")


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
        monkeypatch.setattr(crossknn.items.items, "BLOCK", 7)
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
        monkeypatch.setattr(crossknn.items.items, "BLOCK", 10)
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
        with pytest.raises(InputError, match=r"c.arrow: not a file of items: .* build it again"):
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
            with pytest.raises(InputError, match="strings overlap or end outside"):
                Items.from_arrow(path)
