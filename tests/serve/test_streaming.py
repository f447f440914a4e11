"""Server-sent events of /search: the best items so far after each round, over HTTP."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import numpy as np
import pytest

from crossknn.serve.settings import Limits
from tests.serve.processes import connect
from tests.serve.servers import QUERIES, WatchedScorer, opened, serving, true_score, wait_until

SEARCH = {"query": QUERIES[0], "k": 5, "strategy": {"name": "axn", "rounds": 4}, "budget": 40, "stream": True}
TIMES = ("seconds", "score_seconds", "solve_seconds")


@contextmanager
def served(**settings):
    scorer = settings.pop("scorer", None) or WatchedScorer()
    with opened(scorer=scorer, **settings) as service, serving(service) as url:
        yield service, scorer, url


@pytest.fixture(scope="module")
def url():
    with served() as (_, _, url):
        yield url


def parse(text):
    """The names and data of events."""
    events = [event.split("\n") for event in text.strip().split("\n\n")]
    fields = [dict(line.split(": ", 1) for line in lines) for lines in events]
    return [(event["event"], json.loads(event["data"])) for event in fields]


def stream(url, **body):
    response = httpx.post(f"{url}/search", json=SEARCH | body, timeout=30)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return parse(response.text)


def without_times(data):
    return [{name: value for name, value in result.items() if name not in TIMES} for result in data["results"]]


def test_the_last_event_is_the_answer_of_a_search(url):
    *earlier, (name, last) = stream(url, explain=True)
    whole = httpx.post(f"{url}/search", json=SEARCH | {"stream": False, "explain": True}).json()
    assert name == "done"
    assert without_times(last) == without_times(whole)
    assert {name for name, _ in earlier} <= {"hits"}
    calls = [data["results"][0]["calls"] for _, data in earlier]
    assert calls == sorted(set(calls))
    assert set(calls) <= {10, 20, 30}  # a round that is over before its event is sent gives way to the next
    assert all("trace" not in data["results"][0] for _, data in earlier)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"k": 0}, 422, "k"),
        ({"budget": 10**6}, 400, "at most 1000"),
        ({"query": None, "queries": ["a", "b"]}, 422, "one query"),
        ({"query": "raise ice"}, 500, "the scorer raised RuntimeError"),
    ],
)
def test_an_error_before_the_first_event_is_a_status(url, body, status, message):
    body = {name: value for name, value in (SEARCH | body).items() if value is not None}
    response = httpx.post(f"{url}/search", json=body)
    assert (response.status_code, response.headers["content-type"]) == (status, "application/json")
    assert message in response.json()["error"]["message"]


class HaltingScorer(WatchedScorer):
    """Waits after its first call until `open` is set; then it fails, if it should."""

    def __init__(self, *, fails=False):
        super().__init__()
        self.fails = fails
        self.open.clear()

    def score(self, queries, items):
        if self.batches and self.fails:
            assert self.open.wait(30)
            raise RuntimeError("private text")
        if self.batches:
            return super().score(queries, items)
        self.batches.append(list(zip(queries, items, strict=True)))
        return np.array([true_score(*pair) for pair in self.batches[0]], np.float32)


@contextmanager
def events_after_the_first(scorer):
    """The response and the lines that follow its first one, which comes while the search runs."""
    with (
        served(scorer=scorer) as (_, _, url),
        httpx.stream("POST", f"{url}/search", json=SEARCH, timeout=30) as response,
    ):
        lines = response.iter_lines()
        first = next(lines)
        scorer.open.set()
        yield response, parse("\n".join([first, *lines]))


def test_events_arrive_while_the_search_runs():
    with events_after_the_first(HaltingScorer()) as (_, events):
        assert [name for name, _ in events][:: len(events) - 1] == ["hits", "done"]


def test_an_error_after_the_first_event_is_an_event():
    with events_after_the_first(HaltingScorer(fails=True)) as (response, events):
        assert [name for name, _ in events] == ["hits", "error"]
        error = events[-1][1]["error"]
        assert error["type"] == "scorer_failed"
        assert "private" not in error["message"]
        assert error["request_id"] == response.headers["x-request-id"]


def test_a_client_that_hangs_up_frees_its_place():
    with served(running=1, waiting=0, scorer=WatchedScorer(seconds=0.02)) as (service, scorer, url):
        content = json.dumps(SEARCH | {"budget": 300, "strategy": {"name": "axn", "rounds": 300}}).encode()
        with connect(url) as connection:
            head = (
                f"POST /search HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
            )
            connection.sendall(f"{head}\r\n\r\n".encode() + content)
            assert b"200" in connection.recv(1000)
            assert httpx.post(f"{url}/search", json=SEARCH).status_code == 429
            connection.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: service.queue.running == 0)
        assert len(scorer.batches) < 300
        wait_until(lambda: 'status="499"' in httpx.get(f"{url}/metrics").text)
        assert stream(url)[-1][0] == "done"


def test_the_deadline_ends_a_stream_with_what_was_found():
    with served(scorer=WatchedScorer(seconds=0.05), limits=Limits(deadline=0.3)) as (_, _, url):
        name, last = stream(url, budget=200, strategy={"name": "axn", "rounds": 200})[-1]
        assert (name, last["results"][0]["stopped"]) == ("done", "deadline")


def test_concurrent_streams_share_batches_and_get_their_own_answers():
    scorer = WatchedScorer(seconds=0.01)
    with served(scorer=scorer) as (_, _, url):
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda query: stream(url, query=query)[-1][1], QUERIES[:8]))
        assert any(len({query for query, _ in batch}) > 1 for batch in scorer.batches)
        for query, answer in zip(QUERIES, answers, strict=False):
            alone = httpx.post(f"{url}/search", json=SEARCH | {"query": query, "stream": False}).json()
            assert without_times(answer) == without_times(alone)


def test_the_key_is_required():
    with served(api_key="secret") as (_, _, url):
        assert httpx.post(f"{url}/search", json=SEARCH).status_code == 401
