"""What it saves that an index keeps BM25: time and memory until a searcher has answered one query with it.

    python -m benchmarks.kept_bm25 --corpus commits-1m/corpus.jsonl

Both sides open the same index, each in a fresh process and in turns: one takes what is kept, one fits it to the items.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.result_files import write_result
from crossknn import Bm25, Index, Items, Searcher, function_encoder, function_scorer

OUT = Path(__file__).parent / "results" / "kept_bm25.json"
SIDES = ("fitted", "kept")
QUERY = "fix memory leak when the driver is removed"
SCORER = function_scorer(lambda pairs: [float(len(query) + len(item)) for query, item in pairs], fingerprint="lengths")


def main() -> None:
    options = read_options()
    if options.side:
        print(json.dumps(start_searching(options.folder, options.side)))
        return

    items = Items.from_jsonl(options.corpus, empty="keep")
    with TemporaryDirectory(dir=options.work) as work:
        folder = Path(work) / "items.ck"
        began = time.process_time()
        save_index(items, folder)
        report = {"items": len(items), "times": options.times}
        report["save_processor_seconds"] = round(time.process_time() - began, 2)
        sizes = {path.name.partition("-")[0]: path.stat().st_size for path in folder.glob("*-*")}
        kept = sizes["stems"] + sizes["postings"]
        report |= {"kept_mb": round(kept / 1e6, 1), "kept_bytes_per_item": round(kept / len(items), 1)}
        report["starts"] = compare(folder, options.times)
    write_result(options.out, report, options)
    print(json.dumps(report, indent=1))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="a corpus.jsonl")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--work", type=Path, help="where a folder for the index is made")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def save_index(items: Items, folder: Path) -> None:
    """With made vectors, for BM25 does not look at them."""
    rng = np.random.default_rng(0)
    encoder = function_encoder(lambda texts: rng.standard_normal((len(texts), 8), np.float32), fingerprint="made")
    queries = ["made query", "another"]
    Index.build(items, scorer=SCORER, encoder=encoder, queries=queries, factors=None, prior=False).save(folder)


def compare(folder: Path, times: int) -> dict[str, dict[str, float]]:
    """Medians of each side."""
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    answers = set()
    for _ in range(times):
        for side in SIDES:
            arguments = ["--side", side, "--folder", str(folder)]
            shown = subprocess.run(
                [sys.executable, "-m", "benchmarks.kept_bm25", *arguments], check=True, capture_output=True, text=True
            )
            measured, ids = json.loads(shown.stdout)
            runs[side].append(measured)
            answers.add(tuple(ids))
    if len(answers) > 1:
        raise RuntimeError(f"both sides must find the same. Got {answers}.")
    return {side: {name: median(one[name] for one in some) for name in some[0]} for side, some in runs.items()}


def start_searching(folder: Path, side: str) -> tuple[dict[str, float], list[str]]:
    """From opening the folder to the first answer; what that took, and what was found."""
    clocks = [(time.perf_counter(), time.process_time())]
    own = [Bm25()] if side == "fitted" else []
    searcher = Searcher(Index.load(folder), scorer=SCORER, retrievers=own)
    searcher.prepare("bm25")
    clocks.append((time.perf_counter(), time.process_time()))
    hits = searcher.search(QUERY, k=10, budget=10)
    clocks.append((time.perf_counter(), time.process_time()))
    (wall, processor), (first_wall, first_processor) = np.diff(clocks, axis=0).round(3).tolist()
    measured = {
        "prepare_seconds": wall,
        "prepare_processor_seconds": processor,
        "first_query_seconds": first_wall,
        "first_query_processor_seconds": first_processor,
        "peak_mb": peak_mb(),
    }
    return measured, hits.ids


def peak_mb() -> int:
    """Of this process alone: `getrusage` would count what the one that started it had."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) // 1024


if __name__ == "__main__":
    main()
