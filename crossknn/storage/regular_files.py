"""Opening files of a folder that may be damaged or crafted: nothing but a regular file is opened."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

from crossknn.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file, or a link to one, to read. `InputError` for anything else; it never waits for a pipe.

    `FileNotFoundError` where there is nothing.
    """
    handle = open_handle(path, os.O_RDONLY)
    return os.fdopen(handle, "rb")


def read_regular(path: Path) -> bytes:
    """The bytes of a regular file, or the errors of `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def map_bytes(path: Path) -> NDArray[np.uint8]:
    """The bytes of a regular file, memory-mapped and read-only."""
    import numpy as np  # here, for the command line starts without it

    with open_regular(path) as file:
        if not os.fstat(file.fileno()).st_size:
            return np.empty(0, np.uint8)  # an empty file cannot be mapped
        return np.memmap(file, np.uint8, mode="r")


def open_handle(path: Path, flags: int, *, mode: int = 0o666) -> int:
    """`os.open` of a regular file, with the errors of `open_regular`; an `OSError` where it cannot be written."""
    try:
        handle = os.open(path, flags | FLAGS, mode)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        refused = _refuse(path, error)
        if flags & (os.O_WRONLY | os.O_RDWR) and error.errno in (errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT):
            raise
        raise refused from error
    try:
        check_regular(path, os.fstat(handle))
    except InputError:
        os.close(handle)
        raise
    return handle


def check_regular(path: Path, status: os.stat_result) -> None:
    """Raise `InputError` unless the status is that of a regular file."""
    if not stat.S_ISREG(status.st_mode):
        kind = KINDS.get(stat.S_IFMT(status.st_mode), "no file")
        raise InputError(f"{path}: must be a regular file, and is {kind}. Restore it from a copy or build it again.")


def _refuse(path: Path, error: OSError) -> InputError:
    """The error for a path that cannot be opened; that of a socket or a folder says what it is."""
    try:
        check_regular(path, path.stat())
    except InputError as found:
        return found
    except OSError:
        pass
    return InputError(f"{path}: cannot be read ({error.strerror or error}). Check its permissions.")
