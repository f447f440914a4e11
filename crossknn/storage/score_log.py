"""The score log: a folder of immutable chunk files with the scores of one scorer, and the plans that reuse them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.storage.atomic import TEMPORARY_SUFFIX, digest, disk_errors, temporary_path, write_atomic
from crossknn.storage.regular_files import read_regular
from crossknn.types import Scores

FORMAT = 1
LOG_FILE = "log.json"
CHUNK_NAME = re.compile(r"([0-9a-f]{16})-([0-9]{6,})-([0-9a-f]{16})\.parquet")  # plan, number, digest
PLAN_NAME = re.compile(r"plan-([0-9a-f]{16})-([0-9]{3,})\.json")  # hash of the pairs, generation
COLUMNS = ("query", "item", "score")
MAX_ROWS = 1 << 20  # of a chunk of few bytes
TEMPORARY_SECONDS = 24 * 3600.0  # older temporary files were left by killed writers
CANNOT_USE = "the score log cannot be used"  # before what the file system says
KEPT = "Finished chunks are kept."
DELETE_CHUNK = "Delete this file: the next build scores its pairs again."
DELETE_LOG_JSON = "Delete this file: it is written again, and each chunk names its own scorer."
DELETE_PLAN = "Delete this file: finished chunks are reused, and a new plan is made."

Hashes = NDArray[np.void]  # (texts,) 16 bytes each
HASH_DTYPE = np.dtype("V16")


def read_scorer(folder: Path) -> str:
    """The fingerprint of the scorer whose scores the log in this folder holds."""
    return str(_read_json(folder / LOG_FILE, DELETE_LOG_JSON).get("scorer"))


def hash_texts(texts: Iterable[str]) -> Hashes:
    """(texts,) the keys of texts in the log: 16 bytes of BLAKE2b of their UTF-8."""
    hashes = bytearray()
    for text in texts:
        hashes += blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return np.frombuffer(bytes(hashes), HASH_DTYPE)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The scores of one call of the scorer, with the hashes of its query and item texts."""

    queries: Hashes
    items: Hashes
    scores: Scores


@dataclass(frozen=True, slots=True)
class Plan:
    """Which chunks of earlier plans a build reuses, fixed before its first call, so that a rerun makes the same calls.

    Each generation has one plan, that of the first worker. The next generation begins only when a chunk that the plan
    reuses was deleted, since then other pairs remain to be scored.
    """

    pairs: str  # hash of the pairs, the scorer and the number of pairs per call
    generation: int  # from 0
    reused: tuple[str, ...]  # names of chunk files

    @property
    def name(self) -> str:
        """The first part of the names of its chunks."""
        return digest(json.dumps([self.pairs, self.generation, self.reused]).encode())

    @property
    def file_name(self) -> str:
        return f"plan-{self.pairs}-{self.generation:03}.json"

    @classmethod
    def read(cls, path: Path) -> Plan:
        """The plan in this file, verified by its digest."""
        content = _read_json(path, DELETE_PLAN)
        try:
            plan = cls(content["wanted"], content["generation"], tuple(content["reused"]))
            intact = plan.name == content["plan"] and plan.file_name == path.name
        except (KeyError, TypeError) as error:
            raise InputError(f"{path}: damaged ({error!r}). {DELETE_PLAN}") from error
        if not intact:
            raise InputError(f"{path}: damaged: its content does not match its digest or its name. {DELETE_PLAN}")
        return plan

    def write(self, folder: Path) -> Plan:
        """The plan in force from now on: this one, or that of another worker who was first."""
        path = folder / self.file_name
        _write_json(path, plan=self.name, wanted=self.pairs, generation=self.generation, reused=self.reused)
        return Plan.read(path)


