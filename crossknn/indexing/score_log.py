"""The scores of builds, kept so that a killed build goes on where it was and ends with the same scores."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from crossknn._checks import check_positive
from crossknn.engines.local import LOCAL
from crossknn.errors import InputError
from crossknn.indexing.score_matrix import Pairs, SparseScores
from crossknn.storage.score_plan import (
    NO_ENTRIES,
    PLAN_NAME,
    Codes,
    Places,
    Plan,
    Wanted,
    distinct,
    expand,
    read_json,
    to_json,
)
from crossknn.models.fingerprints import is_unnamed
from crossknn.scorers.base import score_pairs
from crossknn.storage.score_chunks import (
    AGAIN,
    CHUNK_NAME,
    FORMAT,
    Chunk,
    Hashes,
    disk_errors,
    hash_texts,
    read_chunk,
    remove_unfinished,
    write_chunk,
    write_atomic,
)
from crossknn.types import Engine, Job, Progress, Rows, Scorer, Scores

if TYPE_CHECKING:
    from crossknn.items.items import Items

__all__ = ["LogSize", "ScoreLog", "hash_texts", "score_pairs_into"]

STEP = "scoring"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogSize:
    """How much a log holds."""

    chunks: int
    scores: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ScoreLog:
    """A folder of scores of one scorer, in immutable chunk files; made by `ScoreLog.open`.

    A pair is known by the hashes of its two texts, so that builds over other items, or over the same ones in
    another order, reuse its score. Chunk files may be copied from one log to another of the same scorer. Threads
    and processes may write at once; a file is there whole or not at all.
    """

    folder: Path
    scorer: str  # fingerprint

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, scorer: str) -> Self:
        """The log of the scorer with this fingerprint in `folder`, which is made where there is none."""
        if is_unnamed(scorer):
            raise InputError(
                "a function without a name cannot keep a score log: its scores could not be told from another's. "
                "Give it one: function_scorer(fn, fingerprint='my-model-v1')."
            )
        log = cls(Path(folder), scorer)
        path = log.folder / "log.json"
        with disk_errors(log.folder):
            log.folder.mkdir(parents=True, exist_ok=True)
            new = not path.exists()
        if new:
            write_atomic(path, to_json({"format": FORMAT, "scorer": scorer}), first_wins=True)
        found = read_json(path).get("scorer")
        if found != scorer:
            raise InputError(
                f"{path}: wanted the scores of scorer {scorer!r}, got those of {found!r}. "
                "Give another folder, or the scorer that this log belongs to."
            )
        remove_unfinished(log.folder)
        return log

    @property
    def chunks(self) -> list[str]:
        """The names of all chunk files, sorted. Other Parquet files are refused, other files ignored."""
        names = sorted(name for name in self._names() if name.endswith(".parquet"))
        for name in names:
            if not CHUNK_NAME.fullmatch(name):
                raise InputError(f"{self.folder / name}: wanted only chunks of scores here, got another. Move it away.")
        return names

    def read(self, name: str) -> Chunk:
        """The chunk in this file, every byte of it verified."""
        return read_chunk(self.folder / name, scorer=self.scorer)

    def known(self, queries: Hashes, items: Hashes, *, chunks: Iterable[str] | None = None) -> SparseScores:
        """The score of every kept pair of these texts, given by `hash_texts`, ordered by query and row.

        Texts that occur several times all get the score of their pair. Where a pair was scored twice, the first
        chunk in the order of names (or in the order given) counts. Needs about 70 bytes per entry found.
        """
        left, right = Places(queries), Places(items)
        parts = [expand(self.read(name), left, right) for name in (self.chunks if chunks is None else chunks)]
        numbers, rows, scores = (np.concatenate(columns) for columns in zip(NO_ENTRIES, *parts, strict=True))
        every = Pairs(numbers, rows, len(queries), len(items))
        _, first = distinct(every.keys())
        return SparseScores(every.take(first), scores[first])

    def verify(self) -> LogSize:
        """Read every file; raises at the first that is damaged or foreign."""
        names, size, scores = self.chunks, 0, 0
        for name in names:
            scores += len(self.read(name))
            with disk_errors(self.folder):
                size += (self.folder / name).stat().st_size
        for name in sorted(self._names()):
            if PLAN_NAME.fullmatch(name):
                Plan.read(self.folder / name)
        return LogSize(len(names), scores, size)

    def _plan_of(self, wanted: str) -> Plan | None:
        """The newest plan for scoring what has this hash."""
        plans = [(int(m[2]), m[0]) for name in self._names() if (m := PLAN_NAME.fullmatch(name)) and m[1] == wanted]
        return Plan.read(self.folder / max(plans)[1]) if plans else None

    def _chunks_of(self, plan: Plan) -> dict[int, str]:
        """The chunks of a plan by number; the first by name, should two workers have scored the same one."""
        found = [m for name in sorted(self._names(), reverse=True) if (m := CHUNK_NAME.fullmatch(name))]
        return {int(m[2]): m[0] for m in found if m[1] == plan.name}

    def _names(self) -> list[str]:
        with disk_errors(self.folder):
            return os.listdir(self.folder)  # noqa: PTH208 (names, without an object for each)


def score_pairs_into(
    log: ScoreLog,
    pairs: Pairs,
    queries: Sequence[str],
    items: Items,
    scorer: Scorer,
    *,
    chunk: int = 8192,
    part: tuple[int, int] = (0, 1),
    engine: Engine = LOCAL,
    on_calls: Callable[[int], None] | None = None,
    progress: Progress | None = None,
) -> SparseScores:
    """The entries of `pairs`, in their order; what the log does not hold is scored, `chunk` pairs a call, and kept.

    Scores depend in their last bits on which pairs share a call. So what is reused and what each call scores is
    fixed in a plan file before the first call. A build that is run again after a kill follows the same plan: it
    repeats the calls in flight and no others, and ends with the same scores bit for bit.

    Worker `i` of `n` passes `part=(i, n)`: it scores every n-th chunk, and gets the entries of these and of what
    is reused. A last call without `part` scores what a worker may have left out, and returns everything.

    The `engine` says where pairs are scored; chunks are written here. `on_calls` is told the pairs of each call.

    Needs about 50 bytes per pair at its peak, beside `pairs`, and 36 per query and item. On disk a pair takes 27.
    """
    _check(log, pairs, queries, items, scorer, chunk, part)
    wanted = Wanted(pairs, Codes(hash_texts(queries)), Codes(hash_texts(items.texts)))
    plan = _settle(log, wanted, chunk)
    missing = wanted.missing()
    numbers = range(part[0], -(-len(missing) // chunk), part[1])
    calls = {number: missing[number * chunk : (number + 1) * chunk] for number in numbers}
    work = _Work(log, plan, wanted, queries, items, calls, done=len(pairs) - len(missing), progress=progress)
    work.take_kept()
    with closing(engine.run(score_pairs, scorer, work.jobs())) as scored:
        for number, scores in scored:
            if on_calls is not None:
                on_calls(len(scores))
            work.keep(number, scores)
    return wanted.entries()


def _settle(log: ScoreLog, wanted: Wanted, chunk: int) -> Plan:
    """The plan to follow, new where there is none, with the scores it reuses filled in."""
    hash_ = wanted.hash(scorer=log.scorer, chunk=chunk)
    plan, present = log._plan_of(hash_), log.chunks
    if plan is None or not set(plan.reused) <= set(present):
        generation = 0
        if plan is not None:
            generation = plan.generation + 1
            logger.warning("%s: a chunk that %s reuses is gone; what it held is scored again", log.folder, plan.name)
        reused = tuple([name for name in present if wanted.reuse(log.read(name))])
        plan = Plan(hash_, generation, reused).write(log.folder)
        if plan.reused == reused:
            return plan
        wanted.forget()  # another worker was first, and saw other chunks
    for name in plan.reused:
        wanted.reuse(log.read(name))
    return plan


@dataclass(slots=True)
class _Work:
    log: ScoreLog
    plan: Plan
    wanted: Wanted
    queries: Sequence[str]
    items: Items
    calls: dict[int, Rows]  # by number of their chunk, those that are still to be made
    done: int  # pairs
    progress: Progress | None
    total: int = 0

    def __post_init__(self) -> None:
        self.total = self.done + sum(map(len, self.calls.values()))

    def take_kept(self) -> None:
        """Read the chunks that are there: a damaged one shows before hours of scoring."""
        kept = self.log._chunks_of(self.plan)
        for number in [number for number in self.calls if number in kept]:
            self._take(number, self._read(kept[number], self.calls[number]))
        self._report()

    def jobs(self) -> Iterator[Job]:
        """The texts of each call, unless another worker has made it in the meantime."""
        for number, which in list(self.calls.items()):
            name = self.log._chunks_of(self.plan).get(number)
            if name is None:
                pairs = self.wanted.pairs.take(which)
                texts = [self.queries[query] for query in pairs.queries.tolist()]
                yield number, (texts, self.items.texts_of(pairs.rows))
            else:
                self._take(number, self._read(name, which))
                self._report()

    def keep(self, number: int, scores: Scores) -> None:
        """Write one chunk, unless another worker has done so in the meantime."""
        which = self.calls[number]
        name = self.log._chunks_of(self.plan).get(number)
        if name is None:
            chunk = Chunk(*self.wanted.texts(which), scores)
            write_chunk(self.log.folder, chunk, plan=self.plan.name, number=number, scorer=self.log.scorer)
        else:
            scores = self._read(name, which)
        self._take(number, scores)
        self._report()

    def _read(self, name: str, which: Rows) -> Scores:
        """The scores of a chunk that is there."""
        chunk = self.log.read(name)
        queries, items = self.wanted.texts(which)
        if not (np.array_equal(chunk.queries, queries) and np.array_equal(chunk.items, items)):
            raise InputError(f"{self.log.folder / name}: wanted the pairs of its plan, got others. {AGAIN}")
        return chunk.scores

    def _take(self, number: int, scores: Scores) -> None:
        self.wanted.put(self.calls.pop(number), scores)
        self.done += len(scores)

    def _report(self) -> None:
        if self.progress is not None:
            self.progress(STEP, self.done, self.total)


def _check(
    log: ScoreLog,
    pairs: Pairs,
    queries: Sequence[str],
    items: Items,
    scorer: Scorer,
    chunk: int,
    part: tuple[int, int],
) -> None:
    if scorer.fingerprint != log.scorer:
        raise InputError(
            f"scorer must be the one of the log in {log.folder}, {log.scorer!r}. Got {scorer.fingerprint!r} instead."
        )
    if (pairs.n_queries, pairs.n_items) != (len(queries), len(items)):
        raise InputError(
            f"pairs must be of these queries ({len(queries)}) and items ({len(items)}). "
            f"Got pairs of {pairs.n_queries} and {pairs.n_items} instead."
        )
    check_positive("chunk", chunk)
    if not 0 <= part[0] < part[1]:
        raise InputError(f"part must be (worker, workers) with 0 ≤ worker < workers. Got {part!r} instead.")
