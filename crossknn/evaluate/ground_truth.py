"""Exact scores of evaluation queries for all items: paid for once, kept on disk, resumed after a kill."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from crossknn._checks import check_engine, check_positive
from crossknn.engines.local import LOCAL
from crossknn.errors import InputError
from crossknn.items.items import Items
from crossknn.models.fingerprints import is_unnamed
from crossknn.scorers.base import score_pairs
from crossknn.search.results import Hit, Hits
from crossknn.storage.atomic import exclusive_lock, write_atomic
from crossknn.types import Engine, Job, Progress, Rows, Scorer, Scores
from crossknn.vectors.ranking import top_rows

STEP: Final = "exact scores"
FORMAT: Final = 1
BLOCK_PAIRS: Final = 2**16  # about as many pairs in a block, unless one query has more
PIECE: Final = 2**15  # pairs in one call of the scorer

logger = logging.getLogger(__name__)


def exact_scores(
    items: Items,
    queries: Sequence[str],
    scorer: Scorer,
    folder: str | Path,
    *,
    block: int | None = None,
    engine: Engine = LOCAL,
    progress: Progress | None = None,
) -> Scores:
    """(queries, items) the score of every pair, memory-mapped from a file in `folder`.

    The first run makes queries × items calls and writes after every `block` queries. One that was interrupted
    goes on after its last whole block, a finished one makes no call; of several processes at once one scores
    and the others wait. A folder may hold many matrices: the file is named by a hash of the items, the queries
    and the scorer. What is there is verified first; what the disk has changed is scored again, with a warning.
    The `engine` says where pairs are scored; the file is the same.
    """
    _check_queries(queries)
    check_engine(engine)
    if is_unnamed(scorer.fingerprint):
        raise InputError("the scorer has no name to store scores under: give function_scorer a fingerprint.")
    if block is not None:
        check_positive("block", block)
    run = _Run(items, queries, scorer, block or max(1, BLOCK_PAIRS // len(items)), engine, progress)
    path = Path(folder) / f"{run.key}.npy"
    if not _is_complete(run, path):
        with ExitStack() as turn:
            with _disk_errors(path.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
                turn.enter_context(exclusive_lock(path.with_name(f".{run.key}.lock")))
            _complete(run, path)  # who comes second finds the work done
    with _disk_errors(path.parent):
        scores: Scores = np.load(path, mmap_mode="r", allow_pickle=False)
    return scores


def truth_rows(scores: Scores, k: int) -> list[Rows]:
    """The rows of the `k` largest scores of each query, best first, ties to the lower row."""
    check_positive("k", k)
    return [top_rows(line, k).rows for line in scores]


def truth_hits(items: Items, queries: Sequence[str], scores: Scores, k: int) -> list[Hits]:
    """The same as the hits that exact search returns, which `compare` takes as its truth."""
    if scores.shape != (len(queries), len(items)):
        raise InputError(
            f"scores must be of these queries and items, ({len(queries)}, {len(items)}). Got {scores.shape} instead."
        )
    truth = []
    for query, line, rows in zip(queries, scores, truth_rows(scores, k), strict=True):
        found = zip(items.ids_of(rows), line[rows].tolist(), rows.tolist(), strict=True)
        hits = tuple(Hit(id_, score, None, round=1, proposed_by="exact", row=row) for id_, score, row in found)
        truth.append(Hits(query, hits, calls=len(items), rounds=1))
    return truth


@dataclass(frozen=True)
class _Run:
    items: Items
    queries: Sequence[str]
    scorer: Scorer
    block: int
    engine: Engine
    progress: Progress | None

    @cached_property
    def owner(self) -> dict[str, Any]:
        """Whose scores these are."""
        return {
            "format": FORMAT,
            "items": self.items.fingerprint,
            "queries": _hash_queries(self.queries),
            "scorer": self.scorer.fingerprint,
            "shape": [len(self.queries), len(self.items)],
        }

    @property
    def key(self) -> str:
        return _digest(json.dumps(self.owner, sort_keys=True).encode())

    @cached_property
    def header(self) -> bytes:
        buffer = BytesIO()
        np.lib.format.write_array_header_1_0(
            buffer, {"descr": "<f4", "fortran_order": False, "shape": (len(self.queries), len(self.items))}
        )
        return buffer.getvalue()

    def offset(self, query: int) -> int:
        """Where the scores of a query begin in the file."""
        return len(self.header) + query * len(self.items) * 4

    def score(self, queries: Sequence[int]) -> Generator[tuple[int, bytes], None, None]:
        """Each query and its scores as they are stored, as they are done.

        Which pairs share a call does not depend on the other queries.
        """
        starts = range(0, len(self.items), PIECE)
        parts: dict[int, dict[int, Scores]] = {}  # of queries that are not done
        with closing(self.engine.run(score_pairs, self.scorer, self._jobs(queries, starts))) as scored:
            for number, scores in scored:
                query, place = divmod(number, len(starts))
                found = parts.setdefault(query, {})
                found[place] = scores
                if len(found) == len(starts):
                    del parts[query]
                    yield query, b"".join(found[at].astype("<f4").tobytes() for at in range(len(starts)))

    def _jobs(self, queries: Sequence[int], starts: range) -> Iterator[Job]:
        """The texts of each call, numbered by query and by place among its calls."""
        for query in queries:
            for place, first in enumerate(starts):
                texts = self.items.texts_of(np.arange(first, min(first + PIECE, len(self.items))))
                yield query * len(starts) + place, ([self.queries[query]] * len(texts), texts)

    def report(self, done: int) -> None:
        if self.progress is not None:
            self.progress(STEP, done * len(self.items), len(self.queries) * len(self.items))


def _is_complete(run: _Run, path: Path) -> bool:
    """Whether there is nothing to do; writes nothing, so that a finished file may be where nobody can write."""
    with _disk_errors(path.parent):
        digests = _read_digests(run, path.with_suffix(".json"))
        if None in digests or not path.exists():
            return False
        with path.open("rb") as file:
            whole = not _forget_damaged(run, file, digests)
    if whole:
        run.report(len(digests))
    return whole


def _complete(run: _Run, path: Path) -> None:
    """Score every query whose scores the file does not hold."""
    with _disk_errors(path.parent):
        digests = _read_digests(run, path.with_suffix(".json"))
        _open(run, path, digests)
    missing = [query for query, digest in enumerate(digests) if digest is None]
    known = len(digests) - len(missing)
    run.report(known)
    with closing(run.score(missing)) as scored:
        while block := dict(islice(scored, run.block)):
            with _disk_errors(path.parent):
                _write(run, path, block, digests)
            known += len(block)
            run.report(known)


def _open(run: _Run, path: Path, digests: list[str | None]) -> None:
    """Make the file as long as it will be, and forget the digests of what is not as it was written."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
        damaged = _forget_damaged(run, file, digests)
        if damaged:
            logger.warning("%s: the scores of %d queries are damaged and are scored again", path, damaged)
        if None in digests:
            file.seek(0)
            file.write(run.header)
            file.truncate(run.offset(len(run.queries)))


