"""Safetensors files: arrays written in blocks and read memory-mapped, without pickle or another library.

The format is that of https://github.com/huggingface/safetensors: eight bytes with the header's length, the header
(JSON with each tensor's dtype, shape and offsets), then the tensors' bytes one after the other.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import invalid
from crossknn.errors import InputError
from crossknn.storage.atomic import disk_errors, replace_file
from crossknn.storage.json_values import parse_json, read_as
from crossknn.storage.regular_files import map_bytes, open_regular

DTYPES = {"F16": np.float16, "F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64, "U8": np.uint8}
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
BFLOAT16 = "BF16"  # unknown to numpy: stored as the upper halves of float32
BLOCK_BYTES = 1 << 24  # written at a time: an array may be larger than memory
MAX_HEADER_BYTES = 1 << 24  # far more than any model's
MAX_DIMENSIONS = 8
ALIGNMENT = 64  # of the first tensor
DIGEST = "digest"  # the name of the array that holds it


class _Entry(TypedDict):
    dtype: str
    shape: list[int]
    data_offsets: list[int]


@dataclass(frozen=True, slots=True)
class Tensor:
    """An entry of a header."""

    dtype: str  # as safetensors names it, such as "F16" or "BF16"
    shape: tuple[int, ...]
    offset: int  # in the file
    nbytes: int


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays. Neither atomic nor synced: that is up to the caller."""
    header: dict[str, Any] = {}
    end = 0
    for name, array in arrays.items():
        if array.dtype not in NAMES:
            raise invalid(name, f"of dtype {', '.join(map(str, NAMES))}", str(array.dtype))
        start, end = end, end + array.nbytes
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for array in arrays.values():
            _write_blocks(file, array)


def _write_blocks(file: IO[bytes], array: NDArray[Any]) -> None:
    if not array.ndim:
        file.write(array.tobytes())
        return
    rows = max(1, BLOCK_BYTES // max(1, array.nbytes // max(1, len(array))))
    for start in range(0, len(array), rows):
        file.write(np.ascontiguousarray(array[start : start + rows]).tobytes())


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of the file, as `map_tensor` returns them, in one mapping: each one keeps a file open."""
    tensors, content = read_header(path), map_bytes(path)
    return {name: _open_tensor(path, name, tensor, content) for name, tensor in tensors.items()}


def write_checked(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays with their digest, atomically and synced."""
    with disk_errors(path, "this file cannot be written", "The previous content is unchanged."):
        replace_file(path, lambda temporary: write_arrays(temporary, {**arrays, DIGEST: _digest(arrays)}))


def read_checked(path: Path) -> dict[str, NDArray[Any]] | None:
    """The arrays of a file of `write_checked`, in memory; None if it is damaged, or was written without a digest."""
    try:
        arrays = {name: np.array(array) for name, array in read_arrays(path).items()}
    except (InputError, OSError, ValueError):
        return None
    expected = arrays.pop(DIGEST, None)
    return arrays if expected is not None and np.array_equal(expected, _digest(arrays)) else None


def _digest(arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """(8,) the same for equal arrays of equal names."""
    total = blake2b(digest_size=8)
    for name, array in sorted(arrays.items()):
        total.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        total.update(np.ascontiguousarray(array).data)
    return np.frombuffer(total.digest(), np.uint8)


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of the file by name, of any dtype; an error if the header is damaged or the file cut short."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            limit = f"{MAX_HEADER_BYTES:,} bytes"
            raise _damaged(path, f"its header does not end within the file, or has more than {limit}")
        try:
            header = parse_json(file.read(length))
        except ValueError as error:
            raise _damaged(path, f"its header cannot be read ({error})") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header names no tensors")
    header.pop("__metadata__", None)
    return {name: _read_entry(path, name, entry, 8 + length, size) for name, entry in header.items()}


def map_tensor(path: Path, name: str, tensor: Tensor) -> NDArray[Any]:
    """One tensor of `read_header`, memory-mapped and read-only; bfloat16 is widened to float32, in memory."""
    return _open_tensor(path, name, tensor, map_bytes(path))


def _open_tensor(path: Path, name: str, tensor: Tensor, content: NDArray[np.uint8]) -> NDArray[Any]:
    """The tensor in the bytes of its file."""
    if tensor.dtype != BFLOAT16 and tensor.dtype not in DTYPES:
        raise InputError(f"{path}: {name!r} has the dtype {tensor.dtype}; {', '.join(DTYPES)} and {BFLOAT16} are read.")
    widen = tensor.dtype == BFLOAT16
    dtype = np.dtype(np.uint16 if widen else DTYPES[tensor.dtype])
    if tensor.nbytes != math.prod(tensor.shape) * dtype.itemsize:
        raise _damaged(path, f"{name!r} does not have the size of its shape {tensor.shape}")
    found = content[tensor.offset : tensor.offset + tensor.nbytes]
    try:
        array: NDArray[Any] = found.view(dtype).reshape(tensor.shape)
    except ValueError as error:  # lengths whose product is too large, or a file that was cut meanwhile
        raise _damaged(path, f"{name!r} cannot be mapped ({error})") from error
    if not widen:
        return array
    wide = array.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def check_array(name: str, array: NDArray[Any], shape: tuple[int | None, ...], dtype: type[np.generic]) -> None:
    """Raise `InputError` unless an array of a file has this shape, None for any length, and this dtype."""
    fits = array.ndim == len(shape) and all(n in (None, found) for n, found in zip(shape, array.shape, strict=True))
    if not fits or not np.issubdtype(array.dtype, dtype):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise InputError(
            f"the array {name} must have the shape ({wanted}) and the dtype {dtype.__name__}, got {array.shape} and "
            f"{array.dtype}."
        )


def _read_entry(path: Path, name: str, entry: Any, data_start: int, size: int) -> Tensor:
    try:
        described = read_as(_Entry, entry, repr(name))
        start, end = described["data_offsets"]
    except ValueError as error:
        raise _damaged(path, f"{name!r} is not described as a tensor ({error})") from error
    dtype, shape = described["dtype"], tuple(described["shape"])
    if min((*shape, start, end - start)) < 0:
        raise _damaged(path, f"{name!r} has a negative shape or offset")
    if len(shape) > MAX_DIMENSIONS:
        raise _damaged(path, f"{name!r} has {len(shape)} dimensions, and at most {MAX_DIMENSIONS} are read")
    if data_start + end > size:
        raise _damaged(path, f"it is cut short: {name!r} should end at byte {data_start + end}, the file at {size}")
    return Tensor(dtype, shape, data_start + start, end - start)


def _damaged(path: Path, problem: str) -> InputError:
    return InputError(f"{path}: a damaged safetensors file: {problem}. Restore it from a copy or build it again.")
