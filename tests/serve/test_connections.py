"""Limits of connections: on their number, and on the time that clients take to send and to read."""

import json
import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from tests.serve.processes import connect, read_all, slow_server
from tests.serve.servers import QUERIES, WatchedScorer, opened, serving, wait_until

HEADERS = b"POST /search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
PAGE = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
SHORT = {"header_timeout": 0.3, "body_timeout": 0.3, "write_timeout": 0.3}


def ended(url, reason):
    """How many connections the server has ended for this reason."""
    name = f'crossknn_connections_ended_total{{reason="{reason}"}} '
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


@pytest.fixture(scope="module")
def url():
    with opened(**SHORT) as service, serving(service) as url:
        yield url


@pytest.mark.parametrize(
    ("sent", "part"),
    [
        (HEADERS, "headers"),
        (b"P", "headers"),
        (HEADERS + b"Content-Length: 50\r\n\r\n{", "body"),
        (HEADERS + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", "body"),
        (PAGE[:-2] + b"Content-Length: 50\r\n\r\n", "body"),  # a body that no route reads
    ],
    ids=["headers", "line", "body", "chunks", "unread"],
)
def test_a_half_sent_request_is_ended(url, sent, part):
    before, start = ended(url, part), time.monotonic()
    with connect(url) as connection:
        connection.sendall(sent)
        response = read_all(connection)
    assert 0.2 < time.monotonic() - start < 3
    assert ended(url, part) == before + 1
    if b"openapi" in sent:
        assert response.startswith(b"HTTP/1.1 200 ")
    else:
        head, _, body = response.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert json.loads(body)["error"]["type"] == "timeout"


def test_every_byte_does_not_begin_the_time_anew(url):
    with connect(url) as connection:
        connection.sendall(HEADERS + b"Content-Length: 5000\r\n\r\n")
        connection.settimeout(0.02)

        def refused():
            try:
                connection.sendall(b" ")
                return connection.recv(20) == b"HTTP/1.1 408 Request"
            except TimeoutError:
                return False

        wait_until(refused, seconds=3)


def test_a_silent_client_and_one_that_does_not_read_are_ended(url):
    with connect(url) as silent, connect(url) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        try:
            for _ in range(2_000):
                deaf.sendall(PAGE)
        except (TimeoutError, ConnectionError):
            pass
        assert read_all(silent) == b""
        wait_until(lambda: ended(url, "response") == 1)


def test_requests_are_not_collected_without_end(url):
    body = b'{"query": "ice", "budget": 1}'
    search = HEADERS + f"Content-Length: {len(body)}\r\n\r\n".encode() + body

    def send(connection):
        for _ in range(100):
            connection.sendall(search * 1_000)

    with connect(url) as connection, ThreadPoolExecutor(1) as threads:
        threads.submit(read_all, connection)
        with pytest.raises(ConnectionError):
            send(connection)


def test_no_time_counts_while_the_service_works():
    with opened(scorer=WatchedScorer(seconds=0.1), **SHORT) as service, serving(service) as url:
        answer = httpx.post(f"{url}/search", json={"query": QUERIES[0], "budget": 100})
        assert answer.status_code == 200
        assert answer.json()["results"][0]["seconds"] > 2 * SHORT["header_timeout"]


def test_connections_beyond_the_limit_are_refused_until_others_end():
    with opened(connections=3, header_timeout=60) as service, serving(service) as url, ExitStack() as stack:
        held = [stack.enter_context(connect(url)) for _ in range(3)]
        wait_until(lambda: httpx.get(f"{url}/healthz").status_code == 503)
        answer = httpx.get(f"{url}/healthz")
        assert answer.json()["error"]["type"] == "not_ready"
        assert (answer.headers["retry-after"], answer.headers["connection"]) == ("5", "close")
        crowd = [stack.enter_context(connect(url)) for _ in range(100)]
        for connection in crowd:
            assert read_all(connection) == b""  # closed at once, or as no request came
        held[0].close()
        wait_until(lambda: httpx.get(f"{url}/healthz").status_code == 200)


def test_there_are_fewer_connections_than_open_files_and_shutdown_keeps_its_grace():
    with slow_server(files=256, grace=1) as server, ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(connect(server.url)).sendall(HEADERS + b"Content-Length: 50\r\n\r\n{")
        wait_until(lambda: httpx.get(f"{server.url}/healthz").status_code == 503)
        start = time.monotonic()
        lines = server.stop()
        assert time.monotonic() - start < 10
        assert not [line for line in lines if line["event"] == "event loop error"]


def test_the_log_stays_short_when_no_file_can_be_opened():
    with slow_server(files=256) as server, ExitStack() as stack:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (8, 256))
        for _ in range(100):
            stack.enter_context(connect(server.url))
        time.sleep(1.5)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (256, 256))
        stack.close()
        wait_until(lambda: httpx.get(f"{server.url}/healthz").status_code == 200)
        errors = [line for line in server.stop() if line["event"] == "event loop error"]
        assert 1 <= len(errors) <= 4
        assert "accept" in errors[0]["reason"]
        assert "OSError" in errors[0]["error"]
