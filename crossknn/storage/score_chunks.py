"""Immutable chunk files of scores, each named by the digest of its bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.storage.atomic import digest, disk_errors, write_atomic
from crossknn.types import Scores

FORMAT = 1
CHUNK_NAME = re.compile(r"([0-9a-f]{16})-([0-9]{6,})-([0-9a-f]{16})\.parquet")  # plan, number, digest
CANNOT_USE = "the score log cannot be used"  # before what the file system says
KEPT = "Finished chunks are kept."
DELETE_CHUNK = "Delete this file: the next build scores its pairs again."

Hashes = NDArray[np.void]  # (texts,) 16 bytes each
HASH_DTYPE = np.dtype("V16")


def hash_texts(texts: Iterable[str]) -> Hashes:
    """(texts,) the keys of texts in the log: 16 bytes of BLAKE2b of their UTF-8."""
    hashes = bytearray()
    for text in texts:
        hashes += blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return np.frombuffer(bytes(hashes), HASH_DTYPE)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The scores of one call of the scorer, with the hashes of its query and item texts."""

    queries: Hashes
    items: Hashes
    scores: Scores

    def __len__(self) -> int:
        return len(self.scores)


def write_chunk(folder: Path, chunk: Chunk, *, plan: str, number: int, scorer: str) -> str:
    """Write one chunk and return the name of its file."""
    table = pa.table(
        {"query": _to_arrow(chunk.queries), "item": _to_arrow(chunk.items), "score": pa.array(chunk.scores)},
        metadata=_metadata(plan, number, scorer),
    )
    file = BytesIO()
    pq.write_table(table, file, compression="zstd")
    data = file.getvalue()
    name = f"{plan}-{number:06}-{digest(data)}.parquet"
    with disk_errors(folder, CANNOT_USE, KEPT):
        write_atomic(folder / name, data)
    return name


def read_chunk(path: Path, *, scorer: str) -> Chunk:
    """The chunk in this file, verified by its digest and its metadata."""
    match = CHUNK_NAME.fullmatch(path.name)
    if match is None:
        raise InputError(f"{path}: not named like a chunk of scores. Move it away.")
    plan, number, expected = match.groups()
    with disk_errors(path, CANNOT_USE):
        data = path.read_bytes()
    if digest(data) != expected:
        raise InputError(
            f"{path}: damaged: its {len(data)} bytes have the digest {digest(data)}, not {expected}. {DELETE_CHUNK}"
        )
    try:
        table = pq.read_table(pa.BufferReader(data), use_threads=False)
        chunk = Chunk(_from_arrow(table["query"]), _from_arrow(table["item"]), table["score"].to_numpy())
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise InputError(f"{path}: not a chunk of scores ({error}). {DELETE_CHUNK}") from error
    for key, value in _metadata(plan, int(number), scorer).items():
        found = (table.schema.metadata or {}).get(key.encode(), b"none").decode("utf-8", "surrogatepass")
        if found != value:
            field = key.removeprefix("crossknn.")
            raise InputError(f"{path}: the {field} of this chunk must be {value!r}, got {found!r}. Move it away.")
    if chunk.scores.dtype != np.float32 or not np.isfinite(chunk.scores).all():
        raise InputError(f"{path}: its scores are not finite float32 numbers. {DELETE_CHUNK}")
    return chunk


def _metadata(plan: str, number: int, scorer: str) -> dict[str, str]:
    """Repeats what the name says, so that a renamed or copied file is noticed."""
    fields = {"format": str(FORMAT), "scorer": scorer, "plan": plan, "number": str(number)}
    return {f"crossknn.{key}": value for key, value in fields.items()}


def _to_arrow(hashes: Hashes) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(hashes))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(HASH_DTYPE.itemsize), len(hashes), [None, data])


def _from_arrow(column: pa.ChunkedArray) -> Hashes:
    if column.type != pa.binary(HASH_DTYPE.itemsize) or column.null_count:
        raise ValueError(f"a column of {column.type} with {column.null_count} nulls")
    parts = [np.frombuffer(part.buffers()[1], HASH_DTYPE)[part.offset :][: len(part)] for part in column.chunks]
    return np.concatenate([np.empty(0, HASH_DTYPE), *parts])
