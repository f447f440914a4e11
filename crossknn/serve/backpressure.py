"""Back-pressure: a bounded queue of requests in front of a thread pool; more requests are rejected with status 429."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from crossknn.serve.http_errors import HttpError

T = TypeVar("T")
Work = Callable[[threading.Event], T]
"""What a request does in a thread; it should return soon after the event is set."""

DURATION_SMOOTHING = 0.1  # weight of the latest request in the moving average of durations


class ClientDisconnected(Exception):
    """The client closed its connection before the response."""


class RequestQueue:
    """Runs at most `max_running` requests in threads, and queues `max_queued` more in order of arrival."""

    def __init__(self, *, max_running: int, max_queued: int) -> None:
        self._max_running = max_running
        self._max_queued = max_queued
        self._threads = ThreadPoolExecutor(max_running, thread_name_prefix="request")
        self._lock = threading.Lock()
        self._admitted = 0  # running and queued
        self._mean_seconds = 1.0

    @property
    def running(self) -> int:
        return min(self._admitted, self._max_running)

    @property
    def queued(self) -> int:
        return max(0, self._admitted - self._max_running)

    async def run(self, work: Work[T], disconnected: Callable[[], Awaitable[None]]) -> T:
        """The result of `work`, from a thread.

        Raises `HttpError` 429 where the queue is full. Where `disconnected` returns first, `work` is cancelled and
        `ClientDisconnected` raised.
        """
        with self._lock:
            if self._admitted >= self._max_running + self._max_queued:
                message = f"Too many requests: {self._max_running} running, {self._max_queued} queued. Retry later."
                retry_after = self._mean_seconds * self._admitted / self.running
                raise HttpError(429, "busy", message, retry_after=retry_after)
            self._admitted += 1
        cancelled = threading.Event()
        # With the context of the request, which may hold the span that it belongs to.
        future = self._threads.submit(copy_context().run, self._run_timed, work, cancelled)
        future.add_done_callback(self._release)
        result, disconnect = asyncio.wrap_future(future), asyncio.ensure_future(disconnected())
        both: set[asyncio.Future[Any]] = {result, disconnect}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                raise ClientDisconnected
            return result.result()
        finally:
            cancelled.set()
            disconnect.cancel()
            result.cancel()

    def close(self) -> None:
        """Admit no more requests; does not wait for those that run."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _release(self, _: Future[Any]) -> None:
        with self._lock:
            self._admitted -= 1

    def _run_timed(self, work: Work[T], cancelled: threading.Event) -> T:
        start = time.monotonic()
        try:
            return work(cancelled)
        finally:
            with self._lock:
                self._mean_seconds += DURATION_SMOOTHING * (time.monotonic() - start - self._mean_seconds)
