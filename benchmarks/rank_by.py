"""The order of hits by judgments: by score, or fused with what retrievers say, with equal and with fitted weights.

    python -m benchmarks.rank_by <score folder>... --out benchmarks/results/rank_by.json

Each folder's train and test queries are searched, with no index: by exact search, and by Posterior with 100 calls.
Every query is judged once; weights are fitted on the part that it is not in. nDCG@10, in percent, with 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.result_files import write_result
from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.comparison import QUERY_BATCH
from crossknn.evaluate.matrices import read_scores
from crossknn.evaluate.measures import bootstrap_interval, measure_quality, paired_difference
from crossknn.evaluate.splits import Split
from crossknn.evaluate.tasks import read_matrix
from crossknn.search.searcher import Searcher
from crossknn.strategies.base import Strategy
from crossknn.strategies.exact import Exact
from crossknn.strategies.posterior.strategy import Posterior

MEASURE, BEST, BUDGET = "nDCG@10", 10, 100
STRATEGIES: dict[str, Strategy] = {"exact": Exact(), "posterior": Posterior(BUDGET)}
BASE = "by score"

Values = dict[str, np.ndarray]  # of every query, by the order of hits


def main() -> None:
    options = read_options()
    report: dict[str, Any] = {"measure": MEASURE, "budget": BUDGET, "sets": []}
    for folder in options.folders:
        report["sets"].append(measure_set(folder, options.queries))
        write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="of exact scores, with texts and relevant items")
    parser.add_argument("--queries", type=int, help="only the first of each part")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/rank_by.json"))
    return parser.parse_args()


def measure_set(folder: Path, queries: int | None) -> dict[str, Any]:
    parts = read_parts(folder, queries)
    record: dict[str, Any] = {"set": folder.resolve().name, "items": len(parts[0][1].items)}
    record["queries"] = sum(len(split) for split, _ in parts)
    for name, strategy in STRATEGIES.items():
        fitted = [
            searcher.fit_rank_weights(split.texts, split.relevant, strategy=strategy) for split, searcher in parts
        ]
        others = reversed(fitted)
        found = [measure(*part, strategy, weights) for part, weights in zip(parts, others, strict=True)]
        values = {order: np.concatenate([one[order] for one in found]) for order in found[0]}
        record[name] = {order: summarise(line, values[BASE]) for order, line in values.items()}
        record[name]["fitted weights"] = [rounded(weights) for weights in fitted]
        print(json.dumps(record), flush=True)
    return record


def read_parts(folder: Path, queries: int | None) -> list[tuple[Split, Searcher]]:
    """The train and the test queries with their judgments, each with a searcher for them."""
    task, known = read_matrix(folder), read_scores(folder)
    train = replace(task, queries=task.train, scorer=task.train_scorer)
    parts = []
    for part, relevant in ((train, known.train.relevant), (task, known.test.relevant)):
        names = tuple(part.queries[:queries])
        judged = tuple({str(row): 1 for row in rows.tolist()} for rows in relevant[: len(names)])
        parts.append((Split(names, names, judged), Bench(part).searcher("encoder")))
    return parts


def measure(split: Split, searcher: Searcher, strategy: Strategy, fitted: Mapping[str, float]) -> Values:
    """Quality of each order of the hits; `fitted` are weights of other queries."""
    orders: dict[str, tuple[str, Mapping[str, float] | None]] = {
        BASE: ("score", None),
        "fused, equal weights": ("fused", None),
        "fused, fitted weights": ("fused", fitted),
    }
    values = {}
    for name, (rank_by, weights) in orders.items():
        searcher.rank_weights = None if weights is None else dict(weights)
        values[name] = judge(split, searcher, strategy, rank_by)
    return values


def judge(split: Split, searcher: Searcher, strategy: Strategy, rank_by: str) -> np.ndarray:
    parts = [split.texts[start : start + QUERY_BATCH] for start in range(0, len(split), QUERY_BATCH)]
    search = partial(searcher.search_many, k=BEST, strategy=strategy, rank_by=rank_by)
    found = chain.from_iterable(map(search, parts))
    return 100 * measure_quality(split, [hits.ids for hits in found], measures=[MEASURE])[MEASURE]


def summarise(values: np.ndarray, base: np.ndarray) -> dict[str, Any]:
    low, high = bootstrap_interval(values)
    found = {"mean": values.mean(), "low": low, "high": high}
    return {**rounded(found), f"− {BASE}": rounded(paired_difference(values, base)._asdict())}


def rounded(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: round(float(value), 2) for name, value in numbers.items()}


if __name__ == "__main__":
    main()
