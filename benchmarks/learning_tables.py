"""Tables of learning from searches: recall of the next queries by stage, and what mends the bias of searched lists."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import RESULTS, Table, markdown_table, read_result, signed

CELLS = (("Posterior", 1), ("Posterior", 10), ("Rerank", 10))


def stream() -> Table:
    """Recall after learning from searches, and of an index taught offline."""
    header = ["set", "served", "calls", *(f"`{strategy}`, top {k}" for strategy, k in CELLS)]
    rows = [
        [
            name,
            f"{stage['served']:,}",
            f"{stage['calls']:,}",
            *("/".join(_recall(stage[way], *cell) for way in ("learned", "offline")) for cell in CELLS),
        ]
        for name, record in _sets().items()
        for stage in record["stages"]
    ]
    return markdown_table(header, rows)


def bias() -> Table:
    header = ["set", "lists", *(f"`{strategy}`, top {k}" for strategy, k in CELLS[1:]), "error", "correlation"]
    rows = [
        [
            name,
            way.replace(" items", "").replace(" of the searches' calls", " of calls"),
            *(_recall(measured, *cell) for cell in CELLS[1:]),
            "/".join(signed(measured["error"][items]) for items in ("random", "best")),
            f"{measured['error']['correlation']:.2f}",
        ]
        for name, record in _sets().items()
        for way, measured in record.get("bias", {}).items()
    ]
    return markdown_table(header, rows)


def _sets() -> dict[str, Any]:
    """The sets of the larger run that there is."""
    large = "learning_h200"
    sets: dict[str, Any] = read_result(large if (RESULTS / f"{large}.json").exists() else "learning_cpu")["sets"]
    return sets


def _recall(measured: dict[str, Any], strategy: str, k: int) -> str:
    cells = measured["recall"][strategy]
    return next(f"{cell['mean']:.1f}" for name, cell in cells.items() if name.startswith(f"{k}@"))


TABLES = {"learned recall": stream, "learned bias": bias}
