"""One deadline bounds a request, and its response has a maximum size, whatever the server sends and however slowly."""

import asyncio
import gzip
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

import crossknn as ck
from crossknn.errors import ScorerError
from crossknn.scorers.remote.scorer import RemoteScorer

TIMEOUT = 0.3
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

SLOW = {  # what is sent at once, and what follows piece by piece without an end
    "status line": (b"", b"HTTP/1.1 200 " + b"O" * 1000),
    "header": (b"HTTP/1.1 200 OK\r\nx-long: ", b"y" * 1000),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 1000),
    "chunk size": (CHUNKED, b"0" * 1000),
    "chunk extension": (CHUNKED + b"1;", b"e" * 1000),
    "chunks": (CHUNKED, b"1\r\n \r\n" * 1000),
    "trailer": (CHUNKED + b"2\r\n[]\r\n0\r\nx: ", b"y" * 1000),
    "trailers": (CHUNKED + b"2\r\n[]\r\n0\r\n", b"x: y\r\n" * 1000),
    "100 Continue": (b"", CONTINUE * 1000),
    "body": (b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n", b" " * 1000),
    "body until the end": (b"HTTP/1.1 200 OK\r\n\r\n", b" " * 1000),
    "nothing": (b"", b""),
}


@contextmanager
def listening(serve):
    """The port of a server that does `serve(connection, ended)` with every connection."""
    ended = threading.Event()

    def accept():
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection):
        with connection, suppress(OSError):
            serve(connection, ended)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def drip(first, rest):
    def serve(connection, ended):
        connection.recv(65536)
        connection.sendall(first)
        for byte in rest:
            connection.sendall(bytes([byte]))
            if ended.wait(0.01):
                return
        ended.wait()

    return serve


def flood(first, rest):
    """Send at full speed, so that the client never waits."""

    def serve(connection, ended):
        connection.recv(65536)
        connection.sendall(first)
        while not ended.is_set():
            connection.sendall(rest)

    return serve


def send(data):
    def serve(connection, ended):
        connection.recv(65536)
        connection.sendall(data)
        ended.wait()

    return serve


