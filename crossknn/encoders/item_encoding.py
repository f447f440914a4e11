"""Encoding of all items in blocks, into memory or into a file that survives a kill."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_choice, check_engine, check_positive, invalid
from crossknn.encoders.base import check_vectors
from crossknn.engines.local import LOCAL
from crossknn.errors import EncoderError, InputError
from crossknn.models.fingerprints import is_unnamed
from crossknn.storage.block_file import BlockFile
from crossknn.types import Encoder, Engine, Job, Progress, Rows, Vectors

if TYPE_CHECKING:
    from crossknn.items.items import Items

STEP = "encode items"
DTYPES = ("float16", "float32")
BLOCK_ROWS = 1024
CALL_TEXTS = 256  # in one call of an encoder that has no `at_once` of its own


def encode_items(
    items: Items,
    encoder: Encoder,
    *,
    path: str | Path | None = None,
    block: int | None = None,
    dtype: str = "float16",
    known: NDArray[Any] | None = None,
    engine: Engine = LOCAL,
    progress: Progress | None = None,
) -> NDArray[Any]:
    """(items, dim) vectors of all items.

    Args:
        items: The items.
        encoder: The dual encoder.
        path: A `.npy` file to store the vectors in; they come back memory-mapped. An interrupted run is resumed after
            its last complete block, and of several concurrent processes one encodes while the others wait. A file
            with vectors of other items, another encoder or dtype (see `<path>.json`) is refused, never overwritten.
        block: Texts read and stored at a time; by default 1,024, or the encoder's `at_once` if that is more.
        dtype: "float16" or "float32".
        known: The encoder's vectors of all items, if there are any: they are copied, and nothing is encoded.
        engine: Where the encoder runs.
        progress: Called after every call of the encoder.
    """
    check_choice("dtype", dtype, DTYPES)
    call_texts = int(getattr(encoder, "at_once", CALL_TEXTS))
    block = max(BLOCK_ROWS, call_texts) if block is None else block
    check_positive("block", block)
    check_engine(engine)
    run = _Run(items, encoder, block, call_texts, np.dtype(dtype), known, engine, progress)
    return run.into_memory() if path is None else run.into_file(Path(path))


def count_encoded(items: Items, encoder: Encoder, *, path: str | Path, dtype: str = "float16") -> int:
    """How many rows are stored already in the file of `encode_items`; refuses the same files."""
    return _block_file(items, encoder, Path(path), np.dtype(dtype)).count_rows()


@dataclass(frozen=True)
class _Run:
    items: Items
    encoder: Encoder
    block: int
    call_texts: int
    dtype: np.dtype[Any]
    known: NDArray[Any] | None
    engine: Engine
    progress: Progress | None

    def into_memory(self) -> NDArray[Any]:
        vectors = np.empty((len(self.items), _dim(self.encoder)), self.dtype)
        for start, block in self.encode([range(len(self.items))], vectors.shape[1]):
            vectors[start : start + len(block)] = block
        return vectors

    def into_file(self, path: Path) -> NDArray[Any]:
        if path.suffix != ".npy":
            raise invalid("path", "a file that ends in .npy", str(path))
        if is_unnamed(self.encoder.fingerprint):
            raise InputError("The encoder has no name to store its vectors under: give function_encoder a fingerprint.")
        file = _block_file(self.items, self.encoder, path, self.dtype)
        vectors = file.load()
        if vectors is not None:
            return vectors
        with file.resume() as missing, closing(self.encode(missing, file.width)) as blocks:
            for start, block in blocks:
                file.write({start: block})
        return file.map()

    def encode(self, ranges: Sequence[range], dim: int) -> Generator[tuple[int, NDArray[Any]], None, None]:
        """Blocks of vectors of these rows as they are done, each with its first row."""
        if self.known is not None:
            for block_rows in _blocks(ranges, self.block):
                copied = np.asarray(self.known[block_rows.start : block_rows.stop], np.float32)
                yield block_rows.start, self._convert(copied)
            return
        rows_of_job: dict[int, tuple[range, Rows]] = {}
        blocks: dict[int, tuple[Vectors, list[int]]] = {}  # by first row, with the sizes of the jobs that are done
        done = len(self.items) - sum(map(len, ranges))
        with closing(self.engine.run(_encode_texts, self.encoder, self._jobs(ranges, dim, rows_of_job))) as encoded:
            for number, vectors in encoded:
                block_rows, rows = rows_of_job.pop(number)
                start, size = block_rows.start, len(block_rows)
                block, sizes = blocks.setdefault(start, (np.empty((size, dim), np.float32), []))
                block[rows - start] = vectors
                sizes.append(len(rows))
                done += len(rows)
                if self.progress is not None:
                    self.progress(STEP, done, len(self.items))
                if sum(sizes) == size:
                    del blocks[start]
                    yield start, self._convert(block)

    def _jobs(self, ranges: Sequence[range], dim: int, rows_of_job: dict[int, tuple[range, Rows]]) -> Iterator[Job]:
        """The texts of each call; enters the block and the rows of each job into `rows_of_job`."""
        number = 0
        for block in _blocks(ranges, self.block):
            texts = self.items.texts_of(np.arange(block.start, block.stop))
            order = np.argsort([len(text) for text in texts], kind="stable")  # similar lengths need less padding
            for at in range(0, len(texts), self.call_texts):
                places = order[at : at + self.call_texts]
                rows_of_job[number] = block, block.start + places
                yield number, ([texts[place] for place in places], dim)
                number += 1

    def _convert(self, vectors: Vectors) -> NDArray[Any]:
        with np.errstate(over="ignore"):
            converted = vectors.astype(self.dtype)
        if not np.isfinite(converted).all():
            raise EncoderError(f'The vectors do not fit in {self.dtype}: use dtype="float32".')
        return converted


def _blocks(ranges: Sequence[range], size: int) -> list[range]:
    return [rows[at : at + size] for rows in ranges for at in range(0, len(rows), size)]


def _encode_texts(encoder: Encoder, texts: list[str], dim: int) -> Vectors:
    return check_vectors(encoder.encode_items(texts), texts, dim=dim)


def _block_file(items: Items, encoder: Encoder, path: Path, dtype: np.dtype[Any]) -> BlockFile:
    inputs = {"items": items.fingerprint, "encoder": encoder.fingerprint}
    return BlockFile(path, inputs, rows=len(items), width=partial(_dim, encoder), dtype=dtype)


def _dim(encoder: Encoder) -> int:
    """The dimension, from the shape that the encoder returns for no texts."""
    return int(check_vectors(encoder.encode_items([]), []).shape[1])