@dataclass(frozen=True, slots=True)
class LogSize:
    """How much a log holds."""

    chunks: int
    scores: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ScoreLog:
    """The scores of the scorer with this fingerprint, opened by `ScoreLog.open`.

    A pair is identified by the hashes of its two texts, so that builds over other items, or over the same items in
    another order, reuse its score. Chunk files may be copied from one log to another of the same scorer. Threads and
    processes may write concurrently, without a lock.
    """

    folder: Path
    scorer: str

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, scorer: str) -> Self:
        """Open the log of the scorer with this fingerprint in `folder`, which is created if necessary."""
        log = cls(Path(folder), scorer)
        path = log.folder / LOG_FILE
        with disk_errors(log.folder, CANNOT_USE):
            log.folder.mkdir(parents=True, exist_ok=True)
            exists = path.exists()
        if not exists:
            _write_json(path, scorer=scorer)
        found = _read_json(path, DELETE_LOG_JSON).get("scorer")
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
            self._parse_name(name)
        return names

    def chunks_of(self, plan: Plan) -> dict[int, str]:
        """The chunks of a plan by number; the first by name where two workers have scored the same one."""
        found = [m for name in sorted(self._names(), reverse=True) if (m := CHUNK_NAME.fullmatch(name))]
        return {int(m[2]): m[0] for m in found if m[1] == plan.name}

    def latest_plan(self, pairs: str) -> Plan | None:
        """The newest plan for the pairs with this hash."""
        plans = [(int(m[2]), m[0]) for name in self._names() if (m := PLAN_NAME.fullmatch(name)) and m[1] == pairs]
        return Plan.read(self.folder / max(plans)[1]) if plans else None

    def write(self, chunk: Chunk, plan: str, number: int) -> None:
        """Store one chunk of the plan with this name."""
        table = pa.table(
            {"query": _to_arrow(chunk.queries), "item": _to_arrow(chunk.items), "score": pa.array(chunk.scores)},
            metadata=self._metadata(plan, number),
        )
        file = BytesIO()
        pq.write_table(table, file, compression="zstd")
        data = file.getvalue()
        with disk_errors(self.folder, CANNOT_USE, KEPT):
            write_atomic(self.folder / f"{plan}-{number:06}-{digest(data)}.parquet", data)

    def read(self, name: str) -> Chunk:
        """The chunk in this file, verified by its digest and its metadata."""
        path = self.folder / name
        plan, number, expected = self._parse_name(name)
        with disk_errors(path, CANNOT_USE):
            data = read_regular(path)
        if digest(data) != expected:
            raise InputError(
                f"{path}: damaged: its {len(data)} bytes have the digest {digest(data)}, not {expected}. {DELETE_CHUNK}"
            )
        try:
            table = _read_table(data)
            chunk = Chunk(_from_arrow(table["query"]), _from_arrow(table["item"]), table["score"].to_numpy())
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise InputError(f"{path}: not a chunk of scores ({error}). {DELETE_CHUNK}") from error
        for key, value in self._metadata(plan, int(number)).items():
            found = (table.schema.metadata or {}).get(key.encode(), b"none").decode("utf-8", "surrogatepass")
            if found != value:
                field = key.removeprefix("crossknn.")
                raise InputError(f"{path}: the {field} of this chunk must be {value!r}, got {found!r}. Move it away.")
        if chunk.scores.dtype != np.float32 or not np.isfinite(chunk.scores).all():
            raise InputError(f"{path}: its scores are not finite float32 numbers. {DELETE_CHUNK}")
        return chunk

    def verify(self) -> LogSize:
        """Read every file; an error for the first that is damaged or does not belong here."""
        names, size, scores = self.chunks, 0, 0
        for name in names:
            scores += len(self.read(name).scores)
            with disk_errors(self.folder, CANNOT_USE):
                size += (self.folder / name).stat().st_size
        for name in sorted(self._names()):
            if PLAN_NAME.fullmatch(name):
                Plan.read(self.folder / name)
        return LogSize(len(names), scores, size)

    def _metadata(self, plan: str, number: int) -> dict[str, str]:
        """Repeats what the name of a chunk says, so that a renamed or copied file is noticed."""
        fields = {"format": str(FORMAT), "scorer": self.scorer, "plan": plan, "number": str(number)}
        return {f"crossknn.{key}": value for key, value in fields.items()}

    def _parse_name(self, name: str) -> tuple[str, ...]:
        """Plan, number and digest of a chunk file."""
        match = CHUNK_NAME.fullmatch(name)
        if match is None:
            raise InputError(f"{self.folder / name}: not named like a chunk of scores. Move it away.")
        return match.groups()

    def _names(self) -> list[str]:
        with disk_errors(self.folder, CANNOT_USE):
            return os.listdir(self.folder)  # noqa: PTH208 (names, without an object for each)

    def _remove_temporary_files(self) -> None:
        """Remove old ones; their age is by the clock that wrote their times, which may not be this machine's."""
        paths = [*self.folder.glob(f".*{TEMPORARY_SUFFIX}")]
        if not paths:
            return
        probe = temporary_path(self.folder / "clock")
        with suppress(OSError):
            probe.touch()
            now = probe.stat().st_mtime
            probe.unlink()
            for path in paths:
                with suppress(OSError):  # its writer has finished
                    if now - path.stat().st_mtime > TEMPORARY_SECONDS:
                        path.unlink()


def _read_table(data: bytes) -> pa.Table:
    """The columns of a chunk, which a small file could make any number of rows of, or other columns."""
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        types = [schema.field(name).type for name in COLUMNS]
        if types != [pa.binary(HASH_DTYPE.itemsize), pa.binary(HASH_DTYPE.itemsize), pa.float32()]:
            raise ValueError(f"its columns are of other types: {', '.join(map(str, types))}")
        if rows > max(MAX_ROWS, len(data)):
            raise ValueError(f"its {len(data):,} bytes unpack to {rows:,} rows")
        return file.read([*COLUMNS], use_threads=False)


def _to_arrow(hashes: Hashes) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(hashes))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(HASH_DTYPE.itemsize), len(hashes), [None, data])


def _from_arrow(column: pa.ChunkedArray) -> Hashes:
    if column.null_count:
        raise ValueError(f"a column with {column.null_count} nulls")
    parts = [np.frombuffer(part.buffers()[1], HASH_DTYPE)[part.offset :][: len(part)] for part in column.chunks]
    return np.concatenate([np.empty(0, HASH_DTYPE), *parts])


def _write_json(path: Path, **content: Any) -> None:
    """Write a file of the log, unless another worker has written it."""
    with disk_errors(path.parent, CANNOT_USE, KEPT):
        write_atomic(path, json.dumps({"format": FORMAT, **content}, indent=1).encode(), first_wins=True)


def _read_json(path: Path, advice: str) -> dict[str, Any]:
    """The object in a file of the log; an error, with this advice, if it is damaged or of a newer format."""
    with disk_errors(path, CANNOT_USE):
        data = read_regular(path)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: damaged: not JSON ({error}). {advice}") from error
    number = content.get("format") if isinstance(content, dict) else None
    if not isinstance(number, int):
        raise InputError(f"{path}: damaged: an object with a format number is expected. {advice}")
    if number > FORMAT:
        raise InputError(
            f"{path}: written by a newer crossknn (format {number}, this one reads {FORMAT}). "
            "Upgrade crossknn, or give another folder."
        )
    return dict(content)
