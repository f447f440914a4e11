"""Where strategies break: hard queries, wrong vectors, a noisy scorer, near-duplicates, items that suit every query.

    python -m benchmarks.robustness <score folder>... --out benchmarks/results/robustness.json

Every condition changes one thing of a folder of exact scores, for train and test queries alike:

- rotated queries: query vectors are turned by a random rotation. The encoder's similarity says nothing of a query any
  more, but items of like meaning are still near to each other.
- unrelated items: item vectors are random, so that they say nothing at all.
- noisy scorer: each score has normal noise of half the standard deviation of its query's scores, the same whenever the
  pair is scored. The true top k is that of the scores without noise.
- near-duplicates: a fifth of the items have two copies each, with a vector at cosine 0.98, the same words, and scores
  that differ by a twentieth of the standard deviation.
- suits every query: 0.5 % of the items, drawn at random, score like the 99.5 % best of every query.

Recall is the share of the exact top k found within the budget, in percent; differences to fused reranking are paired
over queries. What a condition gave is kept in the work folder: run it again after an interruption.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.kept_parts import KeptParts, describe_folder
from benchmarks.posterior import CALLS_PER_ITEM, summarise
from benchmarks.result_files import write_result
from benchmarks.simultaneous import compare_all
from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.comparison import rows_of, search_in_batches
from crossknn.evaluate.contenders import resolve_strategies
from crossknn.evaluate.ground_truth import truth_rows
from crossknn.evaluate.matrices import ScoreFolder, read_scores
from crossknn.evaluate.measures import top_k_recall
from crossknn.evaluate.tasks import read_matrix
from crossknn.retrievers.bm25 import Bm25

KS, BUDGETS = (1, 10, 100), (10, 25, 100)
NAMES = ("rerank:retriever=fused", "rerank:retriever=bm25", "axn:mix=0.5:first=fused", "gp", "posterior")
FUSED = "rerank, fused"
NOISE, DUPLICATED, COPIES, COSINE, DUPLICATE_NOISE = 0.5, 0.2, 2, 0.98, 0.05
SUITING, SUITING_QUANTILE = 0.005, 0.995
BEST: Final = 1_000  # of each query, kept in single precision
THIRDS = ("easy", "middle", "hard")

Array = np.ndarray[Any, Any]


class Scored(NamedTuple):
    """Queries with their scores for all items, by the cross-encoder and by BM25."""

    vectors: Array
    scores: Array
    bm25: Array


class World(NamedTuple):
    """What a condition changes."""

    items: Array  # vectors
    train: Scored
    test: Scored
    truth: Array | None = None  # the scores that the true top k are of, if others than those of `test`


def main() -> None:
    options = read_options()
    report: dict[str, Any] = {"calls_per_item": CALLS_PER_ITEM, "strategies": NAMES, "sets": []}
    for folder in options.folders:
        report["sets"].append(measure_set(folder, options))
        write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="of exact scores, with texts")
    parser.add_argument("--queries", type=int, default=150, help="at most this many, the first, of the test queries")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--work", type=Path, default=Path(".bench/robustness"), help="folder of what is found so far")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/robustness.json"))
    return parser.parse_args()


def measure_set(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    world = read_world(read_scores(folder), options.queries)
    kept = KeptParts(options.work / folder.name, [describe_folder(folder), options.queries, options.seed])
    recalls = {
        name: kept.get(name, partial(search_world, change, world, options.seed)) for name, change in CONDITIONS.items()
    }
    pairs = {
        (name, strategy, cell): (np.array(values), np.array(found[FUSED][cell]))
        for name, found in recalls.items()
        for strategy, cells in found.items()
        for cell, values in cells.items()
        if strategy != FUSED
    }
    gaps, critical = compare_all(pairs)
    conditions = {
        name: {
            strategy: {
                cell: summarise(np.array(values)) | {f"− {FUSED}": gaps.get((name, strategy, cell))}
                for cell, values in cells.items()
            }
            for strategy, cells in found.items()
        }
        for name, found in recalls.items()
    }
    return {
        "set": folder.name,
        "items": len(world.items),
        "queries": len(world.test.scores),
        "comparisons": {"recall": len(pairs), "critical_t": round(critical, 2)},
        "conditions": conditions,
        "difficulty": by_difficulty(world, next(iter(recalls.values()))),
    }


def read_world(found: ScoreFolder, queries: int) -> World:
    """The first test queries, and all train queries."""
    if found.dataset is None:
        raise SystemExit(f"{found.name}: needs texts.json.xz, for BM25 reads the texts")
    bm25 = Bm25().fit(found.dataset.items)
    train, test = (
        Scored(part.vectors, part.scores, np.stack([bm25.scores(text) for text in part.texts]))
        for part in (found.train, found.test[:queries])
    )
    return World(found.item_vectors, train, test)


def search_world(
    change: Callable[[World, np.random.Generator], World], world: World, seed: int
) -> dict[str, dict[str, list[float]]]:
    """The recall of every query in percent, by strategy and cell, such as "10@100"."""
    changed = change(world, np.random.default_rng(seed))
    with TemporaryDirectory() as folder:
        write_folder(Path(folder), changed)
        task = read_matrix(folder)
    truth = truth_rows(task.scores if changed.truth is None else changed.truth, max(KS))
    bench = Bench(task, calls_per_item=CALLS_PER_ITEM, seed=seed)
    found: dict[str, dict[str, list[float]]] = {}
    for one in resolve_strategies(NAMES, bench.available, budgets=BUDGETS):
        if one.vectors == "fitted":
            continue
        cells = found[one.contender.name] = {}
        for budget in BUDGETS:
            hits = search_in_batches(bench.searcher(one.vectors), task.queries, one.contender.make(budget), k=budget)
            rows = [rows_of(each) for each in chain(*hits)]
            cells |= {f"{k}@{budget}": (100 * top_k_recall(truth, rows, k)).round(3).tolist() for k in KS}
        print(
            change.__name__, one.contender.name, {cell: round(np.mean(v), 1) for cell, v in cells.items()}, flush=True
        )
    return found


def write_folder(folder: Path, world: World) -> None:
    """As a folder of exact scores, so that it is read like any other."""
    np.save(folder / "item_embeddings.f16.npy", world.items.astype(np.float16))
    for name, part in (("train", world.train), ("test", world.test)):
        np.save(folder / f"{name}_query_embeddings.f16.npy", part.vectors.astype(np.float16))
        np.save(folder / f"{name}_scores.f16.npy", part.scores.astype(np.float16))
        np.save(folder / f"{name}_bm25.f16.npy", part.bm25.astype(np.float16))
        rows = np.stack(truth_rows(part.scores, min(BEST, len(world.items))))
        np.savez(folder / f"{name}_top1000.npz", rows=rows, scores=np.take_along_axis(part.scores, rows, axis=1))


def by_difficulty(world: World, recalls: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """Recall in thirds of the queries, by the mean log rank of the exact top 10 in the encoder's order."""
    order = np.argsort(mean_log_ranks(world), kind="stable")
    cells: dict[str, Any] = {}
    for third, places in zip(THIRDS, np.array_split(order, len(THIRDS)), strict=True):
        for strategy, found in recalls.items():
            for cell, values in found.items():
                mine, base = np.array(values)[places], np.array(recalls[FUSED][cell])[places]
                gap = None if strategy == FUSED else compare_all({"": (mine, base)})[0][""]
                cells.setdefault(third, {}).setdefault(strategy, {})[cell] = summarise(mine) | {f"− {FUSED}": gap}
    return cells


