"""Recall of `Posterior` and `Axn` by the number of rounds, on exact scores: what few rounds cost.

    python -m benchmarks.rounds_recall <score folder>... --out benchmarks/results/rounds_recall.json

As in `benchmarks.posterior`, train queries pay for the prior and test queries are searched. Recall is the
share of the exact top k found within the budget, in percent; "difference" is that of each number of rounds to ten, on
the same queries, with a 95 % interval.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.posterior import CALLS_PER_ITEM, build, search, summarise
from benchmarks.result_files import write_result
from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.measures import paired_difference
from crossknn.evaluate.tasks import Task, read_matrix
from crossknn.strategies.axn import Axn
from crossknn.strategies.posterior.strategy import Posterior

ROUNDS = (1, 2, 3, 4, 5, 7, 10, 20)
DEFAULT = 10
CELLS = ((10, 25), (10, 50), (1, 100), (10, 100), (10, 200), (100, 500))  # k and budget


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="of exact scores")
    parser.add_argument("--queries", type=int, help="only the first of the test queries")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/rounds_recall.json"))
    options = parser.parse_args()
    report: dict[str, Any] = {"default": DEFAULT, "seed": options.seed, "sets": []}
    for folder in options.folders:
        report["sets"].append(measure_set(read_matrix(folder, queries=options.queries), options.seed))
        write_result(options.out, report, options)


def measure_set(task: Task, seed: int) -> dict[str, Any]:
    bench = Bench(task, seed=seed)
    plain, fitted = bench.searcher("encoder"), bench.search_with(build(bench, CALLS_PER_ITEM))
    sides = {"Posterior": (fitted, Posterior), "Posterior, no index": (plain, Posterior), "Axn": (plain, Axn)}
    found: dict[str, Any] = {"set": task.name, "items": len(task.items), "test_queries": len(task.queries), "sides": {}}
    for name, (searcher, kind) in sides.items():
        by_rounds = {rounds: search(task, searcher, partial(kind, rounds=rounds), CELLS) for rounds in ROUNDS}
        found["sides"][name] = {
            f"{k}@{budget}": {
                str(rounds): {**summarise(shares[k, budget]), "difference": compare(shares, by_rounds, (k, budget))}
                for rounds, shares in by_rounds.items()
            }
            for k, budget in CELLS
        }
        print(task.name, name, json.dumps(found["sides"][name]), flush=True)
    return found


def compare(shares: dict[Any, Any], by_rounds: dict[int, Any], cell: tuple[int, int]) -> dict[str, float]:
    difference = paired_difference(shares[cell], by_rounds[DEFAULT][cell])
    return {part: round(getattr(difference, part), 1) for part in ("mean", "low", "high")}


if __name__ == "__main__":
    main()
