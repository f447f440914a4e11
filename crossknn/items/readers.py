"""Where items come from: files and Python objects as streams of records `(id, text, at)`.

A source yields one record at a time and keeps none. `at` is the place of a record as a number (the line
on which it starts, or its row); `source.place(at)` spells it out, so that an error can name it.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import reprlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crossknn.errors import InputError

Record = tuple[str, str, int]  # id, text, place
Errors = Literal["strict", "replace"]

MAX_LINE_BYTES: Final = 16 * 2**20
BUFFER_BYTES: Final = 2**20
PARQUET_BATCH: Final = 2048  # rows decoded at a time


class Source:
    """Records one by one. `done` of `total` bytes are read; both are 0 where there is no file."""

    name: str = "items"
    total: int = 0

    @property
    def done(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Record]:
        raise NotImplementedError

    def place(self, at: int) -> str:
        """The place of a record as messages name it."""
        return f"{self.name}:{at}"

    def error(self, at: int, message: str) -> InputError:
        """What to raise for the record at this place."""
        return InputError(f"{self.place(at)}: {message}")


def as_id(value: object) -> str | None:
    """The id as a string: strings as they are, integers in digits, None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(value)
    return None


def read_id(value: object, source: Source, at: int) -> str:
    """The id of a record, or an error that names its place."""
    id_ = as_id(value)
    if id_:
        return id_
    got = "an empty string" if id_ == "" else describe(value)
    raise source.error(at, f"wanted a non-empty string or an integer as the id, got {got}. Give every item an id.")


_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def describe(value: object) -> str:
    """A value for a message: its type, and what it is, cut short."""
    if value is None:
        return "nothing (null)"
    return f"{type(value).__name__} {_SHORT.repr(value)}"


@dataclass(frozen=True, slots=True)
class Fields:
    """Which fields of a record hold the id and the text.

    One text field is taken as it is. Several are joined in the order given, empty ones left out, and the
    result is stripped: with the defaults this is BEIR's convention, title + " " + text.
    """

    id: str = "_id"
    text: tuple[str, ...] = ("title", "text")
    join: str = " "

    def __post_init__(self) -> None:
        for option, names in (("id", (self.id,)), ("text", self.text)):
            if not names or not all(isinstance(name, str) and name for name in names):
                raise InputError(f"{option} must name a field of the records. Got {names!r} instead.")
        if not isinstance(self.join, str):
            raise InputError(f"join must be a string. Got {describe(self.join)} instead.")

    @classmethod
    def of(cls, id_: str, text: str | Sequence[str], join: str) -> Fields:
        """The same, with one text field given as a plain string."""
        return cls(id_, (text,) if isinstance(text, str) else tuple(text), join)

    @classmethod
    def among(
        cls, columns: Sequence[str], *, id_: str | None, text: str | Sequence[str] | None, join: str, name: str
    ) -> Fields:
        """The fields in a table that has these columns: those named, or the usual ones that it has."""
        if id_ is None:
            id_ = next((usual for usual in ("_id", "id") if usual in columns), "_id")
        if text is None:
            text = [usual for usual in ("title", "text") if usual in columns] or ["text"]
        fields = cls.of(id_, text, join)
        for wanted in (fields.id, *fields.text):
            if columns.count(wanted) != 1:
                got = "none" if wanted not in columns else "more than one"
                raise InputError(
                    f"{name}: wanted a column named {wanted!r}, got {got} among {', '.join(map(repr, columns))}. "
                    "Name the columns to read with id= and text=."
                )
        return fields

    def read(self, record: Mapping[str, Any], source: Source, at: int) -> Record:
        """The id and the text of one record, or an error that names its place."""
        if self.id not in record:
            have = ", ".join(map(repr, record)) or "no fields at all"
            raise source.error(at, f"wanted an id in field {self.id!r}, got {have}. Name the field with id=.")
        return read_id(record[self.id], source, at), self._read_text(record, source, at), at

    def _read_text(self, record: Mapping[str, Any], source: Source, at: int) -> str:
        parts = [record[name] for name in self.text if name in record]
        if not parts:
            wanted, have = " or ".join(map(repr, self.text)), ", ".join(map(repr, record))
            raise source.error(at, f"wanted text in field {wanted}, got only {have}. Name the fields with text=.")
        for part in parts:
            if part is not None and not isinstance(part, str):
                fields = ", ".join(map(repr, self.text))
                raise source.error(at, f"wanted a string as text ({fields}), got {describe(part)}. Make it a string.")
        if len(self.text) == 1:
            return parts[0] or ""
        return self.join.join(part for part in parts if part).strip()


