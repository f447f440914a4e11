"""What a server counts, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from crossknn.scorers.cached import Cached
from crossknn.search.results import Hits
from crossknn.serve.dynamic_batching import BatchReport
from crossknn.types import Scorer

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
PAIRS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


class Metrics:
    """The numbers of one service; each service has its own."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._requests = Counter(
            "crossknn_requests", "Requests by route and status.", ["route", "status"], registry=registry
        )
        self._request_seconds = Histogram(
            "crossknn_request_seconds", "Whole requests.", ["route"], buckets=SECONDS, registry=registry
        )
        self._steps = Histogram(
            "crossknn_search_seconds",
            "Searches by step: scorer, solve and total.",
            ["step"],
            buckets=SECONDS,
            registry=registry,
        )
        self._calls = Counter("crossknn_calls", "Scores that requests were given.", registry=registry)
        self._batch_pairs = Histogram(
            "crossknn_batch_pairs", "Pairs of a scorer's batch.", buckets=PAIRS, registry=registry
        )
        self._batch_callers = Histogram(
            "crossknn_batch_requests", "Requests in a scorer's batch.", buckets=PAIRS[:8], registry=registry
        )
        self._batch_seconds = Histogram(
            "crossknn_batch_seconds", "A scorer's batches.", buckets=SECONDS, registry=registry
        )
        self._waits = Histogram(
            "crossknn_scorer_wait_seconds",
            "From asking for scores to having them.",
            buckets=SECONDS,
            registry=registry,
        )

    def count_request(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def count_search(self, found: Sequence[Hits]) -> None:
        self.count_calls(sum(hits.calls for hits in found))
        for one in found[:1]:  # queries searched together share their times
            for step, seconds in (
                ("scorer", one.score_seconds),
                ("solve", one.solve_seconds),
                ("total", one.seconds),
            ):
                self._steps.labels(step).observe(seconds)

    def count_calls(self, calls: int) -> None:
        self._calls.inc(calls)

    def count_batch(self, report: BatchReport) -> None:
        self._batch_pairs.observe(report.pairs)
        self._batch_callers.observe(report.callers)
        self._batch_seconds.observe(report.seconds)

    def count_wait(self, seconds: float) -> None:
        self._waits.observe(seconds)

    def watch(self, name: str, what: str, value: Callable[[], float]) -> None:
        """A number that is read when somebody asks for it."""
        Gauge(f"crossknn_{name}", what, registry=self._registry).set_function(value)

    def watch_total(self, name: str, what: str, value: Callable[[], float]) -> None:
        """A number that only grows."""
        self._registry.register(_Total(f"crossknn_{name}", what, value))

    def watch_cache(self, scorer: Scorer) -> None:
        """The hits of a scorer that keeps its scores."""
        if isinstance(scorer, Cached):
            self.watch_total("cache_hits", "Scores that were read back.", lambda: scorer.hits)
            self.watch_total("cache_misses", "Scores that the scorer was asked for.", lambda: scorer.misses)

    def as_text(self) -> bytes:
        return generate_latest(self._registry)


class _Total(Collector):
    def __init__(self, name: str, what: str, value: Callable[[], float]) -> None:
        self._name, self._what, self._value = name, what, value

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self._name, self._what, value=self._value())
