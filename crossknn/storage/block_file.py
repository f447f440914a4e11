"""A resumable array on disk, written in blocks of rows that are synced and verified by their digests."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from crossknn.errors import InputError
from crossknn.storage.atomic import digest, disk_errors, exclusive_lock, flush, sync, write_atomic
from crossknn.storage.regular_files import open_handle, open_regular, read_regular

FORMAT = 2

logger = logging.getLogger(__name__)


class BlockFile:
    """A two-dimensional array in a `.npy` file, computed block by block, that survives a kill.

    The file is named `<path>.partial` until it is complete. The sidecar `<path>.json` holds lines of JSON: what the
    array is computed from, its shape and dtype; then first row, end and digest of each block that is on disk. When the
    file is opened again, and before it gets its name, every block is verified: one that is missing, cut short or
    damaged is to be computed again.

    Args:
        inputs: Fingerprints of what the array is computed from. A file with other inputs is refused, not overwritten.
        width: Called for the length of a row where there is no sidecar yet.
    """

    def __init__(
        self, path: Path, inputs: Mapping[str, str], *, rows: int, width: Callable[[], int], dtype: DTypeLike
    ) -> None:
        self.path = path
        self._partial = path.with_name(f"{path.name}.partial")
        self._sidecar = path.with_name(f"{path.name}.json")
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._rows, self._ask_width = rows, width
        self._inputs = {"format": FORMAT, **inputs, "rows": rows, "dtype": str(np.dtype(dtype))}
        self._width: int | None = None
        self._blocks: dict[int, tuple[int, str]] = {}  # first row: end and digest

    @classmethod
    def stored(cls, path: Path) -> Self:
        """The file as its sidecar describes it, whatever it was computed from."""
        sidecar = path.with_name(f"{path.name}.json")
        with disk_errors(sidecar, "this file cannot be read"):
            first = read_regular(sidecar).partition(b"\n")[0]
        try:
            facts = dict(json.loads(first))
            rows, width, dtype = int(facts["rows"]), int(facts["width"]), np.dtype(facts["dtype"])
            if min(rows, width) < 1 or dtype.kind != "f":
                raise ValueError("no array of numbers")
            inputs = {key: facts[key] for key in facts.keys() - {"format", "rows", "width", "dtype"}}
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            raise InputError(f"{sidecar}: damaged ({error!r}). Delete it to start over.") from error
        return cls(path, inputs, rows=rows, width=lambda: width, dtype=dtype)

    @property
    def width(self) -> int:
        """The length of a row."""
        if self._width is None:
            self._width = self._ask_width()
        return self._width

    def count_rows(self) -> int:
        """How many rows are stored, undamaged."""
        with self._disk_errors():
            self._read_blocks()
        return self._count()

    def _count(self) -> int:
        return sum(end - start for start, (end, _) in self._blocks.items())

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files of the array, of which some may not be there."""
        return self.path, self._partial, self._sidecar

    def verify(self) -> int:
        """How many rows are stored; `InputError` if some are damaged, or were stored and are gone."""
        with self._disk_errors():
            listed = self._read_blocks()
            if listed > len(self._blocks) or (self.path.exists() and not self._is_complete()):
                raise InputError(f"{self.path}: damaged. The next run computes damaged blocks again.")
        return self._count()

    def load(self) -> NDArray[Any] | None:
        """The array, memory-mapped and read-only, if it is complete and undamaged; writes nothing."""
        with self._disk_errors():
            self._read_blocks()
            return self.map() if self.path.exists() and self._is_complete() else None

    def map(self) -> NDArray[Any]:
        """The complete array, memory-mapped and read-only, without verification: after `resume`."""
        with self._disk_errors():
            array: NDArray[Any] = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return array

    @contextmanager
    def resume(self) -> Iterator[list[range]]:
        """Lock the file and yield the ranges of rows that are missing, which `write` completes.

        Other processes wait for the lock, and then find the work done.
        """
        with ExitStack() as lock:
            with self._disk_errors():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                lock.enter_context(exclusive_lock(self.path.with_name(f".{self.path.name}.lock")))
                listed = self._read_blocks()
            _ = self.width  # computed outside `_disk_errors`: errors of the caller's function pass unchanged
            with self._disk_errors():
                if not (self.path.exists() and self._is_complete()):
                    self._begin(listed)
            yield self._missing()
            with self._disk_errors():
                if not self.path.exists() and self._is_complete():
                    self._check_written()
                    self._write_sidecar()  # in the order of rows, whatever order they came in
                    self._partial.replace(self.path)
                    sync(self.path.parent)

    def write(self, blocks: Mapping[int, NDArray[Any]]) -> None:
        """Store blocks by their first row; their bytes are on disk before the sidecar lists them."""
        written = {}
        with self._disk_errors():
            with os.fdopen(open_handle(self._partial, os.O_RDWR), "r+b") as file:
                for start, block in blocks.items():
                    data = block.astype(self._dtype, copy=False).tobytes()
                    file.seek(self._offset(start))
                    file.write(data)
                    written[start] = (start + len(block), digest(data))
                flush(file)
            with os.fdopen(open_handle(self._sidecar, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
                file.write(_block_lines(written))
                flush(file)
        self._blocks.update(written)

    def _check_written(self) -> None:
        """Raise `InputError` if the file on disk does not hold what was written to it."""
        self._read_blocks()
        if not self._is_complete():
            raise InputError(
                f"{self.path}: another program changed {self._partial.name} while it was being written. Run again: "
                "damaged blocks are computed again."
            )

    def _read_blocks(self) -> int:
        """Read which blocks are stored, keep those whose digests are right, and return how many were listed."""
        self._blocks = {}
        listed = self._read_sidecar()
        source = self.path if self.path.exists() else self._partial
        if listed and source.exists():
            with open_regular(source) as file:
                size = os.fstat(file.fileno()).st_size
                if file.read(len(self._header)) == self._header:
                    for start, (end, expected) in listed.items():
                        if self._offset(end) > size:  # cut short, or of rows that are wider than the file
                            continue
                        file.seek(self._offset(start))
                        if digest(file.read(self._offset(end) - self._offset(start))) == expected:
                            self._blocks[start] = (end, expected)
        return len(listed)

    def _read_sidecar(self) -> dict[int, tuple[int, str]]:
        """The blocks that the sidecar lists; an error if it describes another array."""
        if not self._sidecar.exists():
            if self.path.exists():
                raise InputError(f"{self.path}: its description {self._sidecar.name} is missing. {self._start_over()}")
            return {}
        first, *lines = read_regular(self._sidecar).split(b"\n")
        try:
            description = dict(json.loads(first))
            self._width = int(description.pop("width"))
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            raise InputError(
                f"{self._sidecar}: not the description of an array in format {FORMAT} ({error!r}). {self._start_over()}"
            ) from error
        for key, value in self._inputs.items():
            if description.get(key) != value:
                raise InputError(
                    f"{self.path}: computed with {key} {description.get(key)!r}, not {value!r}. "
                    f"Choose another path. {self._start_over()}"
                )
        return _parse_blocks(lines[:-1], self._rows)  # behind the last newline is half a line, or nothing

    def _start_over(self) -> str:
        return f"To start over, delete {self.path.name}, {self._partial.name} and {self._sidecar.name}."

    def _begin(self, listed: int) -> None:
        """Prepare the partial file and the sidecar; forget the blocks that are damaged."""
        if listed > len(self._blocks):
            damaged = listed - len(self._blocks)
            logger.warning("%s: %d damaged or missing blocks are computed again", self.path, damaged)
        if self.path.exists():
            self.path.replace(self._partial)
        with os.fdopen(open_handle(self._partial, os.O_RDWR | os.O_CREAT), "r+b") as file:
            file.write(self._header)
            file.truncate(self._offset(self._rows))
            flush(file)
        self._write_sidecar()

    def _write_sidecar(self) -> None:
        first = json.dumps({**self._inputs, "width": self.width}).encode() + b"\n"
        write_atomic(self._sidecar, first + _block_lines(dict(sorted(self._blocks.items()))))

    def _is_complete(self) -> bool:
        source = self.path if self.path.exists() else self._partial
        return not self._missing() and source.stat().st_size == self._offset(self._rows)

    def _missing(self) -> list[range]:
        gaps, row = [], 0
        for start, (end, _) in [*sorted(self._blocks.items()), (self._rows, (self._rows, ""))]:
            if start > row:
                gaps.append(range(row, start))
            row = max(row, end)
        return gaps

    def _offset(self, row: int) -> int:
        return len(self._header) + row * self.width * self._dtype.itemsize

    @cached_property
    def _header(self) -> bytes:
        buffer = BytesIO()
        descr = np.lib.format.dtype_to_descr(self._dtype)
        shape = (self._rows, self.width)
        np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
        return buffer.getvalue()

    def _disk_errors(self) -> AbstractContextManager[None]:
        return disk_errors(self.path, "this file cannot be read or written", "Finished blocks are kept.")


def _block_lines(blocks: Mapping[int, tuple[int, str]]) -> bytes:
    return b"".join(json.dumps([start, *block]).encode() + b"\n" for start, block in blocks.items())


def _parse_blocks(lines: list[bytes], rows: int) -> dict[int, tuple[int, str]]:
    """The blocks listed in these lines, up to the first line that is damaged."""
    blocks: dict[int, tuple[int, str]] = {}
    for line in lines:
        try:
            start, end, checksum = json.loads(line)
            if not 0 <= start < end <= rows:
                break
        except (ValueError, TypeError, RecursionError):
            break
        blocks[start] = (end, checksum)
    return blocks
