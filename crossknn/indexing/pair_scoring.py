"""Scoring of sampled pairs through an engine into a score log: a killed build is resumed and ends with equal scores."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive, invalid
from crossknn.engines.local import LOCAL
from crossknn.errors import InputError
from crossknn.indexing.factorization.trainer import batches
from crossknn.indexing.score_matrix import Numbers, Pairs, SparseScores
from crossknn.models.fingerprints import is_unnamed
from crossknn.scorers.base import score_pairs
from crossknn.storage.score_log import DELETE_CHUNK, FORMAT, Chunk, Hashes, Plan, ScoreLog, hash_texts
from crossknn.types import Engine, Job, Progress, Rows, Scorer, Scores

if TYPE_CHECKING:
    from crossknn.items.items import Items

STEP = "scoring"
CHUNK = 8192  # calls saved together, the most that a kill can lose
HASHED_PAIRS = 1 << 20  # at a time

logger = logging.getLogger(__name__)


def open_score_log(work_dir: Path | None, scorer: Scorer) -> ScoreLog | None:
    """The scorer's log in the work folder, if there is one; an error for a function without a fingerprint."""
    if work_dir is None:
        return None
    if is_unnamed(scorer.fingerprint):
        raise InputError(
            "A scoring function without a fingerprint cannot have a score log: its scores could be those of another "
            "function. Give it one: function_scorer(fn, fingerprint='my-model-v1')."
        )
    return ScoreLog.open(work_dir / "scores", scorer=scorer.fingerprint)


