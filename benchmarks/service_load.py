"""Many clients on a server at once: shared scorer batches against one request at a time, in the same run.

    python -m benchmarks.service_load --clients 64 --seconds 60

A dictionary is served on loopback with the embedded cross-encoder and encoder, by a process of its own. First a client
asks every query once, alone: its answers are the truth. Then the clients ask them over and over, each the next one as
soon as it has its answer, for so many seconds: once of a server that works on one request at a time (`running=1`), the
others waiting, and once of one with the default settings. No score is cached; query vectors are kept by both servers.

An answer is right if its ids are those of the lone answer, in its order, and its scores differ by no more than
`TOLERANCE`: a score depends a little on the lengths of the texts that share its batch. Where two scores are closer than
that, ids may change places, and a later round may choose another item; such answers are counted apart, as are errors.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.result_files import write_result

TOLERANCE = 1e-3  # of scores, which span about 20
K, BUDGET = 10, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--senses", type=int, default=3_000)
    parser.add_argument("--queries", type=int, default=64)
    parser.add_argument("--dir", type=Path, default=Path(".bench/service"), help="keeps the index")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--serve", type=int, metavar="RUNNING", help="be the server, with so many requests at once")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/service_load.json"))
    options = parser.parse_args()
    if options.serve is not None:
        serve(options)
        return
    from crossknn.serve.settings import Settings

    queries = build(options)
    modes = {"one at a time": 1, "shared batches": Settings().running}
    report: dict[str, Any] = {"k": K, "budget": BUDGET, "tolerance": TOLERANCE, "modes": {}}
    truth: dict[str, Any] = {}
    for name, running in modes.items():
        with server(options, running) as url:
            if not truth:
                truth, report["alone"] = asyncio.run(ask_alone(url, queries))
            before = read_metrics(url)
            load = asyncio.run(load_server(url, queries, truth, options.clients, options.seconds))
            report["modes"][name] = {"running": running, **load.summary(), **batches(before, read_metrics(url))}
            print(name, json.dumps(report["modes"][name]), flush=True)
    one, shared = (report["modes"][name] for name in modes)
    report["answers per second, times"] = round(shared["answers_per_second"] / one["answers_per_second"], 2)
    write_result(options.out, report, options)
    print("answers per second, times:", report["answers per second, times"])


def build(options: argparse.Namespace) -> list[str]:
    """Have an index in the folder; the queries."""
    from crossknn.example.demo import Demo

    demo = Demo(options.dir, senses=options.senses, device=options.device)
    demo.build()
    return [query.text for query in demo.held_out(options.queries)]


def serve(options: argparse.Namespace) -> None:
    from crossknn.encoders.sentence import SentenceEncoder
    from crossknn.models.hub import EMBEDDED
    from crossknn.scorers.cross_encoder import CrossEncoder
    from crossknn.serve import server
    from crossknn.serve.service import Service
    from crossknn.serve.settings import Settings

    service = Service(
        options.dir / f"senses-{options.senses}.ck",
        scorer=CrossEncoder(EMBEDDED, device=options.device),
        encoder=SentenceEncoder(EMBEDDED, device=options.device),
        settings=Settings(running=options.serve, waiting=1_000),
        device=options.device,
    )
    bound = server.bind("127.0.0.1", 0)
    server.run(service, bound, on_start=lambda: print(server.url_of(bound), flush=True))


@contextmanager
def server(options: argparse.Namespace, running: int) -> Iterator[str]:
    """The URL of a server in a process of its own, which must end well."""
    given = {"serve": running, "dir": options.dir, "senses": options.senses, "device": options.device}
    arguments = [f"--{name}={value}" for name, value in given.items()]
    command = [sys.executable, "-m", "benchmarks.service_load", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()


async def ask(client: httpx.AsyncClient, query: str) -> Any:
    response = await client.post("/search", json={"query": query, "k": K, "budget": BUDGET, "texts": False})
    response.raise_for_status()
    return response.json()["results"][0]


async def ask_alone(url: str, queries: list[str]) -> tuple[dict[str, Any], dict[str, float]]:
    """Every query's answer with nobody else there, and how long it took."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        await ask(client, queries[0])  # the first takes longer
        seconds, truth = [], {}
        for query in queries:
            start = time.perf_counter()
            truth[query] = await ask(client, query)
            seconds.append(time.perf_counter() - start)
    return truth, latencies(seconds)


@dataclass
class Load:
    """What the clients saw."""

    seconds: float
    taken: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    within_tolerance: int = 0  # ids equal
    other_ids: int = 0
    mixed_up: int = 0  # an answer to another query
    largest_difference: float = 0.0  # of scores, where ids are equal

    def record(self, query: str, answer: Any, truth: Any) -> None:
        if answer["query"] != query or answer["calls"] != BUDGET or answer["stopped"] is not None:
            self.mixed_up += 1
            return
        ids, scores = zip(*((hit["id"], hit["score"]) for hit in answer["hits"]), strict=True)
        wanted, true = zip(*((hit["id"], hit["score"]) for hit in truth["hits"]), strict=True)
        if ids != wanted:
            self.other_ids += 1
            return
        difference = float(np.abs(np.subtract(scores, true)).max())
        self.largest_difference = max(self.largest_difference, difference)
        self.within_tolerance += difference <= TOLERANCE

    def summary(self) -> dict[str, Any]:
        return {
            "answers": len(self.taken),
            "answers_per_second": round(len(self.taken) / self.seconds, 2),
            **latencies(self.taken),
            "errors": len(self.errors),
            "first_errors": self.errors[:3],
            "equal": self.within_tolerance,
            "other_ids": self.other_ids,
            "mixed_up": self.mixed_up,
            "largest_difference_of_scores": self.largest_difference,
        }


async def load_server(url: str, queries: list[str], truth: dict[str, Any], clients: int, seconds: float) -> Load:
    load = Load(seconds)
    begun = time.perf_counter()

    async def work(number: int) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            place = number
            while time.perf_counter() - begun < seconds:
                query = queries[place % len(queries)]
                start = time.perf_counter()
                try:
                    answer = await ask(client, query)
                except httpx.HTTPError as error:
                    load.errors.append(repr(error))
                    continue
                load.taken.append(time.perf_counter() - start)
                load.record(query, answer, truth[query])
                place += 7  # so that clients do not march in step

    await asyncio.gather(*(work(number) for number in range(clients)))
    load.seconds = time.perf_counter() - begun  # the last answers come after the time is over
    return load


def latencies(seconds: list[float]) -> dict[str, float]:
    return {f"p{share}_seconds": round(float(np.percentile(seconds, share)), 4) for share in (50, 99)}


def read_metrics(url: str) -> dict[str, float]:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def batches(before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
    """What the scorer was given meanwhile."""
    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    count = grown["crossknn_batch_pairs_count"]
    steps = {step: grown[f'crossknn_search_seconds_sum{{step="{step}"}}'] for step in ("scorer", "solve", "total")}
    sizes = [(name.split('"')[1], value) for name, value in grown.items() if "batch_pairs_bucket" in name]
    return {
        "batches": int(count),
        "pairs_per_batch": round(grown["crossknn_batch_pairs_sum"] / count, 1),
        "requests_per_batch": round(grown["crossknn_batch_requests_sum"] / count, 1),
        "batches_up_to_pairs": {size: int(value) for size, value in sizes},
        "pairs_per_scorer_second": round(grown["crossknn_batch_pairs_sum"] / grown["crossknn_batch_seconds_sum"], 1),
        "search_seconds": {step: round(value, 1) for step, value in steps.items()},
    }


if __name__ == "__main__":
    main()
