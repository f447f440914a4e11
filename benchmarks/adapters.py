"""Adapters over frozen vectors: recall per call beside the vectors as they came, with and without a prior.

    python -m benchmarks.adapters <score folder with texts>... --out benchmarks/results/adapters.json

The scores of train queries are looked up, so that this runs on a CPU: `Index.build` with `Teaching(student=…)` on the
train queries of the folder, then the recall of the strategies on its test queries.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.posterior import summarise
from benchmarks.result_files import write_result
from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.evaluate.comparison import rows_of
from crossknn.evaluate.ground_truth import truth_rows
from crossknn.evaluate.matrices import ScoreFolder, precomputed_scorer, read_scores
from crossknn.evaluate.measures import top_k_recall
from crossknn.indexing.index import Index
from crossknn.indexing.teaching.settings import Teaching
from crossknn.search.searcher import Searcher
from crossknn.strategies.base import Strategy
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank

CELLS = ((1, 100), (10, 100), (10, 500), (100, 500))
LISTED_ITEMS = 96  # scored for each train query in each of two rounds
FINGERPRINTS = {"scorer": "known-scores", "encoder": "known-vectors"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/adapters.json"))
    options = parser.parse_args()
    report: dict[str, Any] = {"sets": {}}
    for path in options.folders:
        folder = read_scores(path)
        record = report["sets"].setdefault(folder.name, {})
        for way, measured in measure_set(folder):
            record[way] = measured
            write_result(options.out, report, options)


def measure_set(folder: ScoreFolder) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each way of building, with its calls and recall."""
    assert folder.dataset is not None, "the folder must have texts"
    items, train = folder.dataset.items, folder.train
    sides = [(list(part.texts), part.vectors) for part in (train, folder.test)]
    queries = ([*sides[0][0], *sides[1][0]], np.concatenate([sides[0][1], sides[1][1]]))
    encoder = PrecomputedEncoder(
        queries=queries, items=(list(items.texts), folder.item_vectors), fingerprint=FINGERPRINTS["encoder"]
    )
    scorer = precomputed_scorer(
        train.scores, queries=train.texts, items=items.texts, fingerprint=FINGERPRINTS["scorer"]
    )
    teaching = replace(
        Teaching.default(len(items), student="adapter"), lists=len(set(train.texts)), items_per_list=LISTED_ITEMS
    )
    for_queries = replace(teaching, student="query-adapter")
    ways: dict[str, dict[str, Any]] = {
        "as it came": {"teach": False, "factors": None},
        "query adapter": {"teach": for_queries},
        "adapter": {"teach": teaching},
        "prior": {"teach": False, "factors": None, "prior": True},
        "query adapter, prior": {"teach": for_queries, "prior": True},
        "adapter, prior": {"teach": teaching, "prior": True},
    }
    for way, settings in ways.items():
        began = time.perf_counter()
        settings = {"prior": False, "calibrate": False, **settings}
        index = Index.build(items, scorer=scorer, encoder=encoder, queries=train.texts, **settings)
        took = time.perf_counter() - began
        teaching_report = index.report.teaching
        recall = measure(folder, index, encoder)
        print(folder.name, way, f"{took:.0f} s", index.report, recall, sep="\n", flush=True)
        yield (
            way,
            {
                "calls": index.report.calls,
                "build_seconds": round(took, 1),
                "teaching": None if teaching_report is None else teaching_report.as_dict(),
                "recall": recall,
            },
        )


def measure(folder: ScoreFolder, index: Index, encoder: PrecomputedEncoder) -> dict[str, dict[str, Any]]:
    test = folder.test
    scorer = precomputed_scorer(
        test.scores, queries=test.texts, items=index.items.texts, fingerprint=FINGERPRINTS["scorer"]
    )
    searcher = Searcher(index, scorer=scorer, encoder=encoder)
    truth = truth_rows(test.scores, max(k for k, _ in CELLS))
    recall: dict[str, dict[str, Any]] = {}
    for budget in sorted({budget for _, budget in CELLS}):
        strategies: dict[str, Strategy] = {
            "rerank, dense": Rerank(budget, "dense"),
            "rerank, fused": Rerank(budget, "fused"),
            "posterior": Posterior(budget, 10),
        }
        for name, strategy in strategies.items():
            rows = [rows_of(hits) for hits in searcher.search_many(list(test.texts), k=budget, strategy=strategy)]
            for k in (k for k, calls in CELLS if calls == budget):
                recall.setdefault(name, {})[f"{k}@{budget}"] = summarise(100 * top_k_recall(truth, rows, k))
    return recall


if __name__ == "__main__":
    main()
