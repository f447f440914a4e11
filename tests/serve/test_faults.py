"""Faults of a service: each one affects only its own request."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import pytest

from crossknn.errors import ScorerError
from crossknn.strategies.registry import STRATEGIES
from crossknn.strategies.rerank import Rerank
from tests.serve.servers import QUERIES, WatchedScorer, opened, serving, true_score, wait_until


@pytest.fixture
def scorer():
    return WatchedScorer()


def post(url, path="/search", timeout=20, **body):
    return httpx.post(f"{url}{path}", json=body, timeout=timeout)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("raise", "RuntimeError"),
        ("nan", "nan ice"),
        ("few", "10 pairs"),
    ],
)
def test_only_the_request_with_a_faulty_pair_fails(scorer, word, message):
    with opened(scorer=scorer) as service, serving(service) as url, ThreadPoolExecutor(9) as threads:
        scorer.open.clear()
        first = threads.submit(post, url, "/score", query="ice", items=["snow"])
        wait_until(lambda: scorer.batches)
        bad = threads.submit(post, url, query=f"{word} ice", budget=100)
        good = [threads.submit(post, url, query=query, budget=40) for query in QUERIES[:6]]
        wait_until(lambda: service.scorer.queued_pairs == 1 + 10 + 6 * 4)  # all in one batch
        scorer.open.set()
        assert first.result().status_code == 200
        for query, future in zip(QUERIES, good, strict=False):
            (result,) = future.result().json()["results"]
            assert result["calls"] == 40
            assert result["hits"][0]["score"] == pytest.approx(true_score(query, result["hits"][0]["text"]), abs=1e-4)
        assert bad.result().status_code == 500
        error = bad.result().json()["error"]
        assert error["type"] == "scorer_failed"
        assert message in error["message"]
        assert httpx.get(f"{url}/readyz").status_code == 200


class LongWinded(WatchedScorer):
    def score(self, queries, items):
        raise ScorerError("very " * 10**6)


def test_a_message_of_any_length_is_cut():
    with opened(scorer=LongWinded()) as service, serving(service) as url:
        response = post(url, query="ice", budget=5)
    assert response.status_code == 500
    assert len(response.content) < 5_000


def test_a_stalled_scorer_makes_the_service_unready_until_it_answers(scorer):
    with (
        opened(scorer=scorer, scorer_timeout=0.4) as service,
        serving(service) as url,
        ThreadPoolExecutor(3) as threads,
    ):
        scorer.open.clear()
        waiting = [threads.submit(post, url, query=query) for query in QUERIES[:3]]
        for one in waiting:
            assert one.result().status_code == 503
            assert one.result().json()["error"]["type"] == "not_ready"
            assert one.result().headers["retry-after"] == "5"
        answer = httpx.get(f"{url}/readyz")
        assert answer.status_code == 503
        assert "0.4 seconds" in answer.json()["error"]["message"]
        assert httpx.get(f"{url}/healthz").status_code == 200
        start = time.monotonic()
        assert post(url, query="ice").status_code == 503
        assert time.monotonic() - start < 0.4  # without waiting
        scorer.open.set()
        wait_until(lambda: httpx.get(f"{url}/readyz").status_code == 200)
        assert post(url, query="ice").status_code == 200


class HangsAfterItsFirstBatch(WatchedScorer):
    def score(self, queries, items):
        if self.batches:
            self.open.clear()
        return super().score(queries, items)


def test_a_deadline_holds_while_the_scorer_hangs():
    scorer = HangsAfterItsFirstBatch()
    with opened(scorer=scorer) as service, serving(service) as url:
        start = time.monotonic()
        answer = post(url, query="ice", budget=20, strategy={"name": "axn", "rounds": 2}, deadline=1)
        assert 1 < time.monotonic() - start < 10
        (result,) = answer.json()["results"]
        assert (answer.status_code, result["stopped"], result["calls"]) == (200, "deadline", 10)
        assert len(result["hits"]) == 10
        assert service.scorer.queued_pairs == 0
        scorer.open.set()


def test_back_pressure_rejects_requests_with_retry_after(scorer):
    with (
        opened(scorer=scorer, running=2, waiting=1) as service,
        serving(service) as url,
        ThreadPoolExecutor(3) as threads,
    ):
        scorer.open.clear()
        inside = [threads.submit(post, url, query=query) for query in QUERIES[:3]]
        wait_until(lambda: service.queue.queued == 1)
        answer = post(url, query="ice")
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["type"] == "busy"
        assert "2 running, 1 queued" in answer.json()["error"]["message"]
        assert httpx.get(f"{url}/readyz").status_code == 200  # other routes are answered
        metrics = httpx.get(f"{url}/metrics").text
        assert "crossknn_running 2.0" in metrics
        assert "crossknn_waiting 1.0" in metrics
        scorer.open.set()
        assert [one.result().status_code for one in inside] == [200] * 3
        assert post(url, query="ice").status_code == 200


def send_search(url, body):
    """A connection that has sent a search and not read its response."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    headers = [
        "POST /search HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    connection.sendall("\r\n".join([*headers, "", ""]).encode() + body)
    return connection


