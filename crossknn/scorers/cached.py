"""A score cache on disk (SQLite), so that no pair is scored twice, and its scores grouped by query."""

from __future__ import annotations

import logging
import os
import sqlite3
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from crossknn._checks import check_positive
from crossknn.errors import InputError, PartialScores
from crossknn.models.fingerprints import is_unnamed
from crossknn.scorers.base import RankMixin, ascore_pairs, check_pairs, has_ascore, score_pairs
from crossknn.scorers.flows import arun_flow, run_flow
from crossknn.storage.regular_files import check_regular
from crossknn.storage.score_log import HASH_DTYPE, Chunk, hash_texts
from crossknn.types import Scorer, Scores

KEYS_PER_SELECT = 900  # older versions of SQLite take at most 999
LOCK_TIMEOUT = 60.0  # seconds
APPLICATION_ID = 0x434B4E4E  # "CKNN" in the file's header
FORMAT_VERSION = 2
WITHOUT_CHECKSUMS = 1  # the format of earlier versions
SIGNATURE: Final = b"SQLite format 3\0"  # how every SQLite file begins
TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS scores (key BLOB PRIMARY KEY, score REAL NOT NULL, checksum INTEGER) WITHOUT ROWID",
    # `scores` alone does not say which scores have one query.
    "CREATE TABLE IF NOT EXISTS lists (scorer BLOB, query BLOB, item BLOB, score REAL NOT NULL, checksum INTEGER, "
    "PRIMARY KEY (scorer, query, item)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS queries (hash BLOB PRIMARY KEY, text BLOB NOT NULL) WITHOUT ROWID",
)
KEYS: Final = {"scores": "key", "lists": "scorer, query, item"}  # by table, which a checksum is of, with the score

Pairs = tuple[list[str], list[str]]
"""Queries and items."""

logger = logging.getLogger(__name__)

_inherited: list[sqlite3.Connection] = []  # connections of a parent process: never used here, never closed here


