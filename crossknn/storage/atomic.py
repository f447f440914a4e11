"""Atomic file writes, file locks, syncs and digests: a file is complete or absent, even after a power cut."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import IO

from crossknn.errors import InputError
from crossknn.storage.regular_files import open_handle

TEMPORARY_SUFFIX = ".tmp"


def temporary_path(path: Path) -> Path:
    """A new hidden path in the same folder, to write a file under until it is complete."""
    return path.with_name(f".{path.name}.{token_hex(8)}{TEMPORARY_SUFFIX}")


def write_atomic(path: Path, data: bytes, *, first_wins: bool = False, private: bool = False) -> None:
    """Write a file, synced, so that readers see all of it or nothing.

    Of several concurrent writers the last one wins, or with `first_wins` the first. A `private` file is readable by its
    owner only.
    """
    temporary = temporary_path(path)
    try:
        if private:
            temporary.touch(mode=0o600, exist_ok=False)
        with temporary.open("wb" if private else "xb") as file:
            file.write(data)
            flush(file)
        if first_wins:
            _claim(temporary, path)
        else:
            temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync(path.parent)


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file by a function of a path, synced, so that readers see all of it or the previous content.

    A device or a pipe, such as /dev/stdout, is written to, not replaced.
    """
    if path.exists() and not path.is_file():
        write(path)
        return
    temporary = temporary_path(path)
    try:
        write(temporary)
        sync(temporary)
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync(path.parent)


def _claim(temporary: Path, path: Path) -> None:
    """Give the file its name unless another file has it."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links: two concurrent writers may both be first
        if not path.exists():
            temporary.replace(path)


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """One process at a time, where the system has file locks; the lock ends with its process."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = open_handle(path, os.O_WRONLY | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def flush(file: IO[bytes]) -> None:
    """Flush an open file's content to disk."""
    file.flush()
    os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's renames, to disk; does nothing where folders cannot be opened."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(data: bytes | memoryview) -> str:
    """The checksum of a stored block: 8 bytes of BLAKE2b in hexadecimal."""
    return blake2b(data, digest_size=8).hexdigest()


@contextmanager
def disk_errors(path: Path, problem: str, hint: str = "") -> Iterator[None]:
    """Raise errors of the file system as `InputError`s that name the path, the problem and what to do about it."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: {problem} {explain_os_error(error)}{f' {hint}' if hint else ''}") from error


def explain_os_error(error: OSError) -> str:
    """What the file system says, in parentheses, and what to do about it."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return f"({reason}). {_ADVICE.get(error.errno or 0, 'Check the path, or give another one.')}"


_DISK_FULL = "The disk is full: free some space and run again."
_READ_ONLY = "Give a path on a disk that can be written to."
_NO_PERMISSION = "Change the permissions, or give another path."
_NOT_A_FOLDER = "A file is where a folder should be: give another folder."
_ADVICE = {
    errno.ENOSPC: _DISK_FULL,
    errno.EDQUOT: _DISK_FULL,
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
    errno.EROFS: _READ_ONLY,
    errno.EFBIG: "The file is larger than the disk or its limits allow: raise the limit, or give another path.",
    errno.ENOENT: "It does not exist, or cannot be made. Check the path; if it was deleted during a build, run again.",
    errno.ENOTDIR: _NOT_A_FOLDER,
    errno.EEXIST: _NOT_A_FOLDER,
}
