"""The engine that is used unless told otherwise: this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Final

from crossknn.types import Job, Model, Result


class LocalEngine:
    """Does one job after the other, in their order, in this process.

    A model on a GPU has `threads` above 1: so many jobs are in hand at a time, and while one waits for the device the
    next is prepared, and what uses the results goes on.
    """

    def check(self, *models: Any) -> None:
        """Any model can be called here."""

    def run(
        self, function: Callable[..., Result], model: Model, jobs: Iterable[Job]
    ) -> Generator[tuple[int, Result], None, None]:
        """`function(model, *arguments)` of each job; the next one is taken when the result of the last was used."""
        threads = int(getattr(model, "threads", 1))
        if threads > 1:
            yield from _run_side_by_side(function, model, jobs, threads)
            return
        for number, arguments in jobs:
            yield number, function(model, *arguments)


def _run_side_by_side(
    function: Callable[..., Result], model: Model, jobs: Iterable[Job], threads: int
) -> Generator[tuple[int, Result], None, None]:
    """The same with `threads` jobs in hand beside the one whose result is used."""
    left = iter(jobs)
    running: deque[tuple[int, Future[Result]]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="crossknn")

    def begin_more() -> None:
        for number, arguments in islice(left, threads - len(running)):
            running.append((number, pool.submit(function, model, *arguments)))

    try:
        begin_more()
        while running:
            number, result = running.popleft()
            done = result.result()
            begin_more()
            yield number, done
    finally:
        pool.shutdown(cancel_futures=True)


LOCAL: Final = LocalEngine()