def response(body, *headers):
    lines = [b"HTTP/1.1 200 OK", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@contextmanager
def too_late():
    start = time.monotonic()
    with pytest.raises(ScorerError, match=r"did not respond within 0\.3 seconds\."):
        yield
    assert TIMEOUT * 0.95 < time.monotonic() - start < TIMEOUT + 2.0


def score(port, *, scheme="http", items=("a",), timeout=TIMEOUT):
    scorer = RemoteScorer(f"{scheme}://127.0.0.1:{port}/rerank", timeout=timeout, retries=0, api_key="")
    return scorer.score(["q"] * len(items), items)


@pytest.mark.parametrize("place", SLOW)
def test_a_server_that_drips_in_any_place(place):
    with listening(drip(*SLOW[place])) as port, too_late():
        score(port)


def test_an_asynchronous_search_ends_as_well():
    with listening(drip(*SLOW["headers"])) as port, too_late():
        scorer = RemoteScorer(f"http://127.0.0.1:{port}/rerank", timeout=TIMEOUT, retries=0)
        searcher = ck.Searcher(ck.Items(["a", "b"]), scorer=scorer)
        asyncio.run(searcher.asearch("q", k=1, strategy=ck.Rerank(2, "random")))


@pytest.mark.parametrize("place", ["chunks", "100 Continue"])
def test_a_server_that_floods(place):
    with listening(flood(*SLOW[place])) as port:
        start = time.monotonic()
        with pytest.raises(ScorerError, match=r"did not respond|far longer than the scores"):
            score(port)
        assert time.monotonic() - start < TIMEOUT + 2.0


@pytest.mark.parametrize(
    "place", ["header", "headers", "chunk size", "chunk extension", "trailers", "body until the end"]
)
def test_an_endless_response_ends_early(place):
    first, rest = SLOW[place]
    refused = pytest.raises(ScorerError, match=r"far longer than the scores|sent no valid HTTP response")
    with listening(flood(first, rest * 50)) as port, refused:
        score(port, timeout=20)


def test_a_server_that_does_not_read():
    with listening(lambda connection, ended: ended.wait()) as port, too_late():
        score(port, items=["x" * 16_000_000])


def test_a_server_that_reads_slowly():
    def serve(connection, ended):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        while not ended.wait(0.01):
            connection.recv(1000)

    with listening(serve) as port, too_late():
        score(port, items=["x" * 16_000_000])


@pytest.mark.parametrize("record", [b"", b"\x16\x03\x03\x40\x00" + b"\x02" * 1000], ids=["nothing", "a long record"])
def test_an_encrypted_connection_that_is_never_made(record):
    with listening(drip(b"", record)) as port, too_late():
        score(port, scheme="https")


def test_a_proxy_that_drips(monkeypatch):
    monkeypatch.setenv("no_proxy", "")
    with listening(drip(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 1000)) as port:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        with too_late():
            RemoteScorer("https://rerank.example/rerank", timeout=TIMEOUT, retries=0).score(["q"], ["a"])


def test_a_name_server_that_is_silent(monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: ended.wait(20) and [])
    with too_late():
        RemoteScorer("http://rerank.example/rerank", timeout=TIMEOUT, retries=0).score(["q"], ["a"])
    ended.set()


def test_an_address_that_is_silent_leaves_time_for_the_next(monkeypatch):
    first, find = socket.create_server(("127.0.0.1", 0), backlog=0), socket.getaddrinfo
    scores = response(b'[{"index": 0, "score": 1.5}]')
    with first, listening(send(scores)) as port:
        waiting = []  # fill its queue: further connections are neither accepted nor refused
        for _ in range(4):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(first.getsockname())
        found = [*find("127.0.0.1", first.getsockname()[1], type=socket.SOCK_STREAM), *find("127.0.0.1", port, type=1)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        scorer = RemoteScorer("http://rerank.example/rerank", timeout=1.0, retries=0)
        assert scorer.score(["q"], ["a"]).tolist() == [1.5]
        for one in waiting:
            one.close()


def test_a_compressed_response_is_not_unpacked():
    bomb = gzip.compress(b"[" + b" " * 50_000_000 + b"]")
    refused = pytest.raises(ScorerError, match="not JSON")
    with listening(send(response(bomb, b"content-encoding: gzip"))) as port, refused:
        score(port, timeout=5)


def test_a_redirect_is_not_followed():
    asked = []
    elsewhere = lambda connection, ended: asked.append(connection.recv(65536))  # noqa: E731
    with listening(elsewhere) as target:
        head = b"HTTP/1.1 307 Go\r\nlocation: http://127.0.0.1:%d/rerank\r\ncontent-length: 0\r\n\r\n" % target
        with listening(send(head)) as port, pytest.raises(ScorerError, match="It redirects to"):
            score(port, timeout=5)
    assert not asked


def test_a_response_may_be_as_long_as_its_texts_need():
    texts = b'"' + b"\\u0001" * 1_000_000 + b'"'
    body = b'[{"index": 0, "score": 2.5, "text": %b}]' % texts
    with listening(send_after_all(response(body))) as port:
        assert score(port, items=["\x01" * 1_000_000], timeout=10).tolist() == [2.5]


def send_after_all(data):
    """Answer once the whole request has been read."""

    def serve(connection, ended):
        got = b""
        while b"\r\n\r\n" not in got:
            got += connection.recv(65536)
        head, _, body = got.partition(b"\r\n\r\n")
        left = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) - len(body)
        while left > 0:
            left -= len(connection.recv(2**20))
        connection.sendall(data)
        ended.wait()

    return serve


def test_an_upgrade_is_no_response():
    switch = b"HTTP/1.1 101 Switching\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n" + b"x" * 100
    with listening(send(switch)) as port, pytest.raises(ScorerError, match="sent no valid HTTP response"):
        score(port, timeout=5)
