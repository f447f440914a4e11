"""Item vectors fitted to sparse train scores against the dual encoder's own, on real cross-encoder scores.

    python -m benchmarks.factorization --scores ../shared/scores/acl25k

A build buys some scores of train queries (its sampling of G), fits item vectors to them, and test queries are searched
with those vectors. Nothing but the bought scores is fitted; the others measure the estimates of train queries, and
test queries those of queries that no fit has seen. α and β come from 100 random items of each of 100 train queries.
Searches have 10 rounds and begin with the dual encoder's best; every mix λ is reported. Ridges and epochs are chosen
on 5 % of the bought scores, nothing on test queries.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.matrices import Matrix, load
from benchmarks.result_files import write_result
from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.indexing.factorization.inductive import Inductive
from crossknn.indexing.factorization.trainer import r_squared
from crossknn.indexing.factorization.transductive import Transductive
from crossknn.indexing.sampling import PerItem, PerQuery, sample_per_item, sample_per_query
from crossknn.indexing.score_matrix import Pairs, SparseScores
from crossknn.items.items import Items
from crossknn.retrievers.dense import Dense
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Strategy
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.rerank import Rerank
from crossknn.vectors.exact import ExactSearch

GRID = {100: (1, 10), 500: (100,)}  # budgets, and the k whose recall is measured
MIXES = (0.0, 0.5, 0.8)
RIDGES = (1.0, 3.0, 10.0)
SWEEPS = 5  # of ALS, at most
NET_ENTRIES = 1_600_000  # that MF_ind passes over: the paper's 20 epochs where there are up to 80,000, else fewer
SHARES = (0.05, 0.2, 0.5)  # of the items; all of them are in the table
OUT = Path(__file__).parent / "results" / "factorization.json"


def main() -> None:
    options = read_options()
    torch.set_num_threads(1)  # many small solves: a second thread only waits
    began = time.perf_counter()
    report: dict[str, Any] = {"rounds": 10, "seed": options.seed}
    report["sets"] = [measure(read_world(folder, options), options.seed) for folder in options.scores]
    report["seconds"] = round(time.perf_counter() - began)
    write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=Path, nargs="+", required=True, help="folders of score matrices")
    parser.add_argument("--queries", type=int, default=100, help="test queries searched, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.set_defaults(device="cpu")
    return parser.parse_args()


@dataclass(frozen=True)
class World:
    """Test queries to search, and train queries whose scores can be bought."""

    matrix: Matrix
    items: np.ndarray  # (items, dim) the dual encoder's
    train_vectors: np.ndarray  # (train queries, dim)
    train_scores: np.ndarray  # (train queries, items) normalized

    def buy(self, pairs: Pairs) -> SparseScores:
        return SparseScores(pairs, self.train_scores[pairs.queries, pairs.rows])


@dataclass(frozen=True)
class Learned:
    """Vectors of one kind, and how their fit went."""

    name: str
    train: np.ndarray  # (train queries, dim)
    test: np.ndarray  # (test queries, dim): u_param of a search
    items: np.ndarray  # (items, dim)
    fit: dict[str, Any]


def read_world(folder: Path, options: argparse.Namespace) -> World:
    matrix = load(folder)
    part = "train" if (folder / "train_scores.f16.npy").exists() else "test"
    scores, vectors = (np.load(folder / f"{part}_{what}.f16.npy") for what in ("scores", "query_embeddings"))
    if part == "test":  # `load` has kept the second half
        scores, vectors = (array[: len(array) // 2] for array in (scores, vectors))
    scores, vectors = scores.astype(np.float32), vectors.astype(np.float32)
    items = matrix.vectors.take(np.arange(len(matrix.vectors)))
    pairs = sample_per_query(PerQuery(100, seed=options.seed), n_queries=min(100, len(scores)), n_items=len(items))
    scale = Normalization.fit(
        scores[pairs.queries, pairs.rows], (vectors[pairs.queries] * items[pairs.rows]).sum(axis=1)
    )
    kept = {name: getattr(matrix, name)[: options.queries] for name in ("queries", "scores", "query_vectors")}
    return World(replace(matrix, normalization=scale, **kept), items, vectors, scale.normalize(scores))


def measure(world: World, seed: int) -> dict[str, Any]:
    table = [measure_vectors(world, "none", None, dual_encoder(world), MIXES)]
    for name, pairs in samplings(world, seed).items():
        found = learn(world, world.buy(pairs), seed)
        table.extend(measure_vectors(world, name, pairs, learned, MIXES) for learned in found)
    shares = []
    for share in SHARES:
        pairs, name = sample_some_items(world, share, seed), f"8 per item, {share:.0%} of items"
        found = learn(world, world.buy(pairs), seed)
        shares.extend(measure_vectors(world, name, pairs, learned, MIXES[1:2]) for learned in found)
    return {
        "set": world.matrix.name,
        "items": len(world.items),
        "train_queries": len(world.train_scores),
        "test_queries": len(world.matrix.queries),
        "normalization": {"alpha": world.matrix.normalization.alpha, "beta": world.matrix.normalization.beta},
        "table": table,
        "shares": shares + [record for record in table if record["sampling"] == "8 per item"],
    }


def samplings(world: World, seed: int) -> dict[str, Pairs]:
    queries, items = world.train_scores.shape
    sizes: dict[str, Any] = {"n_queries": queries, "n_items": items}
    best = PerQuery(100, retriever="dense", seed=seed)
    return {
        "100 per query": sample_per_query(PerQuery(100, seed=seed), **sizes),
        "1000 per query": sample_per_query(PerQuery(1000, seed=seed), **sizes),
        "best 100 per query": sample_per_query(
            best, propose=lambda _, n: world.matrix.vectors.search(world.train_vectors, n), **sizes
        ),
        "8 per item": sample_per_item(PerItem(8, seed=seed), **sizes),
        "32 per item": sample_per_item(PerItem(32, seed=seed), **sizes),
    }


def sample_some_items(world: World, share: float, seed: int) -> Pairs:
    """8 queries for each of a random share of the items."""
    queries, items = world.train_scores.shape
    chosen = np.random.default_rng(seed).permutation(items)[: round(share * items)].astype(np.int32)
    pairs = sample_per_item(PerItem(8, seed=seed), n_queries=queries, n_items=len(chosen))
    return Pairs(pairs.queries, chosen[pairs.rows], queries, items)


def dual_encoder(world: World) -> Learned:
    return Learned("DE", world.train_vectors, world.matrix.query_vectors, world.items, {})


def learn(world: World, entries: SparseScores, seed: int) -> Iterator[Learned]:
    """Every kind of vectors fitted to the same entries, with the same ones held out."""
    test = world.matrix.query_vectors
    fit, went = fit_vectors(world, entries, Transductive.preset("paper", seed=seed))
    yield Learned("MF_trns AdamW", fit.query_vectors, test, fit.item_vectors, went)
    als = Transductive(method="als", epochs=SWEEPS, patience=1, seed=seed)
    fits = {ridge: fit_vectors(world, entries, replace(als, ridge=ridge)) for ridge in RIDGES}
    ridges = {f"{ridge:g}": went for ridge, (_, went) in fits.items()}
    ridge = min(RIDGES, key=lambda ridge: fits[ridge][1]["held_out_error"])
    fit, went = fits[ridge]
    went = {**went, "ridge": ridge, "ridges": ridges}
    yield Learned("MF_trns ALS", fit.query_vectors, test, fit.item_vectors, went)
    epochs = min(20, round(NET_ENTRIES / len(entries)))
    nets, went = fit_vectors(world, entries, Inductive.preset("paper", epochs=epochs, seed=seed))
    train, test = nets.encode_queries(world.train_vectors), nets.encode_queries(test)
    yield Learned("MF_ind", train, test, nets.encode_items(world.items), went)


def fit_vectors(world: World, entries: SparseScores, settings: Transductive | Inductive) -> tuple[Any, dict[str, Any]]:
    """What was fitted, and how that went; processor seconds stay the same on a busy machine."""
    began = time.process_time()
    fit = settings.fit(entries, world.train_vectors, world.items)
    went = {"processor_seconds": round(time.process_time() - began, 2)}
    for name in ("seconds", "epochs", "best_epoch", "held_out_error", "held_out_r2"):
        went[name] = round(fit.report[name], 6)
    return fit, went


def measure_vectors(
    world: World, sampling: str, pairs: Pairs | None, learned: Learned, mixes: tuple[float, ...]
) -> dict[str, Any]:
    record: dict[str, Any] = {"sampling": sampling, "vectors": learned.name, "calls": 0, "fit": learned.fit}
    unseen = np.ones(world.train_scores.shape, np.bool_)
    scored = np.zeros(len(world.items), np.bool_)
    if pairs is not None:
        unseen[pairs.queries, pairs.rows] = False
        scored[pairs.rows] = True
        record |= {"calls": len(pairs), "scored_items": int(scored.sum())}
    test_scores = world.matrix.normalization.normalize(world.matrix.scores)
    record["train_queries"] = errors(learned.train @ learned.items.T, world.train_scores, unseen, scored)
    record["test_queries"] = errors(learned.test @ learned.items.T, test_scores, np.True_, scored)
    record["recall"] = recalls(world.matrix, learned, mixes)
    print(world.matrix.name, record, flush=True)
    return record


def errors(
    estimates: np.ndarray, scores: np.ndarray, unseen: np.ndarray | np.bool_, scored: np.ndarray
) -> dict[str, dict[str, Any]]:
    """Of the estimates of unseen pairs, apart for items that were scored for some train query and for the others."""
    squares = np.square(estimates - scores)
    found = {}
    for name, which in (("scored", scored), ("unscored", ~scored)):
        chosen = np.broadcast_to(unseen & which, scores.shape)
        if chosen.any():
            error = float(squares[chosen].mean(dtype=np.float64))
            r2 = r_squared(error, scores[chosen])
            found[name] = {"pairs": int(chosen.sum()), "error": round(error, 6), "r2": r2 and round(r2, 4)}
    return found


def recalls(matrix: Matrix, learned: Learned, mixes: tuple[float, ...]) -> dict[str, dict[str, float]]:
    """Percent of the exact top k that a search with these vectors scored, as {strategy: {"k@budget": percent}}."""
    searched = with_vectors(matrix, learned)
    found: dict[str, dict[str, float]] = {}
    for budget, ks in GRID.items():
        strategies: dict[str, Strategy] = {"Rerank": Rerank(budget, "learned")}
        strategies |= {f"Axn λ={mix:g}": Axn(budget, 10, mix, "dense") for mix in mixes}
        for name, strategy in strategies.items():
            hits = searched.run(strategy)
            for k in ks:
                recall = 100 * float(searched.recall(hits, k).mean())
                found.setdefault(name, {})[f"{k}@{budget}"] = round(recall, 2)
    return found


def with_vectors(matrix: Matrix, learned: Learned) -> Matrix:
    """The same queries, scores and dual encoder, searched with other vectors; they are the retriever "learned" too."""
    search = ExactSearch(learned.items)
    encoder = PrecomputedEncoder(queries=dict(zip(matrix.queries, learned.test, strict=True)))
    retriever = Dense(encoder, vectors=search, name="learned").fit(Items(map(str, range(len(search)))))
    retrievers = {**matrix.retrievers, retriever.name: retriever}
    return replace(matrix, vectors=search, query_vectors=learned.test, retrievers=retrievers)


if __name__ == "__main__":
    main()
