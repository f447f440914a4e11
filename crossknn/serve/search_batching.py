"""Batched searches: concurrent requests with the same options are one search of many queries."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Event

from crossknn._checks import check_positive
from crossknn.search.results import Hits
from crossknn.serve.dynamic_batching import CallCancelled

WAIT_CHECK_SECONDS = 0.1  # how often a waiting request checks whether it was cancelled

Search = Callable[[Sequence[str], float, Event], list[Hits]]
"""Searches for queries, until a time of `time.monotonic` or until it is cancelled."""


class SearchBatching:
    """Runs one search at a time for each set of options; the requests that come meanwhile are the next one.

    A search on a GPU is many short launches, which one thread makes at a time, and which many queries can share. There
    are no threads of its own: a request that waits leads the next search. Where a search of several requests fails,
    each is searched by itself, so that only those at fault fail.

    Args:
        max_queries: At most so many in a search, but at least one request.
        on_batch: Called after each search with the number of its queries.
    """

    def __init__(self, max_queries: int, *, on_batch: Callable[[int], None] = lambda _: None) -> None:
        check_positive("max_queries", max_queries)
        self.max_queries = max_queries
        self._on_batch = on_batch
        self._changed = Condition()
        self._waiting: dict[Hashable, list[_Request]] = {}  # oldest first
        self._running: set[Hashable] = set()

    def run(self, key: Hashable, queries: Sequence[str], ends: float, cancelled: Event, search: Search) -> list[Hits]:
        """The hits of these queries; `search` is the same for all requests with this key."""
        request = _Request(queries, ends, cancelled)
        with self._changed:
            self._waiting.setdefault(key, []).append(request)
        while batch := self._wait(key, request):
            try:
                self._search(batch, search)
            finally:
                with self._changed:
                    self._running.discard(key)
                    self._changed.notify_all()
        return request.future.result()

    def _wait(self, key: Hashable, request: _Request) -> list[_Request]:
        """The requests to search for now; none once this one has its result."""
        with self._changed:
            while not request.future.done():
                if key not in self._running:
                    self._running.add(key)
                    return self._take(key)
                self._changed.wait(WAIT_CHECK_SECONDS)
                waiting = self._waiting.get(key, [])
                if request.cancelled.is_set() and request in waiting:
                    waiting.remove(request)
                    raise CallCancelled("the search was cancelled.")
        return []

    def _take(self, key: Hashable) -> list[_Request]:
        """The oldest requests, as many as there is room for."""
        waiting, taken, room = self._waiting.pop(key), list[_Request](), self.max_queries
        while waiting and (not taken or len(waiting[0].queries) <= room):
            taken.append(waiting.pop(0))
            room -= len(taken[-1].queries)
        if waiting:
            self._waiting[key] = waiting
        return taken

    def _search(self, batch: list[_Request], search: Search) -> None:
        queries = [query for request in batch for query in request.queries]
        try:
            found = search(queries, min(request.ends for request in batch), _AllCancelled(batch))
        except BaseException as error:
            if len(batch) == 1:
                batch[0].future.set_exception(error)
                return
            for request in batch:
                self._search([request], search)
            return
        self._on_batch(len(queries))
        for request in batch:
            request.future.set_result(found[: len(request.queries)])
            found = found[len(request.queries) :]


@dataclass(eq=False, slots=True)
class _Request:
    queries: Sequence[str]
    ends: float
    cancelled: Event
    future: Future[list[Hits]] = field(default_factory=Future)


class _AllCancelled(Event):
    """Set once all of these requests are cancelled."""

    def __init__(self, requests: Sequence[_Request]) -> None:
        super().__init__()
        self._requests = requests

    def is_set(self) -> bool:
        return all(request.cancelled.is_set() for request in self._requests)
