"""Vectors that were computed elsewhere: read from files, looked up by text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossknn.encoders.base import check_vectors
from crossknn.errors import EncoderError, InputError
from crossknn.types import Vectors

BLOCK = 65_536  # rows checked or widened at a time
SAFETENSORS_DTYPES = {"F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8"}
MAX_HEADER = 100_000_000  # bytes; the format's own limit


def load_vectors(path: str | Path, *, name: str | None = None, check_finite: bool = False) -> NDArray[Any]:
    """(n, dim) vectors from a `.npy` or `.safetensors` file, memory-mapped and read-only.

    `name` says which tensor of a safetensors file; it may be left out where there is one only.
    bfloat16, which numpy does not know, is widened to float32 in memory: exact, but not mapped.
    `check_finite=True` reads everything once and refuses NaN and infinity.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file.")
    if path.suffix == ".npy":
        vectors = _map_npy(path)
    elif path.suffix == ".safetensors":
        vectors = _map_safetensors(path, name)
    else:
        raise InputError(f"{path}: vectors are read from .npy or .safetensors files.")
    if vectors.ndim != 2 or not vectors.shape[1]:
        raise InputError(f"{path}: vectors must have shape (n, dim). Got {vectors.shape} instead.")
    if vectors.dtype not in (np.float16, np.float32, np.float64):
        raise InputError(f"{path}: vectors must be float16, bfloat16, float32 or float64. Got {vectors.dtype} instead.")
    if check_finite:
        _check_finite(path, vectors)
    return vectors


def _map_npy(path: Path) -> NDArray[Any]:
    try:
        vectors: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"{path}: not a whole .npy file of numbers ({error}).") from error
    return vectors


def _map_safetensors(path: Path, name: str | None) -> NDArray[Any]:
    header, start = _read_header(path)
    names = sorted(header)
    if name is None and len(names) != 1:
        raise InputError(f"{path}: say which tensor with name=…; there are {', '.join(names) or 'none'}.")
    entry = header.get(names[0] if name is None else name)
    if entry is None:
        raise InputError(f"{path}: there is no tensor {name!r}; there are {', '.join(names) or 'none'}.")
    if entry["dtype"] not in SAFETENSORS_DTYPES:
        raise InputError(f"{path}: vectors must be F16, BF16, F32 or F64. Got {entry['dtype']} instead.")
    dtype = np.dtype(SAFETENSORS_DTYPES[entry["dtype"]])
    shape, (first, last) = tuple(entry["shape"]), entry["data_offsets"]
    if first < 0 or last - first != dtype.itemsize * math.prod(shape) or start + last > path.stat().st_size:
        raise InputError(f"{path}: the file is damaged or cut short.")
    if not last - first:
        return np.empty(shape, np.float32)
    mapped = np.memmap(path, dtype=dtype, mode="r", offset=start + first, shape=shape)
    return _widen_bfloat16(mapped) if entry["dtype"] == "BF16" else mapped


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The tensors' entries, and where in the file their bytes begin."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(length)) if 0 < length <= MAX_HEADER else None
        except ValueError:
            header = None
    if not isinstance(header, dict):
        raise InputError(f"{path}: not a safetensors file.")
    header.pop("__metadata__", None)
    for entry in header.values():
        if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
            raise InputError(f"{path}: not a safetensors file.")
    return header, 8 + length


def _widen_bfloat16(halves: NDArray[np.uint16]) -> Vectors:
    """bfloat16 is the upper half of float32."""
    wide = np.empty(halves.shape, np.uint32)
    for start in range(0, len(halves), BLOCK):
        wide[start : start + BLOCK] = halves[start : start + BLOCK]
    wide <<= 16
    return wide.view(np.float32)


def _check_finite(path: Path, vectors: NDArray[Any]) -> None:
    for start in range(0, len(vectors), BLOCK):
        finite = np.isfinite(vectors[start : start + BLOCK]).all(axis=1)
        if not finite.all():
            raise InputError(f"{path}: row {start + int(np.argmin(finite))} holds NaN or infinity.")


VectorTable = Mapping[str, Any] | tuple[Sequence[str], Any]


class PrecomputedEncoder:
    """Looks vectors up by text; a text without a vector is an `EncoderError`.

    `queries` and `items` are each a mapping from text to vector, or a pair (texts, vectors). Without
    `items`, the one table serves both. `fingerprint` defaults to a hash of texts and vectors.
    """

    def __init__(
        self, *, queries: VectorTable, items: VectorTable | None = None, fingerprint: str | None = None
    ) -> None:
        if fingerprint is not None and not (isinstance(fingerprint, str) and fingerprint):
            raise InputError(f"fingerprint must be a non-empty string. Got {fingerprint!r} instead.")
        self._given_fingerprint = fingerprint
        self._queries = _Table("queries", queries)
        self._items = self._queries if items is None else _Table("items", items)
        dims = self._queries.dim, self._items.dim
        if dims[0] != dims[1]:
            raise InputError(f"queries and items must have the same dimension. Got {dims[0]} and {dims[1]} instead.")

    @cached_property
    def fingerprint(self) -> str:
        if self._given_fingerprint is not None:
            return f"precomputed:{self._given_fingerprint}"
        return f"precomputed:{self._queries.digest()}-{self._items.digest()}"

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        return self._queries.look_up(texts)

    def encode_items(self, texts: Sequence[str]) -> Vectors:
        return self._items.look_up(texts)


class _Table:
    """Vectors by text."""

    def __init__(self, side: str, table: VectorTable) -> None:
        texts, vectors = _read_table(side, table)
        self._side = side
        self._vectors = vectors  # (texts, dim), as given: memory-mapped arrays stay so
        self._rows: dict[str, int] = {}
        for row, text in enumerate(texts):
            if self._rows.setdefault(text, row) != row and not np.array_equal(vectors[self._rows[text]], vectors[row]):
                raise InputError(f"{side}: the text {text!r} has two different vectors.")
        self.dim: int = vectors.shape[1]

    def look_up(self, texts: Sequence[str]) -> Vectors:
        try:
            rows = [self._rows[text] for text in texts]
        except KeyError as error:
            raise EncoderError(f"no vector was given for the text {error.args[0]!r} among the {self._side}.") from None
        return check_vectors(self._vectors[np.array(rows, np.int64)], texts, dim=self.dim)

    def digest(self) -> str:
        """The same for tables that give every text the same vector, in whatever order they list them."""
        total = sha256()
        for text in sorted(self._rows):
            vector = np.asarray(self._vectors[self._rows[text]], "<f4").tobytes()
            total.update(sha256(text.encode("utf-8", "surrogatepass")).digest() + sha256(vector).digest())
        return total.hexdigest()[:32]


def _read_table(side: str, table: VectorTable) -> tuple[list[str], NDArray[Any]]:
    if isinstance(table, Mapping):
        texts = list(table)
        try:
            vectors = np.array([table[text] for text in texts], np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(f"{side}: the vectors must be numbers, all of one dimension ({error}).") from error
    elif isinstance(table, tuple) and len(table) == 2:
        texts, vectors = list(table[0]), np.asanyarray(table[1])
    else:
        raise InputError(f"{side} must map texts to vectors, or be a pair (texts, vectors).")
    if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.shape[1]:
        raise InputError(f"{side}: wanted vectors of shape ({len(texts)}, dim). Got {vectors.shape} instead.")
    return texts, vectors
