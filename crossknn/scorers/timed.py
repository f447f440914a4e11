"""A scorer whose calls are counted and whose time is taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from crossknn.types import Scorer, Scores


class Timed:
    """`scorer`, with its calls counted and its time taken.

    calls     pairs scored so far
    seconds   spent in the scorer for them
    on_calls  called with the number of pairs after each `score`; may be changed at any time

    Put it inside a `Cached`, and only real calls count. It is for one thread at a time, as a searcher calls it.
    """

    def __init__(self, scorer: Scorer, *, on_calls: Callable[[int], None] | None = None) -> None:
        self.scorer = scorer
        self.on_calls = on_calls
        self.calls = 0
        self.seconds = 0.0

    @property
    def fingerprint(self) -> str:
        """The scorer's own: timing changes no score."""
        return self.scorer.fingerprint

    @property
    def calls_per_second(self) -> float | None:
        """None before the first call."""
        return self.calls / max(self.seconds, 1e-9) if self.calls else None

    def score(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        """The scores of the pairs, as the scorer gives them."""
        start = time.perf_counter()
        scores = self.scorer.score(queries, items)
        self.seconds += time.perf_counter() - start
        self.calls += len(queries)
        if self.on_calls is not None and len(queries):
            self.on_calls(len(queries))
        return scores
