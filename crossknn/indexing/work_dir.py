"""Verification of a work folder: everything that a later build, teaching or benchmark would reuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from crossknn.errors import InputError
from crossknn.indexing.score_sources import read_kept_lists
from crossknn.scorers.cached import verify_cache
from crossknn.storage.atomic import disk_errors
from crossknn.storage.block_file import BlockFile
from crossknn.storage.safetensors import read_checked
from crossknn.storage.score_log import LOG_FILE, ScoreLog, read_scorer

PATTERNS: Final = ("*", "scores/*", "exact/*", "teaching-*/*")  # of the files of builds, learnings and benchmarks
BUILD: Final = "build"  # the folder in that of a benchmark
SIDECAR: Final = ".npy.json"
COMPUTED_AGAIN: Final = "The next run does not use it, and computes it again."


@dataclass(frozen=True)
class WorkDirReport:
    """What a work folder holds, and what of it is damaged.

    Attributes:
        files: Verified by their digests: arrays, chunks of scores, caches, lists and checkpoints of teachings.
        bytes: Of these files.
        rows: Of arrays, of vectors or of exact scores.
        scores: In score logs and caches.
        damaged: A sentence for each file that does not hold.
    """

    files: int
    bytes: int
    rows: int
    scores: int
    damaged: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.bytes:,} bytes read in {self.files:,} files: {self.rows:,} rows of arrays, {self.scores:,} scores"
        )


class _Content(NamedTuple):
    files: int
    bytes: int
    rows: int = 0
    scores: int = 0


def verify_work_dir(path: str | Path) -> WorkDirReport:
    """Check every block in a work folder that a later run would reuse by its digest.

    A run checks what it reuses by itself: this tells what a run would find.

    Raises:
        InputError: If the folder holds nothing of the kind.
    """
    folder = Path(path)
    damaged: list[str] = []
    contents = [_Content(0, 0)]
    with disk_errors(folder, "the work folder cannot be read"):
        found = list(_find(folder))
    if not found:
        raise InputError(f"{folder}: no work folder, for it holds no scores and no vectors. Give that of a build.")
    for file, verify in found:
        try:
            contents.append(verify(file))
        except InputError as error:
            damaged.append(str(error))
    files, size, rows, scores = (sum(column) for column in zip(*contents, strict=True))
    return WorkDirReport(files, size, rows, scores, tuple(damaged))


def _find(folder: Path) -> Iterator[tuple[Path, Callable[[Path], _Content]]]:
    """The files that can be verified, and the function that does it."""
    folders = (folder, folder / BUILD)
    for file in sorted(chain.from_iterable(one.glob(pattern) for one in folders for pattern in PATTERNS)):
        if file.name.endswith(SIDECAR):
            yield file.with_name(file.name.removesuffix(".json")), _verify_array
        elif file.name == LOG_FILE:
            yield file.parent, _verify_log
        elif file.parent.name.startswith("teaching-") and file.suffix == ".safetensors":
            yield file, _verify_teaching
        elif file.name.startswith("lists-") and file.suffix == ".jsonl":
            yield file, _verify_lists
        elif file.suffix == ".db":
            yield file, _verify_scores


def _verify_array(path: Path) -> _Content:
    file = BlockFile.stored(path)
    rows = file.verify()
    stored = [one for one in file.paths if one.exists()]
    return _Content(len(stored), sum(map(_size, stored)), rows=rows)


def _verify_log(folder: Path) -> _Content:
    size = ScoreLog.open(folder, scorer=read_scorer(folder)).verify()
    return _Content(size.chunks, size.bytes, scores=size.scores)


def _verify_teaching(path: Path) -> _Content:
    if read_checked(path) is None:
        raise InputError(f"{path}: damaged. {COMPUTED_AGAIN}")
    return _Content(1, _size(path))


def _verify_lists(path: Path) -> _Content:
    with disk_errors(path, "these lists cannot be read"):
        if read_kept_lists(path) is None:
            raise InputError(f"{path}: damaged. The next run does not use it, and reads the sources of lists again.")
    return _Content(1, _size(path))


def _verify_scores(path: Path) -> _Content:
    return _Content(1, _size(path), scores=verify_cache(path))


def _size(path: Path) -> int:
    return path.stat().st_size
