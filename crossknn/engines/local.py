"""The default engine, which runs jobs in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Final

from crossknn.types import Job, Model, Result


class LocalEngine:
    """Runs jobs in their order in this process.

    A model on a GPU may have `threads` above 1: that many jobs run concurrently, so that the next one is prepared, and
    results are used, while another waits for the device.
    """

    def check(self, *models: Any) -> None:
        """Any model can run here."""

    def run(
        self, function: Callable[..., Result], model: Model, jobs: Iterable[Job]
    ) -> Generator[tuple[int, Result], None, None]:
        """`function(model, *arguments)` of each job; a job is taken once the last result was used."""
        threads = int(getattr(model, "threads", 1))
        if threads > 1:
            yield from _run_threads(function, model, jobs, threads)
            return
        for number, arguments in jobs:
            yield number, function(model, *arguments)


def _run_threads(
    function: Callable[..., Result], model: Model, jobs: Iterable[Job], threads: int
) -> Generator[tuple[int, Result], None, None]:
    remaining = iter(jobs)
    running: deque[tuple[int, Future[Result]]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="crossknn")

    def submit_jobs() -> None:
        for number, arguments in islice(remaining, threads - len(running)):
            running.append((number, pool.submit(function, model, *arguments)))

    try:
        submit_jobs()
        while running:
            number, future = running.popleft()
            result = future.result()
            submit_jobs()
            yield number, result
    finally:
        pool.shutdown(cancel_futures=True)


LOCAL: Final = LocalEngine()
