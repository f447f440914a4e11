"""Clients that stop half-way, beside honest ones, at a real service."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

from benchmarks.faults.commands import Conditions
from benchmarks.faults.report import Report, expect
from benchmarks.faults.services import ask, hits_in, same, serving, stop
from benchmarks.faults.world import World

HEADER_TIMEOUT, BODY_TIMEOUT, GRACE = 2, 3, 3  # seconds
MAX_SECONDS = 15.0  # for an honest search beside 200 others
MAX_LOG_BYTES = 2_000_000
OPTIONS = ["--header-timeout", HEADER_TIMEOUT, "--body-timeout", BODY_TIMEOUT, "--grace", GRACE]

HEAD = b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
BODY = b'{"query": "a small animal", "k": 3, "budget": 20}'
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY

HALVES: dict[str, bytes] = {
    "nothing": b"",
    "half a request line": b"POST /sea",
    "half the headers": HEAD,
    "headers without a body": HEAD + b"Content-Length: 50\r\n\r\n",
    "half the body": HEAD + b"Content-Length: 5000\r\n\r\n" + b'{"query": "',
    "half a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{",
    "a whole request, unread": WHOLE,
    "whole requests, pipelined": WHOLE * 3,
}


def try_clients(report: Report, world: World) -> None:
    count = 20 if world.quick else 200
    chosen = list(HALVES.items())[:: 3 if world.quick else 1]
    trials = [
        partial(half_open, world, name, data, count // 5 if data.startswith(WHOLE) else count) for name, data in chosen
    ]
    report.try_all("half-open, honest clients meanwhile", trials)
    report.try_all("half-open, byte by byte", [partial(dripping, world, count)])
    report.try_all("more than the files that may be open", [partial(over_the_limit, world)])
    report.try_all("leaving and coming back", [partial(leaving, world, n) for n in range(1 if world.quick else 3)])


def _honest(world: World, url: str, hits: list[list[tuple[str, float]]]) -> None:
    for query, wanted in zip(world.queries, hits, strict=True):
        began = time.monotonic()
        response = ask(url, query, timeout=MAX_SECONDS * 2)
        while response.status_code == 429 and time.monotonic() < began + MAX_SECONDS:
            time.sleep(float(response.headers["retry-after"]))
            response = ask(url, query, timeout=MAX_SECONDS * 2)
        found = hits_in(response)
        took = time.monotonic() - began
        expect(same(found, wanted), "an honest client got other hits")
        expect(took < MAX_SECONDS, f"an honest client waited {took:.1f} seconds")


def _connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def _check_log(errors: str) -> None:
    """The log is small, and every line of it is JSON, once the service serves."""
    expect(len(errors) < MAX_LOG_BYTES, f"a log of {len(errors):,} bytes")
    lines = errors.split("(Ctrl-C to stop)\n", 1)[-1].splitlines()
    for line in lines:
        try:
            json.loads(line)
        except ValueError:
            expect(False, f"a line of the log is not JSON: {line[:200]}")


def half_open(world: World, name: str, data: bytes, count: int) -> None:
    """Honest clients are served, the others are ended in time, and SIGTERM ends the server within its grace."""
    hits = world.hits(world.built("plain"))
    with serving(world, world.built("plain"), *OPTIONS) as (url, running), ExitStack() as stack:
        _honest(world, url, hits)
        sockets = [stack.enter_context(_connect(url)) for _ in range(count)]
        for one in sockets:
            with suppress(OSError):
                one.sendall(data)
        _honest(world, url, hits)
        if data and not data.endswith(BODY):
            ends = time.monotonic() + HEADER_TIMEOUT + BODY_TIMEOUT + 8
            for one in sockets:
                one.settimeout(max(0.1, ends - time.monotonic()))
                with suppress(ConnectionError):
                    try:
                        while one.recv(65_536):
                            pass
                    except TimeoutError:
                        expect(False, f"{name}: a half-sent request was never ended")
        fresh = [stack.enter_context(_connect(url)) for _ in range(count // 4)]
        for one in fresh:
            with suppress(OSError):
                one.sendall(data)
        _check_log(stop(running, within=GRACE + 6).errors)


def dripping(world: World, count: int) -> None:
    """Clients that send a byte now and then for as long as they are let."""
    hits, ended = world.hits(world.built("plain")), threading.Event()

    def drip(url: str) -> None:
        with suppress(OSError), _connect(url) as one:
            for byte in WHOLE:
                one.sendall(bytes([byte]))
                if ended.wait(0.5):
                    return

    with serving(world, world.built("plain"), *OPTIONS) as (url, running):
        threads = [threading.Thread(target=drip, args=(url,), daemon=True) for _ in range(count // 4)]
        for thread in threads:
            thread.start()
        ends = time.monotonic() + HEADER_TIMEOUT + 10
        while any(thread.is_alive() for thread in threads):
            _honest(world, url, hits)
            expect(time.monotonic() < ends + MAX_SECONDS, "clients that send byte by byte were not ended")
        ended.set()
        _check_log(stop(running, within=GRACE + 6).errors)


def over_the_limit(world: World) -> None:
    """More connections than files that the server may open: once they are ended, honest clients are served."""
    hits = world.hits(world.built("plain"))
    conditions = Conditions(open_files=256)
    with serving(world, world.built("plain"), *OPTIONS, conditions=conditions) as (url, running), ExitStack() as stack:
        _honest(world, url, hits)
        for _ in range(600):
            with suppress(OSError):
                stack.enter_context(_connect(url)).sendall(HEAD)
        time.sleep(HEADER_TIMEOUT + 2)
        _honest(world, url, hits)
        _check_log(stop(running, within=GRACE + 6).errors)


def leaving(world: World, number: int) -> None:
    """Clients that leave before their answer; others get theirs, and no search goes on for nobody."""
    hits, moments = world.hits(world.built("plain")), random.Random(f"{world.seed} leaving {number}")
    with serving(world, world.built("plain"), *OPTIONS) as (url, running):

        def visit() -> None:
            for _ in range(20):
                with suppress(OSError), _connect(url) as one:
                    one.sendall(WHOLE[: moments.randrange(1, len(WHOLE) + 40)])
                    time.sleep(moments.uniform(0, 0.1))

        visits: list[Callable[[], None]] = [visit] * 6
        threads = [threading.Thread(target=one, daemon=True) for one in visits]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            _honest(world, url, hits)
        _honest(world, url, hits)
        _check_log(stop(running, within=GRACE + 6).errors)
