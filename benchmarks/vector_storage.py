"""What item vectors in half precision and in 8 bits cost in recall, on real cross-encoder scores.

    python -m benchmarks.vector_storage <score folder>... --queries 50

Folders hold vectors in half precision. "float32" are vectors that would be rounded to them, drawn at random. "int8" is
8 bits alone: each number of a vector over the largest of it, in steps of 1/127. "FAISS, int8" proposes by 8 bits and
scores what it proposes again with the vectors as they are. Recall is the share of the exact top k within the budget, in
percent; differences to float32 are paired, with 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.posterior import CALLS_PER_ITEM, ROUNDS, Shares, build, search
from benchmarks.result_files import write_result
from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.measures import paired_difference
from crossknn.evaluate.tasks import Task, read_matrix
from crossknn.indexing.index import Index
from crossknn.search.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Strategy
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.vectors.faiss import FaissSearch

Stored = np.ndarray | FaissSearch

CELLS = ((1, 100), (10, 100), (100, 500))
FLOAT32, PRIOR = "float32", "Posterior, prior"
STRATEGIES: dict[str, Callable[[int], Strategy]] = {
    "Rerank": partial(Rerank, retriever="dense"),
    "Axn": partial(Axn, rounds=ROUNDS, first="dense"),
    "Posterior, no index": partial(Posterior, rounds=ROUNDS),
    PRIOR: partial(Posterior, rounds=ROUNDS),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="of exact scores")
    parser.add_argument("--queries", type=int, help="only the first of the test queries")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/vector_storage.json"))
    options = parser.parse_args()
    report: dict[str, Any] = {"rounds": ROUNDS, "sets": []}
    for folder in options.folders:
        report["sets"].append(measure_set(read_matrix(folder, queries=options.queries)))
        write_result(options.out, report, options)


def measure_set(task: Task) -> dict[str, Any]:
    bench = Bench(task)
    index = build(bench, CALLS_PER_ITEM)
    vectors = before_rounding(index.vectors)
    stored: dict[str, Stored] = {FLOAT32: vectors, "float16": index.vectors, "int8": through_int8(vectors)}
    stored["FAISS, int8"] = FaissSearch(vectors, kind="flat", storage="int8")
    with patch.object(FaissSearch, "_fastest", lambda *_: "faiss"):  # though exact search is quicker
        recalls = {name: measure_vectors(task, bench.searcher("encoder"), index, stored[name]) for name in stored}
    return {
        "set": task.name,
        "items": len(task.items),
        "queries": len(task.queries),
        "strategies": {
            strategy: {name: summarise(recalls[name][strategy], recalls[FLOAT32][strategy]) for name in stored}
            for strategy in STRATEGIES
        },
    }


def before_rounding(vectors: np.ndarray) -> np.ndarray:
    """Vectors that become these in half precision: each number is anywhere in its place between its neighbours."""
    within = np.random.default_rng(0).uniform(-0.49, 0.49, vectors.shape).astype(np.float32)
    return vectors + within * np.spacing(np.abs(vectors)).astype(np.float32)


def through_int8(vectors: np.ndarray) -> np.ndarray:
    """The vectors that are left when each number has 8 bits and each vector a scale."""
    scales = np.abs(vectors).max(1, keepdims=True) / 127
    codes = np.rint(vectors / np.where(scales, scales, 1)).astype(np.int8)
    return codes * scales


def measure_vectors(task: Task, plain: Searcher, index: Index, vectors: Stored) -> dict[str, Shares]:
    models: dict[str, Any] = {"scorer": task.scorer, "encoder": task.encoder, "retrievers": task.retrievers}
    without = Searcher(task.items, **models, vectors=vectors, normalization=plain.normalization)
    with_prior = Searcher(index, **models, vectors=vectors)
    return {
        name: search(task, with_prior if name == PRIOR else without, make, CELLS) for name, make in STRATEGIES.items()
    }


def summarise(shares: Shares, base: Shares) -> dict[str, dict[str, float]]:
    """The recall of each cell, and how far it is above that with float32."""
    found = {}
    for k, budget in CELLS:
        difference = paired_difference(shares[k, budget], base[k, budget])
        values = {"above": difference.mean, "low": difference.low, "high": difference.high}
        recall = float(shares[k, budget].mean())
        found[f"{k}@{budget}"] = {name: round(value, 2) for name, value in {"recall": recall, **values}.items()}
    print(json.dumps(found), flush=True)
    return found


if __name__ == "__main__":
    main()
