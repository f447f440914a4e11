"""Collecting the fields of records while items are read: from mappings, from delimited text, and from Arrow tables."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from crossknn.errors import InputError
from crossknn.items.fields import (
    ARROW_TYPES,
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
    as_string,
    convert,
    finite,
    make_array,
)
from crossknn.items.inference import infer_column
from crossknn.items.string_column import BLOCK_STRINGS, StringColumnBuilder

if TYPE_CHECKING:
    from crossknn.items.readers import Source

logger = logging.getLogger("crossknn")
MAX_FIELDS: Final = 1000
BLOCK_BYTES: Final = 2**23  # of records whose values are kept as they were read
OTHER: Final = "other"  # the kind of values that are not kept
SCALARS: Final = {str, int, float, bool, date, datetime}
LEFT_OUT: Final = "objects, bytes and lists of other than strings are not kept"


Part = tuple[int, pa.Array | None]  # a number of values, and the values unless all are null


class FieldCollector:
    """The fields of records, as many values of each as there were records."""

    def finish(self) -> dict[str, FieldColumn]:
        """The columns; called once, after the last record."""
        return {}


NO_FIELDS: Final = FieldCollector()


class GivenFields(FieldCollector):
    """Whole columns from Python."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = columns
        self.rows = 0  # that they must have, counted by the source

    def finish(self) -> dict[str, FieldColumn]:
        found = {}
        for name, given in self._columns.items():
            _check_name(name)
            values = given.to_pylist() if isinstance(given, pa.Array | pa.ChunkedArray) else list(given)
            if len(values) != self.rows:
                raise InputError(f"`fields` must have {self.rows} values each, got {len(values)} of {name!r}.")
            kind, array = read_values(values)
            if kind == OTHER:
                raise InputError(
                    f"`fields` must be numbers, strings, booleans, dates or lists of strings, got {name!r}."
                )
            found[name] = FieldColumn(pa.nulls(self.rows, pa.large_string()) if array is None else array)
        return found


class RecordFields(FieldCollector):
    """The fields of mappings, by name.

    Args:
        source: For messages, and what to do about lone surrogates.
        names: The fields to keep; None for all that are not `used`.
        used: Names of the fields that are the id and the text.
    """

    def __init__(self, source: Source, names: Sequence[str] | None, used: Iterable[str]) -> None:
        self._source, self._named, self._used = source, names is not None, {*used, ""}
        self._columns: dict[str, _Parts] = {name: _Parts(0) for name in names or ()}
        self._layout: tuple[Any, ...] = ()  # names in records, in the order in which they came, without those not kept
        self._seen: set[Any] = set()  # all names in records
        self._values: list[Any] = []  # of the layout's names, record by record: a list of tuples would be slower
        self._places: list[int] = []
        self._rows = 0  # before these records
        self._flushed = 0  # characters or bytes before these records

    def append(self, record: Mapping[str, Any], place: int, read: int) -> None:
        """Take a record; `read` characters or bytes were read so far."""
        names = tuple(record)
        if names == self._layout:  # as most are
            self._values.extend(record.values())
        else:
            if not self._seen.issuperset(names):
                self._add_columns([name for name in names if name not in self._seen], place)
            self._values.extend(map(record.get, self._layout))
        self._places.append(place)
        if len(self._places) == BLOCK_STRINGS or read - self._flushed > BLOCK_BYTES:
            self._flush()
            self._flushed = read

    def finish(self) -> dict[str, FieldColumn]:
        self._flush()
        for name in self._columns:
            if name not in self._seen:
                known = ", ".join(map(repr, sorted(map(str, self._seen))[:50])) or "none at all"
                raise InputError(f"{self._source.name}: no record has a field {name!r}, only {known}.")
        _log_left_out(self._source, [name for name, parts in self._columns.items() if parts.kind == OTHER])
        return {name: parts.finish() for name, parts in self._columns.items() if parts.kind != OTHER}

    def _add_columns(self, new: list[Any], place: int) -> None:
        self._seen.update(new)
        kept = dict.fromkeys(name for name in new if self._is_kept(name))
        if not kept and not self._used.intersection(new):
            return  # files may have any number of names that are not kept
        self._flush()
        self._layout += tuple(name for name in new if name in kept or name in self._used)
        for name in kept:
            _check_name(name)
            self._columns[name] = _Parts(self._rows)
        if len(self._columns) > MAX_FIELDS:
            raise self._source.error(
                place, f"there are more than {MAX_FIELDS} fields. Name those to keep with `fields`."
            )

    def _is_kept(self, name: Any) -> bool:
        return name in self._columns if self._named else isinstance(name, str) and name not in self._used

    def _flush(self) -> None:
        for at, name in enumerate(self._layout) if self._values else ():
            parts = self._columns.get(name)
            if parts is not None and parts.kind != OTHER:
                values = self._values[at :: len(self._layout)]
                parts.append(len(values), *self._read(name, values))
        self._rows += len(self._places)
        self._values, self._places = [], []

    def _read(self, name: str, values: Sequence[Any]) -> tuple[str | None, pa.Array | None]:
        kind, array = read_values(values, self._places, self._source)
        if kind == OTHER and self._named:
            place = next(self._places[at] for at, value in enumerate(values) if read_values([value])[0] == OTHER)
            raise self._source.error(place, f"the field {name!r} cannot be kept: {LEFT_OUT}. Leave it out of `fields`.")
        return kind, array


