"""What a million items and five million vectors cost in memory.

    python -m benchmarks.memory --corpus <a large corpus.jsonl> --items 5000000 --dim 768

Each part runs in a process of its own and reports its peak: of all resident memory for the items, and of anonymous
memory for the vectors, which are mapped from a file (mapped pages belong to the system and are given up on demand).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import crossknn
from benchmarks.result_files import write_result

OUT = Path(__file__).parent / "results" / "memory.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="a .jsonl to load as Items")
    parser.add_argument("--items", type=int, default=5_000_000, help="vectors to search")
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--queries", type=int, default=64)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    report: dict[str, Any] = {}
    if options.corpus:
        report["items"] = in_a_process(load_items, options.corpus)
    report["vectors"] = in_a_process(search_vectors, options.items, options.dim, options.queries)
    write_result(options.out, report, options)
    print(json.dumps(report, indent=1))


def in_a_process(work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def load_items(corpus: Path) -> dict[str, Any]:
    before = peak_resident()
    items = crossknn.Items.from_jsonl(corpus)
    texts = len(items.texts)
    return {
        "items": texts,
        "file_mb": round(corpus.stat().st_size / 1e6, 1),
        "resident_mb_before": round(before, 1),
        "peak_resident_mb": round(peak_resident(), 1),
    }


def search_vectors(items: int, dim: int, queries: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.npy"
        vectors = np.lib.format.open_memmap(path, "w+", np.float16, (items, dim))
        for start in range(0, items, 50_000):
            vectors[start : start + 50_000] = rng.standard_normal((min(50_000, items - start), dim), np.float32)
        search = crossknn.ExactSearch(vectors)
        wanted = rng.standard_normal((queries, dim), np.float32)
        search.search(wanted[:1], 100)  # loads the libraries and starts their threads
        before = anonymous()
        peak = watch_anonymous(lambda: search.search(wanted, 100))
    return {
        "items": items,
        "dim": dim,
        "dtype": "float16",
        "file_mb": round(items * dim * 2 / 1e6),
        "queries": queries,
        "n": 100,
        "anonymous_mb_before": round(before, 1),
        "peak_anonymous_mb": round(peak, 1),
    }


def watch_anonymous(work: Callable[[], Any]) -> float:
    peak, done = anonymous(), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, anonymous())
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return peak


def anonymous() -> float:
    """Megabytes of this process's own memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


def peak_resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
