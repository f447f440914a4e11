"""A folder of files that is replaced as a whole: readers see the old content or the new, never a mixture.

Files carry the hash of their content in their names and never change. The manifest `index.json` lists those that belong
together; it is written last and put in place by one rename. Files that it no longer lists are deleted after that; a
process that has mapped such a file can still read it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any, TypedDict

from crossknn.errors import InputError
from crossknn.storage.atomic import disk_errors, exclusive_lock, sync, temporary_path, write_atomic
from crossknn.storage.json_values import parse_json, read_as
from crossknn.storage.regular_files import check_regular, open_regular

MANIFEST = "index.json"
LOCK = ".lock"
FORMAT = 2
STORED_NAME = re.compile(r"[a-z_]+-[0-9a-f]{16}\.[a-z]+")
TEMPORARY_NAME = re.compile(r"\.[a-z_.]+\.[0-9a-f]{16}\.tmp")  # left by a writer that was killed
MAX_MANIFEST_BYTES = 1 << 24
MAX_ATTEMPTS = 5  # to read a folder that is being replaced
RESTORE = "Restore it from a copy or build the index again."

Write = Callable[[Path], None]  # writes a file to a path
Stamp = tuple[int, int]  # inode and modification time: they identify a version of the manifest


class Entry(TypedDict):
    """A file in the manifest."""

    file: str
    bytes: int
    hash: str


class Manifest(TypedDict):
    """The content of `index.json`."""

    format: int
    hash: str  # of the facts and the files
    facts: dict[str, Any]
    files: dict[str, Entry]


@dataclass(frozen=True)
class Folder:
    """An opened folder."""

    path: Path
    identity: str  # a hash of its content
    facts: dict[str, Any]  # what its writer says about it
    files: dict[str, Path]  # by plain name, such as `vectors.safetensors`
    _entries: dict[str, Entry] = field(repr=False)
    _stamp: Stamp = field(repr=False)

    @property
    def size(self) -> int:
        """The bytes of all files but the manifest."""
        return sum(self.sizes.values())

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of each file, by plain name."""
        return {name: entry["bytes"] for name, entry in self._entries.items()}

    def is_current(self) -> bool:
        """Whether it has not been replaced since it was opened."""
        try:
            return _stamp((self.path / MANIFEST).stat()) == self._stamp
        except OSError:
            return False

    def verify(self) -> int:
        """Read every file and compare its hash; returns the number of bytes read."""
        try:
            self.check()
            for name, path in self.files.items():
                found, expected = _hash(path), self._entries[name]["hash"]
                if found != expected:
                    raise InputError(
                        f"{path}: damaged: its hash is {found}, not {expected} as in {MANIFEST}. {RESTORE}"
                    )
        except (InputError, FileNotFoundError) as error:
            if not self.is_current():
                raise InputError(f"{self.path}: was replaced meanwhile. Load it again.") from error
            if isinstance(error, InputError):
                raise
            raise _missing(error.filename) from error
        return self.size

    def check(self) -> None:
        """Raise `InputError` for a file that is missing, is no regular file, or has the wrong size."""
        for name, path in self.files.items():
            try:
                status = path.stat()
            except OSError as error:
                raise _missing(path) from error
            check_regular(path, status)
            size, expected = status.st_size, self._entries[name]["bytes"]
            if size != expected:
                raise InputError(f"{path}: damaged: it has {size} bytes, not {expected} as in {MANIFEST}. {RESTORE}")


def _missing(path: Path | str) -> InputError:
    return InputError(f"{path}: missing, although {MANIFEST} lists it. {RESTORE}")


def write_folder(
    path: str | Path, facts: Mapping[str, Any], files: Mapping[str, Write], *, replaces: str | None = None
) -> Folder:
    """Replace the folder's content by these facts, JSON values, and files, by plain name such as `items.arrow`.

    The folder is new, empty or holds an index: with `replaces` the one of this identity, or it is refused.
    """
    folder = Path(path)
    check_target(folder)
    with disk_errors(folder, "the index cannot be written", "The previous content is unchanged."):
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(folder / LOCK), _without_leftovers(folder, is_new=is_new):
            if replaces is not None and read_folder(folder).identity != replaces:
                raise InputError(
                    f"{folder}: was changed by another process meanwhile. Run again to change it as it is now."
                )
            listed = {name: _store(folder, name, write) for name, write in files.items()}
            content = {"format": FORMAT, "hash": _hash_json(dict(facts), listed), "facts": dict(facts), "files": listed}
            write_atomic(folder / MANIFEST, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False).encode())
            _remove_unlisted(folder, {entry["file"] for entry in listed.values()})
            return read_folder(folder)


