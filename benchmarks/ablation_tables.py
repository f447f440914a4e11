"""Tables of docs/ablations.md: every strategy, rounds, λ, offline calls and quality on three sets.

The result files are written by
crossknn bench matrix <score folder> --index-calls-per-item 8 --json benchmarks/results/ablations_<set>.json --report x
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.tables import Table, markdown_table, read_result

SETS = ("scifact", "commits-dpdk", "wordnet-wsd")
KS = (1, 10, 100)
QUALITY = {"true top 10": "top 10", "nDCG@10": "nDCG@10"}
QUALITY_STRATEGIES = ("rerank, fused", "axn", "axn, fitted", "adacur", "posterior", "posterior, prior", "exact")


def read(name: str) -> dict[str, Any]:
    return read_result(f"ablations_{name}")


def strategy_table() -> Table:
    header = ["strategy", *(f"{name}, {budget} calls" for name in SETS for budget in (100, 500))]
    return markdown_table(header, strategies())


def quality_table() -> Table:
    header = ["strategy", *(f"{name}, {label}" for name in SETS for label in QUALITY.values())]
    return markdown_table(header, quality())


def strategies() -> Iterator[list[str]]:
    recalls = {(s, r["strategy"], r["budget"], r["k"]): r["recall"] for s in SETS for r in read(s)["records"]}
    for name in dict.fromkeys(record["strategy"] for record in read(SETS[0])["records"]):
        cells = [join(recalls[s, name, budget, k] for k in KS) for s in SETS for budget in (100, 500)]
        yield [name, *cells]


def curves(study: str) -> Iterator[list[str]]:
    """A row per strategy and setting: recall at k = 1 / 10 / 100 with 100 calls."""
    found: dict[tuple[str, float], dict[tuple[str, int], float]] = {}
    for name in SETS:
        studied = read(name)["studies"][study]
        for curve in (studied["calls"] if study == "sampling" else studied)["curves"]:
            for point in curve["points"]:
                at = round(point["at"], 1)  # planned calls per item, nearly all of which were made
                found.setdefault((curve["strategy"], at), {})[name, curve["k"]] = point["recall"]
    for (strategy, at), recalls in found.items():
        known = [[recalls[name, k] for k in KS if (name, k) in recalls] for name in SETS]
        yield [strategy, f"{at:g}", *(join(shares) if shares else "–" for shares in known)]


def quality() -> Iterator[list[str]]:
    """With 100 calls, and of exact search."""
    levels = {
        (name, level["strategy"]): level["values"]
        for name in SETS
        for level in read(name)["studies"]["quality"]["levels"]
        if level["budget"] == 100 or level["strategy"] == "exact"
    }
    for strategy in QUALITY_STRATEGIES:
        yield [strategy, *(percent(levels[name, strategy].get(what, 1.0)) for name in SETS for what in QUALITY)]


def join(shares: Iterable[float]) -> str:
    return " / ".join(map(percent, shares))


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


TABLES = {
    "ablation strategies": strategy_table,
    "ablation rounds": lambda: markdown_table(["strategy", "rounds", *SETS], curves("rounds")),
    "ablation mix": lambda: markdown_table(["strategy", "λ", *SETS], curves("mix")),
    "ablation sampling": lambda: markdown_table(["strategy", "calls per item", *SETS], curves("sampling")),
    "ablation quality": quality_table,
}
