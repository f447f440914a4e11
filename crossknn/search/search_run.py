"""One search in progress, round by round, and its hits so far."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from crossknn.retrievers.cache import CandidateCache
from crossknn.search.hit_selection import Selection, StrategyRun
from crossknn.search.results import Hits
from crossknn.search.round_scorer import RoundScorer, Scoring
from crossknn.search.tracing import INPUT, MAX_DOCUMENTS, RETRIEVED, Span, start_span
from crossknn.strategies.base import Driver, QueryResult, SearchContext, Strategy


class SearchRun:
    """The queries of one search, searched together.

    A round can be run in this thread or on an event loop; both take the same steps.
    """

    def __init__(
        self, strategy: Strategy, context: SearchContext, scorer: RoundScorer, candidates: CandidateCache
    ) -> None:
        self._driver = Driver(strategy, context)
        self._strategy = strategy
        self._span: Span | None = None  # before the first round
        self._round_number = 0
        self._context = context
        self._scorer = scorer
        self._candidates = candidates
        self.rounds_reason: str | None = None  # why the search has so many rounds, where it chose their number

    @property
    def results(self) -> Sequence[QueryResult]:
        """Everything scored so far, one entry per query."""
        return self._driver.results

    @property
    def shortest_call(self) -> float:
        """Seconds of the shortest scorer call so far; infinite before any."""
        return self._scorer.shortest

    def run_round(self) -> bool:
        """Run one round; whether another follows."""
        return self._scorer.run_sync(self._round())

    async def arun_round(self) -> bool:
        """Run one round without blocking the event loop; whether another follows."""
        return await self._scorer.run_async(self._round())

    def _round(self) -> Scoring[bool]:
        if self._span is None:
            self._span = start_span("search", "RETRIEVER")
            self._start(self._span)
        if self._driver.rows is not None:
            self._round_number += 1
            self._scorer.span = span = self._span.child(f"round {self._round_number}", "CHAIN")
            try:
                scored = yield from self._scorer.score_round(self._driver.rows)
                span.set({"crossknn.round": self._round_number, "crossknn.calls": sum(map(len, scored.scores))})
                self._driver.advance(scored)
            except BaseException as error:
                span.end(error)
                raise
            span.end()
        return self._driver.rows is not None

    def _start(self, span: Span) -> None:
        """Find the rows of the first round."""
        span.set_query(INPUT, self._scorer.queries)
        span.set({"crossknn.strategy": repr(self._strategy), "crossknn.budget": self._strategy.budget})
        stage = span.child("first stage", "RETRIEVER")
        with stage.active():
            self._driver.start()
            stage.set_query(INPUT, self._scorer.queries)
            if stage and len(self.results) == 1 and self._driver.rows is not None:
                rows = self._driver.rows[0][:MAX_DOCUMENTS]
                stage.set_documents(RETRIEVED, self._scorer.items.ids_of(rows), texts=self._scorer.items.texts_of(rows))

    def end(self, error: BaseException | None = None) -> None:
        """End the span of the search."""
        if self._span is not None:
            self._span.end(error)

    def hits(self, selection: Selection, start: float) -> list[Hits]:
        """The best items so far of each query of a search that began at `start`, by `time.monotonic`."""
        found = StrategyRun(
            self._scorer.queries,
            self._scorer.items,
            self._driver.results,
            self._candidates,
            self._strategy.budget is not None,
            self._driver.rows is None,
            self._scorer.seconds,
            self._context.solving.seconds,
            self.rounds_reason,
        )
        seconds = time.monotonic() - start
        hits = [found.hits(query, selection, seconds) for query in range(len(found.queries))]
        if self._span and found.final:
            self._describe(hits)
        return hits

    def _describe(self, found: Sequence[Hits]) -> None:
        """Add what a search has found to its span."""
        if self._span is None:
            return
        self._span.set({"crossknn.calls": sum(hits.calls for hits in found)})
        if len(found) == 1:
            (hits,) = found
            about = {"rounds": hits.rounds, "stopped": hits.stopped, "expected_recall": hits.expected_recall}
            self._span.set({f"crossknn.{name}": value for name, value in about.items()})
            scores = np.array([hit.score for hit in hits], np.float32)
            self._span.set_documents(RETRIEVED, hits.ids, scores=scores, texts=[hit.text for hit in hits])
