"""The folder of an index: replaced whole, readable while it is replaced, and damage is named."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.storage.atomic_dir import MANIFEST, MAX_MANIFEST_BYTES, read_folder, write_folder

FILES = {"items.txt": lambda path: path.write_text("a b"), "vectors.bin": lambda path: path.write_bytes(b"\0" * 100)}


def put(folder, text, facts=None):
    return write_folder(folder, facts or {"text": text}, {**FILES, "items.txt": lambda path: path.write_text(text)})


def names(folder):
    return sorted(entry.name for entry in Path(folder).iterdir() if entry.name != ".lock")


def test_what_was_written_is_read(tmp_path):
    written = write_folder(tmp_path / "new" / "index", {"items": 2, "scorer": "ä"}, FILES)
    opened = read_folder(tmp_path / "new" / "index")
    assert opened == written
    assert opened.facts == {"items": 2, "scorer": "ä"}
    assert opened.files["items.txt"].read_text() == "a b"
    assert opened.verify() == 103


def test_a_new_one_takes_the_place_and_old_files_go(tmp_path):
    old = put(tmp_path, "old")
    kept = old.files["vectors.bin"]
    new = put(tmp_path, "new")
    assert read_folder(tmp_path).facts == {"text": "new"}
    assert new.files["vectors.bin"] == kept
    assert not old.files["items.txt"].exists()
    assert names(tmp_path) == sorted([MANIFEST, kept.name, new.files["items.txt"].name])


@pytest.mark.skipif(sys.platform == "win32", reason="a mapped file cannot be deleted there")
def test_who_has_mapped_the_old_one_keeps_reading_it(tmp_path):
    old = np.memmap(put(tmp_path, "old text").files["items.txt"], np.uint8, mode="r")
    put(tmp_path, "new")
    assert bytes(old) == b"old text"


def test_a_writer_that_fails_changes_nothing(tmp_path):
    old = put(tmp_path, "old")
    before = names(tmp_path)

    def fail(path):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\).* is unchanged"):
        write_folder(tmp_path, {}, {"items.txt": FILES["items.txt"], "vectors.bin": fail})
    assert read_folder(tmp_path) == old
    assert old.verify()
    assert set(before) <= set(names(tmp_path))
    put(tmp_path, "old")
    assert names(tmp_path) == before  # what the failure left is gone


def test_of_two_changes_of_one_index_the_second_is_refused(tmp_path):
    read = put(tmp_path, "read")
    first = write_folder(tmp_path, {"change": 1}, FILES, replaces=read.identity)
    with pytest.raises(InputError, match=r"was changed by another process meanwhile\. Run again"):
        write_folder(tmp_path, {"change": 2}, FILES, replaces=read.identity)
    assert read_folder(tmp_path) == first
    assert write_folder(tmp_path, {"change": 2}, FILES, replaces=first.identity).facts == {"change": 2}


KILLED = """
import sys, time
from pathlib import Path
from crossknn.storage.atomic_dir import write_folder
number = 0
while True:
    number += 1
    text = str(number) * 2000
    def slowly(path):
        with path.open("w") as file:
            for start in range(0, len(text), 500):
                file.write(text[start:start + 500]); file.flush(); time.sleep(0.0005)
    at_once = lambda path: path.write_text(text)
    write_folder(sys.argv[1], {"number": number}, {"items.txt": slowly, "vectors.bin": at_once})
