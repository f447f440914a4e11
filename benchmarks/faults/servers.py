"""Remote scoring servers that hang, drip, break off, lie and storm."""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

import crossknn as ck
from benchmarks.faults.commands import run
from benchmarks.faults.report import Report, expect
from benchmarks.faults.world import CHUNK, EMBEDDED_ENCODER, World, content
from crossknn.errors import ScorerError

Serve = Callable[["Exchange"], None]

TIMEOUT, RETRIES = 0.5, 1
LIMIT = (1 + RETRIES) * TIMEOUT + 0.5 + 2.5  # seconds for a request: attempts, the wait between them, a busy machine
PAIRS = 12
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


class Exchange:
    """A request that a server has read, and the connection to answer it on."""

    def __init__(self, connection: socket.socket, body: bytes, number: int, ended: threading.Event) -> None:
        self.connection, self.body, self.number, self.ended = connection, body, number, ended

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def drip(self, first: bytes, rest: bytes) -> None:
        """Send a byte now and then, without an end."""
        self.send(first)
        while not self.ended.is_set():
            for byte in rest:
                self.send(bytes([byte]))
                if self.ended.wait(0.05):
                    return

    def answer(self, status: str = "200 OK", body: bytes | None = None, headers: str = "") -> None:
        """A whole response, by default with the right scores."""
        content = json.dumps(self.results()).encode() if body is None else body
        self.send(f"HTTP/1.1 {status}\r\ncontent-length: {len(content)}\r\n{headers}\r\n".encode() + content)

    def results(self) -> dict[str, Any]:
        """The right answer, in the form of Jina's and most others."""
        asked = json.loads(self.body)
        scores = (right_score(asked["query"], item) for item in asked["documents"])
        return {"results": [{"index": index, "relevance_score": score} for index, score in enumerate(scores)]}


def right_score(query: str, item: str) -> float:
    """Depends on the two texts only."""
    return float(np.float32(random.Random(f"{query}\n{item}").uniform(-5, 5)))


@contextmanager
def listening(serve: Serve) -> Iterator[int]:
    """The port of a server on loopback that does this with every request."""
    ended, numbers, lock = threading.Event(), iter(range(10**9)), threading.Lock()

    def accept() -> None:
        while not ended.is_set():
            with suppress(OSError):
                connection, _ = listener.accept()
                threading.Thread(target=work, args=(connection,), daemon=True).start()

    def work(connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError, KeyError):
            while not ended.is_set():
                body = read_request(connection)
                if body is None:
                    return
                with lock:
                    number = next(numbers)
                serve(Exchange(connection, body, number, ended))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            ended.set()
            thread.join()


def read_request(connection: socket.socket) -> bytes | None:
    """The body of the next request; None where the client has gone."""
    connection.settimeout(None)
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65_536)
        if not part:
            return None
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    while len(body) < int(lengths[0]):
        body += connection.recv(65_536)
    return body


def never_answer(exchange: Exchange) -> None:
    exchange.ended.wait()


def reset(exchange: Exchange) -> None:
    exchange.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise OSError


def close_after(data: bytes, exchange: Exchange) -> None:
    exchange.send(data)
    raise OSError


def drip(first: bytes, rest: bytes, exchange: Exchange) -> None:
    exchange.drip(first, rest)


def late(exchange: Exchange) -> None:
    exchange.ended.wait(TIMEOUT * 2)
    exchange.answer()


def with_results(change: Callable[[list[dict[str, Any]]], Any], exchange: Exchange) -> None:
    """An answer whose results were changed."""
    results = exchange.results()["results"]
    exchange.answer(body=json.dumps({"results": change(results)}).encode())


def with_body(body: bytes, exchange: Exchange) -> None:
    exchange.answer(body=body)


def with_status(status: str, headers: str, exchange: Exchange) -> None:
    exchange.answer(status, b'{"error": "no"}', headers)


def now_and_then(serve: Serve, exchange: Exchange) -> None:
    """Right at every second request."""
    exchange.answer() if exchange.number % 2 else serve(exchange)


def set_first(key: str, value: Any) -> Serve:
    return partial(with_results, lambda results: [{**results[0], key: value}, *results[1:]])


