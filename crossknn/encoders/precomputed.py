"""Precomputed vectors: read from files, and looked up by text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import invalid
from crossknn.encoders.base import check_vectors
from crossknn.errors import EncoderError, InputError
from crossknn.storage.safetensors import map_tensor, read_header
from crossknn.types import Vectors

CHECK_ROWS: Final = 65_536  # rows checked for NaN at once


def load_vectors(path: str | Path, *, name: str | None = None, check_finite: bool = False) -> NDArray[Any]:
    """(n, dim) vectors from a `.npy` or `.safetensors` file, memory-mapped and read-only.

    bfloat16, which numpy does not have, is converted to float32 in memory.

    Args:
        path: The file.
        name: The tensor of a safetensors file; not needed if there is only one.
        check_finite: Read everything once, and raise an error for NaN and infinity.
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
        raise InputError(f"{path}: vectors must have shape (n, dim), got {vectors.shape}.")
    if vectors.dtype not in (np.float16, np.float32, np.float64):
        raise InputError(f"{path}: vectors must be float16, bfloat16, float32 or float64, got {vectors.dtype}.")
    if check_finite:
        _check_finite(path, vectors)
    return vectors


def _map_npy(path: Path) -> NDArray[Any]:
    try:
        vectors: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"{path}: not a complete .npy file of numbers ({error}).") from error
    return vectors


def _map_safetensors(path: Path, name: str | None) -> NDArray[Any]:
    header = read_header(path)
    names = sorted(header)
    if name is None and len(names) != 1:
        raise InputError(f"{path}: choose a tensor with `name`; the file has {', '.join(names) or 'none'}.")
    name = names[0] if name is None else name
    if name not in header:
        raise InputError(f"{path}: there is no tensor {name!r}; the file has {', '.join(names) or 'none'}.")
    return map_tensor(path, name, header[name])


def _check_finite(path: Path, vectors: NDArray[Any]) -> None:
    for start in range(0, len(vectors), CHECK_ROWS):
        finite = np.isfinite(vectors[start : start + CHECK_ROWS]).all(axis=1)
        if not finite.all():
            raise InputError(f"{path}: row {start + int(np.argmin(finite))} holds NaN or infinity.")


VectorTable = Mapping[str, Any] | tuple[Sequence[str], Any]


class PrecomputedEncoder:
    """An encoder that looks vectors up by text; a text without a vector is an `EncoderError`.

    Args:
        queries: A mapping from text to vector, or a pair (texts, vectors).
        items: Likewise. Default: that of the queries.
        fingerprint: Default: a hash of texts and vectors.
    """

    def __init__(
        self, *, queries: VectorTable, items: VectorTable | None = None, fingerprint: str | None = None
    ) -> None:
        if fingerprint is not None and not (isinstance(fingerprint, str) and fingerprint):
            raise invalid("fingerprint", "a nonempty string", fingerprint)
        self._given_fingerprint = fingerprint
        self._queries = _Table("queries", queries)
        self._items = self._queries if items is None else _Table("items", items)
        dims = self._queries.dim, self._items.dim
        if dims[0] != dims[1]:
            raise InputError(f"`queries` and `items` must have the same dimension, got {dims[0]} and {dims[1]}.")

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
    def __init__(self, side: str, table: VectorTable) -> None:
        texts, vectors = _read_table(side, table)
        self._side = side
        self._vectors = vectors  # (texts, dim), possibly memory-mapped
        self._rows: dict[str, int] = {}
        for row, text in enumerate(texts):
            if self._rows.setdefault(text, row) != row and not np.array_equal(vectors[self._rows[text]], vectors[row]):
                raise InputError(f"`{side}`: the text {text!r} has two different vectors.")
        self.dim: int = vectors.shape[1]

    def look_up(self, texts: Sequence[str]) -> Vectors:
        try:
            rows = [self._rows[text] for text in texts]
        except KeyError as error:
            raise EncoderError(f"There is no vector for the text {error.args[0]!r} among the {self._side}.") from None
        return check_vectors(self._vectors[np.array(rows, np.int64)], texts, dim=self.dim)

    def digest(self) -> str:
        """A hash of the texts and their vectors that does not depend on their order."""
        digest = sha256()
        for text in sorted(self._rows):
            vector = np.asarray(self._vectors[self._rows[text]], "<f4").tobytes()
            digest.update(sha256(text.encode("utf-8", "surrogatepass")).digest() + sha256(vector).digest())
        return digest.hexdigest()[:32]


def _read_table(side: str, table: VectorTable) -> tuple[list[str], NDArray[Any]]:
    if isinstance(table, Mapping):
        texts = list(table)
        try:
            vectors = np.array([table[text] for text in texts], np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(f"`{side}`: the vectors must be numbers, all of one dimension ({error}).") from error
    elif isinstance(table, tuple) and len(table) == 2:
        texts, vectors = list(table[0]), np.asanyarray(table[1])
    else:
        raise InputError(f"`{side}` must map texts to vectors, or be a pair (texts, vectors).")
    if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.shape[1]:
        raise InputError(f"`{side}`: the vectors must have shape ({len(texts)}, dim), got {vectors.shape}.")
    return texts, vectors
