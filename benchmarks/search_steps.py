"""How much of half precision exact search had better widen at a time on a CPU: milliseconds of a search by step.

    OMP_NUM_THREADS=1 python -m benchmarks.search_steps

Vectors are random numbers in float16; the best 100 of all are searched for 1, 8 and 64 queries together. Each figure is
the least of `--times`, in turns, by the processor's time.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.result_files import write_result
from benchmarks.round_time import DIM, make_vectors
from crossknn.vectors import exact

QUERIES, N = (1, 8, 64), 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--kilobytes", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/search_steps.json"))
    options = parser.parse_args()
    options.device = "cpu"
    rng = np.random.default_rng(0)
    search = exact.ExactSearch(make_vectors(options.items, rng))
    asked = rng.standard_normal((max(QUERIES), DIM), np.float32)
    took: dict[int, dict[int, float]] = {size: dict.fromkeys(QUERIES, np.inf) for size in options.kilobytes}
    for _ in range(options.times + 1):  # of which one is to warm up
        for size, least in took.items():
            for queries in QUERIES:
                least[queries] = min(least[queries], milliseconds(search, asked[:queries], size))
    report: dict[str, Any] = {"items": options.items, "dim": DIM, "chosen_kilobytes": exact.CONVERT_BYTES["cpu"] >> 10}
    report["ms_by_kilobytes"] = {size: {n: round(ms, 1) for n, ms in least.items()} for size, least in took.items()}
    write_result(options.out, report, options)
    print(json.dumps(report, indent=1))


def milliseconds(search: exact.ExactSearch, queries: np.ndarray, kilobytes: int) -> float:
    with patch.dict(exact.CONVERT_BYTES, {"cpu": kilobytes << 10}):
        began = time.process_time()
        search.search(queries, N)
    return 1000 * (time.process_time() - began)


if __name__ == "__main__":
    main()
