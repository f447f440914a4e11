"""Writes the tables of docs/ablations.md from the result files.

crossknn bench matrix <score folder> --index-calls-per-item 8 --json benchmarks/results/ablations_<set>.json --report x
python -m benchmarks.ablation_page
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.tables import Table, as_table, fill

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "ablations.md"
SETS = ("scifact", "commits-dpdk", "wordnet-wsd")
KS = (1, 10, 100)
SHOWN = ("rerank, fused", "axn", "axn, fitted", "adacur", "posterior", "posterior, prior", "exact")


def main() -> None:
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")


def tables() -> dict[str, Table]:
    return {
        "strategies": as_table(
            ["strategy", *(f"{name}, {b} calls" for name in SETS for b in (100, 500))], strategies()
        ),
        "rounds": as_table(["strategy", "rounds", *SETS], curves("rounds")),
        "mix": as_table(["strategy", "λ", *SETS], curves("mix")),
        "sampling": as_table(["strategy", "calls per item", *SETS], curves("sampling")),
        "quality": as_table(
            ["strategy", *(f"{name}, {what}" for name in SETS for what in QUALITY.values())], quality()
        ),
    }


@cache
def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / f"benchmarks/results/ablations_{name}.json").read_text(encoding="utf-8"))
    return found


def strategies() -> Iterator[list[str]]:
    recalls = {(s, r["strategy"], r["budget"], r["k"]): r["recall"] for s in SETS for r in read(s)["records"]}
    for name in dict.fromkeys(record["strategy"] for record in read(SETS[0])["records"]):
        cells = [join(recalls[s, name, budget, k] for k in KS) for s in SETS for budget in (100, 500)]
        yield [name, *cells]


def curves(study: str) -> Iterator[list[str]]:
    """A line for each strategy and point: recall of the true top 1 / 10 / 100 with 100 calls."""
    found: dict[tuple[str, float], dict[tuple[str, int], float]] = {}
    for name in SETS:
        studied = read(name)["studies"][study]
        for curve in (studied["calls"] if study == "sampling" else studied)["curves"]:
            for point in curve["points"]:
                at = round(point["at"], 1)  # calls per item that were planned are made but for a few
                found.setdefault((curve["strategy"], at), {})[name, curve["k"]] = point["recall"]
    for (strategy, at), recalls in found.items():
        known = [[recalls[name, k] for k in KS if (name, k) in recalls] for name in SETS]
        yield [strategy, f"{at:g}", *(join(shares) if shares else "–" for shares in known)]


QUALITY = {"true top 10": "top 10", "nDCG@10": "nDCG@10"}


def quality() -> Iterator[list[str]]:
    """With 100 calls, and of exact search."""
    levels = {
        (name, level["strategy"]): level["values"]
        for name in SETS
        for level in read(name)["studies"]["quality"]["levels"]
        if level["budget"] == 100 or level["strategy"] == "exact"
    }
    for strategy in SHOWN:
        yield [strategy, *(percent(levels[name, strategy].get(what, 1.0)) for name in SETS for what in QUALITY)]


def join(shares: Iterable[float]) -> str:
    return " / ".join(map(percent, shares))


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


if __name__ == "__main__":
    main()