def mean_log_ranks(world: World) -> Array:
    """(queries,) of the exact top 10 among all items, by the encoder."""
    similarity = world.test.vectors @ world.items.T
    best = np.stack(truth_rows(world.test.scores, 10))
    ranks = np.stack([(line[None] > line[rows, None]).sum(1) for line, rows in zip(similarity, best, strict=True)])
    logs: Array = np.log1p(ranks).mean(1)
    return logs


def as_it_is(world: World, _: np.random.Generator) -> World:
    return world


def rotate_queries(world: World, rng: np.random.Generator) -> World:
    turn = np.linalg.qr(rng.normal(size=(world.items.shape[1],) * 2))[0].astype(np.float32)
    train, test = (part._replace(vectors=part.vectors @ turn) for part in (world.train, world.test))
    return world._replace(train=train, test=test)


def draw_items(world: World, rng: np.random.Generator) -> World:
    return world._replace(items=normalize(rng.normal(size=world.items.shape)))


def add_noise(world: World, rng: np.random.Generator) -> World:
    train, test = (
        part._replace(scores=part.scores + noise_of(part.scores, NOISE, rng)) for part in (world.train, world.test)
    )
    return world._replace(train=train, test=test, truth=world.test.scores)


def duplicate_items(world: World, rng: np.random.Generator) -> World:
    count = round(DUPLICATED * len(world.items))
    rows = np.tile(rng.choice(len(world.items), count, replace=False), COPIES)
    copies = COSINE * world.items[rows] + (1 - COSINE**2) ** 0.5 * normalize(
        rng.normal(size=(len(rows), world.items.shape[1]))
    )
    parts = []
    for part in (world.train, world.test):
        again = part.scores[:, rows] + noise_of(part.scores, DUPLICATE_NOISE, rng)[:, : len(rows)]
        joined = (np.concatenate(pair, axis=1) for pair in ((part.scores, again), (part.bm25, part.bm25[:, rows])))
        parts.append(Scored(part.vectors, *joined))
    return World(np.concatenate([world.items, normalize(copies)]), *parts)


def suit_every_query(world: World, rng: np.random.Generator) -> World:
    rows = rng.choice(len(world.items), round(SUITING * len(world.items)), replace=False)
    parts = []
    for part in (world.train, world.test):
        scores = part.scores.copy()
        high = np.quantile(scores, SUITING_QUANTILE, axis=1, keepdims=True)
        scores[:, rows] = high + noise_of(part.scores, NOISE, rng)[:, : len(rows)]
        parts.append(part._replace(scores=scores))
    return world._replace(train=parts[0], test=parts[1])


def noise_of(scores: Array, share: float, rng: np.random.Generator) -> Array:
    """Normal noise of this share of the standard deviation of each query's scores."""
    noise: Array = (share * scores.std(1, keepdims=True) * rng.normal(size=scores.shape)).astype(np.float32)
    return noise


def normalize(vectors: Array) -> Array:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Array = (vectors / lengths).astype(np.float32)
    return unit


CONDITIONS: dict[str, Callable[[World, np.random.Generator], World]] = {
    "as it is": as_it_is,
    "rotated queries": rotate_queries,
    "unrelated items": draw_items,
    "noisy scorer": add_noise,
    "near-duplicates": duplicate_items,
    "suits every query": suit_every_query,
}


if __name__ == "__main__":
    main()
