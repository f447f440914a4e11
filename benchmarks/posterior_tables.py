"""Tables of what was measured of posterior search beside its recall: stopping, and what a round asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.tables import Table, as_table

AS_IT_IS = "as it is"  # in the results of asking.py
EXPECTED = {50: 2, 70: 3, 85: 4, 93: 5, 97: 6}  # about so much, and the number of that bin
FEW = 10  # searches in a bin, that show nothing
STOPS = (0.9, 0.95, 0.99)
CELLS = ("1@25", "10@50", "1@100", "10@100", "100@500")


def stopping(found: dict[str, Any]) -> Table:
    head = ["set", "", "k", *map(str, EXPECTED), f"`stop_at={STOPS[0]}`", *map(str, STOPS[1:])]
    rows = (
        [one["set"], side, str(top["k"]), *_calibration(top), *_stops(top)]
        for one in found["sets"]
        for side, measured in one["sides"].items()
        for top in measured["top"]
    )
    return as_table(head, rows)


def _calibration(top: dict[str, Any]) -> Iterator[str]:
    bins = dict(enumerate(top["calibration"]))
    for number in EXPECTED.values():
        mine = bins.get(number, {"searches": 0})
        yield f"{mine['expected']:.0f} → {mine['measured']:.0f}" if mine["searches"] >= FEW else "–"


def _stops(top: dict[str, Any]) -> Iterator[str]:
    for stop in top["stops"]:
        if stop["stop_at"] in STOPS:
            same = "–" if stop["fixed_budget"] is None else f"{stop['fixed_budget']:.0f}"
            yield f"{stop['calls']:.0f}, {stop['measured']} ({same})"


def asking(found: dict[str, Any]) -> Table:
    rows: list[list[str]] = []
    for one in found["sets"]:
        for side in ("no index", "prior"):
            rows.append([one["set"], side, AS_IT_IS, *(str(one[side]["recall"][AS_IT_IS][cell]) for cell in CELLS)])
            for name, differences in one[side][f"− {AS_IT_IS}"].items():
                rows.append(["", "", name, *(_difference(differences[cell]) for cell in CELLS)])
    return as_table(["set", "", "", *CELLS], rows)


def _difference(found: dict[str, float]) -> str:
    """Bold where the interval is on one side of 0."""
    shown = f"{found['mean']:+.1f}".replace("-", "−")
    return f"**{shown}**" if found["low"] > 0 or found["high"] < 0 else shown