def read_folder(path: str | Path) -> Folder:
    """Open the folder; its files exist and have the right sizes, their content is not read."""
    folder = Path(path)
    for _ in range(MAX_ATTEMPTS):
        opened = _parse(folder, *_read_manifest(folder))
        try:
            opened.check()
        except InputError:
            if opened.is_current():  # it was not replaced meanwhile
                raise
        else:
            return opened
    raise InputError(f"{folder}: is being replaced again and again. Try again.")


def _read_manifest(folder: Path) -> tuple[bytes, Stamp]:
    with disk_errors(folder, "the index cannot be read"):
        try:
            with open_regular(folder / MANIFEST) as file:
                return file.read(MAX_MANIFEST_BYTES + 1), _stamp(os.fstat(file.fileno()))
        except (FileNotFoundError, NotADirectoryError) as error:
            problem = f"not an index, for it holds no {MANIFEST}" if folder.exists() else "no such folder"
            raise InputError(f"{folder}: {problem}. Give the folder that an index was saved to.") from error


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_mtime_ns


def _parse(folder: Path, text: bytes, stamp: Stamp) -> Folder:
    manifest = folder / MANIFEST
    try:
        if len(text) > MAX_MANIFEST_BYTES:
            raise ValueError(f"it has more than {MAX_MANIFEST_BYTES:,} bytes")
        content = read_as(dict[str, Any], parse_json(text))
        version = read_as(int, content.get("format"), "format")
        if version < 1:
            raise ValueError(f"there is no format {version}")
        if version == FORMAT:
            content = read_as(Manifest, content)
    except ValueError as error:
        raise InputError(f"{manifest}: damaged ({error}). {RESTORE}") from error
    if version != FORMAT:
        age, hint = ("a newer", "Upgrade.") if version > FORMAT else ("an older", "Build the index again.")
        raise InputError(f"{folder}: written by {age} crossknn (format {version}, this one reads {FORMAT}). {hint}")
    for entry in content["files"].values():
        if not STORED_NAME.fullmatch(entry["file"]):
            raise InputError(f"{manifest}: lists {entry['file']!r}, which is not a file of an index.")
    if content["hash"] != _hash_json(content["facts"], content["files"]):
        raise InputError(f"{manifest}: damaged: its content does not match its hash. {RESTORE}")
    paths = {name: folder / entry["file"] for name, entry in content["files"].items()}
    return Folder(folder, content["hash"], content["facts"], paths, content["files"], stamp)


def check_target(folder: Path) -> None:
    """Refuse to write an index to a folder that holds something else."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder}: is a file. Give a folder for the index, new or one that holds an index.")
    if not (folder / MANIFEST).exists():
        names = {entry.name for entry in folder.iterdir()} - {LOCK}
        others = [name for name in names if not TEMPORARY_NAME.fullmatch(name) and not STORED_NAME.fullmatch(name)]
        if others:
            raise InputError(f"{folder}: holds other files ({min(others)}) and no index. Give another folder.")


def _store(folder: Path, name: str, write: Write) -> Entry:
    """Write one file under the hash of its content, and return its entry in the manifest."""
    temporary = temporary_path(folder / name)
    try:
        write(temporary)
        sync(temporary)
        hash_ = _hash(temporary)
        plain = Path(name)
        target = folder / f"{plain.stem}-{hash_[:16]}{plain.suffix}"
        size = temporary.stat().st_size
        temporary.replace(target)
        sync(folder)
    finally:
        temporary.unlink(missing_ok=True)
    return {"file": target.name, "bytes": size, "hash": hash_}


@contextlib.contextmanager
def _without_leftovers(folder: Path, *, is_new: bool) -> Iterator[None]:
    """Where writing fails, as on a full disk, delete what was written, and a folder that was made for it."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError, InputError):
            kept = {path.name for path in read_folder(folder).files.values()} if (folder / MANIFEST).exists() else set()
            _remove_unlisted(folder, kept)
            if is_new and [entry.name for entry in folder.iterdir()] == [LOCK]:
                (folder / LOCK).unlink()
                folder.rmdir()
        raise


def _remove_unlisted(folder: Path, listed: set[str]) -> None:
    """Delete the files of earlier indexes and killed writers, except where the system keeps a file in use."""
    for entry in folder.iterdir():
        if TEMPORARY_NAME.fullmatch(entry.name) or (STORED_NAME.fullmatch(entry.name) and entry.name not in listed):
            with contextlib.suppress(OSError):
                entry.unlink()


def _hash(path: Path) -> str:
    with open_regular(path) as file:
        return file_digest(file, lambda: blake2b(digest_size=32)).hexdigest()


def _hash_json(*values: object) -> str:
    """Equal for values with the same JSON."""
    return blake2b(json.dumps(values, sort_keys=True, allow_nan=False).encode(), digest_size=32).hexdigest()
