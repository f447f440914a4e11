"""Encoding every item once, by blocks, into memory or into a file that survives a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_engine
from crossknn.encoders.base import check_vectors
from crossknn.engines.local import LOCAL
from crossknn.errors import EncoderError, InputError
from crossknn.models.fingerprints import is_unnamed
from crossknn.storage.atomic import sync, exclusive_lock, write_atomic
from crossknn.types import Encoder, Engine, Job, Progress, Rows, Vectors

if TYPE_CHECKING:
    from crossknn.items.items import Items

STEP = "encode items"
DTYPES = ("float16", "float32")
BLOCK = 1024
PIECE = 256  # texts of like length for an encoder that has no `at_once` of its own; progress is reported after each


def encode_items(
    items: Items,
    encoder: Encoder,
    *,
    path: str | Path | None = None,
    block: int | None = None,
    dtype: str = "float16",
    engine: Engine = LOCAL,
    progress: Progress | None = None,
) -> NDArray[Any]:
    """(items, dim) vectors of every item, encoded where the `engine` says.

    `block` texts are read and kept at a time: by default 1,024, or as many as the encoder is best given together.
    With `path`, a `.npy` file, they are written there and come back memory-mapped. An interrupted run
    goes on after the last whole block; a file that is already whole is only opened, and of several processes
    that want the same one, one encodes and the others wait. Beside it stands
    `<path>.json`, which says whose vectors these are: those of other items, another encoder or
    another dtype are refused, never overwritten.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype must be one of {', '.join(DTYPES)}. Got {dtype!r} instead.")
    piece = int(getattr(encoder, "at_once", PIECE))
    block = max(BLOCK, piece) if block is None else block
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise InputError(f"block must be an integer of at least 1. Got {block!r} instead.")
    check_engine(engine)
    run = _Run(items, encoder, block, piece, np.dtype(dtype), engine, progress)
    return run.into_memory() if path is None else _into_file(run, Path(path))


def count_encoded(items: Items, encoder: Encoder, *, path: str | Path, dtype: str = "float16") -> int:
    """How many rows `encode_items` with this path would not encode again; refuses the same files."""
    path = Path(path)
    partial, sidecar = _beside(path)
    state = _resume(_Run(items, encoder, 1, 1, np.dtype(dtype), LOCAL, None), path, partial, sidecar)
    return state.rows if path.exists() else state.done if partial.exists() else 0


@dataclass(frozen=True)
class _Run:
    items: Items
    encoder: Encoder
    block: int
    piece: int
    dtype: np.dtype[Any]
    engine: Engine
    progress: Progress | None

    def into_memory(self) -> NDArray[Any]:
        vectors = np.empty((len(self.items), self.dim()), self.dtype)
        for start, part in self.encode(0, vectors.shape[1]):
            vectors[start : start + len(part)] = part
        return vectors

    def dim(self) -> int:
        """Encoders tell their dimension by the shape they give to no texts."""
        return int(check_vectors(self.encoder.encode_items([]), []).shape[1])

    def encode(self, first: int, dim: int) -> Generator[tuple[int, NDArray[Any]], None, None]:
        """Blocks of vectors as they are stored, each with its first row, from row `first` on, as they are done."""
        pieces: dict[int, Rows] = {}
        blocks: dict[int, tuple[Vectors, list[int]]] = {}  # with the sizes of the pieces that have come
        done = first
        with closing(self.engine.run(_encode_texts, self.encoder, self._jobs(first, dim, pieces))) as encoded:
            for number, vectors in encoded:
                rows = pieces.pop(number)
                start = first + (int(rows[0]) - first) // self.block * self.block
                size = min(self.block, len(self.items) - start)
                block, sizes = blocks.setdefault(start, (np.empty((size, dim), np.float32), []))
                block[rows - start] = vectors
                sizes.append(len(rows))
                done += len(rows)
                self.report(done)
                if sum(sizes) == size:
                    del blocks[start]
                    yield start, self._as_stored(block)

    def _jobs(self, first: int, dim: int, pieces: dict[int, Rows]) -> Iterator[Job]:
        """Texts that are encoded together; `pieces` is told the rows of each job."""
        number = 0
        for start in range(first, len(self.items), self.block):
            texts = self.items.texts_of(np.arange(start, min(start + self.block, len(self.items))))
            order = np.argsort([len(text) for text in texts], kind="stable")  # texts of like length waste less padding
            for at in range(0, len(texts), self.piece):
                places = order[at : at + self.piece]
                pieces[number] = start + places
                yield number, ([texts[place] for place in places], dim)
                number += 1

    def _as_stored(self, vectors: Vectors) -> NDArray[Any]:
        with np.errstate(over="ignore"):
            stored = vectors.astype(self.dtype)
        if not np.isfinite(stored).all():
            raise EncoderError(f'the vectors do not fit in {self.dtype}: use dtype="float32".')
        return stored

    def report(self, done: int) -> None:
        if self.progress is not None:
            self.progress(STEP, done, len(self.items))


