"""One scorer for many callers: what they ask for at the same time is scored in shared batches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from crossknn._checks import check_positive
from crossknn.errors import InputError, ScorerError, TooLate
from crossknn.scorers.base import score_pairs
from crossknn.types import Scorer, Scores

MAX_PAIRS = 512  # of a batch
TIMEOUT = 60.0  # seconds after which a scorer counts as stalled
LATE = 1.0  # seconds after its caller's deadline that a score may come
TICK = 0.1  # seconds between two looks of a waiting caller at what might end its wait

log = logging.getLogger(__name__)


class ScorerUnavailable(ScorerError):
    """The scorer has not answered for too long, or the service ends: try again later."""


class CallCancelled(ScorerError):
    """Nobody waits for these scores any more."""


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One call of the real scorer: its pairs, the callers they belong to, and its seconds."""

    pairs: int
    callers: int
    seconds: float


class BatchingScorer:
    """`scorer`, called by one thread with batches merged from the calls of many.

    Whoever has asked is in the next batch, with an equal share of its `max_pairs`; what is left of them goes to those
    who asked first. So nobody waits for the end of another's call, only for the batch in flight. A batch that fails is
    scored again caller by caller, so that only those fail whose pairs are to blame. A scorer that does not answer
    within `timeout` seconds is `stalled`: who waits for it gets an error, and so does who asks, until it answers.

    `on_batch` is called after each call of the scorer, and `on_wait` with the seconds that a caller waited in all.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        max_pairs: int = MAX_PAIRS,
        timeout: float = TIMEOUT,
        on_batch: Callable[[BatchReport], None] = lambda _: None,
        on_wait: Callable[[float], None] = lambda _: None,
    ) -> None:
        check_positive("max_pairs", max_pairs)
        if not timeout > 0:
            raise InputError(f"timeout must be a positive number of seconds. Got {timeout!r} instead.")
        self.scorer = scorer
        self.max_pairs = max_pairs
        self.timeout = timeout
        self._on_batch = on_batch
        self._on_wait = on_wait
        self._changed = threading.Condition()
        self._asks: list[_Ask] = []  # the oldest first
        self._began: float | None = None  # when the call in flight began
        self._closed = False
        # A daemon, so that a program can end though its scorer never answers.
        self._worker = threading.Thread(target=self._work, name="scorer", daemon=True)
        self._worker.start()

    @property
    def fingerprint(self) -> str:
        """The scorer's own: merging changes no score."""
        return self.scorer.fingerprint

    @property
    def waiting_pairs(self) -> int:
        """Pairs that were asked for and have no score yet."""
        with self._changed:
            return sum(len(ask.queries) - ask.scored for ask in self._asks)

    @property
    def stalled(self) -> bool:
        """Whether the call in flight takes longer than the timeout."""
        began = self._began
        return began is not None and time.monotonic() - began > self.timeout

    def for_caller(self, cancelled: threading.Event | None = None, ends: float | None = None) -> Scorer:
        """The scorer of one caller; its pairs leave the queue once `cancelled` is set, or a second after `ends`."""
        return _Caller(self, cancelled, ends)

    def score(
        self,
        queries: Sequence[str],
        items: Sequence[str],
        *,
        cancelled: threading.Event | None = None,
        ends: float | None = None,
    ) -> Scores:
        """The scores of the pairs, when all of them are there."""
        if len(queries) != len(items):
            raise InputError(f"queries and items must pair up. Got {len(queries)} and {len(items)} instead.")
        if not len(queries):
            return np.empty(0, np.float32)
        self._check(cancelled, ends)
        ask = _Ask(queries, items)
        with self._changed:
            self._asks.append(ask)
            self._changed.notify()
        try:
            while not ask.done.wait(TICK):
                self._check(cancelled, ends)
        finally:
            self._withdraw(ask)
            self._on_wait(time.monotonic() - ask.began)
        if ask.error is not None:
            raise ask.error
        return ask.scores

    def close(self) -> None:
        """End the work; who still waits gets an error."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _check(self, cancelled: threading.Event | None, ends: float | None) -> None:
        """An error where waiting is in vain."""
        if cancelled is not None and cancelled.is_set():
            raise CallCancelled("the caller has left.")
        if self._closed:
            raise ScorerUnavailable("the service ends.")
        if ends is not None and time.monotonic() > ends + LATE:
            raise TooLate("the scores did not come in time.")
        if self.stalled:
            raise ScorerUnavailable(f"the scorer has not answered for more than {self.timeout:g} seconds.")

    def _withdraw(self, ask: _Ask) -> None:
        with self._changed:
            if ask in self._asks:
                self._asks.remove(ask)

    def _work(self) -> None:
        while batch := self._take():
            try:
                self._score_together(batch)
            except BaseException as error:
                # One by one, so that only those fail that are to blame.
                self._score_apart(batch, error)
            with self._changed:
                self._asks = [ask for ask in self._asks if not ask.done.is_set()]

    def _take(self) -> list[_Part]:
        """The next batch; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._asks or self._closed)
            if self._closed:
                return []
            shares = share_out(self.max_pairs, [len(ask.queries) - ask.scored for ask in self._asks])
            return [
                _Part(ask, ask.scored, ask.scored + share)
                for ask, share in zip(self._asks, shares, strict=True)
                if share
            ]

    def _score_together(self, batch: list[_Part]) -> None:
        scores = self._call(batch)
        ends = np.cumsum([0, *(part.end - part.start for part in batch)]).tolist()
        for part, (start, end) in zip(batch, pairwise(ends), strict=True):
            part.give(scores[start:end])

    def _score_apart(self, batch: list[_Part], error: BaseException) -> None:
        """Each part by itself, as long as the timeout lasts: a scorer that always fails may take its time for it."""
        log.warning("a batch failed", extra={"error": type(error).__name__, "callers": len(batch)})
        ends = time.monotonic() + self.timeout
        for part in batch:
            if len(batch) > 1 and time.monotonic() < ends:
                try:
                    part.give(self._call([part]))
                except BaseException as own:
                    part.ask.fail(own)
            else:
                part.ask.fail(error)

    def _call(self, parts: list[_Part]) -> Scores:
        queries = [query for part in parts for query in part.queries]
        items = [item for part in parts for item in part.items]
        self._began = start = time.monotonic()
        try:
            return score_pairs(self.scorer, queries, items)
        finally:
            self._began = None
            self._on_batch(BatchReport(len(queries), len(parts), time.monotonic() - start))


