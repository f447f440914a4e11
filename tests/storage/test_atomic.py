"""Atomic writes, locks and errors of the file system."""

import errno
import os
import threading
import time

import pytest

from crossknn.errors import InputError
from crossknn.storage.atomic import disk_errors, exclusive_lock, write_atomic


def test_the_last_writer_wins_or_the_first(tmp_path):
    path = tmp_path / "a"
    for data in (b"one", b"two"):
        write_atomic(path, data)
    assert path.read_bytes() == b"two"
    write_atomic(path, b"three", first_wins=True)
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write_atomic(path, b"old")

    def fail(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new")
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"old", [path])


def test_one_holder_of_a_lock_at_a_time(tmp_path):
    holders, counts = [], []

    def hold():
        with exclusive_lock(tmp_path / ".lock"):
            holders.append(1)
            counts.append(len(holders))
            time.sleep(0.01)
            holders.pop()

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "The disk is full"),
        (errno.EROFS, "Give a path on a disk that can be written to"),
        (errno.ENOENT, "It does not exist"),
        (errno.ENOTDIR, "A file is where a folder should be"),
        (errno.EIO, "Check the path"),
    ],
)
def test_errors_of_the_file_system_say_what_to_do(tmp_path, number, advice):
    with pytest.raises(InputError) as caught, disk_errors(tmp_path, "the log cannot be used", "Chunks are kept."):
        raise OSError(number, os.strerror(number))
    assert str(caught.value).startswith(f"{tmp_path}: the log cannot be used ({os.strerror(number)}). {advice}")
    assert str(caught.value).endswith("Chunks are kept.")
