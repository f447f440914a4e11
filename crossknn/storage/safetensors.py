"""Arrays in a safetensors file: written in blocks, read memory-mapped, no pickle and no other library.

The format is that of https://github.com/huggingface/safetensors: eight bytes with the header's length, the header
(JSON with each array's dtype, shape and place), then the arrays' bytes one after the other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError

DTYPES = {"F16": np.float16, "F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64, "U8": np.uint8}
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
BLOCK_BYTES = 1 << 24  # of an array, read and written at once: it may be larger than memory
LONGEST_HEADER = 1 << 24
ALIGNED = 64  # where the first array begins


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the arrays, each under its name. Neither atomic nor synced: that is the caller's part."""
    header: dict[str, Any] = {}
    end = 0
    for name, array in arrays.items():
        if array.dtype not in NAMES:
            raise InputError(f"{name} must have one of the dtypes {', '.join(map(str, NAMES))}. Got {array.dtype}.")
        start, end = end, end + array.nbytes
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNED)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for array in arrays.values():
            _write_blocks(file, array)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of the file, memory-mapped and read-only."""
    size = path.stat().st_size
    header, begins = _read_header(path, size)
    return {name: _map_array(path, name, entry, begins, size) for name, entry in header.items()}


def _write_blocks(file: IO[bytes], array: NDArray[Any]) -> None:
    if not array.ndim:
        file.write(array.tobytes())
        return
    rows = max(1, BLOCK_BYTES // max(1, array.nbytes // max(1, len(array))))
    for start in range(0, len(array), rows):
        file.write(np.ascontiguousarray(array[start : start + rows]).tobytes())


def _read_header(path: Path, size: int) -> tuple[dict[str, Any], int]:
    """What the arrays are, and where their bytes begin."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LONGEST_HEADER):
            raise _damaged(path, "its header does not end within the file")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise _damaged(path, f"its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header names no arrays")
    header.pop("__metadata__", None)
    return header, 8 + length


def _map_array(path: Path, name: str, entry: Any, begins: int, size: int) -> NDArray[Any]:
    try:
        dtype, shape = np.dtype(DTYPES[entry["dtype"]]), tuple(int(n) for n in entry["shape"])
        start, end = (int(n) for n in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"{name!r} is not described as an array ({error!r})") from error
    if min((*shape, start), default=0) < 0 or end - start != math.prod(shape) * dtype.itemsize:
        raise _damaged(path, f"{name!r} is not as large as its shape {shape} says")
    if begins + end > size:
        raise _damaged(path, f"it is cut short: {name!r} should end at byte {begins + end}, the file at {size}")
    if start == end:
        return np.empty(shape, dtype)  # nothing to map
    return np.memmap(path, dtype, mode="r", offset=begins + start, shape=shape)


def _damaged(path: Path, what: str) -> InputError:
    return InputError(f"{path}: not a whole safetensors file: {what}. Restore it from a copy or build it again.")
