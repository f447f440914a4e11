"""Fields of items: typed columns in Arrow memory, and their conversion from and to Python values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import chain
from typing import Any, Final, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.items.string_column import check_offsets, encode_strings, to_indices
from crossknn.types import Rows

STRING, INT, FLOAT, BOOL = "string", "int64", "float64", "bool"
DATE, TIMESTAMP, UTC_TIMESTAMP, LIST = "date", "timestamp", "timestamp[UTC]", "list of strings"
ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    STRING: pa.large_string(),
    INT: pa.int64(),
    FLOAT: pa.float64(),
    BOOL: pa.bool_(),
    DATE: pa.date32(),
    TIMESTAMP: pa.timestamp("us"),
    UTC_TIMESTAMP: pa.timestamp("us", "UTC"),
    LIST: pa.large_list(pa.large_string()),
}
"""The kinds of fields, and how they are stored."""
EPOCH: Final = datetime(1970, 1, 1)
MICROSECOND: Final = timedelta(microseconds=1)
INT64: Final = np.iinfo(np.int64)


class FieldColumn(Sequence[Any]):
    """One field of all items; a Python value is made only when one is read, None where an item has none."""

    def __init__(self, array: pa.Array) -> None:
        self.array = array
        self.kind = kind_of(array.type)

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> list[Any]: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return self.take(np.arange(*at.indices(len(self))))
        return _to_values(self.kind, self.array.slice(range(len(self))[at], 1))[0]

    def __repr__(self) -> str:
        return f"FieldColumn({self.kind}, {len(self)})"

    def take(self, rows: Rows) -> list[Any]:
        """The values of these rows, which must exist."""
        return _to_values(self.kind, self.array.take(to_indices(rows)))

    def check_values(self) -> None:
        """Raise `InputError` if strings are no text, or dates are none of the calendar, as in a damaged file."""
        try:
            self.array.validate(full=True)
        except pa.ArrowException as error:
            raise InputError(f"{error}") from error
        if self.kind in (DATE, TIMESTAMP, UTC_TIMESTAMP):
            values, valid = numbers_of(self.array), valid_of(self.array)
            known = values if valid is None else values[valid]
            if len(known):
                _to_values(self.kind, make_raw(self.kind, np.array([known.min(), known.max()], values.dtype)))


def kind_of(type_: pa.DataType) -> str:
    """The kind of field that is stored as this type, or `InputError`."""
    for kind, known in ARROW_TYPES.items():
        if type_ == known:
            return kind
    raise InputError(f"a column of another type than those of fields ({type_})")


def _to_values(kind: str, array: pa.Array) -> list[Any]:
    try:
        if kind == DATE:
            days = array.cast(pa.int32()).to_pylist()
            return [None if day is None else EPOCH.date() + timedelta(day) for day in days]
        if kind in (TIMESTAMP, UTC_TIMESTAMP):
            epoch = EPOCH if kind == TIMESTAMP else EPOCH.replace(tzinfo=UTC)
            times = array.cast(pa.int64()).to_pylist()
            return [None if time is None else epoch + timedelta(microseconds=time) for time in times]
        return array.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError as error:
        raise InputError("a stored string is not UTF-8: the file that it was read from is damaged.") from error
    except OverflowError as error:
        raise InputError("a stored date is none of the calendar: the file that it was read from is damaged.") from error


def make_array(kind: str, values: Sequence[Any]) -> pa.Array:
    """Python values of one kind, or None, as an Arrow array. `pa.array` would import pandas."""
    present = None
    if nulls := [place for place, value in enumerate(values) if value is None]:
        present = np.ones(len(values), np.bool_)
        present[nulls] = False
        empty: Any = {STRING: "", LIST: (), DATE: EPOCH.date(), TIMESTAMP: EPOCH, UTC_TIMESTAMP: EPOCH}.get(kind, 0)
        values = list(values)
        for place in nulls:
            values[place] = empty
    if kind == STRING:
        return _string_array(values, present)
    if kind == LIST:
        offsets = np.cumsum([0, *map(len, values)], dtype=np.int64)
        strings = make_array(STRING, list(chain.from_iterable(values)))
        buffers = [_to_bitmap(present), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(ARROW_TYPES[LIST], len(values), buffers, children=[strings])
    if kind == DATE:
        values = [value.toordinal() - EPOCH.toordinal() for value in values]
    elif kind in (TIMESTAMP, UTC_TIMESTAMP):
        values = [(as_utc(value) - EPOCH) // MICROSECOND for value in values]
    dtype = {DATE: np.int32, FLOAT: np.float64, BOOL: np.bool_}.get(kind, np.int64)
    return make_raw(kind, np.array(values, dtype), present)


def make_raw(kind: str, numbers: NDArray[Any], present: NDArray[np.bool_] | None = None) -> pa.Array:
    """Numbers as they are stored as an array of this kind; those that are not `present` are null."""
    data = np.packbits(numbers, bitorder="little") if kind == BOOL else numbers
    buffers = [_to_bitmap(present), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(ARROW_TYPES[kind], len(numbers), buffers)


def _string_array(strings: Sequence[str], present: NDArray[np.bool_] | None) -> pa.Array:
    lengths, data = encode_strings(strings)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return pa.LargeStringArray.from_buffers(
        len(lengths), pa.py_buffer(offsets), pa.py_buffer(data), _to_bitmap(present)
    )


def _to_bitmap(present: NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if present is None or present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))


def as_utc(value: datetime) -> datetime:
    """The time in UTC, without saying so."""
    return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)


def numbers_of(array: pa.Array) -> NDArray[Any]:
    """The stored numbers of an array of fixed width; of null any."""
    dtype = {32: np.int32, 64: np.float64 if array.type == pa.float64() else np.int64}[array.type.bit_width]
    return np.frombuffer(array.buffers()[1], dtype)[array.offset :][: len(array)]


def bits_of(buffer: pa.Buffer, offset: int, count: int) -> NDArray[np.bool_]:
    """Bits of a bitmap, or of the values of a boolean array."""
    packed = np.frombuffer(buffer, np.uint8)[offset // 8 : (offset + count + 7) // 8]
    return np.unpackbits(packed, bitorder="little")[offset % 8 :][:count].view(np.bool_)


def valid_of(array: pa.Array) -> NDArray[np.bool_] | None:
    """Which values are not null; None for all."""
    bitmap = array.buffers()[0]
    return None if bitmap is None else bits_of(bitmap, array.offset, len(array))


def finite(array: pa.Array) -> pa.Array:
    """An array of float64 with null for NaN and infinity."""
    values, valid = numbers_of(array), valid_of(array)
    is_finite = np.isfinite(values)
    if is_finite.all() if valid is None else is_finite[valid].all():
        return array
    return make_raw(FLOAT, values, is_finite if valid is None else is_finite & valid)


def open_column(array: pa.Array) -> FieldColumn:
    """The column of a file that may be crafted: every offset and length lies within its buffers, nulls are counted."""
    kind = kind_of(array.type)
    try:
        array.validate()
    except pa.ArrowException as error:
        raise InputError(f"{error}") from error
    return FieldColumn(_rebuild(ARROW_TYPES[kind], array))


def _rebuild(type_: pa.DataType, array: pa.Array) -> pa.Array:
    """The same values after checks of all buffers, without the count of nulls that the file claims."""
    count, (validity, data, *rest) = len(array), array.buffers()
    if not count:  # it need not have buffers
        return pa.nulls(0, type_)
    if array.offset or (validity is not None and 8 * validity.size < count):
        raise InputError("too few validity bits")
    children: list[pa.Array] = []
    buffers = [validity, data]
    if pa.types.is_large_string(type_):
        check_offsets(data, count, 0 if rest[0] is None else rest[0].size)
        buffers.append(rest[0])
    elif pa.types.is_large_list(type_):
        check_offsets(data, count, len(array.values))
        children.append(_rebuild(type_.value_type, array.values))
    elif data is None or 8 * data.size < count * type_.bit_width:
        raise InputError("too few values")
    return pa.Array.from_buffers(type_, count, buffers, children=children)


def as_string(value: Any) -> str:
    """A number, a boolean or a date as it stands in JSON; whole numbers without a point."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return value.isoformat() if isinstance(value, date) else repr(value)


