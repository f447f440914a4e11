"""What goes wrong in a service, and what the others notice of it: nothing."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.serve.servers import QUERIES, WatchedScorer, opened, serving, true_score, wait_until


@pytest.fixture
def scorer():
    return WatchedScorer()


def post(url, path="/search", timeout=20, **body):
    return httpx.post(f"{url}{path}", json=body, timeout=timeout)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("raise", "the scorer raised RuntimeError."),
        ("nan", "the scorer returned nan for query 'nan ice'"),
        ("few", "the scorer returned 9 scores for 10 pairs"),
    ],
)
def test_only_the_request_of_a_bad_pair_fails(scorer, word, message):
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
        assert error["message"].startswith(message)
        assert httpx.get(f"{url}/readyz").status_code == 200


def test_a_scorer_that_hangs_makes_the_service_unready_until_it_answers(scorer):
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
        assert "the scorer has not answered for more than 0.4 seconds" in answer.json()["error"]["message"]
        assert httpx.get(f"{url}/healthz").status_code == 200
        start = time.monotonic()
        assert post(url, query="ice").status_code == 503
        assert time.monotonic() - start < 0.4  # at once
        scorer.open.set()
        wait_until(lambda: httpx.get(f"{url}/readyz").status_code == 200)
        assert post(url, query="ice").status_code == 200


class HangsAfterItsFirstBatch(WatchedScorer):
    def score(self, queries, items):
        if self.batches:
            self.open.clear()
        return super().score(queries, items)


def test_a_deadline_holds_though_the_scorer_hangs():
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


def test_too_many_requests_are_told_when_to_come_back(scorer):
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
        message = "2 requests run and 1 wait, which is the most. Come back later."
        assert answer.json()["error"]["message"] == message
        assert httpx.get(f"{url}/readyz").status_code == 200  # others than searches are answered
        metrics = httpx.get(f"{url}/metrics").text
        assert "crossknn_running 2.0" in metrics
        assert "crossknn_waiting 1.0" in metrics
        scorer.open.set()
        assert [one.result().status_code for one in inside] == [200] * 3
        assert post(url, query="ice").status_code == 200


def leave(url, body):
    """Send a search and hang up without waiting for its answer."""
    host, port = url.removeprefix("http://").split(":")
    line = socket.create_connection((host, int(port)))
    lines = ["POST /search HTTP/1.1", f"Host: {host}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    line.sendall("\r\n".join([*lines, "", ""]).encode() + body)
    return line


def test_a_client_that_leaves_frees_its_work(scorer, caplog):
    caplog.set_level("INFO")
    with opened(scorer=scorer, running=1, waiting=1) as service, serving(service) as url:
        scorer.open.clear()
        running = leave(url, b'{"query": "river ice", "budget": 100}')
        wait_until(lambda: scorer.batches)
        waiting = leave(url, b'{"query": "lake top"}')
        wait_until(lambda: service.queue.queued == 1)
        waiting.close()
        wait_until(lambda: service.queue.queued == 0)
        running.close()
        wait_until(lambda: service.queue.running == 0)
        assert service.scorer.queued_pairs == 0
        scorer.open.set()
        assert post(url, query="night song", budget=20).status_code == 200
        asked = {query for batch in scorer.batches for query, _ in batch}
        assert asked == {"river ice", "night song"}  # the one that waited never began
        assert sum(map(len, scorer.batches)) == 10 + 20  # and the one that ran ended after its batch
    statuses = [vars(record)["status"] for record in caplog.records if record.getMessage() == "request"]
    assert sorted(statuses) == [200, 499, 499]


def test_a_deadline_gives_the_best_so_far():
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


def test_time_spent_waiting_counts_towards_the_deadline(scorer):
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
        assert (late["stopped"], late["calls"], late["hits"]) == ("deadline", 0, [])


def test_many_clients_at_once_get_what_each_gets_alone():
    scorer = WatchedScorer()
    with opened(scorer=scorer) as service, serving(service) as url, httpx.Client(base_url=url, timeout=30) as client:

        def ask(query):
            (result,) = client.post("/search", json={"query": query, "budget": 50}).json()["results"]
            return {**result, "seconds": 0, "score_seconds": 0, "solve_seconds": 0}

        alone = [ask(query) for query in QUERIES[:24]]
        scorer.batches.clear()
        scorer.seconds = 0.04  # of a batch: the others come meanwhile
        with ThreadPoolExecutor(24) as threads:
            together = list(threads.map(ask, QUERIES[:24]))
    assert together == alone
    assert sum(map(len, scorer.batches)) == 50 * 24
    assert len(scorer.batches) < 10 * 24 / 2  # alone each search has ten batches


def test_a_slow_client_holds_up_nobody(scorer):
    with opened(scorer=scorer, running=1) as service, serving(service) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(
                b"POST /search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
            )
            assert post(url, query="ice").status_code == 200


def test_an_error_nobody_foresaw_is_told_without_its_words(scorer, monkeypatch):
    def break_down(*args, **options):
        raise ZeroDivisionError("a secret path")

    with opened(scorer=scorer) as service, serving(service) as url:
        monkeypatch.setattr(service.live_index.current.searcher, "search_many", break_down)
        answer = post(url, query="ice")
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "internal"
        assert "secret" not in answer.text


def test_closing_ends_requests_that_wait_for_a_scorer_that_hangs(scorer):
    with ThreadPoolExecutor(1) as threads:
        with opened(scorer=scorer, grace=1) as service:
            with serving(service) as url:
                scorer.open.clear()
                waiting = threads.submit(post, url, query="ice")
                wait_until(lambda: scorer.batches)
            wait_until(lambda: service.queue.running == 0)  # no thread is left behind
        assert waiting.result().status_code == 503
        assert waiting.result().json()["error"]["message"] == "the service ends."
        scorer.open.set()
