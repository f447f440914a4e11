"""The leaderboard: a static page with the recalls of all result files, filters, plots and where each number is from.

    make leaderboard    # or python -m benchmarks.leaderboard

It writes site/leaderboard/index.html, and the result files beside it. The page needs no server and loads nothing. Its
rows are those of files that `crossknn bench --json` writes, and of rivals_*.json, robustness.json, time_budget.json
and posterior.json; all other result files are listed with what they say of their origin.
"""

from __future__ import annotations

import argparse
import json
import shutil
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import asdict, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from benchmarks.leaderboard_rows import Row, distinct, find_losses, read_rows
from benchmarks.result_files import RESULTS, provenance_of, staleness
from crossknn._imports import import_extra
from crossknn.evaluate.measures import LEVEL
from crossknn.evaluate.report import formats, page

HERE: Final = Path(__file__).parent
OUT: Final = HERE.parent / "site" / "leaderboard"
TIMES: Final = "time_budget.json"
MOST_LOSSES: Final = 25  # that the page lists


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the page")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of result files")
    options = parser.parse_args()
    print(write_leaderboard(options.out, options.results))


def write_leaderboard(folder: Path, results: Path = RESULTS) -> Path:
    """Write the page, and the result files beside it."""
    files = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))}
    (folder / "results").mkdir(parents=True, exist_ok=True)
    for name in files:
        shutil.copyfile(results / name, folder / "results" / name)
    (folder / "index.html").write_text(render(files), encoding="utf-8")
    return folder / "index.html"


def render(files: Mapping[str, Any]) -> str:
    jinja2 = import_extra("jinja2", extra="report")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([HERE / "leaderboard_page", Path(page.__file__).parent]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    newest_first = sorted(files, key=lambda name: ("provenance" not in files[name], name.startswith("ablations"), name))
    rows = distinct([row for name in newest_first for row in read_rows(name, files[name])])
    script = (HERE / "leaderboard_page" / "leaderboard.js").read_text(encoding="utf-8")
    text: str = environment.get_template("leaderboard.html.j2").render(
        files=[describe_file(name, found, rows) for name, found in files.items()],
        times=describe_times(files),
        losses=describe_losses(rows),
        rows=len(rows),
        sets=len({row.set for row in rows}),
        data=as_json(rows),
        script=script,
        script_digest=b64encode(sha256(script.encode()).digest()).decode(),
        confidence=f"{100 * LEVEL:.0f}{formats.PERCENT}",
    )
    return text


def as_json(rows: list[Row]) -> str:
    """The names of the columns and the values of each row, so that they can stand in a script element."""
    table = {"columns": [one.name for one in fields(Row)], "rows": [list(asdict(row).values()) for row in rows]}
    return json.dumps(table, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def describe_file(name: str, found: Mapping[str, Any], rows: list[Row]) -> dict[str, Any]:
    """What the page says of a result file."""
    known, changed = provenance_of(found), staleness(found)
    versions = known.get("versions", {})
    return {
        "name": name,
        "rows": sum(row.file == name for row in rows),
        "changed": changed,
        "state": "unknown" if changed is None else "stale" if changed else "current",
        "sources": len(known.get("sources", {})),
        "facts": {
            "command": known.get("command"),
            "commit": known.get("commit"),
            "hardware": known.get("hardware"),
            "seed": known.get("seed"),
            "versions": versions if isinstance(versions, str) else ", ".join(f"{k} {v}" for k, v in versions.items()),
        },
        "uncommitted": known.get("uncommitted changes", False),
    }


def describe_losses(rows: list[Row]) -> dict[str, Any]:
    """The settings in which the default strategy is not the best, those that are shown first."""
    losses, settings = find_losses(rows)
    shown = [loss for loss in losses if loss.shown]
    return {"settings": settings, "count": len(losses), "shown": len(shown), "rows": losses[:MOST_LOSSES]}


def describe_times(files: Mapping[str, Any]) -> dict[str, Any] | None:
    """The recalls within the same time; None if they were not measured."""
    found = files.get(TIMES)
    if found is None:
        return None
    sets = []
    for one in found["sets"]:
        for k in dict.fromkeys(cell["k"] for cell in one["cells"]):
            cells = [cell for cell in one["cells"] if cell["k"] == k]
            names = dict.fromkeys(cell["strategy"] for cell in cells)
            table = [{"name": name, "cells": [cell for cell in cells if cell["strategy"] == name]} for name in names]
            heads = [f"{seconds:g} s" for seconds in dict.fromkeys(cell["seconds"] for cell in cells)]
            sets.append({**{name: one[name] for name in ("set", "scorer")}, "k": k, "heads": heads, "rows": table})
    return {"file": TIMES, "cores": found["cores"], "sets": sets}


if __name__ == "__main__":
    main()
