"""Files of scores that are there whole or not at all: written once, never changed, named by their own hash."""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.storage import atomic as files
from crossknn.types import Scores

FORMAT = 1
CHUNK_NAME = re.compile(r"([0-9a-f]{16})-([0-9]{6,})-([0-9a-f]{16})\.parquet")  # plan, number, digest
UNFINISHED_SECONDS = 24 * 3600.0  # older ones were left by a writer that was killed
AGAIN = "Delete this file: the next build scores its pairs again."

Hashes = NDArray[np.void]  # (texts,) 16 bytes each
_HASH = np.dtype("V16")


def hash_texts(texts: Iterable[str]) -> Hashes:
    """(texts,) what a text is known by in the log: 16 bytes of BLAKE2b of its UTF-8."""
    digests = bytearray()
    for text in texts:
        digests += blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return np.frombuffer(bytes(digests), _HASH)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Scores that came from one call of the scorer."""

    queries: Hashes
    items: Hashes
    scores: Scores

    def __len__(self) -> int:
        return len(self.scores)


def write_chunk(folder: Path, chunk: Chunk, *, plan: str, number: int, scorer: str) -> str:
    """Write one chunk and return the name of its file, whose end is the hash of its bytes."""
    table = pa.table(
        {"query": _to_arrow(chunk.queries), "item": _to_arrow(chunk.items), "score": pa.array(chunk.scores)},
        metadata=_metadata(plan, number, scorer),
    )
    file = BytesIO()
    pq.write_table(table, file, compression="zstd")
    data = file.getvalue()
    name = f"{plan}-{number:06}-{_digest(data)}.parquet"
    write_atomic(folder / name, data)
    return name


def read_chunk(path: Path, *, scorer: str) -> Chunk:
    """The chunk in this file, every byte of it verified."""
    named = CHUNK_NAME.fullmatch(path.name)
    if named is None:
        raise InputError(f"{path}: wanted a chunk of scores, got a name of something else. Move it away.")
    plan, number, digest = named.groups()
    data = read_whole(path)
    if _digest(data) != digest:
        found = f"{len(data)} bytes whose hash is {_digest(data)}" if data else "an empty file"
        raise InputError(f"{path}: damaged: wanted bytes whose hash is {digest}, got {found}. {AGAIN}")
    try:
        table = pq.read_table(pa.BufferReader(data), use_threads=False)
        chunk = Chunk(_from_arrow(table["query"]), _from_arrow(table["item"]), table["score"].to_numpy())
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise InputError(f"{path}: wanted a chunk of scores, got another file ({error}). {AGAIN}") from error
    for key, value in _metadata(plan, int(number), scorer).items():
        found = (table.schema.metadata or {}).get(key.encode(), b"nothing").decode("utf-8", "surrogatepass")
        if found != value:
            wanted = key.removeprefix("crossknn.")
            raise InputError(f"{path}: wanted a chunk with {wanted} {value!r}, got {found!r}. Move it away.")
    if chunk.scores.dtype != np.float32 or not np.isfinite(chunk.scores).all():
        raise InputError(f"{path}: wanted finite float32 scores, got others. {AGAIN}")
    return chunk


def _metadata(plan: str, number: int, scorer: str) -> dict[str, str]:
    """What is in the file beside its columns, so that a renamed or copied file is noticed."""
    return {
        "crossknn.format": str(FORMAT),
        "crossknn.scorer": scorer,
        "crossknn.plan": plan,
        "crossknn.number": str(number),
    }


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()


def _to_arrow(hashes: Hashes) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(hashes))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(_HASH.itemsize), len(hashes), [None, data])


def _from_arrow(column: pa.ChunkedArray) -> Hashes:
    if column.type != pa.binary(_HASH.itemsize) or column.null_count:
        raise ValueError(f"a column of {column.type} with {column.null_count} nulls")
    parts = [np.frombuffer(part.buffers()[1], _HASH)[part.offset :][: len(part)] for part in column.chunks]
    return np.concatenate([np.empty(0, _HASH), *parts])


def write_atomic(path: Path, data: bytes, *, first_wins: bool = False) -> None:
    """`files.write_atomic`, with errors that say what to do."""
    with disk_errors(path.parent):
        files.write_atomic(path, data, first_wins=first_wins)


def read_whole(path: Path) -> bytes:
    """All bytes of a file."""
    with disk_errors(path):
        return path.read_bytes()


def remove_unfinished(folder: Path) -> None:
    """Remove what killed writers left. A file is being written for moments only, so a day is long enough."""
    for path in folder.glob(f".*{files.UNFINISHED}"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > UNFINISHED_SECONDS:
                path.unlink()


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Errors of the file system as errors that say what to do."""
    try:
        yield
    except OSError as error:
        meaning = _MEANINGS.get(error.errno or 0, "it cannot be used. Check it, or give another folder")
        raise InputError(f"the score log {path}: {meaning} ({error}).") from error


_FULL = "the disk is full. Free some space and run again: every finished chunk is kept"
_FORBIDDEN = "it cannot be read or written. Change its permissions, or give another folder"
_MEANINGS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EROFS: _FORBIDDEN,
    errno.ENOENT: "it is gone. Was it deleted while a build was running? Run again",
    errno.ENOTDIR: "a file is where a folder is wanted. Give another folder",
    errno.EEXIST: "a file is where a folder is wanted. Give another folder",
}