class TextFields(FieldCollector):
    """The columns of delimited text, whose types are inferred from all their values.

    Args:
        columns: Names and positions of the columns to keep.
    """

    def __init__(self, columns: Mapping[str, int]) -> None:
        self._columns = {name: (at, StringColumnBuilder()) for name, at in columns.items()}
        self._cells: list[str] = []  # row by row: a list of rows would be slower
        self._rows = 0
        self._flushed = 0

    def append(self, row: list[str], read: int) -> None:
        """Take a row, all of which are as wide; `read` bytes were read so far."""
        if not self._columns:
            return
        self._cells.extend(row)
        self._rows += 1
        if self._rows == BLOCK_STRINGS or read - self._flushed > BLOCK_BYTES:
            self._flush()
            self._flushed = read

    def _flush(self) -> None:
        width = len(self._cells) // max(self._rows, 1)
        for at, builder in self._columns.values() if self._rows else ():
            builder.append(self._cells[at::width])
        self._cells, self._rows = [], 0

    def finish(self) -> dict[str, FieldColumn]:
        self._flush()
        found = {}
        for name, (_, builder) in list(self._columns.items()):
            del self._columns[name]  # and its memory
            found[name] = FieldColumn(infer_column(builder.finish().array))
        return found


class TableFields(FieldCollector):
    """Columns of Arrow tables, converted to the types of fields.

    Args:
        source: For messages, and what to do about text that is not UTF-8.
        schema: Of the batches.
        names: The columns to keep; None for all but those of the `used` names, of other types, or of the same name.
    """

    def __init__(self, source: Source, schema: pa.Schema, names: Sequence[str] | None, used: Iterable[str]) -> None:
        self._source, self._named = source, names is not None
        skipped, known = {*used, ""}, list(schema.names)
        chosen = [name for name in known if name not in skipped] if names is None else names
        kinds = {name: field_kind(schema.field(name).type) if known.count(name) == 1 else OTHER for name in chosen}
        left_out = [name for name, kind in kinds.items() if kind == OTHER]
        if left_out and self._named:
            raise InputError(f"{source.name}: the column {left_out[0]!r} cannot be kept: {LEFT_OUT}.")
        _log_left_out(source, left_out)
        self.kinds = {name: kind for name, kind in kinds.items() if kind != OTHER}
        if len(self.kinds) > MAX_FIELDS:
            raise InputError(f"{source.name}: more than {MAX_FIELDS} columns. Name those to keep with `fields`.")
        self._parts: dict[str, list[pa.Array]] = {name: [] for name in self.kinds}
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._rows = 0  # before these batches

    def append(self, batch: pa.RecordBatch) -> None:
        """Take the columns of a batch."""
        if not self._parts:
            return
        self._waiting.append(batch.select(list(self._parts)))
        self._waiting_bytes += decoded_bytes(self._waiting[-1])
        if sum(map(len, self._waiting)) >= BLOCK_STRINGS or self._waiting_bytes > BLOCK_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        for name in list(self._parts):
            column = pa.chunked_array([batch.column(name) for batch in self._waiting])
            converted = self._convert(name, column)
            if converted is None:
                del self._parts[name]
            else:
                self._parts[name].append(converted)
        self._rows += sum(map(len, self._waiting))
        self._waiting, self._waiting_bytes = [], 0

    def _convert(self, name: str, column: pa.ChunkedArray) -> pa.Array | None:
        """The values as they are kept; None for a column that cannot be."""
        kind = self.kinds[name]
        try:
            parts = [_cast(part, kind) for part in column.chunks]
        except pa.ArrowException as error:
            if self._named:
                raise InputError(f"{self._source.name}: the column {name!r} cannot be kept ({error}).") from error
            _log_left_out(self._source, [name])
            return None
        array = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        try:
            array.validate(full=True)
        except pa.ArrowException:
            return self._decode(name, array)
        return finite(array) if kind == FLOAT else array

    def _decode(self, name: str, array: pa.Array) -> pa.Array:
        """Strings that are not UTF-8: an error, or replaced."""
        if self.kinds[name] == LIST:
            raise InputError(f"{self._source.name}: the column {name!r} has strings that are not UTF-8.")
        strings: list[str | None] = []
        for row, raw in enumerate(array.cast(pa.large_binary()).to_pylist(), self._rows):
            try:
                strings.append(None if raw is None else raw.decode("utf-8", self._source.errors))
            except UnicodeDecodeError as error:
                raise self._source.error(
                    row, f'column {name!r} is not UTF-8. Write the file again, or pass errors="replace".'
                ) from error
        return make_array(STRING, strings)

    def finish(self) -> dict[str, FieldColumn]:
        self._flush()
        found = {}
        for name in list(self._parts):
            parts = self._parts.pop(name)
            found[name] = FieldColumn(pa.concat_arrays(parts) if parts else pa.nulls(0, ARROW_TYPES[self.kinds[name]]))
        return found


