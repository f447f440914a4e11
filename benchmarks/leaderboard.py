"""The leaderboard: a static page with the recalls of all result files, filters, plots and where each number is from.

    make leaderboard    # or python -m benchmarks.leaderboard

It writes site/leaderboard/index.html, and the result files beside it. The page needs no server and loads nothing. Its
rows are those of files that `crossknn bench --json` writes and of posterior.json, beside the times of time_budget.json;
all other result files are listed with what they say of their origin.
"""

from __future__ import annotations

import argparse
import json
import shutil
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from benchmarks.result_files import RESULTS, provenance_of, staleness
from crossknn._imports import import_extra
from crossknn.evaluate.measures import LEVEL
from crossknn.evaluate.report import formats, page

HERE: Final = Path(__file__).parent
OUT: Final = HERE.parent / "site" / "leaderboard"
PLAIN: Final = {"scorer": "MiniLM-L6", "encoder": "all-MiniLM-L6-v2"}  # of score folders that name no models
TRAINED: Final = {"scorer": "[emb]-CE trained on the set", "encoder": "dual encoder trained on the set"}
CELLS: Final = {"Posterior": "posterior, prior", "Posterior, no index": "posterior"}  # of posterior.json
BASELINE: Final = "rerank, fused"
TIMES: Final = "time_budget.json"
OFFLINE: Final = {"fitted": "fitted vectors", "prior": "prior", "cur": "CUR", "scale": "α and β"}


@dataclass(frozen=True)
class Row:
    """One recall, in percent, with its interval; what is not known is None."""

    file: str
    set: str
    items: int
    queries: int
    scorer: str
    encoder: str
    strategy: str
    k: int
    budget: int
    recall: float
    low: float | None = None
    high: float | None = None
    baseline: str | None = None
    difference: tuple[float, float, float] | None = None  # to the baseline: mean, low, high of the paired interval
    calls: float | None = None  # per query
    offline: float | None = None  # calls per item
    milliseconds: float | None = None  # per query
    beside: float | None = None  # milliseconds without those in the scorer
    oracle: bool = False


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


def read_rows(name: str, found: Mapping[str, Any]) -> Iterator[Row]:
    """The recalls of a result file; none if it is of another kind."""
    if "header" in found and "records" in found:
        yield from read_comparison(name, found)
    elif name.startswith("posterior"):
        for one in found["sets"]:
            yield from read_posterior(name, one)


def read_comparison(name: str, found: Mapping[str, Any]) -> Iterator[Row]:
    """What `crossknn bench --json` has written."""
    header = found["header"]
    data, items = header["data"], header["items"]
    shared = {"file": name, "set": data["data"], "items": items, "queries": data["queries"], **models_of(header)}
    for record in found["records"]:
        seconds, difference = record["seconds"], record.get("difference")
        parts = [seconds[part] for part in ("solve", "search") if part in seconds]
        scorer = seconds.get("scorer")
        yield Row(
            **shared,
            strategy=record["strategy"],
            k=record["k"],
            budget=record["budget"],
            **{part: round(100 * record[part], 2) for part in ("recall", "low", "high")},
            baseline=record["baseline"],
            difference=difference and tuple(round(100 * difference[part], 2) for part in ("mean", "low", "high")),
            calls=record["calls"],
            offline=offline_calls(record["strategy"], data, items),
            milliseconds=None if scorer is None else round(1000 * (scorer + sum(parts)), 2),
            beside=round(1000 * sum(parts), 2),
            oracle=record.get("oracle", False),
        )


def read_posterior(name: str, found: Mapping[str, Any]) -> Iterator[Row]:
    """One set of `benchmarks.posterior`: means of all settings, intervals of those in its cells."""
    shared = {"file": name, "set": found["set"], "items": found["items"], "queries": found["test_queries"]}
    for cell in found["cells"]:
        k, budget = cell["k"], cell["budget"]
        known = {CELLS.get(side, side): cell[side] for side in CELLS}
        known |= {as_in_bench(one["setting"]): one for one in (cell["best Rerank"], cell["best Axn"])}
        differences = {CELLS[side]: cell[f"{side} − Rerank, fused"] for side in CELLS}
        for setting, means in found["settings"].items():
            strategy = as_in_bench(setting)
            interval, gap = known.get(strategy, {}), differences.get(strategy)
            yield Row(
                **shared,
                **PLAIN,
                strategy=strategy,
                k=k,
                budget=budget,
                recall=means[f"{k}@{budget}"],
                low=interval.get("low"),
                high=interval.get("high"),
                baseline=BASELINE if gap else None,
                difference=gap and (gap["mean"], gap["low"], gap["high"]),
                calls=budget,
                offline=None if setting.startswith("Axn") else found["calls_per_item"] * strategy.endswith(", prior"),
            )


def as_in_bench(setting: str) -> str:
    """The name that `crossknn bench` gives to a setting of posterior.json, such as "Axn, dense λ=0.5"."""
    name, _, rest = setting.partition(", ")
    first, _, mix = rest.partition(" λ=")
    return CELLS.get(setting) or (f"axn, λ {mix}, {first} first" if mix else f"{name.lower()}, {first}")


def models_of(header: Mapping[str, Any]) -> dict[str, str]:
    """The names of the models: those of the command, or of the folders of scores."""
    words = (header["command"] or "").split()
    given = {name: words[words.index(f"--{name}") + 1] for name in PLAIN if f"--{name}" in words}
    return {**(TRAINED if header["data"]["data"].endswith("-emb") else PLAIN), **given}


def offline_calls(strategy: str, data: Mapping[str, Any], items: int) -> float | None:
    """Calls per item before the first query; 0 for a strategy that needs none, None if the file does not say."""
    kind = strategy.partition(",")[0]
    needs = next((need for need in ("fitted", "prior") if strategy.endswith(f", {need}")), None)
    needs = needs or ("cur" if kind in ("anncur", "adacur") else "scale" if kind in ("axn", "tour") else None)
    if needs is None:
        return 0.0
    calls = data.get(f"offline calls, {OFFLINE[needs]}")
    return None if calls is None else round(calls / items, 1)


def distinct(rows: list[Row]) -> list[Row]:
    """Without rows that say no more of a search than an earlier one: one run may have written two files."""
    kept: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        search = (row.set, row.scorer, row.encoder, row.queries, row.strategy, row.k, row.budget)
        kept.setdefault((*search, round(row.recall, 1), row.difference is None), row)
    return list(kept.values())


if __name__ == "__main__":
    main()
