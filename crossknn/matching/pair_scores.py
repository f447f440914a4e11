"""Scores of record pairs, each paid for once whoever asks, and scoring within limits of calls and time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import TooLate
from crossknn.matching.records import Records
from crossknn.scorers.base import score_pairs
from crossknn.strategies.base import RoundScores
from crossknn.types import Progress, Rows, Scorer, Scores

STEP: Final = "matching"
MAX_PAIRS: Final = 8192  # in one call of the scorer
FIRST_SLICE: Final = 16  # pairs scored under a deadline before the scorer's speed is known

Keys = NDArray[np.int64]


class ScoreTable:
    """Scores by integer key: sorted runs, merged when they have become as long as the one before."""

    def __init__(self) -> None:
        self._runs: list[tuple[Keys, Scores]] = []

    def __len__(self) -> int:
        return sum(len(keys) for keys, _ in self._runs)

    def find(self, keys: Keys) -> Scores:
        """The score of each key, of any shape; NaN where it has none."""
        scores = np.full(keys.shape, np.nan, np.float32)
        for known, values in self._runs:
            spots = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            found = known[spots] == keys
            scores[found] = values[spots[found]]
        return scores

    def add(self, keys: Keys, scores: Scores) -> None:
        """Add distinct keys that have no score yet."""
        if not len(keys):
            return
        self._runs.append((keys, scores))
        while len(self._runs) > 1 and len(self._runs[-1][0]) * 2 > len(self._runs[-2][0]):
            self._runs[-2:] = [tuple(np.concatenate(both) for both in zip(*self._runs[-2:], strict=True))]  # type: ignore[list-item]
        keys, scores = self._runs[-1]
        order = np.argsort(keys, kind="stable")
        self._runs[-1] = keys[order], scores[order]

    def items(self) -> tuple[Keys, Scores]:
        """All keys, ascending, and their scores."""
        keys = np.concatenate([np.empty(0, np.int64), *(keys for keys, _ in self._runs)])
        scores = np.concatenate([np.empty(0, np.float32), *(scores for _, scores in self._runs)])
        order = np.argsort(keys)
        return keys[order], scores[order]


@dataclass(slots=True)
class PairScorer:
    """Scores pairs of a record of `left` and one of `right`, both given by the rows of representatives.

    In a self-join, where `left` is `right`, a pair is scored with the earlier record as the query. With `symmetric`
    both directions are scored, and their mean is the score.

    Attributes:
        calls: Distinct pairs, each direction counted, that were scored here or read from the scorer's cache.
        limit: The calls that may be made so far; `ask` cuts what does not fit.
        stopped: Why scoring ended for good: "deadline" or "cancelled".
    """

    scorer: Scorer
    left: Records
    right: Records
    symmetric: bool = False
    ends: float | None = None  # the deadline, by `time.monotonic`
    cancelled: threading.Event | None = None
    progress: Progress | None = None
    total: int = 0  # for `progress`
    limit: int = 0
    calls: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)  # spent in the scorer
    stopped: str | None = field(default=None, init=False)
    partners: dict[int, list[int]] = field(default_factory=dict, init=False)  # of a self-join: scored with each record
    _table: ScoreTable = field(default_factory=ScoreTable, init=False)
    _slice: int = field(default=FIRST_SLICE, init=False)

    @property
    def self_join(self) -> bool:
        return self.left is self.right

    @property
    def calls_per_pair(self) -> int:
        return 2 if self.symmetric else 1

    @property
    def calls_left(self) -> int:
        """Calls until the limit."""
        return 0 if self.stopped else max(0, self.limit - self.calls)

    def known(self, records: Rows, rows: Rows) -> Scores:
        """The scores of these pairs; NaN where a pair is not scored."""
        scores: Scores = self._table.find(self._keys(records, rows)).mean(1)
        return scores

    def ask(self, records: Rows, proposed: Sequence[Rows]) -> RoundScores:
        """The scores of each record's rows, the best rows of all records first, as far as the limits allow."""
        sizes = [len(rows) for rows in proposed]
        queries = np.repeat(records, sizes)
        rows = np.concatenate([np.empty(0, np.int64), *proposed])
        order = np.argsort(np.concatenate([np.empty(0, np.int64), *map(np.arange, sizes)]), kind="stable")
        self.score(queries[order], rows[order])
        scores = np.split(self.known(queries, rows), np.cumsum(sizes)[:-1])
        prefixes = [one[: np.argmax(np.isnan(one))] if np.isnan(one).any() else one for one in scores]
        cut = any(len(one) < size for one, size in zip(prefixes, sizes, strict=True))
        return RoundScores(prefixes, (self.stopped or "max_calls") if cut else None)

    def score(self, records: Rows, rows: Rows) -> None:
        """Score those of these pairs that are not scored yet, in their order, as far as the limits allow."""
        keys = self._keys(records, rows).ravel()
        keys = keys[np.isnan(self._table.find(keys))]
        _, first = np.unique(keys, return_index=True)
        keys = keys[np.sort(first)][: self.calls_left]
        done = 0
        while done < len(keys) and not self._should_stop():
            part = keys[done : done + self._slice_size()]
            try:
                scores = self._score(part)
            except TooLate:
                self.stopped = "deadline"
                return
            self._table.add(part, scores)
            self._link(part)
            done += len(part)
            self.calls += len(part)
            if self.progress:
                self.progress(STEP, self.calls, max(self.total, self.calls))

    def scored_pairs(self) -> tuple[Rows, Rows, Scores]:
        """All pairs with a score: left and right representatives, in a self-join the earlier record first."""
        keys, scores = self._table.items()
        if not self.symmetric:
            return *self._pairs(keys)[:2], scores
        left, right, _ = self._pairs(keys)
        if self.self_join:
            left, right = np.minimum(left, right), np.maximum(left, right)
        places = np.unique(left * len(self.right.items) + right)
        left, right = np.divmod(places, len(self.right.items))
        means = self.known(left, right)
        whole = ~np.isnan(means)
        return left[whole], right[whole], means[whole]

    def first_places(self, records: Rows, rows: Rows) -> NDArray[np.int64]:
        """Where each of these pairs comes first, ascending; in a self-join whichever record is named first."""
        _, first = np.unique(self._keys(records, rows)[:, 0], return_index=True)
        return np.sort(first)

    def _keys(self, records: Rows, rows: Rows) -> Keys:
        """(pairs, directions) one integer per call."""
        width = len(self.right.items)
        if self.self_join:
            low, high = np.minimum(records, rows), np.maximum(records, rows)
            both = [low * width + high, high * width + low]
        else:
            forward = records * width + rows
            both = [forward, len(self.left.items) * width + forward]
        return np.stack(both[: self.calls_per_pair], 1)

    def _pairs(self, keys: Keys) -> tuple[Rows, Rows, NDArray[np.bool_]]:
        """Left and right rows of calls, and whether the right record of two tables is the query."""
        width = len(self.right.items)
        half = len(self.left.items) * width
        reverse = np.zeros(len(keys), np.bool_) if self.self_join else keys >= half
        left, right = np.divmod(np.where(reverse, keys - half, keys), width)
        return left, right, reverse

    def _score(self, keys: Keys) -> Scores:
        left, right, reverse = self._pairs(keys)
        texts = self.left.items.texts_of(left), self.right.items.texts_of(right)
        queries = [texts[back][place] for place, back in enumerate(reverse.astype(int).tolist())]
        items = [texts[1 - back][place] for place, back in enumerate(reverse.astype(int).tolist())]
        start = time.monotonic()
        scores = score_pairs(self.scorer, queries, items)
        took = time.monotonic() - start
        self.seconds += took
        if self.ends is not None:  # at most twice the last slice, and what fits into the time left at its speed
            left_seconds = self.ends - time.monotonic()
            self._slice = min(max(2 * len(keys), FIRST_SLICE), int(left_seconds * len(keys) / max(took, 1e-6)))
        return scores

    def _link(self, keys: Keys) -> None:
        if not self.self_join:
            return
        for one, other in zip(*(rows.tolist() for rows in self._pairs(keys)[:2]), strict=True):
            if one < other:  # the other direction of a symmetric pair comes along
                self.partners.setdefault(one, []).append(other)
                self.partners.setdefault(other, []).append(one)

    def _slice_size(self) -> int:
        return MAX_PAIRS if self.ends is None else min(max(self._slice, 1), MAX_PAIRS)

    def _should_stop(self) -> bool:
        if self.cancelled is not None and self.cancelled.is_set():
            self.stopped = "cancelled"
        elif self.ends is not None and (self._slice < 1 or time.monotonic() >= self.ends):
            self.stopped = "deadline"
        return self.stopped is not None
