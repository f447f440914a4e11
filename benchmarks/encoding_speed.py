"""Texts encoded per second, and the time of one query: SentenceEncoder beside sentence-transformers' own `encode`.

    python -m benchmarks.encoding_speed --texts corpus.jsonl --device cpu --out benchmarks/results/encoding_cpu.json

Both sides take turns in one process, and their vectors are compared. On a CPU processor time is reported as well, which
says what the clock cannot on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.result_files import write_result
from benchmarks.scoring_speed import read_texts
from crossknn import SentenceEncoder

Encode = Callable[[list[str]], Any]


def main() -> None:
    options = read_options()
    texts = read_texts(options.texts)[: options.count]
    encoder = SentenceEncoder(options.model, device=options.device, dtype=options.dtype)
    library = encoder.model

    def encode_by_library(some: list[str]) -> Any:
        return library.encode(some, batch_size=options.batch_size, normalize_embeddings=True, show_progress_bar=False)

    sides: dict[str, Encode] = {"SentenceEncoder": encoder.encode_items, "sentence-transformers": encode_by_library}
    one, other = (np.asarray(encode(texts)) for encode in sides.values())
    report: dict[str, Any] = {
        "model": encoder.name,
        "dtype": encoder.dtype,
        "tokens_per_text": round(float(np.mean([len(row) for row in encoder.tokenize("document", texts)])), 1),
        "largest_difference": float(np.abs(one - other).max()),
        f"{len(texts)} texts": compare(sides, [texts] * options.times),
        "one text": compare(sides, [[" ".join(text.split()[:12])] for text in texts[: options.queries]]),
    }
    print(json.dumps(report, indent=1))
    if options.out:
        write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="a .jsonl whose lines have a text")
    parser.add_argument("--model", default="embedded", help="a folder or a hub name")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--count", type=int, default=2000, help="of texts")
    parser.add_argument("--queries", type=int, default=100, help="texts of twelve words, one by one")
    parser.add_argument("--batch-size", type=int, default=32, help="of sentence-transformers")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def compare(sides: dict[str, Encode], calls: list[list[str]]) -> dict[str, Any]:
    """Median milliseconds of a call by each side, on the clock and of processor time, and their ratios."""
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for texts in calls:
        for name, encode in sides.items():
            wall, processor = time.perf_counter(), time.process_time()
            encode(texts)
            took[name].append((time.perf_counter() - wall, time.process_time() - processor))
    report: dict[str, Any] = {}
    for at, clock in enumerate(("ms", "processor_ms")):
        medians = {name: 1000 * median(run[at] for run in runs) for name, runs in took.items()}
        report[clock] = {name: round(value, 2) for name, value in medians.items()}
        report[f"{clock}_ratio"] = round(medians["sentence-transformers"] / medians["SentenceEncoder"], 2)
    return report


if __name__ == "__main__":
    main()
