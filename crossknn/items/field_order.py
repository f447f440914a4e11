"""Indexes of fields: the places of a field's values in ascending order, in which a filter bisects."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.items.fields import LIST, FieldColumn, bits_of, numbers_of, valid_of
from crossknn.items.string_column import to_indices
from crossknn.storage.safetensors import check_array, read_arrays, write_arrays
from crossknn.types import Rows

NARROW: Final = 2**31  # values, up to which a place takes 4 bytes


class FieldOrder:
    """Finds the rows whose value is in a range by bisection, instead of comparing all values.

    Args:
        column: The field.
        places: (values,) of all values that are not null, ascending; in a list of strings, of its elements.
    """

    def __init__(self, column: FieldColumn, places: NDArray[Any]) -> None:
        self.column, self.places = column, places
        self._values = _values_of(column)
        self._numbers = None if pa.types.is_large_string(self._values.type) else _numbers_of(self._values)

    @classmethod
    def of(cls, column: FieldColumn) -> FieldOrder:
        """The order of a column, which takes about a second for a million strings."""
        import pyarrow.compute as pc

        values = _values_of(column)
        order = pc.array_sort_indices(values, null_placement="at_end")
        places = np.frombuffer(order.buffers()[1], np.uint64, len(order))[: _count(values)]
        return cls(column, places.astype(np.int32 if len(values) < NARROW else np.int64))

    def rows_of(self, values: pa.Array) -> Rows:
        """The rows that have one of these values, which are of the kind of the field, or of an element."""
        bounds = [self._bounds(value) for value in self._keys(values)]
        return self._rows(np.concatenate([self.places[start:stop] for start, stop in bounds] or [self.places[:0]]))

    def rows_in(self, operator: str, bound: pa.Array) -> Rows:
        """The rows with a value "lt", "le", "gt" or "ge" the only one of `bound`."""
        start, stop = self._bounds(self._keys(bound)[0])
        ranges = {"lt": (0, start), "le": (0, stop), "gt": (stop, None), "ge": (start, None)}
        return self._rows(self.places[slice(*ranges[operator])])

    def check(self, name: str, *, values: bool = False) -> None:
        """Raise `InputError` unless there is a place of every value that is not null, and every place exists.

        Args:
            name: Of the field, for messages.
            values: Also compare them: each is there once, in ascending order.
        """
        check_array(f"of the index of {name!r}", self.places, (_count(self._values),), np.signedinteger)
        if len(self.places) and not 0 <= self.places.min() <= self.places.max() < len(self._values):
            raise InputError(f"the index of {name!r} has a place that no value has.")
        if values and not self._is_sorted():
            raise InputError(f"the index of {name!r} is out of order.")

    def _is_sorted(self) -> bool:
        import pyarrow.compute as pc

        ordered = self._values.take(to_indices(self.places))
        pairs = pc.less_equal(ordered.slice(0, max(len(ordered) - 1, 0)), ordered.slice(1))
        ascend = len(pairs) == 0 or bits_of(pairs.buffers()[1], pairs.offset, len(pairs)).all()
        return bool(ascend and not ordered.null_count and len(np.unique(self.places)) == len(self.places))

    def _bounds(self, key: Any) -> tuple[int, int]:
        """Where the values that are equal begin and end in the order."""
        start = bisect_left(self.places, key, key=self._value_at)
        return start, bisect_right(self.places, key, start, key=self._value_at)

    def _value_at(self, place: Any) -> Any:
        return self._values[int(place)].as_py() if self._numbers is None else self._numbers[place]

    def _keys(self, values: pa.Array) -> list[Any]:
        return list(values.to_pylist() if self._numbers is None else _numbers_of(values))

    def _rows(self, places: NDArray[Any]) -> Rows:
        if self.column.kind != LIST:
            return places.astype(np.int64)
        lists = self.column.array
        offsets = np.frombuffer(lists.buffers()[1], np.int64)[lists.offset :][: len(lists) + 1]
        return np.searchsorted(offsets, places, side="right") - 1


def write_orders(path: Path, orders: Mapping[str, FieldOrder]) -> None:
    """Write the orders of fields, by their number: a name of a field may be any string."""
    write_arrays(path, {str(number): order.places for number, order in enumerate(orders.values())})


def map_orders(path: Path, fields: Mapping[str, FieldColumn], names: Sequence[str]) -> dict[str, FieldOrder]:
    """The orders of the fields of these names, memory-mapped; every place in them exists."""
    arrays = read_arrays(path)
    orders = {}
    for number, name in enumerate(names):
        if name not in fields or str(number) not in arrays:
            raise InputError(f"there is no field {name!r}, or no index of it.")
        orders[name] = FieldOrder(fields[name], arrays[str(number)])
        orders[name].check(name)
    return orders


def _values_of(column: FieldColumn) -> pa.Array:
    return column.array.values if column.kind == LIST else column.array


def _numbers_of(array: pa.Array) -> NDArray[Any]:
    if pa.types.is_boolean(array.type):
        return bits_of(array.buffers()[1], array.offset, len(array))
    return numbers_of(array)


def _count(array: pa.Array) -> int:
    """The number of values that are not null."""
    valid = valid_of(array)
    return len(array) if valid is None else int(valid.sum())
