"""What a build scores in which call, fixed before its first call, so that a build run again makes the same calls."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.indexing.score_matrix import Numbers, Pairs, SparseScores
from crossknn.storage.score_chunks import FORMAT, Chunk, Hashes, read_whole, write_atomic
from crossknn.types import Rows, Scores

BLOCK = 1 << 20  # pairs hashed at a time
PLAN_NAME = re.compile(r"plan-([0-9a-f]{16})-([0-9]{3,})\.json")  # hash of what is wanted, generation


@dataclass(frozen=True, slots=True)
class Plan:
    """Which chunks of earlier plans a build reuses; with what it wants, this fixes what each of its calls scores.

    Of one generation there is one plan, that of the first worker. The next generation is begun only when a chunk
    that the plan reuses was deleted, since then other pairs are left to score.
    """

    wanted: str
    generation: int
    reused: tuple[str, ...]

    @property
    def name(self) -> str:
        """What the names of its chunks begin with."""
        return _hash(json.dumps([self.wanted, self.generation, self.reused]).encode())

    @property
    def file_name(self) -> str:
        return f"plan-{self.wanted}-{self.generation:03}.json"

    @classmethod
    def read(cls, path: Path) -> Plan:
        """The plan in this file, verified by the hash it holds."""
        about = read_json(path)
        try:
            plan = cls(about["wanted"], about["generation"], tuple(about["reused"]))
            whole = plan.name == about["plan"] and plan.file_name == path.name
        except (KeyError, TypeError) as error:
            raise InputError(f"{path}: damaged: {error!r}. {DELETE_PLAN}") from error
        if not whole:
            raise InputError(f"{path}: damaged: its content is not what its hash or its name says. {DELETE_PLAN}")
        return plan

    def write(self, folder: Path) -> Plan:
        """The plan that counts from now on: this one, or that of another worker who was first."""
        about = {"format": FORMAT, "plan": self.name, "wanted": self.wanted, "generation": self.generation}
        write_atomic(folder / self.file_name, to_json({**about, "reused": self.reused}), first_wins=True)
        return Plan.read(folder / self.file_name)


DELETE_PLAN = "Delete this file: finished chunks are reused, and the rest is planned anew."


class Codes:
    """Texts as numbers: equal texts have the same one. 36 bytes per text."""

    def __init__(self, hashes: Hashes) -> None:
        self.hashes = hashes
        self._distinct, of = np.unique(hashes, return_inverse=True)
        self.of: Numbers = of.astype(np.int32)  # (texts,) their codes

    def __len__(self) -> int:
        return len(self._distinct)

    def find(self, hashes: Hashes) -> Rows:
        """The code of each hash, -1 where no text has it."""
        if not len(self):
            return np.full(len(hashes), -1, np.int64)
        spots = np.minimum(np.searchsorted(self._distinct, hashes), len(self) - 1)
        return np.where(self._distinct[spots] == hashes, spots, -1)


class Places(Codes):
    """Codes, and where in the list the texts of each stand."""

    def __init__(self, hashes: Hashes) -> None:
        super().__init__(hashes)
        self.order: Numbers = np.argsort(self.of, kind="stable").astype(np.int32)  # places, those of a code together
        self.counts: Rows = np.bincount(self.of, minlength=len(self))
        self.starts: Rows = np.cumsum(self.counts) - self.counts


NO_ENTRIES: tuple[Numbers, Numbers, Scores] = (np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.float32))


def expand(chunk: Chunk, queries: Places, items: Places) -> tuple[Numbers, Numbers, Scores]:
    """Numbers of queries, rows, and scores: each pair of the chunk as often as its two texts occur."""
    left, right = queries.find(chunk.queries), items.find(chunk.items)
    here = np.flatnonzero((left >= 0) & (right >= 0))
    left, right = left[here], right[here]
    times = queries.counts[left] * items.counts[right]
    pair = np.repeat(np.arange(len(here)), times)
    nth = np.arange(len(pair)) - np.repeat(np.cumsum(times) - times, times)  # of the places of its pair
    width = items.counts[right][pair]
    numbers = queries.order[queries.starts[left][pair] + nth // width]
    rows = items.order[items.starts[right][pair] + nth % width]
    return numbers, rows, chunk.scores[here][pair]


class Wanted:
    """The pairs of a build and the scores they have so far; pairs of equal texts are one.

    21 bytes per pair, and about twice that while it is made.
    """

    def __init__(self, pairs: Pairs, queries: Codes, items: Codes) -> None:
        self.pairs = pairs
        self._queries = queries
        self._items = items
        self._keys, self._first = distinct(self._keys_of(pairs))
        self.forget()

    def forget(self) -> None:
        """No pair has a score."""
        self._scores = np.zeros(len(self._keys), np.float32)
        self._known = np.zeros(len(self._keys), np.bool_)

    def hash(self, *, scorer: str, chunk: int) -> str:
        """Equal for equal texts in equal order, however their queries and rows are numbered."""
        digest = blake2b(json.dumps([FORMAT, scorer, chunk, len(self.pairs)]).encode(), digest_size=8)
        for codes, numbers in ((self._queries, self.pairs.queries), (self._items, self.pairs.rows)):
            for start in range(0, len(numbers), BLOCK):
                digest.update(codes.hashes[numbers[start : start + BLOCK]].tobytes())
        return digest.hexdigest()

    def reuse(self, chunk: Chunk) -> bool:
        """Take the scores that are wanted and have not come yet; whether there were any."""
        queries, items = self._queries.find(chunk.queries), self._items.find(chunk.items)
        here = np.flatnonzero((queries >= 0) & (items >= 0))
        return self._put(queries[here] * len(self._items) + items[here], chunk.scores[here])

    def put(self, which: Rows, scores: Scores) -> None:
        """Take the scores of these pairs."""
        self._put(self._keys_of(self.pairs.take(which)), scores)

    def missing(self) -> Rows:
        """Positions of the pairs that have no score, in their order; of pairs with equal texts the first."""
        positions = self._first[~self._known]
        positions.sort()
        return positions

    def texts(self, which: Rows) -> tuple[Hashes, Hashes]:
        """The hashes of the queries and of the items of these pairs."""
        pairs = self.pairs.take(which)
        return self._queries.hashes[pairs.queries], self._items.hashes[pairs.rows]

    def entries(self) -> SparseScores:
        """The pairs that have a score, in their order."""
        scores = np.empty(len(self.pairs), np.float32)
        known = np.ones(len(self.pairs), np.bool_)
        known[self._first] = False
        again = np.flatnonzero(known)  # pairs whose texts another pair has, too
        spots = np.searchsorted(self._keys, self._keys_of(self.pairs.take(again)))
        scores[self._first], known[self._first] = self._scores, self._known
        scores[again], known[again] = self._scores[spots], self._known[spots]
        if known.all():
            return SparseScores(self.pairs, scores)
        return SparseScores(self.pairs.take(known), scores[known])

    def _put(self, keys: Rows, scores: Scores) -> bool:
        if not len(self._keys):
            return False
        spots = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        new = (self._keys[spots] == keys) & ~self._known[spots]
        self._scores[spots[new]] = scores[new]
        self._known[spots[new]] = True
        return bool(new.any())

    def _keys_of(self, pairs: Pairs) -> NDArray[np.int64]:
        """(pairs,) one number per pair, equal for equal texts."""
        keys = self._queries.of[pairs.queries].astype(np.int64)
        keys *= len(self._items)
        keys += self._items.of[pairs.rows]
        return keys


def distinct(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], Rows]:
    """The different keys, sorted, and where each first stands: `numpy.unique` in half of its memory."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return (keys, order) if first.all() else (keys[first], order[first])


def to_json(about: dict[str, Any]) -> bytes:
    """As it is written in the log."""
    return json.dumps(about, indent=1).encode()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file of the log, of a format this version knows."""
    data = read_whole(path)
    try:
        about = json.loads(data)
    except ValueError as error:
        raise InputError(f"{path}: damaged: wanted JSON, got {len(data)} bytes ({error}). {_advice(path)}") from error
    number = about.get("format") if isinstance(about, dict) else None
    if not isinstance(number, int):
        raise InputError(f"{path}: damaged: wanted an object with a format, got {about!r:.80}. {_advice(path)}")
    if number > FORMAT:
        raise InputError(
            f"{path}: wanted format {FORMAT}, got {number}, which a newer crossknn wrote. "
            "Upgrade crossknn, or give another folder."
        )
    return dict(about)


def _advice(path: Path) -> str:
    if PLAN_NAME.fullmatch(path.name):
        return DELETE_PLAN
    return "Delete this file: it is written anew, and each chunk says itself whose scores it holds."


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()
