"""The requests of one call, several in flight at once; one that is refused is halved until the bad pair is alone."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from crossknn.scorers.remote.client import RefusedRequest
from crossknn.scorers.remote.responses import Response

MAX_FIRST_FAILURES = 16  # of a thread, while the server has not scored a single pair: it is not about the pairs then

Send = Callable[[list[int], Any], Response]
AsyncSend = Callable[[list[int], Any], Awaitable[Response]]
logger = logging.getLogger(__name__)


class RequestRun:
    """Sends batches of pairs, and keeps what came of them.

    Attributes:
        scores: (pairs,) float32, NaN where missing.
        unscored: Why a pair has no score though its request was sent, by position.
        error: What ended the run early. After an error no request begins, and those in flight are waited for.
        accepted: Whether the server has scored any pair, in this run or before.
    """

    def __init__(self, batches: Sequence[list[int]], *, accepted: bool) -> None:
        self.scores = np.full(sum(map(len, batches)), np.nan, np.float32)
        self.unscored: dict[int, str] = {}
        self.error: BaseException | None = None
        self.accepted = accepted
        self._pending = deque(batches)
        self._stop: threading.Event | asyncio.Event = threading.Event()

    def run(self, send: Send, *, concurrency: int) -> None:
        """Send all batches; `send` gets positions of pairs, and an event that is set when the run ends early."""
        # Daemons, which an executor's threads are not: an interrupted program must not wait for a server.
        count = min(concurrency, len(self._pending))
        workers = [threading.Thread(target=self._work, args=(send,), daemon=True) for _ in range(count)]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        finally:
            self._stop.set()

    async def arun(self, send: AsyncSend, *, concurrency: int) -> None:
        """`run` on an event loop, without threads."""
        self._stop = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(concurrency, len(self._pending))):
                    workers.create_task(self._awork(send))
        finally:
            self._stop.set()

    def _work(self, send: Send) -> None:
        failures = 0
        while self._pending and not self._stop.is_set():
            try:
                batch = self._pending.popleft()
            except IndexError:  # another thread has taken it
                return
            try:
                outcome: Response | BaseException = send(batch, self._stop)
            except BaseException as error:
                outcome = error
            failures = self._settle(batch, outcome, failures)

    async def _awork(self, send: AsyncSend) -> None:
        failures = 0
        while self._pending and not self._stop.is_set():
            batch = self._pending.popleft()
            try:
                outcome: Response | BaseException = await send(batch, self._stop)
            except Exception as error:
                outcome = error
            failures = self._settle(batch, outcome, failures)

    def _settle(self, batch: list[int], outcome: Response | BaseException, failures: int) -> int:
        """Store what came of a batch; the worker's failures so far."""
        try:
            if isinstance(outcome, BaseException):
                raise outcome
            failures += self._keep(batch, outcome)
            if failures >= MAX_FIRST_FAILURES and not self.accepted:
                self._stop.set()
        except RefusedRequest as refusal:
            failures += 1
            if failures >= MAX_FIRST_FAILURES and not self.accepted:
                self._fail(refusal)
            else:
                self._divide(batch, refusal)
        except BaseException as error:
            self._fail(error)
        return failures

    def _keep(self, batch: list[int], response: Response) -> int:
        """Store a response; the number of pairs without a score."""
        self.scores[batch] = response.scores
        self.unscored.update((batch[position], reason) for position, reason in response.unscored.items())
        self.accepted = self.accepted or len(response.unscored) < len(batch)
        return len(response.unscored)

    def _divide(self, batch: list[int], refusal: RefusedRequest) -> None:
        """Queue the halves of a refused batch; a pair that is refused alone has no score."""
        if len(batch) == 1:
            self.unscored[batch[0]] = refusal.reason
            return
        logger.info("%s It is sent again in two halves.", refusal)
        middle = len(batch) // 2
        self._pending.extendleft((batch[middle:], batch[:middle]))

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self._stop.set()
