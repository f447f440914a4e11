"""Only regular files are opened, and nothing is waited for."""

import os
import socket
import sys

import pytest

from crossknn.errors import InputError
from crossknn.storage.atomic import exclusive_lock
from crossknn.storage.regular_files import open_regular

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes")


def make_socket(path, monkeypatch):
    monkeypatch.chdir(path.parent)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


KINDS = {
    "a folder": lambda path, _: path.mkdir(),
    "a named pipe": lambda path, _: os.mkfifo(path),
    "a socket": make_socket,
    "a device": lambda path, _: path.symlink_to("/dev/zero"),
}


def test_files_and_links_to_files_are_read(tmp_path):
    (tmp_path / "a").write_text("content")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for name in "ab":
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"content"
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")


@pytest.mark.parametrize("kind", KINDS)
def test_anything_else_is_refused_without_waiting(tmp_path, monkeypatch, kind):
    path = tmp_path / "f"
    KINDS[kind](path, monkeypatch)
    with pytest.raises(InputError, match=rf"{path}: must be a regular file, and is {kind}"):
        open_regular(path)
    with pytest.raises(InputError, match=rf"{path}: must be a regular file"), exclusive_lock(path):
        pass


def test_a_link_in_a_circle_is_refused(tmp_path):
    (tmp_path / "f").symlink_to("f")
    with pytest.raises(InputError, match=r"f: cannot be read"):
        open_regular(tmp_path / "f")
