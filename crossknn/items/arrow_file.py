"""Columns of strings and fields in an Arrow file, written as they are in memory, mapped, and checked."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from crossknn.errors import InputError
from crossknn.items.fields import ARROW_TYPES, FieldColumn, open_column
from crossknn.items.string_column import StringColumn
from crossknn.storage.regular_files import map_bytes

ARROW: Final = b"ARROW1\0\0"  # the start of a file
MESSAGE_HEADER, BATCH_COMPRESSION = 2, 3  # fields of Arrow's tables Message and RecordBatch


def write_columns(
    path: Path,
    columns: Mapping[str, StringColumn],
    *,
    fields: Mapping[str, FieldColumn] | None = None,
    facts: Mapping[str, int] | None = None,
) -> None:
    """Write columns into an Arrow file as they are in memory, then fields; and some numbers as metadata."""
    fields = fields or {}
    arrays = [*(column.array for column in columns.values()), *(column.array for column in fields.values())]
    batch = pa.RecordBatch.from_arrays(arrays, names=[*columns, *fields])
    batch = batch.replace_schema_metadata({name: str(value) for name, value in (facts or {}).items()})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def map_columns(path: Path, names: Sequence[str]) -> tuple[list[StringColumn], dict[str, FieldColumn], dict[str, int]]:
    """The columns of these names, the fields and the numbers that `write_columns` wrote, memory-mapped.

    Only the offsets of strings and lists are read; all places are checked.
    """
    data = map_bytes(path)
    try:
        batch = _read_batch(pa.py_buffer(data), names)
        columns = [StringColumn(batch.column(at)) for at in range(len(names))]
        for column in columns:
            column.check()
        others = batch.schema.names[len(names) :]
        fields = {name: _open_field(name, batch.column(at)) for at, name in enumerate(others, len(names))}
        facts = {name.decode(): int(value) for name, value in (batch.schema.metadata or {}).items()}
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError, struct.error) as error:
        raise InputError(f"{path}: damaged: {error}. Restore it from a copy or build it again.") from error
    return columns, fields, facts


def _open_field(name: str, array: pa.Array) -> FieldColumn:
    try:
        return open_column(array)
    except InputError as error:
        raise InputError(f"field {name!r}: {error}") from error


def _read_batch(data: pa.Buffer, names: Sequence[str]) -> pa.RecordBatch:
    """The only batch of an Arrow file of columns, which points into the file's bytes.

    Compressed ones are refused: a small file could need any amount of memory.
    """
    if data.size < len(ARROW) or data[: len(ARROW)].to_pybytes() != ARROW:
        raise ValueError("not an Arrow file")
    messages = list(pa.ipc.MessageReader.open_stream(pa.BufferReader(data.slice(len(ARROW)))))
    if [message.type for message in messages] != ["schema", "record batch"]:
        raise ValueError("an Arrow file of other content")
    schema = pa.ipc.read_schema(messages[0])
    _check_schema(schema, names)
    if _is_compressed(messages[1].metadata.to_pybytes()):
        raise ValueError("compressed columns, which are not read")
    return pa.ipc.read_record_batch(messages[1], schema)


def _check_schema(schema: pa.Schema, strings: Sequence[str]) -> None:
    """Raise `ValueError` unless the columns are those of strings, then fields of known types with distinct names."""
    names = schema.names
    if names[: len(strings)] != [*strings]:
        raise ValueError("an Arrow file of other columns")
    if any(schema.field(at).type != pa.large_string() for at in range(len(strings))):
        raise ValueError("columns of other types than large strings")
    fields = names[len(strings) :]
    if len(set(fields)) != len(fields) or "" in fields:
        raise ValueError("fields without names, or with the same")
    for at, name in enumerate(fields, len(strings)):
        if schema.field(at).type not in ARROW_TYPES.values():
            raise ValueError(f"field {name!r} is of a type that fields do not have ({schema.field(at).type})")


def _is_compressed(message: bytes) -> bool:
    """Whether the metadata of a record batch, a flatbuffer, name a compression."""
    (root,) = struct.unpack_from("<I", message)
    header = _find_field(message, root, MESSAGE_HEADER)
    batch = header + struct.unpack_from("<I", message, header)[0]
    return _find_field(message, batch, BATCH_COMPRESSION) != 0


def _find_field(message: bytes, table: int, field: int) -> int:
    """Where a field of a flatbuffer's table lies; 0 if the table has none."""
    fields = table - struct.unpack_from("<i", message, table)[0]
    (size,) = struct.unpack_from("<H", message, fields)
    place = 4 + 2 * field
    (offset,) = struct.unpack_from("<H", message, fields + place) if place < size else (0,)
    return table + int(offset) if offset else 0