_ENDED: Final = object()


class Pairs(Source):
    """Texts from Python with ids, or with row numbers as ids. Places count from 0."""

    def __init__(self, texts: Iterable[str], ids: Iterable[str | int] | None) -> None:
        for option, given in (("texts", texts), ("ids", () if ids is None else ids)):
            if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
                raise InputError(
                    f"{option} must be a sequence of strings. Got {describe(given)} instead. "
                    "For a mapping of ids to texts there is Items.from_dict, for a file Items.from_path."
                )
        self._texts, self._ids = texts, ids

    def place(self, at: int) -> str:
        return f"item {at}"

    def __iter__(self) -> Iterator[Record]:
        if self._ids is None:
            for at, text in enumerate(self._texts):
                yield str(at), self._check(text, at), at
            return
        pairs: Iterator[tuple[object, object]] = zip_longest(self._ids, self._texts, fillvalue=_ENDED)
        for at, (given, body) in enumerate(pairs):
            if given is _ENDED or body is _ENDED:
                few, many = ("ids", "texts") if given is _ENDED else ("texts", "ids")
                raise InputError(f"wanted one id per text, got {at} {few} and more {many}. Give as many of both.")
            yield read_id(given, self, at), self._check(body, at), at

    def _check(self, text: object, at: int) -> str:
        if isinstance(text, str):
            return text
        raise self.error(at, f"wanted a string as text, got {describe(text)}. Make it a string.")


class Mappings(Source):
    """Records from Python. Places count from 0."""

    def __init__(self, records: Iterable[Mapping[str, Any]], fields: Fields) -> None:
        if isinstance(records, str | bytes | Mapping) or not isinstance(records, Iterable):
            raise InputError(f"records must be a sequence of mappings. Got {describe(records)} instead.")
        self._records, self._fields = records, fields

    def place(self, at: int) -> str:
        return f"item {at}"

    def __iter__(self) -> Iterator[Record]:
        for at, record in enumerate(self._records):
            if not isinstance(record, Mapping):
                raise self.error(at, f"wanted a mapping with an id and a text, got {describe(record)}.")
            yield self._fields.read(record, self, at)


class CountingFile(io.FileIO):
    """A file that knows how many of its bytes were read, also where it cannot seek."""

    def __init__(self, path: Path) -> None:
        self.done = 0
        try:
            super().__init__(path)
        except FileNotFoundError as error:
            raise InputError(f"{path}: wanted a file, got nothing: it does not exist. Check the path.") from error
        except IsADirectoryError as error:
            raise InputError(
                f"{path}: wanted a file, got a directory. Name a file in it; Items.from_path also takes a folder "
                "that holds corpus.jsonl."
            ) from error
        except OSError as error:
            raise InputError(f"{path}: could not be opened ({error.strerror}). Check its permissions.") from error

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        self.done += count or 0
        return count


