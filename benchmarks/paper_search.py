"""`Rerank` and `Axn` on real cross-encoder scores: recall of the exact top k within a budget.

    python -m benchmarks.paper_search ../shared/scores/scifact ../shared/scores/acl25k

`Axn` runs with the dual encoder's item vectors, 10 rounds, every mix λ in 0, 0.5, 0.8, and its first round from BM25
or the dual encoder; α and β come from 100 train queries ("train"), from each query's own first scores ("own"), or
scores stay raw ("none").
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from benchmarks.matrices import Matrix, load
from benchmarks.result_files import write_result
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Strategy
from crossknn.strategies.rerank import Rerank

GRID = {50: (1, 10), 100: (1, 10), 200: (1, 10, 100), 500: (1, 10, 100)}
OUT = Path(__file__).parent / "results" / "paper_search.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="folders of score matrices")
    parser.add_argument("--queries", type=int, help="only the first of the test queries")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(1)  # many small solves: a second thread only waits
    report: dict[str, Any] = {
        "rounds": 10,
        "sets": [measure(load(folder).first(options.queries)) for folder in options.folders],
    }
    write_result(options.out, report, options)


def measure(matrix: Matrix) -> dict[str, Any]:
    records = []
    for budget, ks in GRID.items():
        for name, strategy in strategies(budget).items():
            found = matrix.run(strategy, scale=name.partition("αβ=")[2] or "train")
            calls = max(one.calls for one in found)
            recalls = {str(k): round(100 * float(matrix.recall(found, k).mean()), 2) for k in ks}
            records.append({"strategy": name, "budget": budget, "calls": calls, "recall": recalls})
            print(matrix.name, budget, name, recalls, flush=True)
    queries, items = matrix.scores.shape
    return {"set": matrix.name, "queries": queries, "items": items, "records": records, "best": best(records)}


def strategies(budget: int) -> dict[str, Strategy]:
    made: dict[str, Strategy] = {f"Rerank {name}": Rerank(budget, name) for name in ("dense", "bm25", "fused")}
    for first in ("dense", "bm25"):
        for mix in (0.0, 0.5, 0.8):
            for scale in ("train", "own", "none"):
                made[f"Axn {first} λ={mix:g} αβ={scale}"] = Axn(budget, 10, mix, first)
    return made


def best(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per budget and k the best setting of each strategy, chosen on the very queries it is reported for."""
    rows = []
    for budget, ks in GRID.items():
        for k in map(str, ks):
            row: dict[str, Any] = {"budget": budget, "k": int(k)}
            for kind, scale in (("Rerank", ""), ("Axn", "train"), ("Axn", "own")):
                names = [r for r in records if r["budget"] == budget and r["strategy"].startswith(kind)]
                top = max((r for r in names if r["strategy"].endswith(scale)), key=lambda r: r["recall"][k])
                row[f"{kind} {scale}".strip()] = {"recall": top["recall"][k], "setting": top["strategy"]}
            rows.append(row)
    return rows


if __name__ == "__main__":
    main()
