"""Searches of concurrent requests with the same options are one search, whose answers are those of each alone."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from crossknn.errors import InputError, ScorerError
from crossknn.serve.dynamic_batching import CallCancelled
from crossknn.serve.schemas import SearchRequest
from crossknn.serve.search_batching import SearchBatching
from tests.serve.servers import QUERIES, WatchedScorer, opened, wait_until

FAR = time.monotonic() + 1e6


class Searches:
    """A search whose hits are its queries in capitals; it hangs while `open` is cleared, and "raise" fails."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.batches: list[list[str]] = []
        self.ends: list[float] = []

    def __call__(self, queries, ends, cancelled):
        self.batches.append(list(queries))
        self.ends.append(ends)
        assert self.open.wait(10)
        if "raise" in queries:
            raise InputError("no")
        return ["cancelled" if cancelled.is_set() else query.upper() for query in queries]


@pytest.fixture
def searches():
    return Searches()


def queue(batching, searches, requests, *, keys=None, cancelled=None):
    """The futures of requests, all but the first of which wait for its search to end; and the pool of their threads."""
    threads = ThreadPoolExecutor(len(requests))
    futures = []
    for number, queries in enumerate(requests):
        key = "key" if keys is None else keys[number]
        event = threading.Event() if cancelled is None else cancelled[number]
        futures.append(threads.submit(batching.run, key, queries, FAR - number, event, searches))
        wait_until(lambda: searches.batches)
        if number:
            wait_until(lambda: sum(map(len, batching._waiting.values())) == number)  # noqa: B023
    return futures, threads


def test_requests_that_come_meanwhile_are_one_search(searches):
    together = []
    batching = SearchBatching(8, on_batch=together.append)
    futures, threads = queue(batching, searches, [["a"], ["b"], ["c", "d"], ["e"]])
    searches.open.set()
    assert [future.result(10) for future in futures] == [["A"], ["B"], ["C", "D"], ["E"]]
    threads.shutdown()
    assert searches.batches == [["a"], ["b", "c", "d", "e"]]
    assert together == [1, 4]
    assert searches.ends == [FAR, FAR - 3]  # the earliest


def test_a_search_has_a_limit_and_at_least_one_request(searches):
    batching = SearchBatching(3)
    futures, threads = queue(batching, searches, [["a"], ["b", "c"], ["d", "e"], list("fghij")])
    searches.open.set()
    assert [future.result(10) for future in futures] == [["A"], ["B", "C"], ["D", "E"], list("FGHIJ")]
    threads.shutdown()
    assert searches.batches == [["a"], ["b", "c"], ["d", "e"], list("fghij")]


def test_a_request_fails_alone(searches):
    batching = SearchBatching(8)
    futures, threads = queue(batching, searches, [["a"], ["b"], ["raise"], ["c"]])
    searches.open.set()
    assert [futures[place].result(10) for place in (0, 1, 3)] == [["A"], ["B"], ["C"]]
    with pytest.raises(InputError, match="no"):
        futures[2].result(10)
    threads.shutdown()
    assert searches.batches == [["a"], ["b", "raise", "c"], ["b"], ["raise"], ["c"]]


def test_other_options_are_another_search(searches):
    batching = SearchBatching(8)
    threads = ThreadPoolExecutor(2)
    futures = [threads.submit(batching.run, key, [key], FAR, threading.Event(), searches) for key in ("x", "y")]
    wait_until(lambda: len(searches.batches) == 2)  # side by side
    searches.open.set()
    assert [future.result(10) for future in futures] == [["X"], ["Y"]]
    threads.shutdown()


def test_a_cancelled_request_leaves_the_queue(searches):
    batching, cancelled = SearchBatching(8), [threading.Event() for _ in range(3)]
    futures, threads = queue(batching, searches, [["a"], ["b"], ["c"]], cancelled=cancelled)
    cancelled[1].set()
    with pytest.raises(CallCancelled):
        futures[1].result(10)
    searches.open.set()
    assert [futures[place].result(10) for place in (0, 2)] == [["A"], ["C"]]
    threads.shutdown()
    assert searches.batches == [["a"], ["c"]]


def test_a_search_is_cancelled_once_all_its_requests_are(searches):
    batching, cancelled = SearchBatching(8), [threading.Event() for _ in range(3)]
    futures, threads = queue(batching, searches, [["a"], ["b"], ["c"]], cancelled=cancelled)
    cancelled[0].set()
    searches.open.set()
    assert [future.result(10) for future in futures] == [["cancelled"], ["B"], ["C"]]
    threads.shutdown()


def test_a_limit_must_be_positive():
    with pytest.raises(InputError, match="max_queries"):
        SearchBatching(0)


def test_a_service_answers_requests_together_as_it_answers_each_alone():
    def ask(service, **request):
        found = service.search(
            SearchRequest(k=5, budget=20, **request), request_id="", start=time.monotonic(), cancelled=threading.Event()
        )
        return [(hit["id"], hit["score"]) for hit in found["results"][0]["hits"]]

    requests = [
        *({"query": query} for query in QUERIES[:6]),
        {"query": "ice", "deadline": 30.0},
        {"query": "ice", "filter": {"word": "ice"}},
        {"query": "ice", "strategy": "rerank"},
    ]
    with opened() as service:
        alone = [ask(service, **request) for request in requests]
    scorer = WatchedScorer()
    with opened(scorer=scorer, batch_queries=8) as service, ThreadPoolExecutor(len(requests) + 2) as threads:
        scorer.open.clear()
        first = threads.submit(ask, service, query="snow")
        wait_until(lambda: scorer.batches)
        futures = [threads.submit(ask, service, **request) for request in [*requests, {"query": "raise"}]]
        wait_until(lambda: sum(map(len, service._batching._waiting.values())) == 7)
        scorer.open.set()
        first.result(20)
        assert [future.result(20) for future in futures[:-1]] == alone
        with pytest.raises(ScorerError):
            futures[-1].result(20)
        assert 'search_queries_bucket{le="1.0"}' in service.metrics.as_text().decode()
    assert any(len({query for query, _ in batch}) >= 6 for batch in scorer.batches)
