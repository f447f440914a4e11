"""Few calls: posterior search beside fused reranking at 10, 25 and 50 calls, and what its hedges are worth there.

    python -m benchmarks.small_budgets <score folder>... --out benchmarks/results/small_budgets.json

Of the calls after the first round a tenth are hedges. "hedge in every round" has at least one in each of them, which
with ten rounds is a third of 25 calls and all of 10; "without hedges" has none. Recall is the share of the exact top k
found, in percent; differences are paired over queries, with 95 % intervals, and `shown` among all comparisons of a set.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.posterior import CALLS_PER_ITEM, ROUNDS, Shares, search, summarise
from benchmarks.result_files import write_result
from benchmarks.simultaneous import compare_all
from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.tasks import Task, read_matrix
from crossknn.strategies.posterior import strategy as posterior
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank

CELLS = tuple((k, budget) for k in (1, 10) for budget in (10, 25, 50))
FUSED, DEFAULT = "rerank, fused", "posterior, prior"
HEDGES: dict[str, Callable[[list[int], list[int]], list[int]]] = {
    "posterior, prior, hedge in every round": lambda _, counts: [ceil(count / 10) for count in counts],
    "posterior, prior, without hedges": lambda _, counts: [0 for _ in counts],
}


def main() -> None:
    options = read_options()
    report: dict[str, Any] = {"rounds": ROUNDS, "calls_per_item": CALLS_PER_ITEM, "sets": []}
    for folder in options.folders:
        report["sets"].append(measure_set(read_matrix(folder, queries=options.queries), options.seed))
        write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="of exact scores")
    parser.add_argument("--queries", type=int, help="only the first of the test queries")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/small_budgets.json"))
    return parser.parse_args()


def measure_set(task: Task, seed: int) -> dict[str, Any]:
    found = dict(search_all(task, Bench(task, calls_per_item=CALLS_PER_ITEM, seed=seed)))
    pairs = {
        (base, name, cell): (shares[cell], found[base][cell])
        for base in (FUSED, DEFAULT)
        for name, shares in found.items()
        for cell in CELLS
        if name != base and (base == FUSED or name in HEDGES)
    }
    gaps, critical = compare_all(pairs)
    cells = []
    for cell in CELLS:
        record: dict[str, Any] = {"k": cell[0], "budget": cell[1]}
        record["recall"] = {name: summarise(shares[cell]) for name, shares in found.items()}
        for base in (FUSED, DEFAULT):
            record[f"− {base}"] = {name: gaps[base, name, cell] for name in found if (base, name, cell) in gaps}
        cells.append(record)
    return {
        "set": task.name,
        "items": len(task.items),
        "queries": len(task.queries),
        "comparisons": {"recall": len(pairs), "critical_t": round(critical, 2)},
        "cells": cells,
    }


def search_all(task: Task, bench: Bench) -> Iterator[tuple[str, Shares]]:
    plain, prior = bench.searcher("encoder"), bench.searcher("prior")
    make = partial(Posterior, rounds=ROUNDS)
    yield FUSED, search(task, plain, partial(Rerank, retriever="fused"), CELLS)
    yield "posterior", search(task, plain, make, CELLS)
    yield DEFAULT, search(task, prior, make, CELLS)
    for name, count in HEDGES.items():
        with patch.object(posterior, "hedge_counts", count):
            yield name, search(task, prior, make, CELLS)


if __name__ == "__main__":
    main()
