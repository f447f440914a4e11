"""Readers of items: files and Python objects as streams of records `(id, text, place)`.

A source yields one record at a time and keeps none. A place is a number: the line on which a record starts, or its row.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import reprlib
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crossknn._checks import check_positive, invalid
from crossknn.errors import InputError
from crossknn.items.field_readers import (
    MAX_FIELDS,
    NO_FIELDS,
    FieldCollector,
    GivenFields,
    RecordFields,
    TableFields,
    TextFields,
    decoded_bytes,
)
from crossknn.items.string_column import BLOCK_STRINGS

Record = tuple[str, str, int]  # id, text, place
Errors = Literal["strict", "replace"]

MAX_LINE_BYTES: Final = 16 * 2**20
BUFFER_BYTES: Final = 2**20
UNPACKED_RATIO: Final = 100  # times the size of a compressed file is what it may unpack to by default,
MIN_UNPACKED_BYTES: Final = 2**30  # or this, if that is more
RECORD_BYTES: Final = 64  # that a record counts besides its text: it takes memory, too
PARQUET_BATCH_ROWS: Final = 256  # of ids and texts
PARQUET_BATCH_BYTES: Final = 2**30
WRITTEN_ITEMS: Final = b"crossknn items"  # metadata of a Parquet file that `Items.to_parquet` wrote
_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


class Source:
    """Records one by one; `done` of `total` bytes are read, both 0 where there is no file."""

    name: str = "items"
    errors: Errors = "strict"  # what to do about text that is not UTF-8
    done: int = 0
    total: int = 0
    collector: FieldCollector = NO_FIELDS  # of the fields of all records so far, while they are read

    def __iter__(self) -> Iterator[Record]:
        raise NotImplementedError

    def place(self, number: int) -> str:
        """The place of a record in messages."""
        return f"item {number}"

    def error(self, place: int, message: str) -> InputError:
        """The error for the record at this place."""
        return InputError(f"{self.place(place)}: {message}")


class FieldOptions(TypedDict, total=False):
    """The options that say what is read of records; see `Fields`."""

    id: str | None
    text: str | Sequence[str] | None
    join: str
    fields: Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Fields:
    """The names of the id field, the text fields and the other fields of a record.

    One text field is taken as it is. Several are joined in the order given, without empty ones, and the result is
    stripped: with the defaults this is BEIR's convention, title + " " + text.

    Attributes:
        kept: The fields to keep besides id and text; None for all others.
    """

    id: str = "_id"
    text: tuple[str, ...] = ("title", "text")
    join: str = " "
    kept: tuple[str, ...] | None = ()

    def __post_init__(self) -> None:
        for option, names in (("id", (self.id,)), ("text", self.text)):
            if not names or not all(isinstance(name, str) and name for name in names):
                raise wrong_type(option, "the name of a field", names)
        if not isinstance(self.join, str):
            raise wrong_type("join", "a string", self.join)
        if self.kept is not None and len(set(self.kept)) != len(self.kept):
            raise wrong_type("fields", "distinct names of fields", self.kept)

    @classmethod
    def of(
        cls,
        names: Collection[str],
        *,
        id: str | None = None,
        text: str | Sequence[str] | None = None,
        join: str = " ",
        fields: Sequence[str] | None = None,
    ) -> Fields:
        """The fields of a record with these names: those given, or the default ones."""
        default = "id" if "id" in names and "_id" not in names else "_id"
        text = ("title", "text") if text is None else (text,) if isinstance(text, str) else tuple(text)
        listed = isinstance(fields, Sequence) and not isinstance(fields, str | bytes)
        if fields is not None and not (listed and all(isinstance(name, str) and name for name in fields)):
            raise wrong_type("fields", "a list of names of fields, or None for all", fields)
        return cls(default if id is None else id, text, join, None if fields is None else tuple(fields))

    @classmethod
    def among(cls, columns: Sequence[str], name: str, **options: Unpack[FieldOptions]) -> Fields:
        """The fields of a table with these columns, which must exist; by default the text is of those that do."""
        if options.get("text") is None:
            options["text"] = [default for default in ("title", "text") if default in columns] or ["text"]
        fields = cls.of(columns, **options)
        for column in (fields.id, *fields.text, *(fields.kept or ())):
            if columns.count(column) != 1:
                count = "no column" if column not in columns else "more than one column"
                raise InputError(
                    f"{name}: {count} named {column!r} among {', '.join(map(repr, columns))}. "
                    "Name the columns to read with `id`, `text` and `fields`."
                )
        return fields

    @property
    def used(self) -> tuple[str, ...]:
        """The fields that are the id and the text."""
        return (self.id, *self.text)

    def collector(self, source: Source) -> RecordFields | None:
        """What collects the other fields of mappings; None if none are kept."""
        return None if self.kept == () else RecordFields(source, self.kept, self.used)

    def read(self, record: Mapping[str, Any], source: Source, place: int) -> Record:
        """The id and the text of one record, or an error that names its place."""
        if self.id not in record:
            names = ", ".join(map(repr, record)) or "none at all"
            raise source.error(place, f"no id field {self.id!r} among its fields ({names}). Name it with `id`.")
        return read_id(record[self.id], source, place), self._read_text(record, source, place), place

    def _read_text(self, record: Mapping[str, Any], source: Source, place: int) -> str:
        parts = [record[name] for name in self.text if name in record]
        if not parts:
            expected, names = " or ".join(map(repr, self.text)), ", ".join(map(repr, record))
            raise source.error(place, f"no text field {expected} among its fields ({names}). Name them with `text`.")
        for part in parts:
            if part is not None and not isinstance(part, str):
                check_text(part, source, place)
        return self.join_parts(parts)

    def join_parts(self, parts: Sequence[str | None]) -> str:
        """The text of a record with these text fields."""
        if len(parts) == 1:
            return parts[0] or "" if len(self.text) == 1 else (parts[0] or "").strip()
        return self.join.join(filter(None, parts)).strip()


_END: Final = object()
_SCAN_JSON: Final = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


class TextsAndIds(Source):
    """Texts from Python with ids, or with row numbers as ids. Places are rows, from 0."""

    def __init__(
        self,
        texts: Iterable[str],
        ids: Iterable[str | int] | None,
        fields: Mapping[str, Iterable[Any]] | None = None,
    ) -> None:
        if fields is not None and not isinstance(fields, Mapping):
            raise wrong_type("fields", "a mapping of names to values, one for each text", fields)
        for option, given in (("texts", texts), ("ids", () if ids is None else ids)):
            if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
                hint = "For a mapping of ids to texts use Items.from_dict, for a file Items.from_path."
                raise wrong_type(option, "a sequence of strings", given, hint)
        self._texts, self._ids, self._fields = texts, ids, fields

    def __iter__(self) -> Iterator[Record]:
        self.collector = given = GivenFields(self._fields or {})
        for record in self._records():
            given.rows += 1
            yield record

    def _records(self) -> Iterator[Record]:
        if self._ids is None:
            for row, text in enumerate(self._texts):
                yield str(row), check_text(text, self, row), row
            return
        pairs: Iterator[tuple[object, object]] = zip_longest(self._ids, self._texts, fillvalue=_END)
        for row, (id_, body) in enumerate(pairs):
            if id_ is _END or body is _END:
                fewer, more = ("ids", "texts") if id_ is _END else ("texts", "ids")
                raise InputError(f"`ids` must be as many as `texts`, got {row} {fewer} and more {more}.")
            yield read_id(id_, self, row), check_text(body, self, row), row


class Mappings(Source):
    """Records from Python. Places are rows, from 0."""

    def __init__(self, records: Iterable[Mapping[str, Any]], errors: Errors, **fields: Unpack[FieldOptions]) -> None:
        if isinstance(records, str | bytes | Mapping) or not isinstance(records, Iterable):
            raise wrong_type("records", "a sequence of mappings", records)
        self._records, self._options, self.errors = records, fields, errors
        Fields.of((), **fields)  # for its errors

    def __iter__(self) -> Iterator[Record]:
        fields, collector, read = None, None, 0
        for row, record in enumerate(self._records):
            if not isinstance(record, Mapping):
                raise self.error(row, f"a record must be a mapping with an id and a text, got {describe(record)}.")
            if fields is None:  # the first record says which defaults hold
                fields = Fields.of(record, **self._options)
                collector = fields.collector(self)
                self.collector = collector or NO_FIELDS
            found = fields.read(record, self, row)
            if collector is not None:
                read += len(found[1])
                collector.append(record, row, read)
            yield found


class CountingFile(io.FileIO):
    """A file that counts the bytes read, also where it cannot seek."""

    def __init__(self, path: Path) -> None:
        self.done = 0
        try:
            super().__init__(path)
        except IsADirectoryError as error:
            raise InputError(
                f"{path}: is a folder, not a file. Items.from_path reads a folder that holds corpus.jsonl."
            ) from error
        except OSError as error:
            raise InputError(f"{path}: cannot be opened ({error.strerror}). Check the path.") from error

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        self.done += count or 0
        return count


class TextOptions(TypedDict, total=False):
    """The options of a `TextSource`."""

    errors: Errors
    max_line_bytes: int
    max_unpacked_bytes: int | None


class UnpackedLimit:
    """How much a compressed file may unpack to, so that a small file cannot take all memory.

    Args:
        limit: In bytes; None for 100 times what is read of the file, and at least 1 GiB.
    """

    def __init__(self, name: str, limit: int | None) -> None:
        if limit is not None:
            check_positive("max_unpacked_bytes", limit)
        self._name, self._limit = name, limit

    def check(self, unpacked: int, *, packed: int, records: int = 0) -> None:
        """Raise `InputError` if what was unpacked so far, with some memory for each record, is too much."""
        limit = max(MIN_UNPACKED_BYTES, UNPACKED_RATIO * packed) if self._limit is None else self._limit
        if unpacked + RECORD_BYTES * records > limit:
            raise InputError(
                f"{self._name}: it unpacks to more than {limit:,} bytes (a record counts {RECORD_BYTES}). If it is "
                "meant to be so large, raise `max_unpacked_bytes`."
            )


class TextSource(Source):
    """A text file read line by line, gzip if its name ends in `.gz`. Places are physical lines, from 1."""

    def __init__(
        self,
        path: Path,
        *,
        errors: Errors = "strict",
        max_line_bytes: int = MAX_LINE_BYTES,
        max_unpacked_bytes: int | None = None,
    ) -> None:
        check_positive("max_line_bytes", max_line_bytes)
        self.name, self.errors = str(path), errors
        self.line = 0  # lines read so far
        self.offset = 0  # bytes before the current line, after decompression
        self._path, self._limit = path, max_line_bytes
        self._is_packed = path.suffix.lower() == ".gz"
        self._unpacked = UnpackedLimit(str(path), max_unpacked_bytes)

    def place(self, number: int) -> str:
        return f"{self.name}:{number}"

    def lines(self) -> Iterator[str]:
        """Every line with its terminator, without a byte order mark."""
        with CountingFile(self._path) as file, self._open_stream(file) as stream:
            self.total = self._path.stat().st_size
            while raw := self._read_line(stream):
                self.line += 1
                self.done = file.done
                if self._is_packed:
                    self._unpacked.check(self.offset + len(raw), packed=file.done, records=self.line)
                text = self._decode(raw)
                yield text.removeprefix("\ufeff") if self.line == 1 else text
                self.offset += len(raw)

    def _open_stream(self, file: CountingFile) -> io.BufferedIOBase:
        buffered = io.BufferedReader(file, BUFFER_BYTES)
        return gzip.GzipFile(fileobj=buffered) if self._is_packed else buffered

    def _read_line(self, stream: io.BufferedIOBase) -> bytes:
        """The next line, read up to two bytes past the limit: enough for CR LF, or to see that it is too long."""
        try:
            return stream.readline(self._limit + 2)
        except (OSError, EOFError, zlib.error) as error:
            raise self.error(self.line + 1, f"cannot be read ({error}). Check that the file is complete.") from error

    def _decode(self, raw: bytes) -> str:
        if len(raw) > self._limit and len(raw.removesuffix(b"\n").removesuffix(b"\r")) > self._limit:
            raise self.error(
                self.line,
                f"the line is longer than {self._limit} bytes. Write one record per line, or raise `max_line_bytes`.",
            )
        try:
            return raw.decode("utf-8", self.errors)
        except UnicodeDecodeError as error:
            raise self.error(
                self.line,
                f"not UTF-8: byte 0x{raw[error.start]:02x} at byte offset {self.offset + error.start} of the file. "
                'Convert the file to UTF-8, or pass errors="replace".',
            ) from error


class JsonLines(TextSource):
    """One JSON object per line; blank lines are skipped.

    Args:
        fields: Which to read; without a name of the id, `_id` or else `id`, as the first record has it.
    """

    def __init__(self, path: Path, fields: Fields | FieldOptions, **options: Unpack[TextOptions]) -> None:
        super().__init__(path, **options)
        self._given = fields
        if not isinstance(fields, Fields):
            Fields.of((), **fields)  # for its errors

    def __iter__(self) -> Iterator[Record]:
        fields, collector = None, None
        for record in self.records():
            if fields is None:
                fields = self._given if isinstance(self._given, Fields) else Fields.of(record, **self._given)
                collector = fields.collector(self)
                self.collector = collector or NO_FIELDS
            found = fields.read(record, self, self.line)
            if collector is not None:
                collector.append(record, self.line, self.offset)
            yield found

    def records(self) -> Iterator[dict[str, Any]]:
        """Every object with all its fields; `line` is its place."""
        for line in self.lines():
            if line and not line.isspace():
                yield self._parse(line.rstrip("\r\n"))

    def _parse(self, line: str) -> dict[str, Any]:
        try:
            record = _parse_json(line)
        except json.JSONDecodeError as error:
            raise InputError(
                f"{self.name}:{self.line}:{error.colno}: invalid JSON ({error.msg}). "
                "Write one JSON object per line, not one array of all."
            ) from error
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, or endless nesting
            raise self.error(self.line, f"JSON that cannot be read ({error}).") from error
        if not isinstance(record, dict):
            raise self.error(self.line, f"a line must be a JSON object, got {describe(record)}.")
        return record


def _parse_json(line: str) -> Any:
    """`json.loads` without its checks of a line that is one value and nothing else, which take as long as parsing."""
    try:
        value, end = _SCAN_JSON(line, 0)
    except StopIteration:
        return json.loads(line)
    return value if end == len(line) else json.loads(line)


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
        delimiter: str | None = None,
        quote: str | None = '"',
        fields: FieldOptions,
        **options: Unpack[TextOptions],
    ) -> None:
        super().__init__(path, **options)
        default = "\t" if path.name.lower().removesuffix(".gz").endswith(".tsv") else ","
        self._delimiter = default if delimiter is None else delimiter
        for option, given in (("delimiter", self._delimiter), ("quote", quote)):
            if given is not None and (not isinstance(given, str) or len(given) != 1 or given in "\r\n"):
                raise invalid(option, "one character", given)
        self._quote, self._options = quote, fields
        self._first_line = 1  # of the current record
        self._start = 0  # its byte offset

    def __iter__(self) -> Iterator[Record]:
        rows = self._rows()
        header = next(rows, None)
        if header is None:
            raise InputError(f"{self.name}: the file is empty; a header line with the column names is needed.")
        fields = Fields.among(header, self.name, **self._options)
        collector = TextFields(self._kept_columns(header, fields))
        self.collector = collector
        columns = {name: at for at, name in enumerate(header)}
        id_at, text_at = columns.get(fields.id), [columns[name] for name in fields.text if name in columns]
        for row in rows:
            if len(row) != len(header):
                raise self.error(
                    self._first_line,
                    f"{len(row)} fields where the header has {len(header)}. "
                    f"Quote fields that hold {self._delimiter!r}, quotes or line breaks.",
                )
            collector.append(row, self.offset)
            if id_at is None or not text_at:
                fields.read(dict(zip(header, row, strict=True)), self, self._first_line)  # raises an error
            else:
                text = fields.join_parts([row[at] for at in text_at])
                yield read_id(row[id_at], self, self._first_line), text, self._first_line

    def _kept_columns(self, header: list[str], fields: Fields) -> dict[str, int]:
        """Names and positions of the columns to keep: those named, or all others that have a name of their own."""
        if fields.kept is not None:
            return {name: header.index(name) for name in fields.kept}
        others = [name for name in header if name and name not in fields.used and header.count(name) == 1]
        if len(others) > MAX_FIELDS:
            raise InputError(f"{self.name}: more than {MAX_FIELDS} columns. Name those to keep with `fields`.")
        return {name: header.index(name) for name in others}

    def _rows(self) -> Iterator[list[str]]:
        """Every record that is not a blank line."""
        # Python's own limit of 128 KiB per field is shared by the whole process: raise it, never lower it.
        csv.field_size_limit(max(csv.field_size_limit(), min(self._limit, 2**31 - 1)))
        reader = csv.reader(
            self._bounded_lines(),
            delimiter=self._delimiter,
            quotechar=self._quote,
            quoting=csv.QUOTE_NONE if self._quote is None else csv.QUOTE_MINIMAL,
            strict=True,
        )
        while True:
            self._first_line, self._start = self.line + 1, -1
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise self.error(
                    self._first_line,
                    f"the record is not quoted as in RFC 4180 ({error}). "
                    "Look for an unclosed quote; where quotes are plain characters pass quote=None.",
                ) from error
            if row:
                yield row

    def _bounded_lines(self) -> Iterator[str]:
        """The lines, as long as the current record stays below the limit: a quote may never close."""
        for line in self.lines():
            self._start = self.offset if self._start < 0 else self._start
            if self.offset - self._start > self._limit:
                raise self.error(
                    self._first_line,
                    f"the record is longer than {self._limit} bytes. "
                    "Look for an unclosed quote, or raise `max_line_bytes`.",
                )
            yield line


class Table(Source):
    """The rows of Arrow batches. Places are rows, from 0.

    Args:
        batches: Of the same columns as `schema`.
        rows_as_ids: Whether the id is the number of the row where no column is named and there is no default one.
    """

    def __init__(
        self,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        *,
        name: str,
        errors: Errors = "strict",
        rows_as_ids: bool = False,
        **options: Unpack[FieldOptions],
    ) -> None:
        self.name, self.errors = name, errors
        self._schema, self._batches, self._rows_as_ids, self._options = schema, batches, rows_as_ids, options
        self._row = 0

    def place(self, number: int) -> str:
        return f"{self.name}:row {number}"

    def __iter__(self) -> Iterator[Record]:
        names, numbered = list(self._schema.names), False
        if self._rows_as_ids and self._options.get("id") is None and not {"_id", "id"} & {*names}:
            numbered = True
            names.append("_id")
        fields = Fields.among(names, self.name, **self._options)
        self.collector = collector = TableFields(self, self._schema, fields.kept, fields.used)
        for batch in self._batches:
            collector.append(batch)
            yield from self._records(batch, fields, numbered=numbered)

    def _records(self, batch: pa.RecordBatch, fields: Fields, *, numbered: bool = False) -> Iterator[Record]:
        names = dict.fromkeys(fields.used)
        first = range(self._row, self._row + len(batch))
        values = [first if numbered and name == "_id" else self._values(batch.column(name)) for name in names]
        for row in zip(*values, strict=True):
            yield fields.read(dict(zip(names, row, strict=True)), self, self._row)
            self._row += 1

    def _values(self, column: pa.Array) -> list[Any]:
        try:
            return column.to_pylist()  # type: ignore[no-any-return]
        except UnicodeDecodeError:  # Parquet promises UTF-8 but few writers check
            return [self._decode(raw, row) for row, raw in enumerate(column.cast(pa.large_binary()).to_pylist())]

    def _decode(self, raw: bytes | None, row: int) -> str | None:
        try:
            return None if raw is None else raw.decode("utf-8", self.errors)
        except UnicodeDecodeError as error:
            raise self.error(
                self._row + row,
                f"not UTF-8: byte 0x{error.object[error.start]:02x} at byte {error.start} of the value. "
                'Write the file again as UTF-8, or pass errors="replace".',
            ) from error


class Parquet(Table):
    """The rows of a Parquet file, only the columns needed."""

    def __init__(
        self,
        path: Path,
        *,
        errors: Errors,
        max_unpacked_bytes: int | None = None,
        **options: Unpack[FieldOptions],
    ) -> None:
        super().__init__(pa.schema([]), (), name=str(path), errors=errors, **options)
        self._unpacked = UnpackedLimit(str(path), max_unpacked_bytes)
        self._path, self._unpacked_bytes = path, 0

    def __iter__(self) -> Iterator[Record]:
        with CountingFile(self._path):  # for its error messages
            self.total = self._path.stat().st_size
        with self._arrow_errors(), pq.ParquetFile(self._path, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
            if WRITTEN_ITEMS in (schema.metadata or {}) and self._options.get("text") is None:
                self._options["text"] = "text"  # which `Items.to_parquet` wrote, maybe beside a field "title"
            fields = Fields.among(schema.names, self.name, **self._options)
            self.collector = collector = TableFields(self, schema, fields.kept, fields.used)
            used, kept = list(dict.fromkeys(fields.used)), list(collector.kinds)
            self._unpacked.check(sum(_chunk_bytes(file.metadata, [*used, *kept])), packed=self.total, records=rows)
            for batch in self._batches_of(file, used, PARQUET_BATCH_ROWS):
                for record in self._records(batch, fields):
                    self.done = self.total * self._row // rows
                    yield record
            for batch in self._batches_of(file, kept, BLOCK_STRINGS):
                collector.append(batch)

    def _batches_of(self, file: pq.ParquetFile, names: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Batches of these columns, of fewer rows where one value could be very long."""
        largest = max(_chunk_bytes(file.metadata, names), default=1)
        rows = max(1, min(rows, PARQUET_BATCH_BYTES // max(1, largest)))
        for batch in file.iter_batches(rows, columns=names, use_threads=False) if names else ():
            self._unpacked_bytes += decoded_bytes(batch)  # a value may be stored once and stand in many rows
            self._unpacked.check(self._unpacked_bytes, packed=self.total, records=file.metadata.num_rows)
            yield batch

    @contextmanager
    def _arrow_errors(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self.name}: not a readable Parquet file ({error}). Write it again.") from error


def _chunk_bytes(metadata: pq.FileMetaData, names: Sequence[str]) -> list[int]:
    """The size of every chunk of these columns, without compression; no value is longer."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(place) for group in groups for place in range(group.num_columns)]
    wanted = [chunk for chunk in chunks if {chunk.path_in_schema, chunk.path_in_schema.split(".")[0]} & {*names}]
    return [chunk.total_uncompressed_size for chunk in wanted]


def as_id(value: object) -> str | None:
    """The id as a string: strings as they are, integers in digits, None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(value)
    return None


def read_id(value: object, source: Source, place: int) -> str:
    """The id of a record, or an error that names its place."""
    id_ = as_id(value)
    if not id_:
        raise source.error(place, f"an id must be a nonempty string or an integer, got {describe(value)}.")
    return id_


def check_text(value: object, source: Source, place: int) -> str:
    """The text of a record, or an error that names its place."""
    if not isinstance(value, str):
        raise source.error(place, f"a text must be a string, got {describe(value)}.")
    return value


def describe(value: object) -> str:
    """A value for a message: its type and its shortened representation."""
    return "null" if value is None else f"{type(value).__name__} {_SHORT.repr(value)}"


def wrong_type(name: str, requirement: str, value: object, hint: str = "") -> InputError:
    """`crossknn._checks.invalid` for values of any size, which are described in short."""
    return InputError(f"`{name}` must be {requirement}, got {describe(value)}.{f' {hint}' if hint else ''}")
