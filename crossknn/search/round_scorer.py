"""Scoring of a strategy's rounds: rows to texts, one scorer call per round, within the deadline."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from crossknn.errors import TooLate
from crossknn.items.items import Items
from crossknn.scorers.base import score_pairs
from crossknn.strategies.base import RoundScores
from crossknn.types import Progress, Rows, Scorer, Scores, SharedScorer

MAX_PAIRS = 65_536  # pairs whose texts are in memory at once; a larger round takes several scorer calls
FIRST_SLICE = 16  # pairs scored under a deadline before the scorer's speed is known


@dataclass(slots=True)
class RoundScorer:
    """Scores the rounds of one search.

    Without a deadline a round is one scorer call (of at most `MAX_PAIRS` pairs). With one, a round that might not end
    in time is scored in growing slices, the best rows of all queries first, and the rest is left unscored: a search
    overruns its deadline by no more than the slice in flight.
    """

    scorer: Scorer
    items: Items
    queries: Sequence[str]
    lock: AbstractContextManager[object]  # held while the scorer is called, unless it is a `SharedScorer`
    ends: float | None = None  # the deadline, by `time.monotonic`
    cancelled: threading.Event | None = None
    progress: Progress | None = None
    total_calls: int = 0  # for `progress`
    seconds: float = field(default=0.0, init=False)  # spent in the scorer
    shortest: float = field(default=math.inf, init=False)  # seconds of a scorer call
    _scored: int = field(default=0, init=False)
    _slice: int = field(default=FIRST_SLICE, init=False)  # pairs that fit into the next slice under a deadline

    def __post_init__(self) -> None:
        if isinstance(self.scorer, SharedScorer):
            self.scorer, self.lock = self.scorer.for_caller(self.cancelled, self.ends), nullcontext()

    def __call__(self, proposed: list[Rows]) -> RoundScores:
        scores = [np.empty(len(rows), np.float32) for rows in proposed]
        counts = np.zeros(len(proposed), np.int64)  # scored rows of each query
        width = max(1, MAX_PAIRS // max(1, len(proposed)))  # ranks scored together
        stopped = None
        for first in range(0, max(1, *map(len, proposed)), width):
            stopped = self._stop_reason() or self._score_ranks(proposed, slice(first, first + width), scores, counts)
            if stopped:
                break
        return RoundScores([values[:count] for values, count in zip(scores, counts, strict=True)], stopped)

    def _score_ranks(self, proposed: list[Rows], ranks: slice, scores: list[Scores], counts: Rows) -> str | None:
        """Score these ranks of every proposal; the reason for stopping early, if any."""
        parts = [rows[ranks] for rows in proposed]
        sizes = [len(part) for part in parts]
        queries = np.repeat(np.arange(len(proposed)), sizes)
        rows = np.concatenate(parts)
        # The best rows of all queries first, so that a deadline cuts every query's tail and not the last queries.
        order = np.argsort(np.concatenate([np.arange(size) for size in sizes]), kind="stable")
        found = np.empty(len(rows), np.float32)
        done, stopped = 0, None
        while done < len(rows) and stopped is None:
            part = order[done : done + self._slice_size()]
            try:
                found[part] = self._score(queries[part], rows[part])
            except TooLate:
                stopped = "deadline"
            else:
                done += len(part)
                stopped = self._stop_reason() if done < len(rows) else None
        for query_scores, values in zip(scores, np.split(found, np.cumsum(sizes)[:-1]), strict=True):
            query_scores[ranks] = values
        counts += np.bincount(queries[order[:done]], minlength=len(proposed))
        return stopped

    def _score(self, queries: Rows, rows: Rows) -> Scores:
        start = time.monotonic()
        with self.lock:
            scores = score_pairs(self.scorer, [self.queries[q] for q in queries], self.items.texts_of(rows))
        took = time.monotonic() - start
        self.seconds += took
        self.shortest = min(self.shortest, took)
        self._scored += len(rows)
        if self.progress:
            self.progress("scoring", self._scored, max(self.total_calls, self._scored))
        if self.ends is not None:  # at most twice the last slice, and what fits into the time left at its speed
            left = self.ends - time.monotonic()
            self._slice = min(max(2 * len(rows), FIRST_SLICE), int(left * len(rows) / max(took, 1e-6)))
        return scores

    def _slice_size(self) -> int:
        return MAX_PAIRS if self.ends is None else min(max(self._slice, 1), MAX_PAIRS)

    def _stop_reason(self) -> str | None:
        if self.cancelled is not None and self.cancelled.is_set():
            return "cancelled"
        if self.ends is not None and (self._slice < 1 or time.monotonic() >= self.ends):
            return "deadline"
        return None
