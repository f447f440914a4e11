"""One search in progress, round by round, and its hits so far."""

from __future__ import annotations

import time
from collections.abc import Sequence

from crossknn.retrievers.cache import CandidateCache
from crossknn.search.hit_selection import Selection, StrategyRun
from crossknn.search.results import Hits
from crossknn.search.round_scorer import RoundScorer, Scoring
from crossknn.strategies.base import Driver, QueryResult, SearchContext, Strategy


class SearchRun:
    """The queries of one search, searched together.

    A round can be run in this thread or on an event loop; both take the same steps.
    """

    def __init__(
        self, strategy: Strategy, context: SearchContext, scorer: RoundScorer, candidates: CandidateCache
    ) -> None:
        self._driver = Driver(strategy, context)
        self._started = False
        self._context = context
        self._scorer = scorer
        self._candidates = candidates
        self._traced = strategy.budget is not None
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
        if not self._started:
            self._driver.start()
            self._started = True
        if self._driver.rows is not None:
            scored = yield from self._scorer.score_round(self._driver.rows)
            self._driver.advance(scored)
        return self._driver.rows is not None

    def hits(self, selection: Selection, start: float) -> list[Hits]:
        """The best items so far of each query of a search that began at `start`, by `time.monotonic`."""
        found = StrategyRun(
            self._scorer.queries,
            self._scorer.items,
            self._driver.results,
            self._candidates,
            self._traced,
            self._driver.rows is None,
            self._scorer.seconds,
            self._context.solving.seconds,
            self.rounds_reason,
        )
        seconds = time.monotonic() - start
        return [found.hits(query, selection, seconds) for query in range(len(found.queries))]
