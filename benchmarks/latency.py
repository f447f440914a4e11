"""Latency of one query, of many at once, and of the service: `Posterior` and `Axn` beside `Rerank`, in one run.

    python -m benchmarks.latency --device cuda --model <folder> --out benchmarks/results/latency_h200.json
    python -m benchmarks.latency --items 500 --queries 2 --together 2 --budgets 10 --seconds 0 --out latency.json

The second is a trial of seconds on a CPU. Items are made of words and their vectors are random, so that any number can
be had; queries are words of items. Models, BM25 and the scan of all vectors are real; there is no index. A searcher is
prepared, as a service does, and searches a query twice: what the first takes longer is what `prepare` left undone.

- `one query`: every query alone with the first of `--budgets`, by each side in turn; p50 and p99 in milliseconds, and
  what of the median is spent in the scorer. On a GPU one side keeps the small tensors of `Posterior` on the CPU.
- `together`: queries searched together; the seconds outside the scorer over those in it, the smallest of three.
- `first stage`: BM25 and encoder side by side, and one after the other, for queries that were not encoded before.
- `service`: `benchmarks.service_load` with `--clients`: requests one at a time, and in shared batches.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks import service_load
from benchmarks.big_index import read_items
from benchmarks.result_files import write_result
from benchmarks.round_time import make_vectors
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.models.hub import EMBEDDED
from crossknn.retrievers.cache import CandidateCache
from crossknn.scorers.cross_encoder import CrossEncoder
from crossknn.search.results import Hits
from crossknn.search.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Strategy
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.posterior.prior import RETRIEVER_DEPTH, SIGNALS
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.vectors import device as vectors_device

K, TIMES = 10, 3
QUERY_WORDS = 8
SIDES: dict[str, Callable[[int], Strategy]] = {
    "Rerank": Rerank,
    "Axn": lambda budget: Axn(budget, 10),
    "Posterior": lambda budget: Posterior(budget, 10),
    "Posterior, 5 rounds": lambda budget: Posterior(budget, 5),
    "Posterior, rounds chosen": Posterior,  # by the searcher, as no number is named
}
ON_HOST = "Posterior, small tensors on the CPU"
FEW_QUERIES = 2  # whose small tensors are there


def main() -> None:
    options = read_options()
    report: dict[str, Any] = {
        "items": options.items,
        "k": K,
        "budgets": options.budgets,
        "model": Path(options.model).name,
        "dtype": None,
    }
    scorer = CrossEncoder(options.model, device=options.device)
    items = read_items(None, options.items)
    searcher = Searcher(
        items,
        scorer=scorer,
        encoder=SentenceEncoder(EMBEDDED, device=options.device),
        vectors=make_vectors(len(items), np.random.default_rng(0)),
        normalization=Normalization(),
        device=options.device,
        progress=False,
    )
    report["dtype"] = scorer.dtype
    began = time.perf_counter()
    searcher.prepare()
    report["prepare_seconds"] = round(time.perf_counter() - began, 2)
    queries = draw_queries(searcher, 2 * options.queries + options.together)
    alone, fresh, together = queries[: options.queries], queries[options.queries : -options.together], queries
    steps: dict[str, Callable[[], Any]] = {
        "after prepare": lambda: first_and_later(searcher, alone[0], options.budgets[0]),
        "one query": lambda: one_query(searcher, alone, options.budgets[0], on_gpu=options.device != "cpu"),
        "together": lambda: search_together(searcher, together[-options.together :], options.budgets),
        "first stage": lambda: first_stage(searcher, fresh),
    }
    if options.seconds:
        steps["service"] = lambda: service_load.measure(options)
    for name, step in steps.items():
        report[name] = step()
        print(name, json.dumps(report[name]), flush=True)
        write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=200, help="searched one at a time")
    parser.add_argument("--together", type=int, default=64, help="queries searched together")
    parser.add_argument("--budgets", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--clients", type=int, nargs="+", default=[64], help="of the service")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load of the service; 0 leaves it out")
    parser.add_argument("--senses", type=int, default=3_000, help="that the service searches")
    parser.add_argument("--dir", type=Path, default=Path(".bench/service"), help="keeps the service's index")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default=EMBEDDED, help="a cross-encoder")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def draw_queries(searcher: Searcher, count: int) -> list[str]:
    """The first words of items, each with a number, so that all differ."""
    rows = np.linspace(1, len(searcher.items) - 1, count).astype(int).tolist()
    return [f"{' '.join(searcher.items.text(row).split()[:QUERY_WORDS])} {n}" for n, row in enumerate(rows)]


def first_and_later(searcher: Searcher, query: str, budget: int) -> dict[str, float]:
    """Milliseconds of the first search after `prepare`, and of the same one later: the median of `TIMES`."""
    seconds = [searcher.search(query, k=K, strategy=SIDES["Posterior"](budget)).seconds for _ in range(1 + TIMES)]
    return {"first_ms": milliseconds(seconds[0]), "later_ms": milliseconds(median(seconds[1:]))}


def one_query(searcher: Searcher, queries: list[str], budget: int, *, on_gpu: bool) -> dict[str, Any]:
    """Latency of each side, all of which search a query before the next."""
    names = [*SIDES, *([ON_HOST] if on_gpu else [])]
    found: dict[str, list[Hits]] = {name: [] for name in names}
    for name in names:
        search(searcher, queries[:1], name, budget)  # to warm up
    for number, query in enumerate(queries):
        for place in range(len(names)):  # each side is the first as often as others, which the encoder's cache rewards
            name = names[(place + number) % len(names)]
            found[name] += search(searcher, [query], name, budget)
    sides = {name: percentiles(hits) for name, hits in found.items()}
    baseline = sides["Rerank"]["p50_ms"]
    return {name: {**side, "times Rerank": round(side["p50_ms"] / baseline, 2)} for name, side in sides.items()}


def percentiles(found: list[Hits]) -> dict[str, float]:
    seconds = [hits.seconds for hits in found]
    times = {f"p{share}_ms": milliseconds(float(np.percentile(seconds, share))) for share in (50, 99)}
    return {**times, "scorer_p50_ms": milliseconds(median(hits.score_seconds for hits in found))}


def search_together(searcher: Searcher, queries: list[str], budgets: list[int]) -> list[dict[str, Any]]:
    """Seconds of each side and budget, and their share outside the scorer."""
    cells = []
    for budget in budgets:
        for name in SIDES:
            search(searcher, queries, name, budget)  # to warm up
            runs = [search(searcher, queries, name, budget)[0] for _ in range(TIMES)]
            outside, scoring = (min(times) for times in zip(*map(split_seconds, runs), strict=True))
            cell = {"queries": len(queries), "budget": budget, "strategy": name}
            shares = {"scorer_seconds": round(scoring, 4), "outside_over_scorer": round(outside / scoring, 4)}
            cells.append({**cell, "seconds": round(outside + scoring, 4), **shares})
    return cells


def split_seconds(hits: Hits) -> tuple[float, float]:
    return hits.seconds - hits.score_seconds, hits.score_seconds


def search(searcher: Searcher, queries: list[str], name: str, budget: int) -> list[Hits]:
    with tensors_on_host() if name == ON_HOST else patch.dict({}):
        return searcher.search_many(queries, k=K, strategy=SIDES.get(name, SIDES["Posterior"])(budget))


@contextmanager
def tensors_on_host() -> Iterator[None]:
    """Small tensors of few queries stay on the CPU."""
    with patch.object(vectors_device, "FEW_QUERIES", FEW_QUERIES):
        yield


def first_stage(searcher: Searcher, queries: list[str]) -> dict[str, float]:
    """Milliseconds of the default first stage: BM25 beside the encoder and its scan, and after them, in turns."""
    ways: dict[str, list[float]] = {"side by side": [], "one after the other": []}
    for number, query in enumerate(queries):
        way = list(ways)[number % 2]  # a query is encoded once
        cache = CandidateCache([query], searcher.retriever, None, side_by_side=way == "side by side")
        began = time.perf_counter()
        cache.retrieve_ahead(SIGNALS, RETRIEVER_DEPTH)
        for name in SIGNALS:
            cache(name, RETRIEVER_DEPTH)
        ways[way].append(time.perf_counter() - began)
    return {f"{way}, p50_ms": milliseconds(median(seconds)) for way, seconds in ways.items() if seconds}


def milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 2)


if __name__ == "__main__":
    main()
