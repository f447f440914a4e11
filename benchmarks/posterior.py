"""Posterior search against reranking and AXN on exact scores, in every cell, and what its parts are worth.

    python -m benchmarks.posterior <score folder>... --out benchmarks/results/posterior.json

Each folder's train queries pay for the prior, its test queries are searched, and recall is the share of the exact top k
found within the budget, in percent, with 95 % intervals. "best Rerank" and "best Axn" are the best of dense, BM25 and
fused, for Axn with λ of 0, 0.5 and 0.8, each chosen in that cell on the same queries; Posterior has one for all.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.result_files import write_result
from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.comparison import rows_of, search_in_batches
from crossknn.evaluate.ground_truth import truth_rows
from crossknn.evaluate.measures import bootstrap_interval, paired_difference, top_k_recall
from crossknn.evaluate.tasks import Task, read_matrix
from crossknn.indexing import prior_fit
from crossknn.indexing.index import Index
from crossknn.indexing.prior_fit import ProbabilisticPca
from crossknn.indexing.sampling import prior_sampling
from crossknn.search.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Strategy
from crossknn.strategies.posterior.prior import LATENT_FACTORS
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.types import Scores

KS, BUDGETS, ROUNDS = (1, 10, 100), (25, 50, 100, 200, 500), 10
RETRIEVERS, MIXES = ("dense", "bm25", "fused"), (0.0, 0.5, 0.8)
CALLS_PER_ITEM = 8
SOME = ((1, 100), (10, 100), (100, 500))  # cells of the ablations

Shares = dict[tuple[int, int], np.ndarray]  # of every query, by k and budget


def main() -> None:
    options = read_options()
    report: dict[str, Any] = {"rounds": ROUNDS, "seed": options.seed, "sets": []}
    for folder in options.folders:
        report["sets"].append(measure_set(read_matrix(folder, queries=options.queries), options))
        write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="of exact scores")
    parser.add_argument("--queries", type=int, help="only the first of the test queries")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--without-ablations", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/posterior.json"))
    return parser.parse_args()


def measure_set(task: Task, options: argparse.Namespace) -> dict[str, Any]:
    bench = Bench(task, seed=options.seed)
    plain = bench.searcher("encoder")
    cells = [(k, budget) for k in KS for budget in BUDGETS]
    sides: dict[str, Shares] = {}
    for first in RETRIEVERS:
        sides[f"Rerank, {first}"] = search(task, plain, partial(Rerank, retriever=first), cells)
        for mix in MIXES:
            sides[f"Axn, {first} λ={mix:g}"] = search(
                task, plain, partial(Axn, rounds=ROUNDS, mix=mix, first=first), cells
            )
    sides["Posterior, no index"] = search(task, plain, partial(Posterior, rounds=ROUNDS), cells)
    index = build(bench, CALLS_PER_ITEM)
    began = time.perf_counter()
    sides["Posterior"] = search(task, bench.search_with(index), partial(Posterior, rounds=ROUNDS), cells)
    print(task.name, f"posterior searched in {time.perf_counter() - began:.0f} s", flush=True)
    records = [compare_cell(sides, cell) for cell in cells]
    found: dict[str, Any] = {
        "set": task.name,
        "items": len(task.items),
        "train_queries": len(task.train),
        "test_queries": len(task.queries),
        "calls_per_item": round(index.report.coverage.calls_per_item, 2),
        "prior_seconds": round(index.report.seconds["prior"], 2),
        "cells": records,
        "calls_saved": {name: calls_saved(records, name) for name in ("Posterior", "Posterior, no index")},
        "settings": {name: means(shares) for name, shares in sides.items()},
    }
    if not options.without_ablations:
        found["ablations"] = {name: means(shares) for name, shares in ablate(bench)}
    return found


def compare_cell(sides: dict[str, Shares], cell: tuple[int, int]) -> dict[str, Any]:
    """The posterior's recall, the best of each other strategy, and the difference to fused reranking."""
    shares = {name: found[cell] for name, found in sides.items()}
    record: dict[str, Any] = {"k": cell[0], "budget": cell[1]}
    record |= {name: summarise(shares[name]) for name in ("Posterior", "Posterior, no index")}
    for kind in ("Rerank", "Axn"):
        best = max((name for name in shares if name.startswith(kind)), key=lambda name: shares[name].mean())
        record[f"best {kind}"] = {"setting": best, **summarise(shares[best])}
    for name in ("Posterior", "Posterior, no index"):
        difference = paired_difference(shares[name], shares["Rerank, fused"])
        values = {part: round(getattr(difference, part), 1) for part in ("mean", "low", "high")}
        record[f"{name} − Rerank, fused"] = values
    print(json.dumps(record, ensure_ascii=False), flush=True)
    return record


