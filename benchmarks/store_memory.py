"""What searching and importing a LanceDB table cost in memory, as the table grows beyond what a search holds of it.

    OMP_NUM_THREADS=1 python -m benchmarks.store_memory

Tables of random vectors of 384 dimensions, texts of 20 random words and a number, on disk, with a full-text index. Each
step runs in a process of its own, and reports the peak of that process's own (anonymous) memory: opened, with ids and
fields; exact searches, with a filter and without; whole searches with `Posterior`, whose BM25 is the table's full-text
index; an import into files.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

import crossknn as ck
from benchmarks.memory import anonymous, in_a_process, watch_anonymous
from benchmarks.result_files import write_result
from crossknn._imports import import_extra
from crossknn.stores.importing import import_store

DIM, WORDS, FILL, SEARCHES = 384, 5_000, 10_000, 3
TABLE = "items"
OUT = Path(__file__).parent / "results" / "store_memory.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[100_000, 400_000, 1_600_000])
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    report: dict[str, Any] = {"dim": DIM, "tables": []}
    for items in options.items:
        with TemporaryDirectory() as home:
            found = in_a_process(fill, Path(home), items)
            for step in (search_vectors, search_with_posterior, copy_out):
                found |= in_a_process(step, Path(home))
        report["tables"].append(found)
        print(json.dumps(found), flush=True)
        write_result(options.out, report, options)


def fill(home: Path, items: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    types = {"id": pa.string(), "text": pa.string(), "size": pa.int64(), "vector": pa.list_(pa.float32(), DIM)}
    schema = pa.schema(types)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, items, FILL):
            rows = np.arange(start, min(start + FILL, items))
            vectors = rng.standard_normal((len(rows), DIM), np.float32)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            ids = [f"item-{row}" for row in rows]
            texts = [" ".join(f"word{word}" for word in words) for words in rng.integers(0, WORDS, (len(rows), 20))]
            column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
            yield pa.RecordBatch.from_arrays([pa.array(ids), pa.array(texts), pa.array(rows), column], schema=schema)

    lancedb = import_extra("lancedb", extra="lancedb")
    database = lancedb.connect(home / "lance")
    table = database.create_table(TABLE, pa.RecordBatchReader.from_batches(schema, batches()))
    table.create_index("text", config=lancedb.index.FTS())
    size = sum(path.stat().st_size for path in (home / "lance").rglob("*") if path.is_file())
    return {"items": items, "table_mb": round(size / 2**20)}


def search_vectors(home: Path) -> dict[str, Any]:
    store, found = open_table(home)
    query = np.random.default_rng(1).standard_normal((1, DIM), np.float32)
    began = time.perf_counter()
    found["search_mb"] = peak(lambda: [store.search(query, 100) for _ in range(SEARCHES)])
    found["search_ms"] = round(1000 * (time.perf_counter() - began) / SEARCHES)
    allowed = store.items.mask({"size": {"ge": 1_000}})
    found["filtered_mb"] = peak(lambda: [store.search(query, 100, allowed=allowed) for _ in range(SEARCHES)])
    return found


def search_with_posterior(home: Path) -> dict[str, Any]:
    store, _ = open_table(home)
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((SEARCHES, DIM), np.float32)
    queries = [f"word{number} word{number + 100}" for number in range(SEARCHES)]
    encoder = ck.PrecomputedEncoder(queries=(queries, vectors))
    scorer = ck.function_scorer(lambda pairs: [hash(pair) % 1_000 / 100 for pair in pairs])
    retrievers = [store.full_text()]
    searcher = ck.Searcher(store, scorer=scorer, encoder=encoder, retrievers=retrievers, progress=False)
    strategy = ck.Posterior(100, 5, first="dense")
    return {"posterior_mb": peak(lambda: [searcher.search(query, strategy=strategy) for query in queries])}


def copy_out(home: Path) -> dict[str, Any]:
    store, _ = open_table(home)
    return {"import_mb": peak(lambda: import_store(store, home / "corpus", source="table"))}


def open_table(home: Path) -> tuple[ck.stores.LanceStore, dict[str, Any]]:
    before = anonymous()
    store = ck.stores.LanceStore(str(home / "lance"), TABLE)
    return store, {"started_mb": round(before), "opened_mb": round(anonymous())}


def peak(work: Callable[[], Any]) -> int:
    return round(watch_anonymous(work))


if __name__ == "__main__":
    main()