"""


def test_killed_at_any_moment_it_holds_one_whole_index(tmp_path):
    rng = np.random.default_rng(0)
    for delay in rng.uniform(0.0, 0.05, 6):
        with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)]) as process:
            while not (tmp_path / MANIFEST).exists():
                time.sleep(0.001)
            time.sleep(float(delay))
            process.send_signal(signal.SIGKILL)
        opened = read_folder(tmp_path)
        assert opened.verify()
        wanted = str(opened.facts["number"]) * 2000
        assert opened.files["items.txt"].read_text() == opened.files["vectors.bin"].read_text() == wanted
        (tmp_path / MANIFEST).unlink()
    put(tmp_path, "last")
    assert len(names(tmp_path)) == 3


def test_readers_never_see_half_while_it_is_replaced(tmp_path):
    put(tmp_path, "0")
    done = threading.Event()

    def replace():
        for number in range(60):
            put(tmp_path, str(number))
        done.set()

    writer = threading.Thread(target=replace)
    writer.start()
    seen = set()
    while not done.is_set():
        opened = read_folder(tmp_path)
        try:
            content = opened.files["items.txt"].read_text()
        except FileNotFoundError:  # replaced between opening the folder and the file
            continue
        assert content == opened.facts["text"]
        seen.add(content)
    writer.join()
    assert len(seen) > 1


def replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


def replace_by_folder(path):
    path.unlink()
    path.mkdir()


def damage_json(folder, **changes):
    path = folder / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / MANIFEST).unlink(), "not an index, for it holds no index.json"),
        (lambda f: (f / MANIFEST).write_text("{"), "index.json: damaged"),
        (lambda f: (f / MANIFEST).write_text('{"format": NaN}'), "index.json: damaged .it holds nan"),
        (lambda f: (f / MANIFEST).write_text("[" * 100_000), "index.json: damaged .it is nested too deeply"),
        (
            lambda f: (f / MANIFEST).write_bytes(b" " * (MAX_MANIFEST_BYTES + 1)),
            "index.json: damaged .it has more",
        ),
        (lambda f: replace_by_pipe(f / MANIFEST), "index.json: must be a regular file, and is a named pipe"),
        (lambda f: replace_by_pipe(read_folder(f).files["items.txt"]), r"items-\w+.txt: must be a regular file"),
        (lambda f: replace_by_folder(read_folder(f).files["items.txt"]), r"items-\w+.txt: must be a .*is a folder"),
        (lambda f: damage_json(f, format=-1), "index.json: damaged .there is no format -1"),
        (lambda f: damage_json(f, format="2"), "index.json: damaged .format must be of type int"),
        (lambda f: damage_json(f, format=True), "index.json: damaged .format must be of type int"),
        (lambda f: (f / MANIFEST).write_bytes(b"\xff\xfe\xff"), "index.json: damaged"),
        (lambda f: (f / MANIFEST).write_text("[]"), "index.json: damaged"),
        (lambda f: damage_json(f, files=None), "index.json: damaged"),
        (lambda f: damage_json(f, facts={"scorer": "b"}), "index.json: damaged: its content does not match its hash"),
        (lambda f: damage_json(f, format=99), "newer crossknn .format 99, this one reads 2.. Upgrade"),
        (
            lambda f: damage_json(f, files={"a": {"file": "../../etc/passwd", "bytes": 1, "hash": ""}}),
            "lists '../../etc/passwd', which is not a file of an index",
        ),
        (lambda f: read_folder(f).files["items.txt"].unlink(), r"items-\w+.txt: missing"),
        (lambda f: read_folder(f).files["items.txt"].write_text("a"), "damaged: it has 1 bytes, not 3"),
    ],
)
def test_damage_is_named(tmp_path, damage, message):
    write_folder(tmp_path, {}, FILES)
    damage(tmp_path)
    with pytest.raises(InputError, match=message):
        read_folder(tmp_path)


def test_a_flipped_bit_is_found_by_verify(tmp_path):
    opened = write_folder(tmp_path, {}, FILES)
    opened.files["items.txt"].write_text("a c")
    with pytest.raises(InputError, match=r"items-\w+.txt: damaged: its hash is"):
        read_folder(tmp_path).verify()


def test_a_file_that_is_a_pipe_by_the_time_it_is_verified_is_refused(tmp_path):
    opened = write_folder(tmp_path, {}, FILES)
    replace_by_pipe(opened.files["items.txt"])
    with pytest.raises(InputError, match=r"items-\w+.txt: must be a regular file"):
        opened.verify()


def test_what_was_replaced_cannot_be_verified(tmp_path):
    old = put(tmp_path, "old")
    assert old.is_current()
    put(tmp_path, "new")
    assert not old.is_current()
    with pytest.raises(InputError, match=r"was replaced meanwhile. Load it again"):
        old.verify()


def test_no_folder(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        read_folder(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="not an index"):
        read_folder(tmp_path / "file")


def test_what_is_no_index_is_not_overwritten(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match=r"holds other files \(thesis.txt\) and no index"):
        write_folder(tmp_path, {}, FILES)
    with pytest.raises(InputError, match="is a file"):
        write_folder(tmp_path / "thesis.txt", {}, FILES)
    assert names(tmp_path) == ["thesis.txt"]


@pytest.mark.skipif(os.geteuid() == 0 if hasattr(os, "geteuid") else True, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written"):
        write_folder(tmp_path / "index", {}, FILES)
