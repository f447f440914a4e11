"""What each strategy finds in the same time, on the cores of this machine, instead of with the same number of calls.

    python -m benchmarks.time_budget <score folder> --model <folder> --dtype int8

For each strategy and time, the budget is the largest that fits: rounds and calls at the scorer's measured speed, and
the strategy's own measured time. Recall within that budget is that of all test queries, on the folder's exact scores.
Speeds are processor time of one thread, which other programs hardly change; scoring is taken to use all cores alike,
and all else one of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.result_files import RESULTS, write_result
from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.comparison import rows_of, search_in_batches
from crossknn.evaluate.ground_truth import truth_rows
from crossknn.evaluate.matrices import read_scores
from crossknn.evaluate.measures import bootstrap_interval, paired_difference, top_k_recall
from crossknn.evaluate.tasks import Task, read_matrix
from crossknn.scorers.cross_encoder import CrossEncoder
from crossknn.scorers.timing import Speed
from crossknn.search.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Strategy
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank

TIMES, KS, ROUNDS = (0.2, 1.0, 5.0), (10, 100), 10
BASELINE = "rerank, fused"
STRATEGIES: dict[str, Callable[[int], Strategy]] = {
    BASELINE: partial(Rerank, retriever="fused"),
    "axn, fused first": lambda budget: Axn(budget, min(ROUNDS, budget), first="fused"),
    "posterior": lambda budget: Posterior(budget, min(ROUNDS, budget)),
    "posterior, 3 rounds": lambda budget: Posterior(budget, min(3, budget)),
}
WITH_PRIOR = {"posterior, prior": STRATEGIES["posterior"]}
SIZES, REPEATS = (4, 48), 4  # pairs of a batch, from whose times the speed follows
TIMED_QUERIES, TIMED_RUNS = 5, 2  # searches that measure a strategy's own time
CALLS_PER_ITEM = 8


def main() -> None:
    options = read_options()
    torch.set_num_threads(1)
    scorer = CrossEncoder(
        options.model, device="cpu", dtype=options.dtype, max_query_tokens=options.max_query_tokens, max_item_tokens=160
    )
    report: dict[str, Any] = {"cores": options.cores, "sets": []}
    for folder in options.folders:
        report["sets"].append(measure_set(folder, scorer, options))
        write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="of exact scores, with texts")
    parser.add_argument("--model", required=True, help="the cross-encoder of the scores")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--max-query-tokens", type=int, default=64, help="as the scores were made")
    parser.add_argument("--cores", type=int, default=2, help="that scoring uses alike")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "time_budget.json")
    return parser.parse_args()


def measure_set(folder: Path, scorer: CrossEncoder, options: argparse.Namespace) -> dict[str, Any]:
    task, found = read_matrix(folder), read_scores(folder)
    assert found.dataset is not None, f"{folder} has no texts"
    speed = measure_speed(scorer, found.test.texts, list(found.dataset.items.texts), options.cores)
    print(task.name, speed, flush=True)
    bench = Bench(task, seed=options.seed, calls_per_item=CALLS_PER_ITEM)
    plain, prior = bench.searcher("encoder"), bench.searcher("prior")
    sides = [(name, plain, make) for name, make in STRATEGIES.items()]
    sides += [(name, prior, make) for name, make in WITH_PRIOR.items()]
    cells: list[dict[str, Any]] = []
    for seconds in TIMES:
        recalls: dict[str, dict[int, np.ndarray]] = {}
        for name, searcher, make in sides:
            budget, own = fit_budget(searcher, task, make, speed, seconds)
            recalls[name] = measure_recall(searcher, task, make(budget))
            for k in KS:
                cell = {"strategy": name, "seconds": seconds, "k": k, "calls": budget, "own_seconds": round(own, 4)}
                cells.append(cell | summarise(recalls[name][k], recalls[BASELINE][k]))
                print(cells[-1], flush=True)
    facts = {"set": task.name, "items": len(task.items), "queries": len(task.queries)}
    speeds = {"per_round_s": round(speed.per_round, 5), "calls_per_s": round(speed.calls_per_second, 1)}
    offline = {"offline calls, prior": prior.index.report.calls if prior.index else 0}
    model = f"{Path(options.model).name} {options.dtype}"
    return {**facts, "scorer": model, **speeds, **offline, "cells": cells}


def measure_speed(scorer: CrossEncoder, queries: Sequence[str], items: Sequence[str], cores: int) -> Speed:
    """The least processor time of small and of large batches of new texts, the large ones' spread over the cores."""
    least = []
    for size in SIZES:
        runs = []
        for repeat in range(REPEATS + 1):  # the first one warms up
            texts = items[repeat * size : (repeat + 1) * size]
            began = time.process_time()
            scorer.score([queries[repeat]] * size, texts)
            runs.append(time.process_time() - began)
        least.append(min(runs[1:]))
    per_call = (least[1] - least[0]) / (SIZES[1] - SIZES[0])
    return Speed(max(0.0, least[0] - SIZES[0] * per_call), per_call / cores)


def fit_budget(
    searcher: Searcher, task: Task, make: Callable[[int], Strategy], speed: Speed, seconds: float
) -> tuple[int, float]:
    """The largest budget within these seconds, and what the strategy itself takes of them."""

    def fitting(own: float, rounds: int) -> int:
        calls = int((seconds - own - rounds * speed.per_round) / speed.per_call)
        return min(len(task.items), max(1, calls))

    strategy = make(fitting(0.0, 1))
    own = time_alone(searcher, task, strategy)
    return fitting(own, getattr(strategy, "rounds", 1)), own


def time_alone(searcher: Searcher, task: Task, strategy: Strategy) -> float:
    """Processor seconds of one search whose scores are looked up: the mean over queries of the least of the runs."""
    runs = []
    for _ in range(TIMED_RUNS):
        taken = []
        for query in task.queries[:TIMED_QUERIES]:
            began = time.process_time()
            searcher.search(query, k=10, strategy=strategy)
            taken.append(time.process_time() - began)
        runs.append(taken)
    return float(np.min(runs, axis=0).mean())


def measure_recall(searcher: Searcher, task: Task, strategy: Strategy) -> dict[int, np.ndarray]:
    truth = truth_rows(task.scores, max(KS))
    budget = strategy.budget or len(task.items)
    found = [rows_of(hits) for hits in chain(*search_in_batches(searcher, task.queries, strategy, k=budget))]
    return {k: top_k_recall(truth, found, k) for k in KS}


def summarise(recall: np.ndarray, baseline: np.ndarray) -> dict[str, Any]:
    low, high = bootstrap_interval(recall)
    difference = paired_difference(recall, baseline)
    gap = {part: round(100 * getattr(difference, part), 1) for part in ("mean", "low", "high")}
    values = {"recall": float(recall.mean()), "low": low, "high": high}
    return {**{name: round(100 * value, 1) for name, value in values.items()}, f"− {BASELINE}": gap}


if __name__ == "__main__":
    main()