HUNG: dict[str, Serve] = {
    "nothing": never_answer,
    "the status line, byte by byte": partial(drip, b"", b"HTTP/1.1 200 OK"),
    "a header, byte by byte": partial(drip, OK + b"x: ", b"y"),
    "headers without end": partial(drip, OK, b"x: y\r\n"),
    "100 Continue without end": partial(drip, b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a chunk's size, byte by byte": partial(drip, CHUNKED, b"0"),
    "chunks without end": partial(drip, CHUNKED, b"1\r\n \r\n"),
    "trailers without end": partial(drip, CHUNKED + b"2\r\n[]\r\n0\r\n", b"x: y\r\n"),
    "the body, byte by byte": partial(drip, OK + b"content-length: 100000\r\n\r\n", b" "),
    "a body without a length": partial(drip, OK + b"\r\n", b" "),
    "the answer too late": late,
}
BROKEN: dict[str, Serve] = {
    "closed at once": partial(close_after, b""),
    "reset": reset,
    "closed in the status line": partial(close_after, b"HTTP/1.1 2"),
    "closed in the headers": partial(close_after, OK),
    "closed in the body": partial(close_after, OK + b'content-length: 100\r\n\r\n{"results": ['),
    "closed in a chunk": partial(close_after, CHUNKED + b"ff\r\n["),
    "another protocol": partial(close_after, b"SSH-2.0-OpenSSH_9.6\r\n"),
}
LYING: dict[str, Serve] = {
    "no JSON": partial(with_body, b"<html>"),
    "empty": partial(with_body, b""),
    "JSON of another form": partial(with_body, b'{"scores": 1}'),
    "deep JSON": partial(with_body, b"[" * 200_000),
    "no UTF-8": partial(with_body, b'{"results": "\xff\xfe"}'),
    "a huge body": partial(with_body, b" " * (70 << 20)),
    "NaN": partial(with_results, lambda results: [{**one, "relevance_score": float("nan")} for one in results]),
    "a number without end": partial(
        with_body, b'{"results": [{"index": 0, "relevance_score": 1' + b"0" * 5000 + b"}]}"
    ),
    "scores as strings": partial(with_results, lambda results: [{**one, "relevance_score": "1"} for one in results]),
    "scores as booleans": set_first("relevance_score", True),
    "one too few": partial(with_results, lambda results: results[:-1]),
    "one too many": partial(with_results, lambda results: [*results, {"index": PAIRS, "relevance_score": 1.0}]),
    "one twice": set_first("index", 1),
    "an index that is negative": set_first("index", -1),
    "an index that is too large": set_first("index", 10**9),
    "an index that is a string": set_first("index", "0"),
}
STORMS: dict[str, Serve] = {
    **{f"{status}": partial(with_status, status, "") for status in ("429 Slow", "500 Oops", "503 Down", "418 Teapot")},
    "429, come back in years": partial(with_status, "429 Slow", "retry-after: 99999999\r\n"),
    "503, come back some day": partial(with_status, "503 Down", "retry-after: soon\r\n"),
    "a redirect to itself": partial(with_status, "302 Found", "location: /rerank\r\n"),
}


def try_servers(report: Report, world: World) -> None:
    for kind, faults in {"hung": HUNG, "broken off": BROKEN, "lying": LYING, "storms": STORMS}.items():
        chosen = list(faults.items())[:: 4 if world.quick else 1]
        report.try_all(kind, [partial(refused, *one) for one in chosen])
        report.try_all(f"{kind}, at every second request", [partial(recovers, *one) for one in chosen])
    faults = [LYING["one too few"], BROKEN["closed in the body"], STORMS["500 Oops"], STORMS["418 Teapot"]]
    report.try_all(
        "a build from a server that breaks",
        [
            partial(resumed_build, world, fault, number)
            for number, fault in enumerate(faults[: 1 if world.quick else 4])
        ],
    )


def scorer_at(port: int, *, retries: int = RETRIES) -> ck.RemoteScorer:
    url = f"http://127.0.0.1:{port}/rerank"
    return ck.RemoteScorer(url, model="m", dialect="jina", timeout=TIMEOUT, retries=retries, logits=True)


def texts(number: int = 0) -> tuple[list[str], list[str]]:
    return [f"query {number}"] * PAIRS, [f"item {row}" for row in range(PAIRS)]


def refused(name: str, serve: Serve) -> str:
    """An error of crossknn, within the time of its attempts."""
    with listening(serve) as port:
        scorer, began = scorer_at(port), time.monotonic()
        try:
            scorer.score(*texts())
        except ScorerError:
            pass
        else:
            expect(False, f"{name}: an answer was taken")
        took = time.monotonic() - began
        expect(took < LIMIT, f"{name}: it took {took:.1f} seconds, more than {LIMIT:g}")
    return "refused"


def recovers(name: str, serve: Serve) -> str:
    """What comes after a fault is right, and never what belongs to the request before."""
    refusals = 0
    with listening(partial(now_and_then, serve)) as port:
        scorer = scorer_at(port, retries=3)
        for number in range(4):
            pairs = texts(number)
            try:
                scores = scorer.score(*pairs)
            except ScorerError:
                refusals += 1
                continue
            wanted = [right_score(*pair) for pair in zip(*pairs, strict=True)]
            expect(np.allclose(scores, wanted), f"{name}: scores of another request")
    return "right after a retry" if not refusals else "refused, then right"


def resumed_build(world: World, fault: Serve, number: int) -> str:
    """A build ends with an error when the server breaks, and is resumed when it is well again."""
    broken = threading.Event()

    def serve(exchange: Exchange) -> None:
        if broken.is_set() or (exchange.number >= 6 and not well.is_set()):
            broken.set()
            fault(exchange)
        else:
            asked.append(len(json.loads(exchange.body)["documents"]))
            exchange.answer()

    well, asked = threading.Event(), list[int]()
    with listening(serve) as port:
        models = ["--scorer", f"http://127.0.0.1:{port}/v1/rerank#m", *EMBEDDED_ENCODER]
        folder, whole = (world.path(f"remote-{number}-{name}.ck") for name in ("broken", "whole"))
        first = run(world.build(folder, models=models), world.logs)
        expect(first.code == 1, f"the build ended with {first.code}: {first.errors[-300:]}")
        expect("Traceback" not in first.errors, f"a traceback: {first.errors[-300:]}")
        well.set()
        broken.clear()
        again = run(world.build(folder, models=models), world.logs)
        expect(again.code == 0, f"the build ended with {again.code}: {again.errors[-300:]}")
        in_all = sum(asked)
        undisturbed = run(world.build(whole, models=models), world.logs)
        expect(undisturbed.code == 0, f"the undisturbed build failed: {undisturbed.errors[-300:]}")
        expect(content(folder) == content(whole), "another index than from a server without faults")
        twice = in_all - (sum(asked) - in_all)
        expect(twice <= CHUNK, f"{twice} pairs were paid twice, more than a chunk of {CHUNK}")
    return "refused, then resumed"
