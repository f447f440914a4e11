"""What fitting item vectors costs in memory, per item and dimension.

    python -m benchmarks.fit_memory --items 200000 --dim 128

Vectors are mapped from a float16 file, as in a build with a work folder; every item has some entries. Each fit runs in
a process of its own, once with a quarter of the items and once with all: what the difference costs per item stands
beside what the docstrings promise for each item and dimension, the result included, and for each entry.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import anonymous, in_a_process, watch_anonymous
from benchmarks.result_files import write_result
from crossknn.indexing.factorization.inductive import Inductive
from crossknn.indexing.factorization.transductive import Transductive
from crossknn.indexing.sampling import PerItem, sample_per_item
from crossknn.indexing.score_matrix import SparseScores

OUT = Path(__file__).parent / "results" / "fit_memory.json"
QUERIES = 500
ENTRY = 60  # bytes
PROMISED = {"als": 8 + 4, "adamw": 16 + 4, "inductive": 0}  # bytes per item and dimension; the nets give no result yet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--per-item", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    report: dict[str, Any] = {
        "items": options.items,
        "dim": options.dim,
        "calls_per_item": options.per_item,
        "fits": {name: measure(name, options) for name in PROMISED},
    }
    write_result(options.out, report, options)
    print(json.dumps(report, indent=1))


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    sizes = options.items // 4, options.items
    peaks = [in_a_process(fit, name, size, options.dim, options.per_item)["mb"] for size in sizes]
    return {
        "peak_mb": peaks,
        "bytes_per_item": round((peaks[1] - peaks[0]) * 2**20 / (sizes[1] - sizes[0])),
        "promised_bytes_per_item": PROMISED[name] * options.dim + ENTRY * options.per_item,
    }


def fit(name: str, items: int, dim: int, per_item: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    methods: dict[str, Transductive | Inductive] = {
        "als": Transductive(method="als", epochs=1),
        "adamw": Transductive(epochs=1, batch=8192),
        "inductive": Inductive(epochs=1, batch=8192),
    }
    with tempfile.TemporaryDirectory() as folder:
        vectors = np.lib.format.open_memmap(Path(folder) / "vectors.npy", "w+", np.float16, (items, dim))
        for start in range(0, items, 50_000):
            vectors[start : start + 50_000] = rng.standard_normal((min(50_000, items - start), dim), np.float32)
        queries = rng.standard_normal((QUERIES, dim), np.float32) / dim
        small = resolve_strategies(2_000, per_item, rng)
        methods[name].fit(small, queries, vectors[:2_000])  # loads the libraries and starts their threads
        entries = resolve_strategies(items, per_item, rng)
        before = anonymous()
        peak = watch_anonymous(lambda: methods[name].fit(entries, queries, vectors))
    return {"mb": round(peak - before, 1)}


def resolve_strategies(items: int, per_item: int, rng: np.random.Generator) -> SparseScores:
    pairs = sample_per_item(PerItem(queries=per_item), n_queries=QUERIES, n_items=items)
    return SparseScores(pairs, rng.standard_normal(len(pairs), np.float32))


if __name__ == "__main__":
    main()