class _Parts:
    """The parts of a column, each of the kind that its values have."""

    def __init__(self, rows: int) -> None:
        self.kind: str | None = None  # of all values so far
        self._parts: list[Part] = [(rows, None)] if rows else []

    def append(self, rows: int, kind: str | None, array: pa.Array | None) -> None:
        self.kind = _common_kind(self.kind, kind)
        self._parts.append((rows, array))
        if self.kind == OTHER:
            self._parts = []
        while len(self._parts) > 1 and (joined := _join(*self._parts[-2:])):
            self._parts[-2:] = [joined]

    def finish(self) -> FieldColumn:
        kind = self.kind or STRING
        arrays = [
            pa.nulls(rows, ARROW_TYPES[kind]) if array is None else convert(FieldColumn(array), kind)
            for rows, array in self._parts
        ]
        self._parts = []
        return FieldColumn(pa.concat_arrays(arrays))


def _join(first: Part, second: Part) -> Part | None:
    """Both parts as one, unless the first is the larger one: few large arrays leave no holes in memory."""
    (rows, array), (more, other) = first, second
    if array is None or other is None or array.type != other.type or rows > more:
        return None
    return rows + more, pa.concat_arrays([array, other])


def _common_kind(first: str | None, second: str | None) -> str | None:
    """The kind that holds the values of both: float64 for numbers, lists for any list, else strings."""
    kinds = {first, second} - {None}
    if len(kinds) < 2:
        return first or second
    if OTHER in kinds:
        return OTHER
    return FLOAT if kinds == {INT, FLOAT} else LIST if LIST in kinds else STRING


def read_values(
    values: Sequence[Any], places: Sequence[int] | None = None, source: Source | None = None
) -> tuple[str | None, pa.Array | None]:
    """The kind of Python values and their array; no kind for nulls alone, and no array for these and for `OTHER`."""
    types = set(map(type, values)) - {type(None)}
    if not types <= SCALARS | {list}:
        values = list(map(_plain, values))
        types = set(map(type, values)) - {type(None)}
    kind = _kind_of_values(types, values) if types else None
    if kind is None or kind == OTHER:
        return kind, None
    if kind == LIST:
        values = [one if one is None or type(one) is list else [as_string(one)] for one in values]
    elif kind == STRING and types != {str}:
        values = [None if one is None else as_string(one) for one in values]
    try:
        array = make_array(kind, values)
    except UnicodeEncodeError as error:
        array = make_array(kind, _without_surrogates(values, places, source, error))
    except OverflowError:  # an integer of more than 64 bits
        return STRING, make_array(STRING, [None if one is None else as_string(one) for one in values])
    return kind, finite(array) if kind == FLOAT else array