def score_pairs_into(
    log: ScoreLog | None,
    pairs: Pairs,
    queries: Sequence[str],
    items: Items,
    scorer: Scorer,
    *,
    chunk: int = CHUNK,
    part: tuple[int, int] = (0, 1),
    engine: Engine = LOCAL,
    on_calls: Callable[[int], None] = lambda _: None,
    progress: Progress | None = None,
) -> SparseScores:
    """The scores of `pairs`, in their order; pairs that the log does not hold are scored and stored.

    Scores depend in their last bits on which pairs share a call. So what is reused and what each call scores is fixed
    in a plan file before the first call. A build that is run again after a kill follows the same plan: it repeats the
    calls in flight and no others, and ends with the same scores bit for bit.

    Needs about 50 bytes of memory per pair at its peak, besides `pairs`, and 36 per query and item; 27 bytes of disk
    space per pair.

    Args:
        log: The scorer's; without one, every pair is scored and nothing is stored.
        chunk: Pairs per call.
        part: Worker `i` of `n` passes `(i, n)`: it scores every n-th chunk, and returns the scores of these and of
            reused pairs. A last call without `part` scores what a worker may have left out, and returns everything.
        engine: Where pairs are scored; chunks are written here.
        on_calls: Called with the number of pairs of each call.
        progress: Called after every chunk.
    """
    if (pairs.n_queries, pairs.n_items) != (len(queries), len(items)):
        requirement = f"of these queries ({len(queries)}) and items ({len(items)})"
        raise invalid("pairs", requirement, (pairs.n_queries, pairs.n_items))
    check_positive("chunk", chunk)
    if not 0 <= part[0] < part[1]:
        raise invalid("part", "(worker, workers) with 0 ≤ worker < workers", part)
    if log is None:
        if part != (0, 1):
            raise InputError("Several workers need a shared `work_dir`.")
        return _score_unlogged(pairs, queries, items, scorer, chunk, engine, on_calls, progress)
    if scorer.fingerprint != log.scorer:
        raise invalid("scorer", f"the one of the log in {log.folder}, {log.scorer!r}", scorer.fingerprint)
    state = PairScores(pairs, TextCodes(hash_texts(queries)), TextCodes(hash_texts(items.texts)))
    plan = _make_plan(log, state, chunk)
    missing = state.missing()
    numbers = range(part[0], -(-len(missing) // chunk), part[1])
    calls = {number: missing[number * chunk : (number + 1) * chunk] for number in numbers}
    run = _Run(log, plan, state, queries, items, calls, done=len(pairs) - len(missing), progress=progress)
    run.read_stored_chunks()
    with closing(engine.run(score_pairs, scorer, run.jobs())) as scored:
        for number, scores in scored:
            on_calls(len(scores))
            run.store(number, scores)
    return state.sparse_scores()


def _score_unlogged(
    pairs: Pairs,
    queries: Sequence[str],
    items: Items,
    scorer: Scorer,
    chunk: int,
    engine: Engine,
    on_calls: Callable[[int], None],
    progress: Progress | None,
) -> SparseScores:
    scores, done = np.empty(len(pairs), np.float32), 0
    jobs = ((batch.start, _texts_of(pairs.take(batch), queries, items)) for batch in batches(len(pairs), chunk))
    with closing(engine.run(score_pairs, scorer, jobs)) as scored:
        for start, found in scored:
            on_calls(len(found))
            scores[start : start + len(found)] = found
            done += len(found)
            if progress is not None:
                progress(STEP, done, len(pairs))
    return SparseScores(pairs, scores)


def _make_plan(log: ScoreLog, state: PairScores, chunk: int) -> Plan:
    """The plan to follow, a new one if necessary; the scores it reuses are entered into `state`."""
    pairs = state.hash(scorer=log.scorer, chunk=chunk)
    plan, stored = log.latest_plan(pairs), log.chunks
    if plan is None or not set(plan.reused) <= set(stored):
        generation = 0
        if plan is not None:
            generation = plan.generation + 1
            logger.warning("%s: a chunk that plan %s reuses is gone; its pairs are scored again", log.folder, plan.name)
        reused = tuple([name for name in stored if state.reuse(log.read(name))])
        plan = Plan(pairs, generation, reused).write(log.folder)
        if plan.reused == reused:
            return plan
        state.clear()  # another worker was first, and found other chunks
    for name in plan.reused:
        state.reuse(log.read(name))
    return plan


@dataclass(slots=True)
class _Run:
    log: ScoreLog
    plan: Plan
    state: PairScores
    queries: Sequence[str]
    items: Items
    calls: dict[int, Rows]  # positions of pairs by number of their chunk, as long as it is not scored
    done: int  # pairs
    progress: Progress | None
    total: int = 0

    def __post_init__(self) -> None:
        self.total = self.done + sum(map(len, self.calls.values()))

    def read_stored_chunks(self) -> None:
        """Read the plan's chunks in the log, so that a damaged one is found before hours of scoring."""
        stored = self.log.chunks_of(self.plan)
        for number in sorted(stored.keys() & self.calls.keys()):
            self._read(number, stored[number])
        self._report()

    def jobs(self) -> Iterator[Job]:
        """The texts of each call, unless another worker has made it in the meantime."""
        for number in list(self.calls):
            if not self._read_if_stored(number):
                yield number, _texts_of(self.state.pairs.take(self.calls[number]), self.queries, self.items)

    def store(self, number: int, scores: Scores) -> None:
        """Write one chunk, unless another worker has written it in the meantime."""
        if not self._read_if_stored(number):
            self.log.write(Chunk(*self.state.hashes_of(self.calls[number]), scores), self.plan.name, number)
            self._enter(number, scores)
            self._report()

    def _read_if_stored(self, number: int) -> bool:
        name = self.log.chunks_of(self.plan).get(number)
        if name is not None:
            self._read(number, name)
            self._report()
        return name is not None

    def _read(self, number: int, name: str) -> None:
        chunk = self.log.read(name)
        queries, items = self.state.hashes_of(self.calls[number])
        if not (np.array_equal(chunk.queries, queries) and np.array_equal(chunk.items, items)):
            raise InputError(f"{self.log.folder / name}: its pairs are not those of its plan. {DELETE_CHUNK}")
        self._enter(number, chunk.scores)

    def _enter(self, number: int, scores: Scores) -> None:
        self.state.enter(self.calls.pop(number), scores)
        self.done += len(scores)

    def _report(self) -> None:
        if self.progress is not None:
            self.progress(STEP, self.done, self.total)


def _texts_of(pairs: Pairs, queries: Sequence[str], items: Items) -> tuple[list[str], list[str]]:
    """The texts of the pairs, as a scorer takes them."""
    return [queries[number] for number in pairs.queries.tolist()], items.texts_of(pairs.rows)


class TextCodes:
    """Texts as integer codes, equal for equal texts. 36 bytes per text."""

    def __init__(self, hashes: Hashes) -> None:
        self.hashes = hashes
        self._distinct, codes = np.unique(hashes, return_inverse=True)
        self.codes: Numbers = codes.astype(np.int32)  # (texts,)

    def __len__(self) -> int:
        return len(self._distinct)

    def find(self, hashes: Hashes) -> Rows:
        """The code of each hash, -1 where no text has it."""
        if not len(self):
            return np.full(len(hashes), -1, np.int64)
        spots = np.minimum(np.searchsorted(self._distinct, hashes), len(self) - 1)
        return np.where(self._distinct[spots] == hashes, spots, -1)


class PairScores:
    """The pairs of a build and the scores known so far; pairs of equal texts share one.

    21 bytes per pair, and about twice that while it is made.
    """

    def __init__(self, pairs: Pairs, queries: TextCodes, items: TextCodes) -> None:
        self.pairs = pairs
        self._queries = queries
        self._items = items
        self._keys, self._first = _distinct(self._keys_of(pairs))  # of different texts
        self.clear()

    def clear(self) -> None:
        """Forget all scores."""
        self._scores = np.zeros(len(self._keys), np.float32)
        self._known = np.zeros(len(self._keys), np.bool_)

    def hash(self, *, scorer: str, chunk: int) -> str:
        """Equal for equal texts in equal order, however their queries and rows are numbered."""
        total = blake2b(json.dumps([FORMAT, scorer, chunk, len(self.pairs)]).encode(), digest_size=8)
        for texts, numbers in ((self._queries, self.pairs.queries), (self._items, self.pairs.rows)):
            for batch in batches(len(numbers), HASHED_PAIRS):
                total.update(texts.hashes[numbers[batch]].tobytes())
        return total.hexdigest()

    def reuse(self, chunk: Chunk) -> bool:
        """Enter the scores of missing pairs; returns whether there were any."""
        queries, items = self._queries.find(chunk.queries), self._items.find(chunk.items)
        found = np.flatnonzero((queries >= 0) & (items >= 0))
        return self._enter(queries[found] * len(self._items) + items[found], chunk.scores[found])

    def enter(self, positions: Rows, scores: Scores) -> None:
        """Enter the scores of the pairs at these positions."""
        self._enter(self._keys_of(self.pairs.take(positions)), scores)

    def missing(self) -> Rows:
        """Positions of the pairs without a score, in their order; of pairs with equal texts the first."""
        positions = self._first[~self._known]
        positions.sort()
        return positions

    def hashes_of(self, positions: Rows) -> tuple[Hashes, Hashes]:
        """The hashes of the query and the item texts of these pairs."""
        pairs = self.pairs.take(positions)
        return self._queries.hashes[pairs.queries], self._items.hashes[pairs.rows]

    def sparse_scores(self) -> SparseScores:
        """The pairs that have a score, in their order."""
        scores = np.empty(len(self.pairs), np.float32)
        known = np.ones(len(self.pairs), np.bool_)
        known[self._first] = False
        repeats = np.flatnonzero(known)  # pairs with the texts of an earlier pair
        spots = np.searchsorted(self._keys, self._keys_of(self.pairs.take(repeats)))
        scores[self._first], known[self._first] = self._scores, self._known
        scores[repeats], known[repeats] = self._scores[spots], self._known[spots]
        if known.all():
            return SparseScores(self.pairs, scores)
        return SparseScores(self.pairs.take(known), scores[known])

    def _enter(self, keys: Rows, scores: Scores) -> bool:
        if not len(self._keys):
            return False
        spots = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        new = (self._keys[spots] == keys) & ~self._known[spots]
        self._scores[spots[new]] = scores[new]
        self._known[spots[new]] = True
        return bool(new.any())

    def _keys_of(self, pairs: Pairs) -> NDArray[np.int64]:
        """(pairs,) one number per pair, equal for equal texts."""
        keys = self._queries.codes[pairs.queries].astype(np.int64)
        keys *= len(self._items)
        keys += self._items.codes[pairs.rows]
        return keys


def _distinct(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], Rows]:
    """The distinct keys, sorted, and the first position of each: `numpy.unique` in half of its memory."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return (keys, order) if first.all() else (keys[first], order[first])