def calls_saved(records: Sequence[dict[str, Any]], side: str) -> dict[str, float | None]:
    """How many times the calls of `side` the better of Rerank and Axn needs, to find as much as with each budget.

    Between two budgets, recall is taken as linear in the logarithm of the calls; None where 500 are not enough.
    """
    means = {(record["k"], record["budget"]): record for record in records}
    saved: dict[str, float | None] = {}
    for k in KS:
        recalls, calls = [means[k, budget][side]["mean"] for budget in BUDGETS], np.log(BUDGETS)
        for budget in BUDGETS[2:]:
            goal = max(means[k, budget][f"best {kind}"]["mean"] for kind in ("Rerank", "Axn"))
            first = next((place for place, recall in enumerate(recalls) if recall >= goal), None)
            if first is None:
                saved[f"{k}@{budget}"] = None
                continue
            around = slice(max(first - 1, 0), first + 1)
            needed = np.exp(np.interp(goal, recalls[around], calls[around]))
            saved[f"{k}@{budget}"] = round(float(budget / needed), 1)
    return saved


def ablate(bench: Bench) -> Iterator[tuple[str, Shares]]:
    """Recall with one part of the model left out, with more and fewer calls and rounds."""
    task = bench.task
    changes = {"whole": as_it_is, "without γ": without_growth, "without biases": without_biases}
    for name, change in {**changes, "without traits": without_traits}.items():
        with change():
            index = build(bench, CALLS_PER_ITEM)
        yield name, search(task, bench.search_with(index), partial(Posterior, rounds=ROUNDS), SOME)
    for calls in (1, 2, 4, 16, 32, len(task.train) + 1):
        index = build(bench, calls)
        shown = "all train scores" if calls > len(task.train) else f"{calls} calls per item"
        yield shown, search(task, bench.search_with(index), partial(Posterior, rounds=ROUNDS), SOME)
    index = build(bench, CALLS_PER_ITEM)
    for rounds in (1, 2, 5, 20):
        yield (
            f"{rounds} rounds",
            search(task, bench.search_with(index), partial(Posterior, rounds=rounds), SOME),
        )


@contextmanager
def as_it_is() -> Iterator[None]:
    yield


@contextmanager
def without_growth() -> Iterator[None]:
    """γ is 1 everywhere."""
    with patch.object(prior_fit, "GAMMA_EXTRAPOLATION", 0.0):
        yield


@contextmanager
def without_biases() -> Iterator[None]:
    def none(*given: Any) -> Any:
        _, residuals, _, item_vectors = given
        items, dim = item_vectors.shape
        return prior_fit.ItemBiases(np.zeros(items, np.float32), np.zeros(len(residuals)), np.zeros(dim + 1))

    with patch.object(prior_fit, "_fit_biases", none):
        yield


@contextmanager
def without_traits() -> Iterator[None]:
    with patch.object(ProbabilisticPca, "features", lambda _, rows: np.zeros((len(rows), LATENT_FACTORS))):
        yield


def build(bench: Bench, calls_per_item: int, *, calibrate: bool = False) -> Index:
    """With a prior; a calibration would take train queries from it."""
    sizes = {"n_queries": len(bench.task.train), "n_items": len(bench.task.items)}
    sampling = prior_sampling(calls_per_item, **sizes, seed=bench.seed)
    return bench.build(None, sampling, prior=True, calibrate=calibrate)


def search(
    task: Task,
    searcher: Searcher,
    make: Callable[[int], Strategy],
    cells: Sequence[tuple[int, int]],
) -> Shares:
    return search_queries(task.queries, task.scores, searcher, make, cells)


def search_queries(
    queries: Sequence[str],
    scores: Scores,
    searcher: Searcher,
    make: Callable[[int], Strategy],
    cells: Sequence[tuple[int, int]],
) -> Shares:
    """The share of each query's exact top k that is found within each budget, in percent."""
    truth = truth_rows(scores, max(k for k, _ in cells))
    shares: Shares = {}
    for budget in sorted({budget for _, budget in cells}):
        found = chain.from_iterable(search_in_batches(searcher, queries, make(budget), k=budget))
        rows = [rows_of(hits) for hits in found]
        shares |= {(k, b): 100 * top_k_recall(truth, rows, k) for k, b in cells if b == budget}
    return shares


def summarise(shares: np.ndarray) -> dict[str, float]:
    low, high = bootstrap_interval(shares)
    return {"mean": round(float(shares.mean()), 1), "low": round(low, 1), "high": round(high, 1)}


def means(shares: Shares) -> dict[str, float]:
    found = {f"{k}@{budget}": round(float(values.mean()), 1) for (k, budget), values in shares.items()}
    print(found, flush=True)
    return found


if __name__ == "__main__":
    main()
