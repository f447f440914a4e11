"""Many clients on a server at once: shared scorer batches against one request at a time, in the same run.

    python -m benchmarks.service_load
    python -m benchmarks.service_load --device cuda --model <folder> --out benchmarks/results/service_load_h200.json

A dictionary is served on loopback by a process of its own, with the embedded encoder and the embedded cross-encoder or
`--model`. First a client asks every query once, alone: its answers are the truth. Then `--clients` ask them over and
over, each the next one as soon as it has its answer, for so many seconds: of a server that works on one request at a
time (`running=1`), the others waiting, and of one with the default settings, by `Posterior` and by `Rerank`. No score
is cached; query vectors are kept by all servers. Memory is that of the server after each number of clients.

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
from crossknn.models.hub import EMBEDDED

TOLERANCE = 1e-3  # of scores, which span about 20
K, BUDGET = 10, 100
QUERIES = 64
PATIENCE = 600.0  # seconds that clients and server allow an answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    parser.add_argument("--senses", type=int, default=3_000)
    parser.add_argument("--dir", type=Path, default=Path(".bench/service"), help="keeps the index")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default=EMBEDDED, help="a cross-encoder")
    parser.add_argument("--serve", type=int, metavar="RUNNING", help="be the server, with so many requests at once")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/service_load.json"))
    options = parser.parse_args()
    if options.serve is not None:
        serve(options)
        return
    write_result(options.out, measure(options), options)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """What the clients of every mode see, and how many times the answers of one request at a time batches give."""
    queries = build(options)
    report: dict[str, Any] = {"k": K, "budget": BUDGET, "model": Path(options.model).name, "tolerance": TOLERANCE}
    report |= {"alone": {}, "loads": []}
    truth: dict[str, Any] = {}
    for name, (running, strategy) in modes().items():
        with server(options, running) as (url, process):
            if strategy not in truth:
                truth[strategy], report["alone"][strategy] = asyncio.run(ask_alone(url, queries, strategy))
            for clients in options.clients:
                before = read_metrics(url)
                load = asyncio.run(load_server(url, queries, truth[strategy], clients, options.seconds, strategy))
                measured = {**load.summary(), **batches(before, read_metrics(url)), "resident_mb": resident(process)}
                report["loads"].append({"mode": name, "clients": clients, "running": running, **measured})
                print(json.dumps(report["loads"][-1]), flush=True)
    report["answers per second, times"] = times_of(report["loads"])
    return report


def modes() -> dict[str, tuple[int, str]]:
    """By name how many requests run at once, and by which strategy they search."""
    from crossknn.serve.settings import Settings

    running = Settings().running
    return {"one at a time": (1, "posterior"), "shared batches": (running, "posterior"), "Rerank": (running, "rerank")}


def times_of(loads: list[dict[str, Any]]) -> dict[str, float]:
    """By number of clients, how many times the answers per second of one request at a time shared batches give."""
    speeds = {(load["mode"], load["clients"]): load["answers_per_second"] for load in loads}
    clients = [count for mode, count in speeds if mode == "shared batches"]
    return {str(n): round(speeds["shared batches", n] / speeds["one at a time", n], 2) for n in clients}


def resident(process: subprocess.Popen[str]) -> int:
    """Megabytes of memory of the server."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) >> 10


def build(options: argparse.Namespace) -> list[str]:
    """Have an index in the folder; the queries."""
    from crossknn.example.demo import Demo

    demo = Demo(options.dir, senses=options.senses, device=options.device)
    demo.build()
    return [query.text for query in demo.held_out(QUERIES)]


def serve(options: argparse.Namespace) -> None:
    from crossknn.encoders.sentence import SentenceEncoder
    from crossknn.scorers.cross_encoder import CrossEncoder
    from crossknn.serve import server
    from crossknn.serve.service import Service
    from crossknn.serve.settings import Limits, Settings

    service = Service(
        options.dir / f"senses-{options.senses}.ck",
        scorer=CrossEncoder(options.model, device=options.device),
        encoder=SentenceEncoder(EMBEDDED, device=options.device),
        settings=Settings(running=options.serve, waiting=1_000, limits=Limits(deadline=PATIENCE)),
        check_models=options.model == EMBEDDED,
        device=options.device,
    )
    bound = server.bind("127.0.0.1", 0)
    server.run(service, bound, on_start=lambda: print(server.url_of(bound), flush=True))


@contextmanager
def server(options: argparse.Namespace, running: int) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The URL and the process of a server, which must end well."""
    given = {"serve": running, "dir": options.dir, "senses": options.senses, "device": options.device}
    given["model"] = options.model
    arguments = [f"--{name}={value}" for name, value in given.items()]
    command = [sys.executable, "-m", "benchmarks.service_load", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()


async def ask(client: httpx.AsyncClient, query: str, strategy: str) -> Any:
    request = {"query": query, "k": K, "budget": BUDGET, "strategy": strategy, "texts": False}
    response = await client.post("/search", json=request)
    response.raise_for_status()
    return response.json()["results"][0]


async def ask_alone(url: str, queries: list[str], strategy: str) -> tuple[dict[str, Any], dict[str, float]]:
    """Every query's answer with nobody else there, and how long it took."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        seconds, truth = [], {}
        for query in queries:
            start = time.perf_counter()
            truth[query] = await ask(client, query, strategy)
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


async def load_server(
    url: str, queries: list[str], truth: dict[str, Any], clients: int, seconds: float, strategy: str
) -> Load:
    load = Load(seconds)
    begun = time.perf_counter()

    async def work(number: int) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
            place = number
            while time.perf_counter() - begun < seconds:
                query = queries[place % len(queries)]
                start = time.perf_counter()
                try:
                    answer = await ask(client, query, strategy)
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