class Cached(RankMixin):
    """A scorer with its scores cached in an SQLite file, which threads and processes may share.

    Scores are stored by the scorer's fingerprint, so one file serves several scorers.

    Args:
        scorer: The scorer; a function needs a fingerprint.
        path: The file; created if it does not exist.
        every: New scores are written after this many pairs, in one transaction: a process killed at any moment
            loses at most the slice that it was scoring.
        keep_queries: Also store the texts of queries, readable by the file's owner if it is new, so that an index can
            learn from the file alone. By default the file holds hashes only.

    Attributes:
        hits: Pairs found in the cache.
        misses: Pairs that the scorer had to score.
    """

    def __init__(
        self, scorer: Scorer, path: str | os.PathLike[str], *, every: int = 4096, keep_queries: bool = False
    ) -> None:
        check_positive("every", every)
        if is_unnamed(scorer.fingerprint):
            raise InputError(
                "A function without a fingerprint cannot be cached: its scores could be confused with another's. "
                "Name it: function_scorer(fn, fingerprint='my-model-v1')."
            )
        self.scorer = scorer
        self.fingerprint = scorer.fingerprint  # caching changes no score
        self.path = Path(path)
        self.every = every
        self.keep_queries = keep_queries
        self.hits = 0
        self.misses = 0
        self._local = threading.local()
        self._lock = threading.Lock()
        self._connection()  # an unusable file is an error now, not in the middle of a search

    def __reduce__(self) -> tuple[Any, ...]:
        """Workers get the scorer and the path; each opens the file itself."""
        return partial(Cached, self.scorer, self.path, every=self.every, keep_queries=self.keep_queries), ()

    def score(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        """The scores of the pairs; only distinct pairs that are not cached go to the scorer."""
        return run_flow(self._look_up(queries, items), lambda pairs: score_pairs(self.scorer, *pairs))

    @property
    def ascore(self) -> Callable[[Sequence[str], Sequence[str]], Awaitable[Scores]]:
        """`score`, awaited; `AttributeError` where the scorer has no `ascore` itself."""
        if not has_ascore(self.scorer):
            raise AttributeError("the cached scorer has no `ascore`.")
        return self._ascore

    async def _ascore(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        return await arun_flow(self._look_up(queries, items), lambda pairs: ascore_pairs(self.scorer, *pairs))

    def _look_up(self, queries: Sequence[str], items: Sequence[str]) -> Generator[Pairs, Scores, Scores]:
        """Yields the pairs that are missing, to have them scored, and stores what it is sent."""
        keys = self._keys(queries, items)
        known = self._read(list(dict.fromkeys(keys)))
        missing = {key: at for at, key in enumerate(keys) if key not in known}  # one position per distinct pair
        order = sorted(missing.values())
        for start in range(0, len(order), self.every):
            batch = order[start : start + self.every]
            texts = [queries[at] for at in batch], [items[at] for at in batch]
            try:
                scores = yield texts
            except BaseException as error:
                self._keep_partial(error)
                raise
            self._write(*texts, scores)
            known |= {keys[at]: float(score) for at, score in zip(batch, scores, strict=True)}
            self._count(misses=len(batch))
        self._count(hits=len(keys) - len(order))
        return np.fromiter((known[key] for key in keys), np.float32, len(keys))

    def _keep_partial(self, error: BaseException) -> None:
        """Store the scores from before a failure or an interrupt."""
        known = error if isinstance(error, PartialScores) else error.__cause__
        # Not the scores of another scorer inside this one.
        if isinstance(known, PartialScores) and known.fingerprint == self.fingerprint:
            self._write(known.queries, known.items, known.scores)
            self._count(misses=len(known.scores))

    def count_missing(self, queries: Sequence[str], items: Sequence[str]) -> int:
        """How many distinct pairs are not in the cache yet."""
        keys = list(dict.fromkeys(self._keys(queries, items)))
        return len(keys) - len(self._read(keys))

    def close(self) -> None:
        """Close this thread's connection; the next call of `score` opens another."""
        connection = getattr(self._local, "connection", None)
        if connection is not None and self._local.process == os.getpid():
            connection.close()
        self._local.connection = None

    def _keys(self, queries: Sequence[str], items: Sequence[str]) -> list[bytes]:
        check_pairs(queries, items)
        return [self._key(query, item) for query, item in zip(queries, items, strict=True)]

    def _key(self, query: str, item: str) -> bytes:
        """16 bytes; each part is preceded by its length, so that distinct pairs hash distinct bytes."""
        digest = blake2b(digest_size=16)
        for text in (self.fingerprint, query, item):
            part = text.encode("utf-8", "surrogatepass")
            digest.update(struct.pack("<Q", len(part)) + part)
        return digest.digest()

    def _read(self, keys: list[bytes]) -> dict[bytes, float]:
        known: dict[bytes, float] = {}
        damaged = 0
        with _readable_errors(self.path):
            connection = self._connection()
            for start in range(0, len(keys), KEYS_PER_SELECT):
                batch = keys[start : start + KEYS_PER_SELECT]
                marks = ",".join("?" * len(batch))
                select = f"SELECT key, score, {_is_intact('scores')} FROM scores WHERE key IN ({marks})"  # noqa: S608
                rows = connection.execute(select, batch)
                for key, score, intact in rows:
                    if intact:
                        known[key] = score
                    damaged += not intact
        if damaged:
            logger.warning("%s: %d damaged scores are not used", self.path, damaged)
        return known

    def _write(self, queries: Sequence[str], items: Sequence[str], scores: Sequence[float] | Scores) -> None:
        values = [float(score) for score in scores]
        hashes = [[one.tobytes() for one in hash_texts(texts)] for texts in ([self.fingerprint], queries, items)]
        lists = zip(hashes[0] * len(values), *hashes[1:], values, strict=True)
        with _readable_errors(self.path), self._connection() as connection:  # which commits, or rolls back
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_insertion("scores"), zip(self._keys(queries, items), values, strict=True))
            connection.executemany(_insertion("lists"), lists)
            if self.keep_queries:
                texts = {
                    hash_: text.encode("utf-8", "surrogatepass") for hash_, text in zip(hashes[1], queries, strict=True)
                }
                connection.executemany("INSERT OR IGNORE INTO queries VALUES (?, ?)", texts.items())

    def _count(self, *, hits: int = 0, misses: int = 0) -> None:
        with self._lock:
            self.hits += hits
            self.misses += misses

    def _connection(self) -> sqlite3.Connection:
        """The connection of this thread in this process."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None and self._local.process != os.getpid():
            _inherited.append(connection)  # closing it here would disturb the parent's locks
            connection = None
        if connection is None:
            with _readable_errors(self.path):
                connection = _open(self.path, private=self.keep_queries)
            self._local.connection, self._local.process = connection, os.getpid()
        return connection


class CachedLists(NamedTuple):
    """The scores of one scorer in a cache, with what identifies their queries and items."""

    scores: Chunk
    queries: list[str]  # whose texts were kept


def read_cached_lists(path: str | os.PathLike[str], *, scorer: str) -> CachedLists:
    """The scores of the scorer with this fingerprint; `InputError` if the cache has none that name their query."""
    path, own = Path(path), hash_texts([scorer])[0].tobytes()
    with _readable_errors(path), closing(_open(path)) as connection:
        has_lists = connection.execute("SELECT EXISTS (SELECT 1 FROM lists)").fetchone()[0]
        found = connection.execute(
            f"SELECT query, item, score, {_is_intact('lists')} FROM lists WHERE scorer = ?",  # noqa: S608
            [own],
        ).fetchall()
        texts = [text for hash_, text in connection.execute("SELECT hash, text FROM queries") if _names(hash_, text)]
    if not has_lists:
        raise InputError(
            f"{path}: a cache without lists: it is empty, or an earlier crossknn wrote it, which did not store which "
            "scores have a query in common."
        )
    rows = [row for *row, intact in found if intact]
    if len(rows) < len(found):
        logger.warning("%s: %d damaged scores are left out", path, len(found) - len(rows))
    if not rows:
        raise InputError(f"{path}: a cache of another scorer's scores, without any of {scorer!r}. Give that scorer.")
    queries, items, scores = zip(*rows, strict=True)
    hashes = [np.frombuffer(b"".join(column), HASH_DTYPE) for column in (queries, items)]
    chunk = Chunk(hashes[0], hashes[1], np.array(scores, np.float32))
    return CachedLists(chunk, [text.decode("utf-8", "surrogatepass") for text in texts])


def verify_cache(path: str | os.PathLike[str]) -> int:
    """Check every score of a cache by its checksum; the number of scores, or `InputError` if some are damaged."""
    path = Path(path)
    with _readable_errors(path), closing(_connect(path)) as connection:
        version = _format_of(connection)
        if version != FORMAT_VERSION:
            raise InputError(
                f"{path}: a score cache without checksums, of an earlier crossknn. They are added when it is next used."
            )
        (state,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if state != "ok":
            raise sqlite3.DatabaseError(f"malformed: {state}")
        (scores,) = connection.execute("SELECT count(*) FROM scores").fetchone()
        damaged = 0
        for table in KEYS:
            damaged += connection.execute(f"SELECT count(*) FROM {table} WHERE NOT {_is_intact(table)}").fetchone()[0]  # noqa: S608
        damaged += sum(not _names(*row) for row in connection.execute("SELECT hash, text FROM queries"))
    if damaged:
        raise InputError(f"{path}: {damaged:,} of its rows are damaged. They are not used, and scored again.")
    return int(scores)


def _is_intact(table: str) -> str:
    """An expression that says whether a row has the checksum of its key and score."""
    return f"({table}.checksum IS crossknn_checksum({KEYS[table]}, score))"


def _insertion(table: str) -> str:
    """Of the key and score of a row, which replaces a damaged one only."""
    keys, marks = KEYS[table], ", ".join(f"?{place}" for place in range(1, KEYS[table].count(",") + 3))
    return (
        f"INSERT INTO {table} VALUES ({marks}, crossknn_checksum({marks})) ON CONFLICT ({keys}) DO UPDATE "  # noqa: S608
        f"SET score = excluded.score, checksum = excluded.checksum WHERE NOT {_is_intact(table)}"
    )


def _checksum(*values: object) -> int | None:
    """Four bytes of a row's key and score; None for values of other types, which damage made."""
    *keys, score = values
    if not isinstance(score, float) or not all(isinstance(key, bytes) for key in keys):
        return None
    content = b"".join([*(key for key in keys if isinstance(key, bytes)), struct.pack("<d", score)])
    return int.from_bytes(blake2b(content, digest_size=4).digest(), "little")


def _names(hash_: object, text: object) -> bool:
    """Whether this is the hash of a query's text."""
    return isinstance(text, bytes) and blake2b(text, digest_size=HASH_DTYPE.itemsize).digest() == hash_


@contextmanager
def _readable_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise InputError(f"The score cache {path} cannot be used: {_explain(error)}.") from error


def _open(path: Path, *, private: bool = False) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    if private and not path.exists():
        path.touch(mode=0o600)
    connection = _connect(path)
    try:
        version = _format_of(connection)
        if not version:
            _create(connection)
        if version == WITHOUT_CHECKSUMS:
            logger.warning("%s: its scores, written by an earlier crossknn, get checksums", path)
            _add_checksums(connection)
        connection.execute("PRAGMA synchronous = NORMAL")  # in WAL: a kill loses nothing that was committed
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path) -> sqlite3.Connection:
    with suppress(FileNotFoundError):
        check_regular(path, path.stat())
    connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT, isolation_level=None, check_same_thread=False)
    connection.create_function("crossknn_checksum", -1, _checksum, deterministic=True)
    return connection


