"""Columns of strings in Arrow memory, and the lookup of rows by id."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.types import Rows

BLOCK_STRINGS: Final = 8192  # Python objects at a time


class StringColumn(Sequence[str]):
    """Strings in one contiguous Arrow array; a Python string is made only when one is read."""

    def __init__(self, array: pa.LargeStringArray) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return self.take(np.arange(*at.indices(len(self))))
        return _to_strings(self.array.slice(range(len(self))[at], 1))[0]

    def __iter__(self) -> Iterator[str]:
        for block in self.blocks(BLOCK_STRINGS):
            yield from block

    def __repr__(self) -> str:
        return f"StringColumn({len(self)})"

    def blocks(self, size: int) -> Iterator[list[str]]:
        """All strings in order, at most `size` at a time."""
        for start in range(0, len(self), size):
            yield _to_strings(self.array.slice(start, size))

    def take(self, rows: Rows) -> list[str]:
        """The strings of these rows, which must exist."""
        return _to_strings(self.array.take(to_indices(rows)))

    def check(self, *, text: bool = False) -> None:
        """Raise `InputError` unless the offsets ascend within the data, and there are no nulls.

        Args:
            text: Also read the data, which must be UTF-8.
        """
        try:
            self.array.validate(full=text)  # that there are as many offsets as strings, too
        except pa.ArrowException as error:
            raise InputError(f"{error}") from error
        _, offsets, data = self.array.buffers()
        if len(self):  # if not, it need not have offsets
            check_offsets(offsets, len(self), 0 if data is None else data.size)
        if self.array.buffers()[0] is not None:
            raise InputError("a column with nulls")

    def update(self, digest: Any) -> None:
        """Feed lengths and bytes to a hash: equal for equal strings, whatever the layout of the array."""
        offsets, data = self._buffers()
        for start in range(0, len(self), BLOCK_STRINGS):
            digest.update(np.diff(offsets[start : start + BLOCK_STRINGS + 1]).astype("<i8"))
        if data is not None:
            digest.update(data[int(offsets[0]) : int(offsets[-1])])

    def _buffers(self) -> tuple[NDArray[np.int64], Any]:
        """(strings + 1,) offsets, and the bytes they point into."""
        _, offsets, data = self.array.buffers()
        return np.frombuffer(offsets, np.int64)[self.array.offset :][: len(self) + 1], data


def _to_strings(array: pa.LargeStringArray) -> list[str]:
    try:
        return array.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError as error:
        raise InputError("a stored string is not UTF-8: the file that it was read from is damaged.") from error


def to_indices(rows: Rows) -> pa.Array:
    """Rows as Arrow takes them. `pa.array` would import pandas."""
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows, np.int64))])


def check_offsets(buffer: pa.Buffer | None, count: int, size: int) -> None:
    """Raise `InputError` unless the buffer has ascending offsets of `count` values within `size` bytes or values."""
    if buffer is None or buffer.size < 8 * (count + 1):
        raise InputError("too few offsets")
    offsets = np.frombuffer(buffer, np.int64, count + 1)
    if offsets[0] < 0 or offsets[-1] > size or (offsets[1:] < offsets[:-1]).any():
        raise InputError("wrong offsets")


def encode_strings(strings: Sequence[str]) -> tuple[NDArray[np.int64], bytes]:
    """The length of each string in bytes, and the bytes of all."""
    joined = "".join(strings)
    if joined.isascii():
        return np.fromiter(map(len, strings), np.int64, len(strings)), joined.encode()
    encoded = [string.encode() for string in strings]
    return np.fromiter(map(len, encoded), np.int64, len(encoded)), b"".join(encoded)


class StringColumnBuilder:
    """Appends blocks of strings to one buffer each of bytes and offsets, so that nothing is copied at the end."""

    def __init__(self) -> None:
        self._bytes, self._offsets = pa.BufferOutputStream(), pa.BufferOutputStream()
        self._offsets.write(np.zeros(1, np.int64))
        self._strings = self._end = 0

    def append(self, block: Sequence[str]) -> None:
        lengths, data = encode_strings(block)
        ends = self._end + np.cumsum(lengths)
        self._offsets.write(ends)
        self._bytes.write(data)
        self._strings += len(lengths)
        self._end += len(data)

    def finish(self) -> StringColumn:
        offsets, data = self._offsets.getvalue(), self._bytes.getvalue()
        return StringColumn(pa.LargeStringArray.from_buffers(self._strings, offsets, data))


def hash_ids(ids: Collection[str]) -> NDArray[np.int64]:
    """One hash per id. Python salts them per process, so they are never stored."""
    return np.fromiter(map(hash, ids), np.int64, len(ids))


class IdLookup:
    """Finds rows by id, in 16 bytes per item: sorted hashes and their rows.

    Ids with the same hash are distinguished by comparing the strings.
    """

    def __init__(self, ids: StringColumn, hashes: NDArray[np.int64]) -> None:
        self._ids = ids
        self._rows: Rows = np.argsort(hashes, kind="stable")  # stable: equal hashes stay in row order
        self._hashes = hashes[self._rows]

    def find(self, ids: Sequence[str]) -> Rows:
        """The row of each id, -1 for unknown ids."""
        hashes = hash_ids(ids)
        found = np.full(len(ids), -1, np.int64)
        spots = np.searchsorted(self._hashes, hashes)  # of the first equal hash
        open_ = np.arange(len(ids))
        while len(open_):
            open_ = open_[spots[open_] < len(self._hashes)]
            open_ = open_[self._hashes[spots[open_]] == hashes[open_]]
            rows = self._rows[spots[open_]]
            pairs = zip(self._ids.take(rows), open_.tolist(), strict=True)
            same = np.fromiter((id_ == ids[at] for id_, at in pairs), np.bool_, len(open_))
            found[open_[same]] = rows[same]
            open_ = open_[~same]
            spots[open_] += 1
        return found

    def first_duplicate(self) -> tuple[int, int] | None:
        """The first row whose id an earlier row has, as (earlier row, row)."""
        repeats = np.flatnonzero(self._hashes[1:] == self._hashes[:-1]) + 1
        for spot in repeats[np.argsort(self._rows[repeats])].tolist():
            start = int(np.searchsorted(self._hashes, self._hashes[spot]))
            *earlier, last = self._ids.take(self._rows[start : spot + 1])
            if last in earlier:
                return int(self._rows[start + earlier.index(last)]), int(self._rows[spot])
        return None