def _write(run: _Run, path: Path, scored: dict[int, bytes], digests: list[str | None]) -> None:
    """Keep the scores of a block: they are on disk before the sidecar lists their digests."""
    with path.open("r+b") as file:
        for query, data in scored.items():
            file.seek(run.offset(query))
            file.write(data)
            digests[query] = _digest(data)
        file.flush()
        os.fsync(file.fileno())
    write_atomic(path.with_suffix(".json"), json.dumps({**run.owner, "digests": digests}).encode())


def _read_digests(run: _Run, sidecar: Path) -> list[str | None]:
    """The digest of every query's scores, None where there are none yet."""
    if not sidecar.exists():
        return [None] * len(run.queries)
    try:
        found = json.loads(sidecar.read_text(encoding="utf-8"))
        digests = found.pop("digests")
        if found != run.owner or len(digests) != len(run.queries):
            raise ValueError("it is of other items, queries or another scorer")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{sidecar}: wanted what {sidecar.with_suffix('.npy').name} holds, got another file ({error}). "
            "Delete both to score anew."
        ) from error
    return list(digests)


def _forget_damaged(run: _Run, file: IO[bytes], digests: list[str | None]) -> int:
    """Set to None what is not as it was written, and count it."""
    damaged = 0
    file.seek(0)
    whole = file.read(len(run.header)) == run.header
    for query, digest in enumerate(digests):
        if digest is not None:
            file.seek(run.offset(query))
            if not whole or _digest(file.read(len(run.items) * 4)) != digest:
                digests[query] = None
                damaged += 1
    return damaged


def _hash_queries(queries: Sequence[str]) -> str:
    """Equal for equal texts in the same order."""
    digest = blake2b(b"crossknn queries 1", digest_size=16)
    for query in queries:
        text = query.encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()


def _check_queries(queries: Sequence[str]) -> None:
    if isinstance(queries, str) or not len(queries) or not all(isinstance(query, str) for query in queries):
        raise InputError("queries must be a list of strings, at least one.")


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Errors of the file system as errors that say what to do; those of a scorer pass as they are."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{folder}: exact scores cannot be kept here ({error.strerror or error}). "
            "Mend it or give another folder; every finished block is kept."
        ) from error