def _format_of(connection: sqlite3.Connection) -> int:
    """The file's format; 0 for a new file, an error for another program's."""
    connection.execute("BEGIN")  # a consistent snapshot: another process may be creating the file
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    connection.execute("COMMIT")
    if application == APPLICATION_ID and version in (FORMAT_VERSION, WITHOUT_CHECKSUMS):
        return int(version) if tables else 0
    if application == APPLICATION_ID and version > FORMAT_VERSION:
        raise sqlite3.DatabaseError(f"format {version} of a newer crossknn, this one reads {FORMAT_VERSION}")
    if tables or application:
        raise sqlite3.DatabaseError("an SQLite file of another program")
    return 0


def _create(connection: sqlite3.Connection) -> None:
    _switch_to_wal(connection)
    with connection:  # which commits, or rolls back
        connection.execute("BEGIN IMMEDIATE")
        _finish_format(connection)


def _add_checksums(connection: sqlite3.Connection) -> None:
    """Change a file of the earlier format, unless another process has done it."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        for table in KEYS.keys() & names if version == WITHOUT_CHECKSUMS else ():
            connection.execute(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER")
            connection.execute(f"UPDATE {table} SET checksum = crossknn_checksum({KEYS[table]}, score)")  # noqa: S608
        _finish_format(connection)


def _finish_format(connection: sqlite3.Connection) -> None:
    for statement in TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """SQLite itself does not wait when two processes switch a new file at the same moment."""
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _explain(error: Exception) -> str:
    """What is wrong with the file and what to do, from SQLite's message."""
    for words, explanation in (
        ("full", "the disk is full. Free some space and run again: what was written is kept"),
        ("disk I/O error", "the disk is full or fails. Free some space and run again: what was written is kept"),
        ("readonly", "it is read-only. Use a path in a writable folder"),
        ("unable to open", "it cannot be opened. Use a path in a writable folder"),
        (
            "locked",
            f"another process locked it for over {LOCK_TIMEOUT:.0f} seconds. Run again once that has ended",
        ),
        ("another program", "it is not a score cache. Use another path"),
        ("newer crossknn", "this version cannot read it. Upgrade crossknn or use another path"),
        ("malformed", "it is damaged. Move it away to begin a new cache"),
        ("not a database", "it is damaged or not a score cache. Move it away or use another path"),
    ):
        if words in str(error):
            return f"{explanation} ({error})"
    return str(error)
