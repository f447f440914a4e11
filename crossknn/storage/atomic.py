"""Files that are there whole or not at all, also after a power cut as far as the system promises it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

UNFINISHED = ".tmp"  # ends the name of a file that is being written


def unfinished(path: Path) -> Path:
    """A new name beside the file, to write it under until it is whole."""
    return path.with_name(f".{path.name}.{token_hex(8)}{UNFINISHED}")


def write_atomic(path: Path, data: bytes, *, first_wins: bool = False) -> None:
    """Write a file so that others see all of it or nothing.

    Of several writers at once the last one wins, or the first, whose file the others then leave as it is.
    """
    fresh = unfinished(path)
    try:
        with fresh.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if first_wins:
            _claim(fresh, path)
        else:
            fresh.replace(path)
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
    sync(path.parent)


@contextmanager
def exclusive_lock(lock: Path) -> Iterator[None]:
    """One process at a time, where the system has file locks; the lock ends with its process."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with lock.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sync(path: Path) -> None:
    """Make a file's content, or a folder's renames, last. Systems that cannot open a folder do without."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _claim(fresh: Path, path: Path) -> None:
    """Give the file its name unless another has it."""
    with suppress(FileExistsError):
        try:
            os.link(fresh, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without links: a moment remains in which two writers may both be first
            if not path.exists():
                fresh.replace(path)
