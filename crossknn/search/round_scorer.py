"""Turns the rows a strategy asks for into scores: texts in, one scorer call a round, deadlines kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np

from crossknn.errors import TooLate
from crossknn.items.items import Items
from crossknn.scorers.base import score_pairs
from crossknn.strategies.base import RoundScores
from crossknn.types import Progress, Rows, Scorer, Scores

MAX_PAIRS = 65_536  # pairs whose texts are held at once; a larger ask takes several scorer calls
FIRST_SLICE = 16  # pairs scored under a deadline before anything is known about the scorer's speed


class RoundScorer:
    """Scores the asks of one search.

    Without a deadline a round is one scorer call (of at most `MAX_PAIRS` pairs). With one, a round
    that might not end in time is scored in growing slices, the best rows of all queries first, and
    what does not fit any more is left unscored: a search overruns its deadline by no more than the
    slice in flight.
    """

    def __init__(
        self,
        scorer: Scorer,
        items: Items,
        queries: Sequence[str],
        *,
        turn: AbstractContextManager[object],
        ends: float | None = None,
        cancelled: threading.Event | None = None,
        progress: Progress | None = None,
        total_calls: int = 0,
    ) -> None:
        self._scorer = scorer
        self._items = items
        self._queries = queries
        self._turn = turn  # to call the scorer
        self._ends = ends  # of time.monotonic()
        self._cancelled = cancelled
        self._progress = progress
        self._total = total_calls
        self._scored = 0
        self._fits = FIRST_SLICE  # pairs that the next slice may hold under a deadline
        self.seconds = 0.0  # spent in the scorer

    def __call__(self, asks: list[Rows]) -> RoundScores:
        scores = [np.empty(len(rows), np.float32) for rows in asks]
        kept = np.zeros(len(asks), np.int64)
        width = max(1, MAX_PAIRS // max(1, len(asks)))  # ranks that are looked at together
        stopped = None
        for first in range(0, max(1, *map(len, asks)), width):
            stopped = self._stop_reason() or self._answer_ranks(asks, slice(first, first + width), scores, kept)
            if stopped:
                break
        return RoundScores([line[:keep] for line, keep in zip(scores, kept, strict=True)], stopped)

    def _answer_ranks(self, asks: list[Rows], ranks: slice, scores: list[Scores], kept: Rows) -> str | None:
        """Score these ranks of every ask; why it stopped early, if it did."""
        parts = [rows[ranks] for rows in asks]
        queries = np.repeat(np.arange(len(asks)), [len(part) for part in parts])
        rows = np.concatenate(parts)
        rank = np.concatenate([np.arange(len(part)) for part in parts])
        # Best rows of all queries first, so that a deadline cuts every query's tail and not the last queries.
        order = np.argsort(rank, kind="stable")
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
        for line, values in zip(scores, np.split(found, np.cumsum([len(part) for part in parts])[:-1]), strict=True):
            line[ranks] = values
        kept += np.bincount(queries[order[:done]], minlength=len(asks))
        return stopped

    def _score(self, queries: Rows, rows: Rows) -> Scores:
        start = time.monotonic()
        with self._turn:
            scores = score_pairs(self._scorer, [self._queries[q] for q in queries], self._items.texts_of(rows))
        took = time.monotonic() - start
        self.seconds += took
        self._scored += len(rows)
        if self._progress:
            self._progress("scoring", self._scored, max(self._total, self._scored))
        self._plan_next(len(rows), took)
        return scores

    def _plan_next(self, pairs: int, took: float) -> None:
        """At most twice the last slice, and no more than fits into the time left at its speed."""
        if self._ends is not None:
            left = self._ends - time.monotonic()
            self._fits = min(max(2 * pairs, FIRST_SLICE), int(left * pairs / max(took, 1e-6)))

    def _slice_size(self) -> int:
        return MAX_PAIRS if self._ends is None else min(max(self._fits, 1), MAX_PAIRS)

    def _stop_reason(self) -> str | None:
        if self._cancelled is not None and self._cancelled.is_set():
            return "cancelled"
        if self._ends is not None and (self._fits < 1 or time.monotonic() >= self._ends):
            return "deadline"
        return None
