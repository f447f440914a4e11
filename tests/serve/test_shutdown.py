"""Graceful shutdown: running requests finish, and the exit code is 0."""

import signal
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.serve.processes import slow_server
from tests.serve.servers import QUERIES, wait_until


def is_closed(url):
    """Whether new requests are not accepted."""
    try:
        httpx.get(f"{url}/healthz")
    except httpx.TransportError:
        return True
    return False


def test_running_requests_finish_after_sigterm():
    with (
        slow_server(0.15, grace=20) as server,
        httpx.Client(base_url=server.url, timeout=20) as client,
        ThreadPoolExecutor(12) as threads,
    ):

        def ask(query):
            return client.post("/search", json={"query": query, "budget": 200})

        futures = [threads.submit(ask, query) for query in QUERIES[:12]]
        wait_until(lambda: "crossknn_running 12.0" in httpx.get(f"{server.url}/metrics").text)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: is_closed(server.url))  # while the searches run
        assert not any(future.done() for future in futures)
        answers = [future.result() for future in futures]
        assert [answer.status_code for answer in answers] == [200] * 12
        for query, answer in zip(QUERIES, answers, strict=False):
            (result,) = answer.json()["results"]
            assert (result["query"], result["calls"], result["stopped"]) == (query, 200, None)
        client.close()
        server.stop()
