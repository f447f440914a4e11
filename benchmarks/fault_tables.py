"""The table of faults that were tried, by group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.tables import Table, markdown_table, read_result

GROUPS = {
    "kills": "SIGKILL at every stage of build, teach, save, add, learn and cache, then run again",
    "disk": "full and read-only disks at every stage, output that cannot be written",
    "damage": "every file of an index and a work folder: bits, blocks, lengths, checksums made right",
    "writers": "two writers, readers and a server beside a writer",
    "clocks": "a wall clock that jumps by years",
    "scorers": "scorers that lie, fail in the middle, are slow or hang",
    "servers": "remote servers that hang, drip, break off, lie and storm",
    "clients": "half-open, dripping, leaving clients at a service, up to its limit of open files",
    "stores": "FAISS, PostgreSQL and Ray: killed, full, damaged, late",
}


def faults() -> Table:
    return markdown_table(["faults", "kinds", "tried", "held", "lost"], fault_rows(read_result("faults")["kinds"]))


def fault_rows(kinds: Iterable[dict[str, Any]]) -> list[list[str]]:
    """Sums of each group, and of all."""
    tried = [kind for kind in kinds if not kind.get("skipped")]
    groups = [(label, [kind for kind in tried if kind["group"] == name]) for name, label in GROUPS.items()]
    return [_row(label, found) for label, found in (*groups, ("all", tried)) if found]


def _row(label: str, kinds: list[dict[str, Any]]) -> list[str]:
    sums = (f"{sum(kind[key] for kind in kinds):,}" for key in ("tried", "held", "lost"))
    return [label, str(len(kinds)), *sums]


TABLES = {"faults": faults}
