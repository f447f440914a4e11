"""Types of columns of text, inferred from all their values."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from crossknn.items.fields import (
    ARROW_TYPES,
    BOOL,
    DATE,
    FLOAT,
    INT,
    STRING,
    TIMESTAMP,
    UTC_TIMESTAMP,
    make_array,
    numbers_of,
    valid_of,
)

WHOLE: Final = re.compile(r"-?\d+")
NUMBER: Final = re.compile(r"-?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
TIME: Final = re.compile(rf"{DAY.pattern}[T ]\d\d:\d\d(:\d\d(\.\d{{1,6}})?)?(?P<zone>Z|[+-]\d\d:?\d\d)?")


def infer_column(strings: pa.LargeStringArray) -> pa.Array:
    """The values of a column of text: whole numbers, numbers, booleans, dates or times if all are, else strings.

    Empty ones are null. Codes stay strings: numbers with leading zeros, a plus sign, or too many digits.
    """
    _, offsets, data = strings.buffers()
    ends = np.frombuffer(offsets, np.int64, len(strings) + 1)
    present = ends[1:] > ends[:-1]
    if not present.any():
        return pa.nulls(len(strings), pa.large_string())
    bitmap = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    array = pa.LargeStringArray.from_buffers(len(strings), offsets, data, bitmap)
    for kind in _likely_kinds(array[int(np.argmax(present))].as_py()):
        try:
            found = _parse_booleans(array) if kind == BOOL else array.cast(ARROW_TYPES[kind])
        except pa.ArrowException:
            continue
        if kind in (INT, FLOAT) and _has_codes(np.frombuffer(data, np.uint8), ends[:-1][present], ends[1:][present]):
            break
        if kind == FLOAT and not _is_exact(array, found):
            break
        return found
    return array


def _likely_kinds(value: str) -> tuple[str, ...]:
    """The kinds that a column with this value may have."""
    if NUMBER.fullmatch(value):
        return (INT, FLOAT) if WHOLE.fullmatch(value) else (FLOAT,)
    if value.lower() in ("true", "false"):
        return (BOOL,)
    if DAY.fullmatch(value):
        return (DATE, TIMESTAMP)
    if time := TIME.fullmatch(value):
        return (UTC_TIMESTAMP if time["zone"] else TIMESTAMP,)
    return ()


def _parse_booleans(array: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    lower, words = pc.utf8_lower(array), make_array(STRING, ["true", "false"])
    is_true = pc.equal(lower, words[0])
    if not pc.all(pc.or_(is_true, pc.equal(lower, words[1]))).as_py():
        raise pa.ArrowInvalid("not all are booleans")
    return is_true


def _has_codes(data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> bool:
    """Whether strings that are numbers begin with a plus sign or a zero before another digit or an x."""
    if (data[starts] == ord("+")).any():
        return True
    starts = starts + (data[starts] == ord("-"))
    longer = np.flatnonzero(ends - starts > 1)
    zero = longer[data[starts[longer]] == ord("0")]
    return bool(np.isin(data[starts[zero] + 1], np.frombuffer(b"0123456789xX", np.uint8)).any())


def _is_exact(array: pa.Array, found: pa.Array) -> bool:
    """Whether numbers are finite, and none is a whole number of more digits than float64 has."""
    import pyarrow.compute as pc

    numbers, valid = numbers_of(found), valid_of(found)
    numbers = numbers if valid is None else numbers[valid]
    if not np.isfinite(numbers).all():
        return False
    if not (np.abs(numbers) >= 2**53).any():
        return True
    return not pc.any(pc.match_substring_regex(array, r"^-?\d{16,}$")).as_py()
