"""Dynamic batching: a scorer for many threads that merges their concurrent calls into shared batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Event, Thread

import numpy as np

from crossknn._checks import check_positive, check_seconds
from crossknn.errors import InputError, ScorerError, TooLate
from crossknn.scorers.base import score_pairs
from crossknn.search.round_scorer import DEADLINE_GRACE_SECONDS
from crossknn.types import Scorer, Scores

WAIT_CHECK_SECONDS = 0.1  # how often a waiting caller checks for cancellation, deadline and stall

log = logging.getLogger(__name__)


class ScorerUnavailable(ScorerError):
    """The scorer is closed or stalled: retry later."""


class CallCancelled(ScorerError):
    """The caller does not wait for these scores anymore."""


class BatchingScorer:
    """Calls `scorer` from one thread, with batches merged from the calls of many.

    Every queued call takes part in the next batch with a fair share of its `max_pairs`, so no call waits for the end of
    another one, only for the batch in flight. A batch that fails is scored again call by call, so that only the calls
    with faulty pairs fail.

    Args:
        scorer: Any scorer.
        max_pairs: At most so many in a batch.
        timeout: Seconds after which a scorer that does not answer counts as stalled: queued and new calls fail with
            `ScorerUnavailable` until it answers.
        on_batch: Called after each batch with its pairs, the number of callers they belong to, and its seconds.
        on_wait: Called with the total seconds that a caller waited.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        max_pairs: int = 512,
        timeout: float = 60.0,
        on_batch: Callable[[int, int, float], None] = lambda *_: None,
        on_wait: Callable[[float], None] = lambda _: None,
    ) -> None:
        check_positive("max_pairs", max_pairs)
        check_seconds("timeout", timeout)
        self.scorer = scorer
        self.max_pairs = max_pairs
        self.timeout = timeout
        self._on_batch = on_batch
        self._on_wait = on_wait
        self._changed = Condition()
        self._queue: list[_Call] = []  # oldest first
        self._batch_start: float | None = None  # of the batch in flight
        self._closed = False
        # A daemon, so that a program can exit although its scorer never answers.
        self._worker = Thread(target=self._score_batches, name="scorer", daemon=True)
        self._worker.start()

    @property
    def fingerprint(self) -> str:
        """The scorer's own: batching changes no score."""
        return self.scorer.fingerprint

    @property
    def queued_pairs(self) -> int:
        """Pairs that have no score yet."""
        with self._changed:
            return sum(call.unscored for call in self._queue)

    @property
    def unavailable(self) -> str | None:
        """Why calls would fail now: the scorer is closed, or the batch in flight takes longer than the timeout."""
        start = self._batch_start
        if self._closed:
            return "the server is shutting down."
        if start is not None and time.monotonic() - start > self.timeout:
            return f"the scorer has not answered for more than {self.timeout:g} seconds."
        return None

    def for_caller(self, cancelled: Event | None = None, ends: float | None = None) -> Scorer:
        """A scorer whose pairs leave the queue once `cancelled` is set, or soon after the deadline `ends`."""
        return _CallerScorer(self, cancelled, ends)

    def score(
        self, queries: Sequence[str], items: Sequence[str], *, cancelled: Event | None = None, ends: float | None = None
    ) -> Scores:
        """Queue the pairs and wait for their scores."""
        if len(queries) != len(items):
            raise InputError(f"`queries` and `items` must have the same length, got {len(queries)} and {len(items)}.")
        if not len(queries):
            return np.empty(0, np.float32)
        self._check_waiting(cancelled, ends)
        call = _Call(queries, items)
        with self._changed:
            self._queue.append(call)
            self._changed.notify()
        try:
            while True:
                with suppress(TimeoutError):
                    return call.future.result(WAIT_CHECK_SECONDS)
                self._check_waiting(cancelled, ends)
        finally:
            with self._changed:
                if call in self._queue:
                    self._queue.remove(call)
            self._on_wait(time.monotonic() - call.start)

    def close(self) -> None:
        """Stop scoring; queued calls fail."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _check_waiting(self, cancelled: Event | None, ends: float | None) -> None:
        """Raise the error of a call that should not wait for its scores (any longer)."""
        if cancelled is not None and cancelled.is_set():
            raise CallCancelled("the call was cancelled.")
        if ends is not None and time.monotonic() > ends + DEADLINE_GRACE_SECONDS:
            raise TooLate("the scores did not arrive before the deadline.")
        if (reason := self.unavailable) is not None:
            raise ScorerUnavailable(reason)

    def _score_batches(self) -> None:
        while batch := self._next_batch():
            try:
                self._score(batch)
            except BaseException as error:
                self._score_individually(batch, error)
            with self._changed:
                self._queue = [call for call in self._queue if not call.future.done()]

    def _next_batch(self) -> Batch:
        """A fair share of every queued call; empty after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            if self._closed:
                return []
            shares = fair_shares(self.max_pairs, [call.unscored for call in self._queue])
            return [(call, share) for call, share in zip(self._queue, shares, strict=True) if share]

    def _score(self, batch: Batch) -> None:
        """Score a batch, or raise before any of its calls has a result."""
        queries = [query for call, size in batch for query in call.queries[call.scored : call.scored + size]]
        items = [item for call, size in batch for item in call.items[call.scored : call.scored + size]]
        self._batch_start = start = time.monotonic()
        try:
            scores = score_pairs(self.scorer, queries, items)
        finally:
            self._batch_start = None
            self._on_batch(len(queries), len(batch), time.monotonic() - start)
        first = 0
        for call, size in batch:
            call.add_scores(scores[first : first + size])
            first += size

    def _score_individually(self, batch: Batch, error: BaseException) -> None:
        """Score each call's part of a failed batch by itself, for at most `timeout` seconds."""
        log.warning("batch failed", extra={"error": type(error).__name__, "callers": len(batch)})
        ends = time.monotonic() + self.timeout
        for call, size in batch:
            if len(batch) == 1 or time.monotonic() >= ends:
                call.fail(error)
                continue
            try:
                self._score([(call, size)])
            except BaseException as own_error:
                call.fail(own_error)