def _kind_of_values(types: set[type], values: Sequence[Any]) -> str:
    if types == {int, float}:
        whole = [value for value in values if type(value) is int]
        return FLOAT if INT64.min <= min(whole) <= max(whole) <= INT64.max else STRING
    if types <= {int, float}:
        return INT if types == {int} else FLOAT
    if types == {bool} or types == {date}:
        return BOOL if types == {bool} else DATE
    if types == {datetime}:
        zones = {value.tzinfo is None for value in values if value is not None}
        return STRING if len(zones) == 2 else TIMESTAMP if True in zones else UTC_TIMESTAMP
    if types <= SCALARS:
        return STRING
    if types <= SCALARS | {list}:
        elements = set(map(type, chain.from_iterable(value for value in values if type(value) is list)))
        return LIST if elements <= {str, type(None)} else OTHER
    return OTHER


def _plain(value: Any) -> Any:
    """A value of a subclass, of numpy or of decimal as one of Python's own types; others as they are."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in SCALARS:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float | Decimal):
        return float(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, datetime):  # and not pandas' time that is none
        return None if value != value else datetime.combine(value.date(), value.time(), value.tzinfo)
    if isinstance(value, tuple | np.ndarray):
        return [_plain(one) for one in value]
    return value


def _without_surrogates(
    values: Sequence[Any], places: Sequence[int] | None, source: Source | None, error: UnicodeEncodeError
) -> list[Any]:
    """Strings and lists of them without lone surrogates, which UTF-8 cannot encode: an error, or replaced."""
    if source is None:
        raise InputError("`fields` must not have lone surrogates.") from error
    replaced = [
        _replace_surrogates(one)
        if isinstance(one, str)
        else one and [part and _replace_surrogates(part) for part in one]
        for one in values
    ]
    if source.errors == "strict":
        first = next(at for at, (old, new) in enumerate(zip(values, replaced, strict=True)) if old != new)
        place = first if places is None else places[first]
        raise source.error(place, 'a lone surrogate in a field. Fix the text, or pass errors="replace".') from error
    return replaced


def _replace_surrogates(string: str) -> str:
    return string.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise InputError(f"a field must have a name, got {name!r:.80}.")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"the name of a field must be text, got {name!r:.80}.") from error


def _log_left_out(source: Source, names: Sequence[str]) -> None:
    if names:
        logger.info("%s: left out the fields %s: %s", source.name, ", ".join(map(repr, names)), LEFT_OUT)


def field_kind(type_: pa.DataType) -> str:
    """The kind of field that holds values of an Arrow type, or `OTHER`."""
    types = pa.types
    if types.is_dictionary(type_):
        return field_kind(type_.value_type)
    if _is_string(type_) or types.is_null(type_):
        return STRING
    if types.is_integer(type_) or types.is_boolean(type_):
        return INT if types.is_integer(type_) else BOOL
    if types.is_floating(type_) or types.is_decimal(type_):
        return FLOAT
    if types.is_date(type_):
        return DATE
    if types.is_timestamp(type_):
        return TIMESTAMP if type_.tz is None else UTC_TIMESTAMP
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return LIST if _is_string(type_.value_type) or types.is_null(type_.value_type) else OTHER
    return OTHER


def decoded_bytes(batch: pa.RecordBatch) -> int:
    """The size of a batch without dictionaries, which have once what may stand in many rows."""
    import pyarrow.compute as pc

    total = int(batch.nbytes)
    for column in batch.columns:
        if pa.types.is_dictionary(column.type) and _is_string(column.type.value_type):
            total += pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0
    return total


def _is_string(type_: pa.DataType) -> bool:
    is_view = getattr(pa.types, "is_string_view", lambda _: False)  # of newer versions
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or is_view(type_))


def _cast(array: pa.Array, kind: str) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    nanoseconds = pa.types.is_timestamp(array.type) and array.type.unit == "ns"
    return array.cast(ARROW_TYPES[kind], safe=not (nanoseconds or kind == FLOAT))
