"""A folder of files that is replaced whole: readers see the old one or the new one, never half of each.

Files carry the hash of their content in their names and never change. `index.json` says which of them belong
together; it is written last and put in place by one rename. What it no longer names is deleted after that;
whoever has mapped such a file keeps reading it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any

from crossknn.errors import InputError
from crossknn.storage.atomic import sync, exclusive_lock, unfinished, write_atomic

MANIFEST = "index.json"
LOCK = ".lock"
FORMAT = 2
OURS = re.compile(r"^(?P<stem>[a-z_]+)-[0-9a-f]{16}(?P<suffix>\.[a-z]+)$")
LEFT = re.compile(r"^\.[a-z_.]+\.[0-9a-f]{16}\.tmp$")  # by a writer that was killed
ATTEMPTS = 5  # at reading a folder that is replaced again and again meanwhile

Write = Callable[[Path], None]
Stamp = tuple[int, int]  # inode and time of a manifest: another one has another


@dataclass(frozen=True)
class Folder:
    """An opened folder: what its manifest says, and the path of each file by its plain name.

    `identity` is a hash of it all: another one for other content.
    """

    path: Path
    identity: str
    facts: dict[str, Any]
    files: dict[str, Path]
    _sizes: dict[str, int] = field(repr=False)
    _hashes: dict[str, str] = field(repr=False)
    _stamp: Stamp = field(repr=False)

    def is_current(self) -> bool:
        """Whether nobody has replaced it since it was opened."""
        try:
            return _stamp((self.path / MANIFEST).stat()) == self._stamp
        except OSError:
            return False

    def verify(self) -> int:
        """Read every file and compare its hash; how many bytes were read."""
        problem = _find_problem(self)
        if problem is not None:
            raise InputError(problem if self.is_current() else f"{self.path}: was replaced meanwhile. Load it again.")
        for name, path in self.files.items():
            found = _hash(path)
            if found != self._hashes[name]:
                raise InputError(
                    f"{path}: damaged. Its content has the hash {found}, but {MANIFEST} says {self._hashes[name]}. "
                    "Restore it from a copy or build the index again."
                )
        return sum(self._sizes.values())


def write_folder(path: str | Path, facts: Mapping[str, Any], files: Mapping[str, Write]) -> Folder:
    """Put these files and facts into the folder, in the place of what it held before.

    `files` gives for each plain name, such as `vectors.safetensors`, what writes it to a path. A folder that
    holds something else than an index is refused.
    """
    folder = Path(path)
    check_target(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(folder / LOCK):
            listed = {name: _store(folder, name, write) for name, write in files.items()}
            content = {"format": FORMAT, "hash": _hash_json(dict(facts), listed), "facts": dict(facts), "files": listed}
            write_atomic(folder / MANIFEST, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False).encode())
            _clean(folder, {str(entry["file"]) for entry in listed.values()})
            return read_folder(folder)
    except OSError as error:
        raise InputError(
            f"{folder}: the index could not be written ({error.strerror or error}). What it held before is unchanged."
        ) from error


def read_folder(path: str | Path) -> Folder:
    """Open the folder; its files are there and as large as they should be, their content is not read."""
    folder = Path(path)
    for _ in range(ATTEMPTS):
        opened = _parse(folder, *_read_manifest(folder))
        problem = _find_problem(opened)
        if problem is None:
            return opened
        if opened.is_current():  # it was not replaced while we looked
            raise InputError(problem)
    raise InputError(f"{folder}: is being replaced all the time. Try again.")


def _read_manifest(folder: Path) -> tuple[bytes, Stamp]:
    try:
        with (folder / MANIFEST).open("rb") as file:
            return file.read(), _stamp(os.fstat(file.fileno()))
    except (FileNotFoundError, NotADirectoryError) as error:
        what = "there is no such folder" if not folder.exists() else f"it holds no {MANIFEST}, so it is no index"
        raise InputError(f"{folder}: {what}. Give the folder that an index was saved to.") from error
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror or error}).") from error


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_mtime_ns


def _parse(folder: Path, text: bytes, stamp: Stamp) -> Folder:
    try:
        content = json.loads(text)
        if content["format"] > FORMAT:
            raise InputError(
                f"{folder}: written by a newer crossknn (format {content['format']}, this one reads {FORMAT}). Upgrade."
            )
        if content["format"] < FORMAT:
            raise InputError(
                f"{folder}: written by an older crossknn (format {content['format']}, this one reads {FORMAT}). "
                "Build the index again."
            )
        listed = {str(name): (str(e["file"]), int(e["bytes"]), str(e["hash"])) for name, e in content["files"].items()}
        facts = dict(content["facts"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder / MANIFEST}: damaged ({error!r}). Restore it from a copy or build the index again."
        ) from error
    for file, _, _ in listed.values():
        if not OURS.match(file):
            raise InputError(f"{folder / MANIFEST}: names {file!r}, which is no file of an index.")
    if content.get("hash") != _hash_json(content["facts"], content["files"]):
        raise InputError(
            f"{folder / MANIFEST}: damaged: its content is not what its hash says. "
            "Restore it from a copy or build the index again."
        )
    return Folder(
        folder,
        str(content["hash"]),
        facts,
        {name: folder / file for name, (file, _, _) in listed.items()},
        {name: size for name, (_, size, _) in listed.items()},
        {name: hash_ for name, (_, _, hash_) in listed.items()},
        stamp,
    )


def _find_problem(folder: Folder) -> str | None:
    for name, path in folder.files.items():
        try:
            size = path.stat().st_size
        except OSError:
            return f"{path}: missing, though {MANIFEST} names it. Restore it from a copy or build the index again."
        if size != folder._sizes[name]:
            return (
                f"{path}: damaged. It has {size} bytes, but {MANIFEST} says {folder._sizes[name]}. "
                "Restore it from a copy or build the index again."
            )
    return None


def check_target(folder: Path) -> None:
    """Refuse to make an index of a folder that is something else."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder}: is a file. Give a folder for the index, new or one that holds an index.")
    if not (folder / MANIFEST).exists():
        names = {entry.name for entry in folder.iterdir()} - {LOCK}
        others = [name for name in names if not LEFT.match(name) and not OURS.match(name)]
        if others:
            raise InputError(f"{folder}: holds other files ({sorted(others)[0]}) and no index. Give another folder.")


def _store(folder: Path, name: str, write: Write) -> dict[str, Any]:
    """Write one file under its content's hash; what the manifest says of it."""
    fresh = unfinished(folder / name)
    try:
        write(fresh)
        sync(fresh)
        hash_ = _hash(fresh)
        plain = Path(name)
        target = folder / f"{plain.stem}-{hash_[:16]}{plain.suffix}"
        size = fresh.stat().st_size
        fresh.replace(target)
        sync(folder)
    finally:
        fresh.unlink(missing_ok=True)
    return {"file": target.name, "bytes": size, "hash": hash_}


def _clean(folder: Path, wanted: set[str]) -> None:
    """Delete what earlier indexes and killed writers left; a system that cannot delete a file in use keeps it."""
    for entry in folder.iterdir():
        if LEFT.match(entry.name) or (OURS.match(entry.name) and entry.name not in wanted):
            with contextlib.suppress(OSError):
                entry.unlink()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, lambda: blake2b(digest_size=32)).hexdigest()


def _hash_json(*values: object) -> str:
    """Equal for values that are written as the same JSON."""
    return blake2b(json.dumps(values, sort_keys=True, allow_nan=False).encode(), digest_size=32).hexdigest()