def convert(column: FieldColumn, kind: str) -> pa.Array:
    """The values as another kind: numbers as float64, scalars as strings, and those as lists of one."""
    if column.kind == kind:
        return column.array
    if (column.kind, kind) == (INT, FLOAT):
        return column.array.cast(pa.float64(), safe=False)
    strings = [None if value is None else as_string(value) for value in column[:]]
    return make_array(kind, strings if kind == STRING else [None if one is None else [one] for one in strings])


def concat_fields(
    first: Mapping[str, FieldColumn], n_first: int, second: Mapping[str, FieldColumn], n_second: int
) -> dict[str, FieldColumn]:
    """The fields of items and of more items; null where either has no such field.

    Fields must be of the same kind. Integers and floats become floats; scalars become strings where the first has
    strings, and lists where it has lists.
    """
    joined = {}
    for name in {**first, **second}:
        old, new = first.get(name), second.get(name)
        kind = _joined_kind(name, old, new)
        parts = [
            pa.nulls(count, ARROW_TYPES[kind]) if column is None or _is_null(column) else convert(column, kind)
            for column, count in ((old, n_first), (new, n_second))
        ]
        joined[name] = FieldColumn(pa.concat_arrays(parts))
    return joined


def _joined_kind(name: str, old: FieldColumn | None, new: FieldColumn | None) -> str:
    kinds = [column.kind for column in (old, new) if column is not None and not _is_null(column)]
    if not kinds:
        return next(column.kind for column in (old, new) if column is not None)
    if len(set(kinds)) == 1 or (kinds[0] in (STRING, LIST) and LIST not in kinds[1:]):
        return kinds[0]
    if set(kinds) == {INT, FLOAT}:
        return FLOAT
    raise InputError(
        f"the field {name!r} is {kinds[0]} in the items so far and {kinds[1]} in the new ones. "
        "Give it the same type, or leave it out with `fields`."
    )


def _is_null(column: FieldColumn) -> bool:
    return bool(column.array.null_count == len(column))


def fields_as_json(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a hit as JSON can write them: dates in ISO 8601."""
    return {name: _as_json(value) for name, value in fields.items()}


def _as_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.isoformat() if isinstance(value, date) else value
