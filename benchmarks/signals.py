"""What a third signal, TF-IDF beside the encoder and BM25, is worth to posterior search on exact scores.

    python -m benchmarks.signals <score folder>... --out benchmarks/results/signals.json

All test queries are searched with each choice of signals, without an index and with a prior of 8 calls per item.
Recall is the share of the exact top k found within the budget, in percent; differences to dense and BM25 are with 95 %
intervals over queries.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.posterior import CALLS_PER_ITEM, ROUNDS, Shares, means, search
from benchmarks.result_files import write_result
from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.matrices import SharedRetriever, read_scores
from crossknn.evaluate.measures import paired_difference
from crossknn.evaluate.tasks import Task, read_matrix
from crossknn.indexing.index import Index
from crossknn.indexing.sampling import prior_sampling
from crossknn.items.items import Items
from crossknn.retrievers.tfidf import TfIdf
from crossknn.search.searcher import Searcher
from crossknn.strategies.posterior.prior import SIGNALS
from crossknn.strategies.posterior.strategy import Posterior

CHOICES = {"dense, bm25": SIGNALS, "dense, bm25, tfidf": (*SIGNALS, "tfidf"), "dense, tfidf": ("dense", "tfidf")}
BASE = "dense, bm25"
CELLS = ((10, 100), (100, 500))


def main() -> None:
    options = read_options()
    report: dict[str, Any] = {"rounds": ROUNDS, "calls_per_item": CALLS_PER_ITEM, "seed": options.seed, "sets": []}
    for folder in options.folders:
        report["sets"].append(measure_set(read_task(folder, options.queries), options.seed))
        write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="of exact scores, with texts")
    parser.add_argument("--queries", type=int, help="only the first of the test queries")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/signals.json"))
    return parser.parse_args()


def read_task(folder: Path, queries: int | None) -> Task:
    """The task of a folder, with TF-IDF on its texts beside BM25."""
    task, dataset = read_matrix(folder, queries=queries), read_scores(folder).dataset
    if dataset is None:
        raise SystemExit(f"{folder}: needs texts.json.xz, for TF-IDF reads the texts")
    texts = dict(zip(task.train, dataset.split("train").texts, strict=True))
    texts |= dict(zip(task.queries, dataset.split("test").texts, strict=False))
    return replace(task, retrievers=[*task.retrievers, SharedRetriever(TfIdf(), texts=texts).fit(dataset.items)])


def measure_set(task: Task, seed: int) -> dict[str, Any]:
    record: dict[str, Any] = {"set": task.name, "items": len(task.items), "test_queries": len(task.queries)}
    for name, sides in (("no index", without_index(task)), ("index", with_index(Bench(task, seed=seed)))):
        found = dict(sides)
        record[name] = {"recall": {signals: means(shares) for signals, shares in found.items()}}
        base = found.pop(BASE)
        record[name][f"− {BASE}"] = {signals: compare(shares, base) for signals, shares in found.items()}
    return record


def without_index(task: Task) -> Iterator[tuple[str, Shares]]:
    for name, signals in CHOICES.items():
        yield name, find(task, task.items, signals)


def with_index(bench: Bench) -> Iterator[tuple[str, Shares]]:
    task = bench.task
    sampling = prior_sampling(CALLS_PER_ITEM, n_queries=len(task.train), n_items=len(task.items), seed=bench.seed)
    for name, signals in CHOICES.items():
        index = bench.build(None, sampling, prior=True, calibrate=False, signals=signals)
        yield name, find(task, index, signals)


def find(task: Task, items: Items | Index, signals: tuple[str, ...]) -> Shares:
    searcher = Searcher(items, scorer=task.scorer, encoder=task.encoder, retrievers=task.retrievers, signals=signals)
    return search(task, searcher, partial(Posterior, rounds=ROUNDS), CELLS)


def compare(found: Shares, base: Shares) -> dict[str, dict[str, float]]:
    return {
        f"{k}@{budget}": {
            part: round(value, 2) for part, value in paired_difference(shares, base[k, budget])._asdict().items()
        }
        for (k, budget), shares in found.items()
    }


if __name__ == "__main__":
    main()
