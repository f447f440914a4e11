"""Tables of teaching: recall with the encoder as it came, taught and with an adapter; calls saved; what it costs."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import Table, markdown_table, read_result

CELLS = ("1@100", "10@100", "10@500", "100@500")
KINDS = {"Rerank": "best `Rerank`", "Axn": "best `Axn`", "Posterior": "`Posterior`"}
WAYS = {"encoder": "as it came", "taught": "taught", "taught, prior": "taught, with a prior"}
BUDGETS = (100, 200, 500)
SHARE = 4
ADAPTER_CELLS = (
    ("rerank, dense", "10@100"),
    ("posterior", "1@100"),
    ("posterior", "10@100"),
    ("posterior", "100@500"),
)


def recall() -> Table:
    rows = [
        [name, label, shown, *(f"{_best(ways[way]['recall'], kind, cell):.1f}" for cell in CELLS)]
        for name, ways in _sets().items()
        for way, label in WAYS.items()
        if way in ways
        for kind, shown in KINDS.items()
        if kind == "Posterior" or "prior" not in way  # which only Posterior uses
    ]
    return markdown_table(["set", "encoder", "strategy", *CELLS], rows)


def fewer_calls() -> Table:
    """The best of Rerank and Axn with the encoder as it came, and Posterior with the taught one for a quarter."""
    rows = []
    for name, ways in _sets().items():
        for k in (1, 10, 100):
            cells = []
            for budget in BUDGETS:
                few = budget // SHARE
                if k > few:
                    cells.append("–")
                    continue
                before = max(_best(ways["encoder"]["recall"], kind, f"{k}@{budget}") for kind in ("Rerank", "Axn"))
                cells.append(f"{before:.1f} → {_best(ways['taught']['recall'], 'Posterior', f'{k}@{few}'):.1f}")
            rows.append([name, f"top {k}", *cells])
    return markdown_table(["set", "", *(f"{budget} → {budget // SHARE} calls" for budget in BUDGETS)], rows)


def cost() -> Table:
    header = ["set", "items", "calls", "scoring, s", "training, s", "pairs per second", "build, s", "held-out pools"]
    rows = []
    for name, ways in _sets().items():
        taught, teaching = ways["taught"], ways["taught"]["teaching"]
        seconds = teaching["seconds"]
        rows.append(
            [
                name,
                f"{ways['facts']['items']:,}",
                f"{teaching['calls']:,}",
                f"{seconds['score']:.0f}",
                f"{seconds['train']:.0f}",
                f"{teaching['pairs_per_s']:,}",
                f"{taught['build_seconds']:.0f}",
                f"{100 * teaching['recall_before']:.0f} → {100 * teaching['recall']:.0f} %",
            ]
        )
    return markdown_table(header, rows)


def adapters() -> Table:
    """Recall with an adapter over frozen vectors, beside the vectors as they came."""
    rows = [
        [
            name,
            way,
            f"{measured['calls']:,}",
            *(f"{measured['recall'][strategy][cell]['mean']:.1f}" for strategy, cell in ADAPTER_CELLS),
        ]
        for name, ways in read_result("adapters")["sets"].items()
        for way, measured in ways.items()
    ]
    header = ["set", "vectors", "calls", *(f"{strategy}, {cell}" for strategy, cell in ADAPTER_CELLS)]
    return markdown_table(header, rows)


def _sets() -> dict[str, Any]:
    sets: dict[str, Any] = read_result("teaching_h200")["sets"]
    return sets


def _best(recall: dict[str, Any], kind: str, cell: str) -> float:
    """Of the strategies of a kind, each with its own setting."""
    return max(float(cells[cell]["mean"]) for name, cells in recall.items() if name.startswith(kind) and cell in cells)


TABLES = {"taught recall": recall, "taught calls": fewer_calls, "taught cost": cost, "adapters": adapters}
