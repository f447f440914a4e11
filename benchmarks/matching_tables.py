"""Tables of matching records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.tables import Table, markdown_table, read_result

NAMES = {
    "match": "`match`",
    "fused": "fused",
    "bm25": "BM25",
    "dense": "dense",
    "most similar pairs": "most similar pairs",
}


def matching(share: str = "true_found") -> Table:
    """Of each set and threshold, the shares found with 10, 20 and 50 calls per record."""
    rows = []
    for one in read_result("matching")["sets"]:
        for found in one["thresholds"]:
            names = [one["set"], str(found["matches_per_record"])]
            rows.append([*names, *(_shares(found, share, name) for name in NAMES)])
    return markdown_table(["set", "matches", *NAMES.values()], rows)


def _shares(found: Mapping[str, Any], share: str, name: str) -> str:
    percentages = [100 * calls[share][name] for calls in found["calls"]]
    best = [100 * max(calls[share].values()) for calls in found["calls"]]
    shown = [f"**{one:.0f}**" if one == most else f"{one:.0f}" for one, most in zip(percentages, best, strict=True)]
    return " / ".join(shown)


def estimates() -> Table:
    """How often the interval held the true share, and how wide it was, by calls per record."""
    rows = []
    for place, mean in enumerate((10, 20, 50)):
        found = [
            one["calls"][place]["estimate"] for part in read_result("matching")["sets"] for one in part["thresholds"]
        ]
        inside = sum(one["interval"][0] <= one["recall"] <= one["interval"][1] for one in found)
        error = sum(abs(one["recall"] - one["estimated"]) for one in found) / len(found)
        width = sum(one["interval"][1] - one["interval"][0] for one in found) / len(found)
        rows.append([str(mean), f"{inside} of {len(found)}", f"{100 * width:.0f}", f"{100 * error:.0f}"])
    return markdown_table(["calls per record", "interval holds the truth", "mean width", "mean error"], rows)


TABLES = {"matching": matching, "matching estimates": estimates}
