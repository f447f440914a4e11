"""Ten minutes of badly behaved clients on a server: its memory and open files over time, and the answers of the others.

    python -m benchmarks.service_soak --seconds 600

A dictionary is served by `crossknn serve` with the embedded models and its default limits, on one thread. First one
client asks every query: its answers are the truth. Then these clients come at once, and pause between their requests:

- honest ones, which ask and compare the answer with the truth;
- some that leave: they close the connection while their search runs;
- some that time out, after a tenth of a second, and come back with the same query and patience;
- some that send half a request, its headers or its body, and hold the connection until the server ends it;
- some that send many requests and read no response.

Answers are compared as in `benchmarks.service_load`. The resident memory and the open files of the server's process are
read every two seconds. Memory grows at first, until caches and the allocator's pools are full.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

import httpx
import numpy as np

from benchmarks.result_files import write_result
from benchmarks.service_load import Load, ask, ask_alone, build

CLIENTS: Final = {"honest": 4, "leaving": 2, "impatient": 2, "half_open": 24, "deaf": 2}
PAUSE: Final = 2.0  # mean seconds between two requests of one client
IMPATIENCE: Final = 0.1  # seconds
HEAD: Final = "POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
SCHEMA: Final = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--senses", type=int, default=3_000)
    parser.add_argument("--queries", type=int, default=32)
    parser.add_argument("--dir", type=Path, default=Path(".bench/service"), help="keeps the index")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/service_soak.json"))
    options = parser.parse_args()
    options.device = "cpu"
    queries = build(options)
    with server(options.dir / f"senses-{options.senses}.ck") as (url, process, log):
        report = asyncio.run(soak(url, process.pid, queries, options.seconds))
        report["log"] = read_log(log)
    report |= {"clients": CLIENTS, "mean_pause_seconds": PAUSE}
    write_result(options.out, report, options)
    print(json.dumps({name: report[name] for name in ("answers", "clients_saw", "memory", "files", "log")}, indent=1))


@contextmanager
def server(index: Path) -> Iterator[tuple[str, subprocess.Popen[bytes], TextIO]]:
    """The URL, process and log of `crossknn serve`, which must end well within its grace."""
    command = [
        sys.executable,
        "-m",
        "crossknn",
        "serve",
        str(index),
        "--scorer=embedded",
        "--encoder=embedded",
        "--port=0",
    ]
    path = index.parent / "soak.log"
    with path.open("w+") as log:
        process = subprocess.Popen(command, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "300"})
        try:
            yield wait_for_url(path, process), process, log
            process.terminate()
            assert process.wait(40) == 0
        finally:
            process.kill()


def wait_for_url(log: Path, process: subprocess.Popen[bytes]) -> str:
    while (found := re.search(r"items at (http://\S+)", log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    return found[1]


@dataclass
class Soak:
    """What the clients saw."""

    url: str
    queries: list[str]
    truth: dict[str, Any]
    seconds: float
    load: Load
    counts: Counter[str] = field(default_factory=Counter)
    longest_half_open: float = 0.0
    random: random.Random = field(default_factory=lambda: random.Random(0))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self.url.removeprefix("http://").split(":")
        return await asyncio.open_connection(host, int(port), limit=4_096)

    async def honest(self, timeout: float = 60.0) -> None:
        query = self.random.choice(self.queries)
        async with httpx.AsyncClient(base_url=self.url, timeout=timeout) as client:
            start = time.perf_counter()
            answer = await ask(client, query)
        self.load.taken.append(time.perf_counter() - start)
        self.load.record(query, answer, self.truth[query])

    async def leaving(self) -> None:
        body = json.dumps({"query": self.random.choice(self.queries)}).encode()
        _, writer = await self.connect()
        writer.write(HEAD.format(len(body)).encode() + b"\r\n" + body)
        await asyncio.sleep(0.3 * self.random.random())
        writer.close()
        self.counts["left"] += 1

    async def impatient(self) -> None:
        try:
            await self.honest(timeout=IMPATIENCE)
        except httpx.TimeoutException:
            self.counts["timed_out"] += 1
            await self.honest()

    async def half_open(self) -> None:
        head = HEAD.format(1_000)
        sent = self.random.choice([head[: self.random.randrange(len(head))], f"{head}\r\n{{"])
        start = time.perf_counter()
        reader, writer = await self.connect()
        writer.write(sent.encode())
        response = b""
        try:
            response = await reader.read(100)
        except ConnectionError:
            pass
        finally:
            writer.close()
        self.longest_half_open = max(self.longest_half_open, time.perf_counter() - start)
        self.counts["half_open_408" if b" 408 " in response else "half_open_closed"] += 1

    async def deaf(self) -> None:
        _, writer = await self.connect()
        try:
            while not writer.is_closing():
                writer.write(SCHEMA)
                await writer.drain()
                await asyncio.sleep(0)
        except ConnectionError:
            pass
        finally:
            writer.close()
        self.counts["deaf_ended"] += 1


async def soak(url: str, pid: int, queries: list[str], seconds: float) -> dict[str, Any]:
    truth, alone = await ask_alone(url, queries)
    before = read_process(pid)
    state = Soak(url, queries, truth, seconds, Load(seconds))
    begun = time.perf_counter()
    curve: list[dict[str, float]] = []

    async def repeat(act: Callable[[], Awaitable[None]]) -> None:
        while time.perf_counter() - begun < seconds:
            try:
                await act()
            except Exception as error:
                state.load.errors.append(f"{act.__name__}: {error!r}")
            await asyncio.sleep(2 * PAUSE * state.random.random())

    async def watch() -> None:
        while True:
            curve.append({"seconds": round(time.perf_counter() - begun, 1), **read_process(pid)})
            await asyncio.sleep(2)

    watching = asyncio.create_task(watch())
    tasks = [asyncio.create_task(repeat(getattr(state, kind))) for kind, count in CLIENTS.items() for _ in range(count)]
    await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    state.load.seconds = time.perf_counter() - begun
    watching.cancel()
    await asyncio.sleep(2)
    return summary(state, alone, curve, before, read_process(pid))


def read_process(pid: int) -> dict[str, float]:
    """The resident megabytes and the open files of a process."""
    resident = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert resident is not None
    return {"mb": round(int(resident[1]) / 1024, 1), "files": len(list(Path(f"/proc/{pid}/fd").iterdir()))}


def summary(
    state: Soak,
    alone: dict[str, float],
    curve: list[dict[str, float]],
    before: dict[str, float],
    after: dict[str, float],
) -> dict[str, Any]:
    minutes = [
        mean([point["mb"] for point in curve if low <= point["seconds"] < low + 60])
        for low in range(0, round(state.load.seconds), 60)
    ]
    return {
        "seconds": round(state.load.seconds, 1),
        "alone": alone,
        "answers": state.load.summary(),
        "clients_saw": {
            **dict(sorted(state.counts.items())),
            "longest_half_open_seconds": round(state.longest_half_open, 1),
        },
        "memory": {
            "before_mb": before["mb"],
            "mean_mb_of_each_minute": minutes,
            "largest_mb": max(point["mb"] for point in curve),
        },
        "files": {
            "before": before["files"],
            "largest": max(point["files"] for point in curve),
            "after": after["files"],
        },
        "curve": curve,
    }


def mean(values: list[float]) -> float:
    return round(float(np.mean(values)), 1)


def read_log(log: TextIO) -> dict[str, Any]:
    """How many requests had which status, and the errors of the server."""
    log.seek(0)
    lines = [json.loads(line) for line in log if line.startswith("{")]
    statuses = Counter(str(line["status"]) for line in lines if line["event"] == "request")
    return {"statuses": dict(sorted(statuses.items())), "errors": [line for line in lines if line["level"] == "error"]}


if __name__ == "__main__":
    main()
