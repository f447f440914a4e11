"""The score log: a folder of immutable chunk files with the scores of one scorer."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from crossknn.errors import InputError
from crossknn.storage.atomic import TEMPORARY_SUFFIX, disk_errors
from crossknn.storage.score_chunks import CANNOT_USE, CHUNK_NAME, FORMAT, Chunk, read_chunk, write_chunk
from crossknn.storage.score_plan import PLAN_NAME, Plan, read_json, write_json

TEMPORARY_SECONDS = 24 * 3600.0  # older temporary files were left by killed writers
DELETE_LOG_JSON = "Delete this file: it is written again, and each chunk names its own scorer."


@dataclass(frozen=True, slots=True)
class LogSize:
    """How much a log holds."""

    chunks: int
    scores: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ScoreLog:
    """The scores of one scorer, opened by `ScoreLog.open`.

    A pair is identified by the hashes of its two texts, so that builds over other items, or over the same items in
    another order, reuse its score. Chunk files may be copied from one log to another of the same scorer. Threads and
    processes may write concurrently, without a lock.

    Attributes:
        folder: The folder of the files.
        scorer: The scorer's fingerprint.
    """

    folder: Path
    scorer: str

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, scorer: str) -> Self:
        """Open the log of the scorer with this fingerprint in `folder`, which is created if necessary."""
        log = cls(Path(folder), scorer)
        path = log.folder / "log.json"
        with disk_errors(log.folder, CANNOT_USE):
            log.folder.mkdir(parents=True, exist_ok=True)
            exists = path.exists()
        if not exists:
            write_json(path, {"format": FORMAT, "scorer": scorer})
        found = read_json(path, DELETE_LOG_JSON).get("scorer")
        if found != scorer:
            raise InputError(
                f"{path}: holds the scores of {found!r}, not of {scorer!r}. Give another folder, or that scorer."
            )
        log._remove_temporary_files()
        return log

    @property
    def chunks(self) -> list[str]:
        """The names of all chunk files, sorted; other Parquet files are an error, other files are ignored."""
        names = sorted(name for name in self._names() if name.endswith(".parquet"))
        for name in names:
            if not CHUNK_NAME.fullmatch(name):
                raise InputError(f"{self.folder / name}: not named like a chunk of scores. Move it away.")
        return names

    def read(self, name: str) -> Chunk:
        """The chunk in this file, verified."""
        return read_chunk(self.folder / name, scorer=self.scorer)

    def write(self, chunk: Chunk, plan: Plan, number: int) -> None:
        """Store one chunk of a plan."""
        write_chunk(self.folder, chunk, plan=plan.name, number=number, scorer=self.scorer)

    def verify(self) -> LogSize:
        """Read every file; an error for the first that is damaged or does not belong here."""
        names, size, scores = self.chunks, 0, 0
        for name in names:
            scores += len(self.read(name))
            with disk_errors(self.folder, CANNOT_USE):
                size += (self.folder / name).stat().st_size
        for name in sorted(self._names()):
            if PLAN_NAME.fullmatch(name):
                Plan.read(self.folder / name)
        return LogSize(len(names), scores, size)

    def latest_plan(self, pairs: str) -> Plan | None:
        """The newest plan for the pairs with this hash."""
        plans = [(int(m[2]), m[0]) for name in self._names() if (m := PLAN_NAME.fullmatch(name)) and m[1] == pairs]
        return Plan.read(self.folder / max(plans)[1]) if plans else None

    def chunks_of(self, plan: Plan) -> dict[int, str]:
        """The chunks of a plan by number; the first by name where two workers have scored the same one."""
        found = [m for name in sorted(self._names(), reverse=True) if (m := CHUNK_NAME.fullmatch(name))]
        return {int(m[2]): m[0] for m in found if m[1] == plan.name}

    def _names(self) -> list[str]:
        with disk_errors(self.folder, CANNOT_USE):
            return os.listdir(self.folder)  # noqa: PTH208 (names, without an object for each)

    def _remove_temporary_files(self) -> None:
        for path in self.folder.glob(f".*{TEMPORARY_SUFFIX}"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > TEMPORARY_SECONDS:
                    path.unlink()
