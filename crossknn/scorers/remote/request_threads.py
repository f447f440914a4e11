"""The requests of one call, several in flight at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from crossknn.types import Scores


@dataclass(frozen=True, slots=True)
class Request:
    """One query with some of its items, and where in the call these pairs are."""

    query: str
    items: list[str]
    places: list[int]


Send = Callable[[Request, threading.Event], Scores]
"""Gives the scores of one request; the event is set when the others have failed."""


def group_by_query(queries: Sequence[str], items: Sequence[str], *, size: int) -> list[Request]:
    """The pairs as requests of one query each, with at most `size` items."""
    places: dict[str, list[int]] = {}
    for place, query in enumerate(queries):
        places.setdefault(query, []).append(place)
    return [
        Request(query, [items[place] for place in part], part)
        for query, found in places.items()
        for part in _parts(found, size)
    ]


def _parts(places: list[int], size: int) -> Iterable[list[int]]:
    left = iter(places)
    while part := list(islice(left, size)):
        yield part


def send_all(requests: list[Request], send: Send, *, pairs: int, threads: int) -> tuple[Scores, BaseException | None]:
    """The scores of all pairs, NaN where there are none, and what ended the work early.

    After a failure no request begins, and those in flight are waited for.
    """
    scores = np.full(pairs, np.nan, np.float32)
    left = deque(requests)
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        while not stop.is_set():
            try:
                request = left.popleft()
            except IndexError:
                return
            try:
                scores[request.places] = send(request, stop)
            except BaseException as error:
                failures.append(error)
                stop.set()

    if min(threads, len(requests)) <= 1:
        work()
    else:
        _run(work, min(threads, len(requests)), stop)
    return scores, failures[0] if failures else None


def _run(work: Callable[[], None], threads: int, stop: threading.Event) -> None:
    # Daemons, so that an interrupted program does not wait for a server that does not answer.
    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        stop.set()