def test_a_disconnected_client_frees_its_place(scorer, caplog):
    caplog.set_level("INFO")
    with opened(scorer=scorer, running=1, waiting=1) as service, serving(service) as url:
        scorer.open.clear()
        running = send_search(url, b'{"query": "river ice", "budget": 100}')
        wait_until(lambda: scorer.batches)
        waiting = send_search(url, b'{"query": "lake top"}')
        wait_until(lambda: service.queue.queued == 1)
        waiting.close()
        wait_until(lambda: service.queue.queued == 0)
        running.close()
        wait_until(lambda: service.queue.running == 0)
        assert service.scorer.queued_pairs == 0
        scorer.open.set()
        assert post(url, query="night song", budget=20).status_code == 200
        scored = {query for batch in scorer.batches for query, _ in batch}
        assert scored == {"river ice", "night song"}  # the queued search never started
        assert sum(map(len, scorer.batches)) == 10 + 20  # the running search stopped after its batch
    statuses = [vars(record)["status"] for record in caplog.records if record.getMessage() == "request"]
    assert sorted(statuses) == [200, 499, 499]


def test_a_deadline_returns_the_best_hits_so_far():
    scorer = WatchedScorer(seconds=0.05)
    with opened(scorer=scorer) as service, serving(service) as url:
        start = time.monotonic()
        answer = post(url, query="river ice", k=5, budget=300, deadline=0.4).json()
        took = time.monotonic() - start
    (result,) = answer["results"]
    assert result["stopped"] == "deadline"
    assert 0 < result["calls"] < 300
    assert len(result["hits"]) == 5
    assert took < 1.5


def test_time_in_the_queue_counts_towards_the_deadline(scorer):
    with opened(scorer=scorer, running=1) as service, serving(service) as url, ThreadPoolExecutor(2) as threads:
        scorer.open.clear()
        first = threads.submit(post, url, query="river ice")
        wait_until(lambda: scorer.batches)
        second = threads.submit(post, url, query="lake top", deadline=0.2)
        wait_until(lambda: service.queue.queued == 1)
        time.sleep(0.25)
        scorer.open.set()
        assert first.result().json()["results"][0]["stopped"] is None
        (late,) = second.result().json()["results"]
        assert (late["stopped"], late["calls"], late["rounds"]) == ("deadline", 0, 0)
        assert {(hit["score"], hit["round"]) for hit in late["hits"]} == {(None, 0)}
        assert len(late["hits"]) == 10


def test_concurrent_requests_get_the_same_results():
    scorer = WatchedScorer()
    with opened(scorer=scorer) as service, serving(service) as url, httpx.Client(base_url=url, timeout=30) as client:

        def ask(query):
            (result,) = client.post("/search", json={"query": query, "budget": 50}).json()["results"]
            return {**result, "seconds": 0, "score_seconds": 0, "solve_seconds": 0}

        alone = [ask(query) for query in QUERIES[:24]]
        scorer.batches.clear()
        scorer.seconds = 0.04  # per batch, so that other calls queue up
        with ThreadPoolExecutor(24) as threads:
            together = list(threads.map(ask, QUERIES[:24]))
    assert together == alone
    assert sum(map(len, scorer.batches)) == 50 * 24
    assert len(scorer.batches) < 10 * 24 / 2  # without sharing, each search has ten batches


def test_a_slow_client_does_not_delay_others(scorer):
    with opened(scorer=scorer, running=1) as service, serving(service) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(
                b"POST /search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
            )
            assert post(url, query="ice").status_code == 200


@dataclass(frozen=True, repr=False)
class Failing(Rerank):
    """A strategy with a bug."""

    def flow(self, context):
        raise ZeroDivisionError("a secret path")


def test_an_unexpected_error_hides_its_message(scorer, monkeypatch):
    monkeypatch.setitem(STRATEGIES, "failing", Failing)
    with opened(scorer=scorer) as service, serving(service) as url:
        answer = post(url, query="ice", strategy="failing")
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "internal"
        assert "secret" not in answer.text


def test_closing_fails_requests_that_wait_for_a_stalled_scorer(scorer):
    with ThreadPoolExecutor(1) as threads:
        with opened(scorer=scorer, grace=1) as service:
            with serving(service) as url:
                scorer.open.clear()
                waiting = threads.submit(post, url, query="ice")
                wait_until(lambda: scorer.batches)
            wait_until(lambda: service.queue.running == 0)  # no thread is left behind
        assert waiting.result().status_code == 503
        assert waiting.result().json()["error"]["type"] == "not_ready"
        scorer.open.set()
