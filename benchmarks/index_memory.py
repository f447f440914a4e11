"""What an index of a million items costs: in files, while it is built, opened and searched, and in several processes.

    OMP_NUM_THREADS=1 python -m benchmarks.index_memory --corpus <a large corpus.jsonl>

Without a corpus `--items` are made. Vectors are noise and scores count words: memory depends on neither. All runs in
processes of their own. "Own" memory is what a process has for itself (anonymous pages); pages of mapped files are the
system's, which gives them up on demand, and are there once for all processes: a process's share of them is in its
proportional set size, "pss". Megabytes are of 2^20 bytes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.big_index import DIM, ENCODER, SCORER, build_index, read_items
from benchmarks.memory import anonymous, in_a_process, peak_resident, watch_anonymous
from benchmarks.result_files import write_result
from crossknn.indexing.index import Index
from crossknn.search.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Strategy
from crossknn.strategies.posterior.strategy import Posterior

OUT = Path(__file__).parent / "results" / "index_memory.json"
SEARCHES: dict[str, Strategy] = {"Axn": Axn(100, 10, first="dense"), "Posterior": Posterior(100, 10)}
READY = {"Axn": "dense", "Posterior": "bm25"}  # the retriever that must be made for it
TOGETHER = {"Axn": (1, 2, 4), "Posterior": (1, 2)}  # processes
COUNTED = {"Rss:": "resident", "Pss:": "pss", "Anonymous:": "own"}  # lines of smaps


def main() -> None:
    options = read_options()
    report: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    report["dim"] = DIM
    with TemporaryDirectory() as temporary:
        folder = (options.work or Path(temporary)) / "items.ck"
        for part in options.parts:
            report[part] = PARTS[part](options, folder)
            write_result(options.out, report, options)
            print(part, json.dumps(report[part], indent=1), flush=True)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="a .jsonl whose items are indexed")
    parser.add_argument("--items", type=int, default=1_000_000, help="made where there is no corpus")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="others stay as they are")
    parser.add_argument("--work", type=Path, help="keeps the index, so that parts can be run one by one")
    parser.add_argument("--out", type=Path, default=OUT)
    return parser.parse_args()


def measure_build(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    return in_a_process(build, options, folder)


def build(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Own memory before, with the items read, and at the peak of the build; also the peak with all mapped pages."""
    before = anonymous()
    items = read_items(options.corpus, options.items)
    read = anonymous()
    built: list[Index] = []
    work = folder.with_suffix(".work")
    peak = watch_anonymous(lambda: built.append(build_index(items, folder, prior=True, work=work)))
    return {
        "items": len(items),
        "calls": built[0].report.calls,
        "own_mb": {"before": round(before, 1), "items read": round(read, 1), "peak": round(peak, 1)},
        "own_bytes_per_item": round((peak - before) * 2**20 / len(items)),
        "peak_resident_mb": round(peak_resident(), 1),
        "seconds": {step: round(took, 1) for step, took in built[0].report.seconds.items()},
    }


def measure_files(_: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Bytes per item of each file, and of each array among the vectors."""
    index = Index.load(folder)
    files = {file.name.split("-")[0]: file.stat().st_size / len(index) for file in sorted(folder.glob("*-*"))}
    assert index.prior is not None
    arrays = {"vectors": index.vectors, "traits": index.prior.latent_factors, "bias": index.prior.bias}
    return {
        "items": len(index),
        "bytes_per_item": {name: round(size, 1) for name, size in files.items()},
        "arrays": {name: round(array.nbytes / len(index), 1) for name, array in arrays.items()},
    }


def measure_searches(_: argparse.Namespace, folder: Path) -> dict[str, Any]:
    return {name: in_a_process(measure_search, folder, name) for name in SEARCHES}


def measure_search(folder: Path, name: str) -> dict[str, Any]:
    """Memory after each step of a process that opens the index and searches, and the peak of its own."""
    import torch  # noqa: F401  # so that its pages are there from the start

    steps = {"started": memory(os.getpid(), folder)}

    def run() -> None:
        for step, _ in run_search(folder, name):
            steps[step] = memory(os.getpid(), folder)

    return {"peak_own_mb": round(watch_anonymous(run), 1), "steps": steps}


def run_search(folder: Path, name: str) -> Iterator[tuple[str, object]]:
    """Opens the index, makes the retriever that is needed, and searches; each step, and what is held then."""
    index = Index.load(folder)
    yield "open", index
    searcher = Searcher(index, scorer=SCORER, encoder=ENCODER)
    searcher.prepare(READY[name])
    yield "ready", searcher
    for query in ("fix the build", "a word in the middle"):
        searcher.search(query, k=10, strategy=SEARCHES[name])
    yield "searched", searcher


def measure_together(_: argparse.Namespace, folder: Path) -> dict[str, Any]:
    return {name: {n: measure_processes(folder, name, n) for n in counts} for name, counts in TOGETHER.items()}


def measure_processes(folder: Path, name: str, count: int) -> dict[str, Any]:
    """Memory of several processes that have opened and searched the same index and hold it still."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(count)]
    workers = [context.Process(target=search_and_wait, args=(folder, name, theirs)) for _, theirs in pipes]
    for worker in workers:
        worker.start()
    for mine, _ in pipes:
        mine.recv()
    found = [memory(worker.pid, folder) for worker in workers if worker.pid is not None]
    for (mine, _), worker in zip(pipes, workers, strict=True):
        mine.send("end")
        worker.join()
    return {"pss_mb": round(sum(one["pss_mb"] for one in found), 1), "processes": found}


def search_and_wait(folder: Path, name: str, pipe: Connection) -> None:
    held = [what for _, what in run_search(folder, name)]
    pipe.send(len(held))
    pipe.recv()


def memory(process: int, folder: Path) -> dict[str, float]:
    """Megabytes of a process: all, its proportional share, its own; and of the index's files, all and its share."""
    found = dict.fromkeys([*COUNTED.values(), "index", "index_pss"], 0)
    mapped = False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):  # begins a mapping
            mapped = str(folder) in line
        elif name in COUNTED:
            found[COUNTED[name]] += int(rest[0])
            if mapped and name != "Anonymous:":
                found["index" if name == "Rss:" else "index_pss"] += int(rest[0])
    return {f"{name}_mb": round(value / 1024, 1) for name, value in found.items()}


PARTS = {
    "build": measure_build,
    "files": measure_files,
    "searches": measure_searches,
    "together": measure_together,
}


if __name__ == "__main__":
    main()
