"""Monitoring: structured logs, one JSON object per line, and Prometheus metrics."""

from __future__ import annotations

import json
import logging
import traceback
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from crossknn.search.results import Hits

STANDARD_FIELDS: Final = frozenset([*vars(logging.makeLogRecord({})), "message", "asctime", "color_message"])
SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
PAIRS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)

log = logging.getLogger(__name__)


class JsonFormatter(logging.Formatter):
    """`time`, `level`, `event` and the record's extra fields; of an exception only its type and place."""

    def format(self, record: logging.LogRecord) -> str:
        extra = {name: value for name, value in vars(record).items() if name not in STANDARD_FIELDS}
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "event": record.getMessage(), **extra}
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = error_location(record.exc_info[1])
        return json.dumps(line, ensure_ascii=True, default=str)


def error_location(error: BaseException) -> str:
    """The type of an error and where it was raised, without its message, which may quote private texts."""
    origin = error.__cause__ or error
    frames = traceback.extract_tb(origin.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(origin).__name__}{where}"


def log_to_stderr() -> None:
    """Write the log of the service, and warnings of everything else in the process, to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    for name, level in {"crossknn.serve": logging.INFO, "uvicorn.error": logging.WARNING, "": logging.WARNING}.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
    logging.captureWarnings(True)


class LoopErrors:
    """The exception handler of an event loop, which logs at most one error per second and counts the others."""

    def __init__(self) -> None:
        self._quiet_until = 0.0
        self._suppressed = 0

    def __call__(self, loop: AbstractEventLoop, context: Mapping[str, Any]) -> None:
        if loop.time() < self._quiet_until:
            self._suppressed += 1
            return
        extra = {"reason": context.get("message"), "suppressed": self._suppressed}
        log.error("event loop error", extra=extra, exc_info=context.get("exception"))
        self._quiet_until, self._suppressed = loop.time() + 1, 0


class Metrics:
    """The metrics of one service, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = self._counter("requests", "Requests by route and status.", "route", "status")
        self._request_seconds = self._histogram("request_seconds", "Duration of requests.", SECONDS, "route")
        self._ended = self._counter("connections_ended", "Connections that the server ended, by reason.", "reason")
        self._steps = self._histogram(
            "search_seconds", "Duration of searches by step: scorer, solve and total.", SECONDS, "step"
        )
        self.calls = self._counter("calls", "Cross-encoder scores returned to requests.")
        self._batch_pairs = self._histogram("batch_pairs", "Pairs per scorer batch.", PAIRS)
        self._batch_callers = self._histogram("batch_requests", "Requests per scorer batch.", PAIRS[:8])
        self.searched_together = self._histogram("search_queries", "Queries per batch of requests.", PAIRS[:8])
        self._batch_seconds = self._histogram("batch_seconds", "Duration of scorer batches.", SECONDS)
        self.scorer_wait = self._histogram("scorer_wait_seconds", "Time from queueing pairs to their scores.", SECONDS)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def count_ended(self, reason: str) -> None:
        """A connection that the server ended, for what its client did or was late to do."""
        self._ended.labels(reason).inc()

    def count_search(self, results: Sequence[Hits]) -> None:
        self.calls.inc(sum(hits.calls for hits in results))
        self._steps.labels("scorer").observe(results[0].score_seconds)  # queries of one search share their times
        self._steps.labels("solve").observe(results[0].solve_seconds)
        self._steps.labels("total").observe(results[0].seconds)

    def count_batch(self, pairs: int, callers: int, seconds: float) -> None:
        self._batch_pairs.observe(pairs)
        self._batch_callers.observe(callers)
        self._batch_seconds.observe(seconds)

    def add_gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """A number that is read whenever the metrics are."""
        Gauge(f"crossknn_{name}", description, registry=self._registry).set_function(value)

    def add_total(self, name: str, description: str, value: Callable[[], float]) -> None:
        """A counter that is kept elsewhere and read whenever the metrics are."""
        self._registry.register(_Total(f"crossknn_{name}", description, value))

    def as_text(self) -> bytes:
        return generate_latest(self._registry)

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(f"crossknn_{name}", description, labels, registry=self._registry)

    def _histogram(self, name: str, description: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"crossknn_{name}", description, labels, buckets=buckets, registry=self._registry)


class _Total(Collector):
    def __init__(self, name: str, description: str, value: Callable[[], float]) -> None:
        self._name, self._description, self._value = name, description, value

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self._name, self._description, value=self._value())