def fair_shares(capacity: int, demands: Sequence[int]) -> list[int]:
    """Split `capacity`: an equal share for each, at most its demand; the remainder goes to the first in the queue."""
    fair = max(1, capacity // max(1, len(demands)))
    shares = []
    for demand in demands:
        shares.append(min(demand, fair, capacity))
        capacity -= shares[-1]
    for place, demand in enumerate(demands):
        extra = min(demand - shares[place], capacity)
        shares[place] += extra
        capacity -= extra
    return shares


class _Call:
    """A queued call of `score`; `scored` counts its pairs that have a score, in order."""

    def __init__(self, queries: Sequence[str], items: Sequence[str]) -> None:
        self.queries, self.items = queries, items
        self.start = time.monotonic()
        self.future: Future[Scores] = Future()
        self.scored = 0
        self._scores = np.empty(len(queries), np.float32)

    @property
    def unscored(self) -> int:
        return len(self.queries) - self.scored

    def add_scores(self, scores: Scores) -> None:
        self._scores[self.scored : self.scored + len(scores)] = scores
        self.scored += len(scores)
        if not self.unscored:
            self.future.set_result(self._scores)

    def fail(self, error: BaseException) -> None:
        """Errors other than `ScorerError` lose their message, which may contain anything."""
        if not isinstance(error, ScorerError):
            cause, error = error, ScorerError(f"the scorer raised {type(error).__name__}.")
            error.__cause__ = cause
        self.future.set_exception(error)


Batch = list[tuple[_Call, int]]
"""Calls, each with how many of its next pairs are in the batch."""


@dataclass(frozen=True, slots=True)
class _CallerScorer:
    """A `BatchingScorer` with the cancellation and deadline of one caller."""

    batching: BatchingScorer
    cancelled: Event | None
    ends: float | None

    @property
    def fingerprint(self) -> str:
        return self.batching.fingerprint

    def score(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        return self.batching.score(queries, items, cancelled=self.cancelled, ends=self.ends)
