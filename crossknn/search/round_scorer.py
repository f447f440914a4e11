"""Scoring of a strategy's rounds: rows to texts, one scorer call per round, within the deadline.

What is scored next is decided by generators that never call the scorer: `run_sync` and `run_async` have them driven.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from crossknn.errors import TooLate
from crossknn.items.items import Items
from crossknn.scorers.base import ascore_pairs, has_ascore, score_pairs
from crossknn.scorers.flows import arun_flow, run_flow
from crossknn.search.tracing import MAX_DOCUMENTS, RERANKER_INPUT, RERANKER_MODEL, RERANKER_OUTPUT, RERANKER_QUERY, Span
from crossknn.strategies.base import RoundScores
from crossknn.types import Progress, Rows, Scorer, Scores, SharedScorer

T = TypeVar("T")

MAX_PAIRS = 65_536  # pairs whose texts are in memory at once; a larger round takes several scorer calls
FIRST_SLICE = 16  # pairs scored under a deadline before the scorer's speed is known
DEADLINE_GRACE_SECONDS = 1.0  # scores that are awaited, or come from a shared scorer, may be this late


class PairBatch(NamedTuple):
    """The pairs of one scorer call."""

    queries: list[str]
    items: list[str]
    rows: Rows  # of the items


Scoring = Generator[PairBatch, Scores | None, T]
"""Yields batches and is sent their scores, or None where they came too late; it returns what becomes of them."""


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
    span: Span = field(default_factory=Span, init=False)  # of the round
    _scored: int = field(default=0, init=False)
    _slice: int = field(default=FIRST_SLICE, init=False)  # pairs that fit into the next slice under a deadline

    def __post_init__(self) -> None:
        if isinstance(self.scorer, SharedScorer):
            self.scorer, self.lock = self.scorer.for_caller(self.cancelled, self.ends), nullcontext()

    def __call__(self, proposed: list[Rows]) -> RoundScores:
        """The scores of a round."""
        return self.run_sync(self.score_round(proposed))

    def run_sync(self, scoring: Scoring[T]) -> T:
        """The outcome of `scoring`, all of it in this thread."""
        return run_flow(scoring, self._score)

    async def run_async(self, scoring: Scoring[T]) -> T:
        """The outcome of `scoring`; a scorer without `ascore` is called in a thread."""
        return await arun_flow(scoring, self._ascore if has_ascore(self.scorer) else self._score_in_thread)

    def _score(self, batch: PairBatch) -> Scores | None:
        with self._scoring_span(batch) as span, suppress(TooLate), self.lock:
            scores = score_pairs(self.scorer, batch.queries, batch.items)
            self._describe(span, batch, scores)
            return scores
        return None

    async def _score_in_thread(self, batch: PairBatch) -> Scores | None:
        return await asyncio.to_thread(self._score, batch)

    async def _ascore(self, batch: PairBatch) -> Scores | None:
        """`_score` on an event loop, where any number of searches wait at once."""
        left = None if self.ends is None else self.ends + DEADLINE_GRACE_SECONDS - time.monotonic()
        with self._scoring_span(batch) as span:
            try:
                async with asyncio.timeout(left) as timeout:
                    scores = await ascore_pairs(self.scorer, batch.queries, batch.items)
            except TimeoutError:
                if timeout.expired():
                    return None
                raise
            self._describe(span, batch, scores)
            return scores

    @contextmanager
    def _scoring_span(self, batch: PairBatch) -> Iterator[Span]:
        span = self.span.child("scoring", "RERANKER")
        with span.active():
            span.set_query(RERANKER_QUERY, batch.queries)
            span.set({RERANKER_MODEL: self.scorer.fingerprint if span else None, "crossknn.pairs": len(batch.queries)})
            yield span

    def _describe(self, span: Span, batch: PairBatch, scores: Scores) -> None:
        """Add the pairs of one query, and their scores, to a span."""
        if not span or len(self.queries) > 1:
            return
        ids = self.items.ids_of(batch.rows[:MAX_DOCUMENTS])
        span.set_documents(RERANKER_INPUT, ids, texts=batch.items)
        best = np.argsort(-scores, kind="stable")[:MAX_DOCUMENTS]
        span.set_documents(RERANKER_OUTPUT, self.items.ids_of(batch.rows[best]), scores=scores[best])

    def score_round(self, proposed: list[Rows]) -> Scoring[RoundScores]:
        """Score the proposed rows of each query, the best rows of all queries first."""
        scores = [np.empty(len(rows), np.float32) for rows in proposed]
        counts = np.zeros(len(proposed), np.int64)  # scored rows of each query
        width = max(1, MAX_PAIRS // max(1, len(proposed)))  # ranks scored together
        stopped = None
        for first in range(0, max(1, *map(len, proposed)), width):
            stopped = self._stop_reason()
            if not stopped:
                stopped = yield from self._score_ranks(proposed, slice(first, first + width), scores, counts)
            if stopped:
                break
        return RoundScores([values[:count] for values, count in zip(scores, counts, strict=True)], stopped)

    def _score_ranks(
        self, proposed: list[Rows], ranks: slice, scores: list[Scores], counts: Rows
    ) -> Scoring[str | None]:
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
            start = time.monotonic()
            texts = self.items.texts_of(rows[part])
            batch = PairBatch([self.queries[query] for query in queries[part]], texts, rows[part])
            values = yield batch
            if values is None:
                stopped = "deadline"
            else:
                self._count(len(part), time.monotonic() - start)
                found[part] = values
                done += len(part)
                stopped = self._stop_reason() if done < len(rows) else None
        for query_scores, values in zip(scores, np.split(found, np.cumsum(sizes)[:-1]), strict=True):
            query_scores[ranks] = values
        counts += np.bincount(queries[order[:done]], minlength=len(proposed))
        return stopped

    def _count(self, pairs: int, seconds: float) -> None:
        """Report progress, and size the next slice."""
        self.seconds += seconds
        self.shortest = min(self.shortest, seconds)
        self._scored += pairs
        if self.progress:
            self.progress("scoring", self._scored, max(self.total_calls, self._scored))
        if self.ends is not None:  # at most twice the last slice, and what fits into the time left at its speed
            left = self.ends - time.monotonic()
            self._slice = min(max(2 * pairs, FIRST_SLICE), int(left * pairs / max(seconds, 1e-6)))

    def _slice_size(self) -> int:
        return MAX_PAIRS if self.ends is None else min(max(self._slice, 1), MAX_PAIRS)

    def _stop_reason(self) -> str | None:
        if self.cancelled is not None and self.cancelled.is_set():
            return "cancelled"
        if self.ends is not None and (self._slice < 1 or time.monotonic() >= self.ends):
            return "deadline"
        return None
