"""Who is worked on, who waits, and who is told to come back later."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from crossknn.serve.http_errors import busy

T = TypeVar("T")
Work = Callable[[threading.Event], T]
"""What a request does in a thread; it should end soon once the event is set."""

CAUTION = 0.1  # how much the last request counts in the mean duration


class ClientDisconnected(Exception):
    """Nobody waits for the answer any more."""


class Admission:
    """At most `running` requests in threads, and `waiting` more in the order in which they came."""

    def __init__(self, *, running: int, waiting: int) -> None:
        self._most_running = running
        self._most_waiting = waiting
        self._threads = ThreadPoolExecutor(running, thread_name_prefix="request")
        self._counting = threading.Lock()
        self._inside = 0
        self._mean_seconds = 1.0

    @property
    def running(self) -> int:
        return min(self._inside, self._most_running)

    @property
    def waiting(self) -> int:
        return max(0, self._inside - self._most_running)

    async def run(self, work: Work[T], left: Callable[[], Awaitable[None]]) -> T:
        """What `work` returns, from a thread; it is cancelled where `left` returns before."""
        self._enter()
        cancelled = threading.Event()
        future = self._threads.submit(self._take_time, work, cancelled)
        future.add_done_callback(lambda _: self._leave())
        answer, leaving = asyncio.wrap_future(future), asyncio.ensure_future(left())
        both: set[asyncio.Future[Any]] = {answer, leaving}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ClientDisconnected
            return answer.result()
        finally:
            cancelled.set()
            leaving.cancel()
            answer.cancel()

    def close(self) -> None:
        """Let no one in any more; does not wait for those inside."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _enter(self) -> None:
        with self._counting:
            if self._inside >= self._most_running + self._most_waiting:
                raise busy(self._most_running, self._most_waiting, self._mean_seconds * self._inside / self.running)
            self._inside += 1

    def _leave(self) -> None:
        with self._counting:
            self._inside -= 1

    def _take_time(self, work: Work[T], cancelled: threading.Event) -> T:
        start = time.monotonic()
        try:
            return work(cancelled)
        finally:
            with self._counting:
                self._mean_seconds += CAUTION * (time.monotonic() - start - self._mean_seconds)