def _encode_texts(encoder: Encoder, texts: list[str], dim: int) -> Vectors:
    return check_vectors(encoder.encode_items(texts), texts, dim=dim)


@dataclass(frozen=True)
class _State:
    """Whose vectors a file holds, and how many rows of them are safely on disk."""

    items: str
    encoder: str
    rows: int
    dim: int
    dtype: str
    done: int
    format: int = 1


def _into_file(run: _Run, path: Path) -> NDArray[Any]:
    if path.suffix != ".npy":
        raise InputError(f"path must end in .npy. Got {path} instead.")
    if is_unnamed(run.encoder.fingerprint):
        raise InputError("the encoder has no name to store vectors under: give function_encoder a fingerprint.")
    partial, sidecar = _beside(path)
    state = _resume(run, path, partial, sidecar)
    if not path.exists():
        with exclusive_lock(path.with_name(f".{path.name}.lock")):  # who comes second finds the work done
            state = _resume(run, path, partial, sidecar)
            if not path.exists():
                _write_rows(run, partial, sidecar, state)
                partial.rename(path)
                sync(path.parent)
    vectors: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    if vectors.shape != (state.rows, state.dim) or vectors.dtype != run.dtype:
        raise InputError(f"{path}: holds {vectors.dtype} {vectors.shape}, not what {sidecar.name} says. Delete both.")
    return vectors


def _beside(path: Path) -> tuple[Path, Path]:
    """What the file is until it is whole, and what says whose vectors it holds."""
    return path.with_name(path.name + ".partial"), path.with_name(path.name + ".json")


def _resume(run: _Run, path: Path, partial: Path, sidecar: Path) -> _State:
    """The state to go on from: a fresh one where there is nothing yet, an error where it is not ours."""
    wanted = {
        "format": 1,
        "items": run.items.fingerprint,
        "encoder": run.encoder.fingerprint,
        "rows": len(run.items),
        "dtype": str(run.dtype),
    }
    if not sidecar.exists():
        if path.exists():
            raise InputError(f"{path}: whose vectors these are is unknown, for {sidecar.name} is missing.")
        return _State(run.items.fingerprint, run.encoder.fingerprint, len(run.items), run.dim(), str(run.dtype), done=0)
    try:
        found = json.loads(sidecar.read_text(encoding="utf-8"))
        state = _State(**found)
    except (ValueError, TypeError) as error:
        raise InputError(f"{sidecar}: not a description of vectors ({error}). Delete it to encode anew.") from error
    for key, value in wanted.items():
        if found[key] != value:
            raise InputError(
                f"{path}: its vectors have {key} {found[key]!r}, but {value!r} is wanted. "
                f"Choose another path, or delete it, {partial.name} and {sidecar.name} to encode anew."
            )
    return state


def _write_rows(run: _Run, partial: Path, sidecar: Path, state: _State) -> None:
    """Write the rows that are missing; a block is on disk before the sidecar counts it, and so are all before it."""
    header = _header(state)
    done = state.done if partial.exists() else 0
    row_bytes = state.dim * np.dtype(state.dtype).itemsize
    with partial.open("r+b" if partial.exists() else "w+b") as file:
        file.truncate(len(header) + done * row_bytes)
        file.seek(0)
        file.write(header)
        _flush(file)
        _write_state(sidecar, state, done)
        ends: dict[int, int] = {}  # by first row, of blocks that came before their turn
        with closing(run.encode(done, state.dim)) as blocks:
            for start, part in blocks:
                file.seek(len(header) + start * row_bytes)
                file.write(part.tobytes())
                _flush(file)
                ends[start] = start + len(part)
                while done in ends:
                    done = ends.pop(done)
                _write_state(sidecar, state, done)


def _header(state: _State) -> bytes:
    buffer = BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer,
        {
            "descr": np.lib.format.dtype_to_descr(np.dtype(state.dtype)),
            "fortran_order": False,
            "shape": (state.rows, state.dim),
        },
    )
    return buffer.getvalue()


def _write_state(sidecar: Path, state: _State, done: int) -> None:
    write_atomic(sidecar, json.dumps({**asdict(state), "done": done}, indent=1).encode())


def _flush(file: IO[bytes]) -> None:
    """Make what was written last."""
    file.flush()
    os.fsync(file.fileno())
