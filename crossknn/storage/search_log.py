"""Log of searches: the query, ids and scores of everything a search paid for, appended to files of bounded size.

A search is one line of JSON with its digest, written at once, so that a kill can tear the last line of a file only; a
line that is torn or damaged is skipped. Files are numbered, and the oldest ones are deleted when all together exceed
the limit.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive
from crossknn.errors import InputError
from crossknn.storage.atomic import digest, disk_errors, write_atomic
from crossknn.storage.regular_files import open_handle, open_regular, read_regular
from crossknn.types import Scores

logger = logging.getLogger(__name__)

FORMAT: Final = 2
WITHOUT_DIGESTS: Final = 1  # the format of earlier versions, whose folders are read and continued
FILES: Final = 8  # that the limit is divided into
MAX_BYTES: Final = 1 << 30
FACTS: Final = "searches.json"
FILE_NAME: Final = re.compile(r"^searches-(\d{6,})\.jsonl$")


class LoggedSearch(NamedTuple):
    """What one search scored."""

    query: str
    ids: list[str]
    scores: Scores | list[float]


class SearchLog:
    """Searches in a folder, for one scorer. Threads may append; one process at a time.

    Args:
        folder: New, or one with a log of the same scorer.
        scorer: Its fingerprint.
        max_bytes: Of all files; the oldest searches are deleted beyond it.
    """

    def __init__(self, folder: str | Path, *, scorer: str, max_bytes: int = MAX_BYTES) -> None:
        check_positive("max_bytes", max_bytes)
        self.folder = Path(folder)
        self._max_file_bytes = max(1, max_bytes // FILES)
        self._lock = Lock()
        with disk_errors(self.folder, "the log of searches cannot be written"):
            self.folder.mkdir(parents=True, exist_ok=True)
            found = _read_facts(self.folder)
            if found is None:
                content = json.dumps({"format": FORMAT, "scorer": scorer})
                write_atomic(self.folder / FACTS, content.encode())
        if found is not None:
            _check_scorer(self.folder, found, scorer)
        self._number = max((number for number, _ in _files(self.folder)), default=0) + 1  # never behind a torn line
        self._size = 0  # of the file of this number
        self._failed = False

    def append(self, query: str, ids: Sequence[str], scores: Sequence[float] | NDArray[Any]) -> bool:
        """Log a search; False, with one warning in the log, if it cannot be written: a search never fails for it."""
        if not len(ids):
            return True
        line = to_line(query, ids, scores)
        with self._lock:
            try:
                self._write(line)
            except (OSError, InputError) as error:
                if not self._failed:
                    logger.warning("%s: searches are not logged: %s", self.folder, error)
                self._failed = True
                return False
            self._failed = False
        return True

    def _write(self, line: bytes) -> None:
        if self._size and self._size + len(line) > self._max_file_bytes:
            self._start_file()
            for _, old in _files(self.folder)[: 1 - FILES]:
                old.unlink(missing_ok=True)
        path = self.folder / f"searches-{self._number:06d}.jsonl"
        handle = open_handle(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, mode=0o600)
        try:
            written = os.write(handle, line)
        finally:
            os.close(handle)
        self._size += written
        if written < len(line):  # a torn line is the last of its file
            self._start_file()
            raise OSError("the disk is full")

    def _start_file(self) -> None:
        self._number, self._size = self._number + 1, 0


def read_searches(folder: str | Path, *, scorer: str) -> Iterator[LoggedSearch]:
    """The searches of a log, oldest first; `InputError` if there is none, or it is of another scorer."""
    path = Path(folder)
    with disk_errors(path, "the log of searches cannot be read"):
        facts = _read_facts(path)
    if facts is None:
        raise InputError(f"{path}: no log of searches, for it holds no {FACTS}. Give the folder of serve --learn.")
    _check_scorer(path, facts, scorer)
    for _, file in _files(path):
        skipped = 0
        with disk_errors(file, "the log of searches cannot be read"), open_regular(file) as lines:
            for line in lines:
                search = parse_search(line, checked=facts["format"] != WITHOUT_DIGESTS)
                if search is not None:
                    yield search
                skipped += search is None
        if skipped:
            logger.warning("%s: %d torn or damaged lines are left out", file, skipped)


def to_line(query: str, ids: Sequence[str], scores: Sequence[float] | NDArray[Any]) -> bytes:
    """A search as a line of JSON."""
    record = {"query": query, "ids": list(ids), "scores": [float(score) for score in scores]}
    return json.dumps({**record, "digest": _digest(record)}).encode() + b"\n"


def _digest(record: dict[str, Any]) -> str:
    return digest(json.dumps(record).encode())


def parse_search(line: bytes, *, checked: bool = True) -> LoggedSearch | None:
    """The search in a line; None if it was torn or damaged, or if it lacks a digest and has to be `checked`."""
    try:
        record = json.loads(line)
        expected = record.pop("digest", None)
        if expected != _digest(record) and (checked or expected is not None):
            return None
        query, ids = str(record["query"]), [str(one) for one in record["ids"]]
        scores = np.array(record["scores"], np.float32)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    valid = scores.shape == (len(ids),) and np.isfinite(scores).all() and query.strip()
    return LoggedSearch(query, ids, scores) if valid else None


def _files(folder: Path) -> list[tuple[int, Path]]:
    """The files by number, oldest first."""
    found = ((FILE_NAME.match(path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), path) for match, path in found if match)


def _read_facts(folder: Path) -> dict[str, Any] | None:
    path = folder / FACTS
    if not path.exists():
        return None
    try:
        facts = json.loads(read_regular(path))
        if facts["format"] in (FORMAT, WITHOUT_DIGESTS) and isinstance(facts["scorer"], str):
            return dict(facts)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise InputError(f"{path}: damaged, or written by a newer crossknn. Give another folder.")


def _check_scorer(folder: Path, facts: dict[str, Any], scorer: str) -> None:
    if facts["scorer"] != scorer:
        raise InputError(
            f"{folder}: a log of another scorer (fingerprint {facts['scorer']!r}), got {scorer!r}. Give that scorer "
            "or another folder."
        )
