"""A large corpus from end to end: reading, BM25, encoding, scoring, fitting, saving, opening, searching, and recall.

    python -m benchmarks.million <BEIR folder> --scorer <folder> --encoder <folder> --device cuda --exact 10

Builds an index with a prior (8 calls per item) and searches test queries in batches with every strategy: 64 of them
for what is only done once, which takes the `first_seconds`, then 64 others, which take the `seconds`. Recall is
against the exact scores of the first `--exact` of them, each scored with all items. Every step has its seconds and the
peak of resident memory up to its end; what does not depend on the corpus's size is part of the first.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.result_files import write_result
from benchmarks.sets import Set, add_options, open_scorer, read_set
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.evaluate.comparison import rows_of
from crossknn.evaluate.ground_truth import exact_scores, truth_rows
from crossknn.evaluate.measures import top_k_recall
from crossknn.indexing.index import Index
from crossknn.search.results import Hits
from crossknn.search.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Strategy
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.types import Scorer

KS, BUDGETS, TOGETHER = (1, 10, 100), (100, 500), 64


def main() -> None:
    options = read_options()
    report: dict[str, Any] = {"steps": {}}
    with step(report, "open models"):
        half = "float16" if options.device.startswith("cuda") else "auto"  # vectors are stored in it anyway
        scorer, encoder = open_scorer(options), SentenceEncoder(options.encoder, device=options.device, dtype=half)
    with step(report, "read"):
        data = read_set(options.set, scorer, options)
    report |= {"set": data.name, "items": len(data.items), "train_queries": len(data.train.texts)}
    folder = options.work / f"{data.name}.ck"
    with step(report, "build"):
        index = build(data, scorer, encoder, folder, options)
    report["build"] = index.report.as_dict()
    report["bytes"] = sum(path.stat().st_size for path in folder.iterdir())
    del index
    with step(report, "open"):
        index = Index.load(folder)
    searcher = Searcher(index, scorer=scorer, encoder=encoder, device=options.device)
    with step(report, "prepare"):  # what the index does not keep
        searcher.prepare()
    queries = data.test.texts
    report["searches"] = [search(searcher, queries, one) for one in strategies()]
    write_result(options.out, report, options)
    if options.exact:
        with step(report, "exact scores"):
            truth = truth_rows(exact_scores(data.items, queries[: options.exact], scorer, options.work), max(KS))
        for one, record in zip(strategies(), report["searches"], strict=True):
            record["recall"] = recall(searcher, queries[: options.exact], truth, one)
            print(record, flush=True)
    write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", help="a BEIR folder")
    add_options(parser, train=500, test=2 * TOGETHER)
    parser.add_argument("--exact", type=int, default=10, help="test queries that are scored with all items")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/million.json"))
    return parser.parse_args()


def build(data: Set, scorer: Scorer, encoder: SentenceEncoder, folder: Path, options: argparse.Namespace) -> Index:
    index = Index.build(
        data.items,
        scorer=scorer,
        encoder=encoder,
        queries=data.train.texts,
        factors=None,
        prior=True,
        work_dir=options.work / f"{data.name}.work",
        device=options.device,
    )
    index.save(folder)
    return index


def strategies() -> Iterator[Strategy]:
    for budget in BUDGETS:
        yield from (Rerank(budget), Axn(budget, 10), Posterior(budget, 10))


def search(searcher: Searcher, queries: list[str], strategy: Strategy) -> dict[str, Any]:
    """Seconds in and outside the scorer, of queries that are searched together."""
    (first, _), (took, hits) = (
        timed(searcher, some, strategy) for some in (queries[:TOGETHER], queries[TOGETHER : 2 * TOGETHER])
    )
    record = {"strategy": repr(strategy), "queries": len(hits), "calls": sum(one.calls for one in hits)}
    record |= {"first_seconds": round(first, 3), "seconds": round(took, 3)}
    record["score_seconds"] = round(hits[0].score_seconds, 3)
    print(record, flush=True)
    return record


def timed(searcher: Searcher, queries: list[str], strategy: Strategy) -> tuple[float, list[Hits]]:
    began = time.perf_counter()
    hits = searcher.search_many(queries, k=10, strategy=strategy)
    return time.perf_counter() - began, hits


def recall(searcher: Searcher, queries: list[str], truth: list[np.ndarray], strategy: Strategy) -> dict[str, float]:
    assert strategy.budget is not None
    rows = [rows_of(hits) for hits in searcher.search_many(queries, k=strategy.budget, strategy=strategy)]
    return {str(k): round(100 * float(top_k_recall(truth, rows, k).mean()), 1) for k in KS}


@contextmanager
def step(report: dict[str, Any], name: str) -> Iterator[None]:
    """Its seconds, and the peaks of memory up to its end, of this process and of what torch holds on a GPU."""
    began = time.perf_counter()
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    taken = {"seconds": round(time.perf_counter() - began, 2), "peak_mb": round(peak)}
    if torch.cuda.is_available():
        taken["gpu_peak_mb"] = round(torch.cuda.max_memory_reserved() / 2**20)
    report["steps"][name] = taken
    print(name, taken, flush=True)


if __name__ == "__main__":
    main()
