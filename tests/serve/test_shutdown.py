"""Graceful shutdown: running requests finish, and the exit code is 0."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.serve.servers import QUERIES, wait_until


def start(*command):
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    return process, process.stdout.readline().strip()


def is_closed(url):
    """Whether new requests are not accepted."""
    try:
        httpx.get(f"{url}/healthz")
    except httpx.TransportError:
        return True
    return False


def test_running_requests_finish_after_sigterm():
    process, url = start("tests.serve.slow_server", "0.15", '{"grace": 20}')
    try:
        with httpx.Client(base_url=url, timeout=20) as client, ThreadPoolExecutor(12) as threads:

            def ask(query):
                return client.post("/search", json={"query": query, "budget": 200})

            futures = [threads.submit(ask, query) for query in QUERIES[:12]]
            wait_until(lambda: "crossknn_running 12.0" in httpx.get(f"{url}/metrics").text)
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: is_closed(url))  # while the searches run
            assert not any(future.done() for future in futures)
            answers = [future.result() for future in futures]
        assert [answer.status_code for answer in answers] == [200] * 12
        for query, answer in zip(QUERIES, answers, strict=False):
            (result,) = answer.json()["results"]
            assert (result["query"], result["calls"], result["stopped"]) == (query, 200, None)
        assert process.wait(10) == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