class TextSource(Source):
    """A text file read line by line, gzip if its name ends so. Places are physical lines, from 1."""

    def __init__(self, path: Path, *, errors: Errors, max_line_bytes: int) -> None:
        if not isinstance(max_line_bytes, int) or max_line_bytes < 1:
            raise InputError(f"max_line_bytes must be a positive integer. Got {max_line_bytes!r} instead.")
        self.name = str(path)
        self.line = 0  # lines read so far
        self.offset = 0  # bytes before the line being read, after decompression
        self._path, self._errors, self._limit = path, errors, max_line_bytes
        self._done = 0

    @property
    def done(self) -> int:
        return self._done

    def lines(self) -> Iterator[str]:
        """Every line with its terminator; a byte order mark at the start is dropped."""
        with CountingFile(self._path) as file, self._open_stream(file) as stream:
            self.total = self._path.stat().st_size
            while raw := self._read_line(stream):
                self.line += 1
                self._done = file.done
                self._check_length(raw)
                text = self._decode(raw)
                yield text.removeprefix("\ufeff") if self.line == 1 else text
                self.offset += len(raw)

    def _open_stream(self, file: CountingFile) -> io.BufferedIOBase:
        buffered = io.BufferedReader(file, BUFFER_BYTES)
        return gzip.GzipFile(fileobj=buffered) if self._path.suffix.lower() == ".gz" else buffered

    def _read_line(self, stream: io.BufferedIOBase) -> bytes:
        """The next line, cut two bytes past the limit: room for CR LF, or for seeing that it is too long."""
        try:
            return stream.readline(self._limit + 2)
        except EOFError as error:
            raise self.error(
                self.line + 1, "wanted a whole gzip file, got one that ends early. Copy or download it again."
            ) from error
        except (OSError, zlib.error) as error:
            raise self.error(
                self.line + 1, f"could not be read ({error}). Check the disk, or that the file is what its name says."
            ) from error

    def _check_length(self, raw: bytes) -> None:
        if len(raw) > self._limit and len(raw.removesuffix(b"\n").removesuffix(b"\r")) > self._limit:
            raise self.error(
                self.line,
                f"wanted a line of at most {self._limit} bytes, got a longer one. "
                "Check that records are on lines of their own, or raise max_line_bytes.",
            )

    def _decode(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8", self._errors)
        except UnicodeDecodeError as error:
            raise self.error(
                self.line,
                f"wanted UTF-8, got byte 0x{raw[error.start]:02x} at byte offset {self.offset + error.start} "
                'of the file. Convert the file to UTF-8, or pass errors="replace".',
            ) from error


class JsonLines(TextSource):
    """One JSON object per line; blank lines are skipped."""

    def __init__(self, path: Path, fields: Fields, *, errors: Errors, max_line_bytes: int) -> None:
        super().__init__(path, errors=errors, max_line_bytes=max_line_bytes)
        self._fields = fields

    def __iter__(self) -> Iterator[Record]:
        for record in self.records():
            yield self._fields.read(record, self, self.line)

    def records(self) -> Iterator[dict[str, Any]]:
        """Every object with all its fields; `line` says where it stands."""
        for line in self.lines():
            if line and not line.isspace():
                yield self._parse(line.rstrip("\r\n"))

    def _parse(self, line: str) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(
                f"{self.name}:{self.line}:{error.colno}: wanted one JSON object per line, got invalid JSON "
                f"({error.msg}). Mend the line; a file that is one JSON array must be written as lines first."
            ) from error
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, or endless nesting
            raise self.error(self.line, f"wanted one JSON object per line, got one beyond reason ({error}).") from error
        if not isinstance(record, dict):
            raise self.error(self.line, f"wanted one JSON object per line, got {describe(record)}. Write an object.")
        return record


class Lines(TextSource):
    """One item per line, its id the number of the line; blank lines are skipped but counted."""

    def __iter__(self) -> Iterator[Record]:
        for line in self.lines():
            if line and not line.isspace():
                yield str(self.line), line.removesuffix("\n").removesuffix("\r"), self.line


class Csv(TextSource):
    """Delimited text with a header line. The place of a record is the line on which it starts."""

    def __init__(
        self,
        path: Path,
        *,
        delimiter: str | None,
        quote: str | None,
        id: str | None,
        text: str | Sequence[str] | None,
        join: str,
        errors: Errors,
        max_line_bytes: int,
    ) -> None:
        super().__init__(path, errors=errors, max_line_bytes=max_line_bytes)
        usual = "\t" if path.name.lower().removesuffix(".gz").endswith(".tsv") else ","
        self._delimiter = usual if delimiter is None else delimiter
        for option, given in (("delimiter", self._delimiter), ("quote", quote)):
            if given is not None and (not isinstance(given, str) or len(given) != 1 or given in "\r\n"):
                raise InputError(f"{option} must be one character. Got {given!r} instead.")
        self._quote, self._id, self._text, self._join = quote, id, text, join
        self._at = 1  # the line on which the record being read starts
        self._start = 0  # its byte offset

    def __iter__(self) -> Iterator[Record]:
        rows = self._rows()
        header = next(rows, None)
        if header is None:
            raise InputError(f"{self.name}: wanted a header line with the names of the columns, got an empty file.")
        fields = Fields.among(header, id_=self._id, text=self._text, join=self._join, name=self.name)
        for row in rows:
            if len(row) != len(header):
                raise self.error(
                    self._at,
                    f"wanted {len(header)} fields as in the header, got {len(row)}. "
                    f"Quote fields that hold {self._delimiter!r}, quotes or line breaks.",
                )
            yield fields.read(dict(zip(header, row, strict=True)), self, self._at)

    def _rows(self) -> Iterator[list[str]]:
        """Every record that is not a blank line, with `_at` set to where it starts."""
        # Python's own limit of 128 KiB a field is shared by the whole process: raise it, never lower it.
        csv.field_size_limit(max(csv.field_size_limit(), min(self._limit, 2**31 - 1)))
        reader = csv.reader(
            self._bounded_lines(),
            delimiter=self._delimiter,
            quotechar=self._quote,
            quoting=csv.QUOTE_NONE if self._quote is None else csv.QUOTE_MINIMAL,
            strict=True,
        )
        while True:
            self._at, self._start = self.line + 1, -1
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise self.error(
                    self._at,
                    f"wanted fields quoted as RFC 4180 has it, got a record that is not ({error}). "
                    "Look for an unclosed quote; where quotes are plain characters pass quote=None.",
                ) from error
            if row:
                yield row

    def _bounded_lines(self) -> Iterator[str]:
        """The lines, as long as the record they make up stays below the limit: a quote may never close."""
        for line in self.lines():
            self._start = self.offset if self._start < 0 else self._start
            if self.offset - self._start > self._limit:
                raise self.error(
                    self._at,
                    f"wanted a record of at most {self._limit} bytes, got a longer one. "
                    "Look for an unclosed quote, or raise max_line_bytes.",
                )
            yield line


class Parquet(Source):
    """The rows of a Parquet file, only the columns needed. Places are rows, from 0."""

    def __init__(
        self,
        path: Path,
        *,
        id: str | None,
        text: str | Sequence[str] | None,
        join: str,
        errors: Errors,
    ) -> None:
        self.name = str(path)
        self._path, self._id, self._text, self._join, self._errors = path, id, text, join, errors
        self._row, self._rows = 0, 1

    @property
    def done(self) -> int:
        return self.total * self._row // max(self._rows, 1)

    def place(self, at: int) -> str:
        return f"{self.name}:row {at}"

    def __iter__(self) -> Iterator[Record]:
        with CountingFile(self._path):  # says what is wrong where it cannot be opened
            self.total = self._path.stat().st_size
        with self._naming_errors(), pq.ParquetFile(self._path, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
            self._rows = file.metadata.num_rows
            columns = file.schema_arrow.names
            fields = Fields.among(columns, id_=self._id, text=self._text, join=self._join, name=self.name)
            names = list(dict.fromkeys((fields.id, *fields.text)))
            for batch in file.iter_batches(PARQUET_BATCH, columns=names, use_threads=False):
                values = [self._values(batch.column(name)) for name in names]
                for row in zip(*values, strict=True):
                    yield fields.read(dict(zip(names, row, strict=True)), self, self._row)
                    self._row += 1

    @contextmanager
    def _naming_errors(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{self.name}: wanted a Parquet file, got one that cannot be read ({error}). Write it again."
            ) from error

    def _values(self, column: pa.Array) -> list[Any]:
        try:
            return column.to_pylist()  # type: ignore[no-any-return]
        except UnicodeDecodeError:  # Parquet promises UTF-8 but few writers check
            return [self._decode(raw, row) for row, raw in enumerate(column.cast(pa.large_binary()).to_pylist())]

    def _decode(self, raw: bytes | None, row: int) -> str | None:
        try:
            return None if raw is None else raw.decode("utf-8", self._errors)
        except UnicodeDecodeError as error:
            raise self.error(
                self._row + row,
                f"wanted UTF-8, got byte 0x{raw[error.start]:02x} at byte {error.start} of the value. "  # type: ignore[index]
                'Write the file again as UTF-8, or pass errors="replace".',
            ) from error
