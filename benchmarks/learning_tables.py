"""Tables of learning from searches: recall of the next queries by stage, and what mends the bias of searched lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.tables import RESULTS, Table, markdown_table, read_result, signed

CELLS = (("Posterior", 1), ("Posterior", 10), ("Rerank", 10))
SHOWN = ("`Posterior`, top 1", "`Posterior`, top 10", "`Rerank`, top 10")


def stream() -> Table:
    """Recall after learning from searches → with an index taught offline."""
    header = ["set", "served", "calls", *(f"{shown}: learned, offline" for shown in SHOWN)]
    rows = [
        [
            name,
            f"{stage['served']:,}",
            f"{stage['calls']:,}",
            *(", ".join(_recall(stage[way], *cell) for way in ("learned", "offline")) for cell in CELLS),
        ]
        for name, record in _sets()
        for stage in record["stages"]
    ]
    return markdown_table(header, rows)


def bias() -> Table:
    header = ["set", "lists", "calls", *SHOWN, "error of all items", "of the best", "correlation"]
    rows = [
        [
            name,
            way,
            "–" if measured["teaching"] is None else f"{measured['teaching']['calls']:,}",
            *(_recall(measured, *cell) for cell in CELLS),
            *(signed(measured["error"][items]) for items in ("random", "best")),
            f"{measured['error']['correlation']:.2f}",
        ]
        for name, record in _sets()
        for way, measured in record.get("bias", {}).items()
    ]
    return markdown_table(header, rows)


def _sets() -> Iterator[tuple[str, dict[str, Any]]]:
    """The sets of all result files, larger runs first."""
    for path in sorted(RESULTS.glob("learning_*.json"), reverse=True):
        for name, record in read_result(path.stem)["sets"].items():
            yield name + ", small" * (path.stem == "learning_cpu"), record


def _recall(measured: dict[str, Any], strategy: str, k: int) -> str:
    cells = measured["recall"][strategy]
    return next(f"{cell['mean']:.1f}" for name, cell in cells.items() if name.startswith(f"{k}@"))


TABLES = {"learned recall": stream, "learned bias": bias}