def share_out(room: int, wanted: Sequence[int]) -> list[int]:
    """How much of `room` each gets: an equal share, as far as wanted; what is left goes to the first."""
    fair = max(1, room // max(1, len(wanted)))
    shares = []
    for want in wanted:
        shares.append(min(want, fair, room))
        room -= shares[-1]
    for place, want in enumerate(wanted):
        more = min(want - shares[place], room)
        shares[place] += more
        room -= more
    return shares


@dataclass(eq=False, slots=True)
class _Ask:
    """One call of a caller."""

    queries: Sequence[str]
    items: Sequence[str]
    scores: Scores = field(init=False)
    scored: int = 0  # pairs, from the first
    error: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.scores = np.empty(len(self.queries), np.float32)

    def fail(self, error: BaseException) -> None:
        self.error = error if isinstance(error, ScorerError) else _foreign(error)
        self.done.set()


@dataclass(frozen=True, slots=True)
class _Part:
    """What one batch holds of an ask."""

    ask: _Ask
    start: int
    end: int

    @property
    def queries(self) -> Sequence[str]:
        return self.ask.queries[self.start : self.end]

    @property
    def items(self) -> Sequence[str]:
        return self.ask.items[self.start : self.end]

    def give(self, scores: Scores) -> None:
        self.ask.scores[self.start : self.end] = scores
        self.ask.scored = self.end
        if self.end == len(self.ask.queries):
            self.ask.done.set()


@dataclass(frozen=True, slots=True)
class _Caller:
    """A `BatchingScorer` as one caller sees it."""

    merging: BatchingScorer
    cancelled: threading.Event | None
    ends: float | None

    @property
    def fingerprint(self) -> str:
        return self.merging.fingerprint

    def score(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        return self.merging.score(queries, items, cancelled=self.cancelled, ends=self.ends)


def _foreign(error: BaseException) -> ScorerError:
    """An error that is not about a pair, without its message: nobody knows what stands in there."""
    wrapped = ScorerError(f"the scorer raised {type(error).__name__}.")
    wrapped.__cause__ = error
    return wrapped
