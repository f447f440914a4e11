"""What the fields of items cost: a million items with five fields, beside the same files read without them.

    OMP_NUM_THREADS=1 python -m benchmarks.item_fields

Each reading and opening runs in a process of its own, with and without fields in turn; times are seconds of processor
time, the least of `--repeats`. "Own" memory is what a process has for itself after reading (anonymous pages), which the
mapped file of an index does not add to. Filters run on the mapped file, with and without an index on every field: the
first search's, which reads the column, and the median of later ones.

`--before` names a checkout of a version without fields, whose reading is measured beside.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.big_index import VOCABULARY, WORDS
from benchmarks.memory import anonymous, in_a_process, peak_resident
from benchmarks.result_files import write_result
from crossknn.items.items import Items

OUT = Path(__file__).parent / "results" / "item_fields.json"
FIELDS = ("section", "size", "rate", "free", "released")
FILES = ("corpus.jsonl", "corpus.csv", "corpus.parquet")
FILTERS: dict[str, dict[str, Any]] = {
    "a value of 50": {"section": "section 7"},
    "one of two": {"section": ["section 7", "section 8"]},
    "a range, 0.5 % of items": {"size": {"lt": 5_000}},
    "both": {"section": "section 7", "size": {"lt": 5_000}},
    "a year": {"released": {"ge": "2020-01-01", "lt": "2021-01-01"}},
    "one of a million, or not free": {"or": [{"size": 77}, {"not": {"free": True}}]},
}
REPEATS_OF_A_FILTER = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--before", type=Path, help="a checkout of a version without fields")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    report: dict[str, Any] = {"items": options.items, "fields": list(FIELDS), "repeats": options.repeats}
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        in_a_process(write_files, folder, options.items)
        report["read"] = {name: compare(read, folder / name, options.repeats) for name in FILES}
        for name in FILES if options.before else ():
            add_before(report["read"][name], options.before, folder / name, options.repeats)
        report["open"] = compare(open_mapped, folder / "items", options.repeats)
        for name, indexed in (("filters", ()), ("indexed filters", FIELDS)):
            report[name] = in_a_process(time_filters, folder / "items with fields.arrow", indexed)
    write_result(options.out, report, options)
    print(json.dumps(report, indent=1))


def compare(work: Any, path: Path, repeats: int) -> dict[str, Any]:
    """The least of every number, with and without fields, and the ratios."""
    runs: dict[str, list[dict[str, Any]]] = {"without": [], "with": []}
    for _ in range(repeats):
        for kind, found in runs.items():
            found.append(in_a_process(work, path, kind == "with"))
    least = {kind: {name: min(run[name] for run in found) for name in found[0]} for kind, found in runs.items()}
    return least | {"ratio": {name: round(least["with"][name] / least["without"][name], 2) for name in least["with"]}}


def read(path: Path, fields: bool) -> dict[str, float]:
    """Seconds and own memory of reading a file, and the peak with all resident pages."""
    before, start = anonymous(), time.process_time()
    items = Items.from_path(path, fields=None if fields else [])
    seconds = time.process_time() - start
    assert len(items.fields) == (len(FIELDS) if fields else 0)
    own = anonymous() - before
    return {"seconds": round(seconds, 2), "own_mb": round(own, 1), "peak_mb": round(peak_resident(), 1)}


READ_BEFORE = """
import json, sys, time
from benchmarks.memory import anonymous, peak_resident
from crossknn.items.items import Items
before, start = anonymous(), time.process_time()
items = Items.from_path(sys.argv[1], id="_id" if sys.argv[1].endswith(".parquet") else "id", text="text")
print(json.dumps({"seconds": time.process_time() - start, "own_mb": anonymous() - before, "peak_mb": peak_resident()}))
"""


def add_before(found: dict[str, Any], checkout: Path, path: Path, repeats: int) -> None:
    """The same of a version without fields, and what reading with fields costs beside it."""
    command = [sys.executable, "-c", READ_BEFORE, str(path)]
    runs = [json.loads(subprocess.check_output(command, cwd=checkout)) for _ in range(repeats)]
    found["before"] = {name: round(min(run[name] for run in runs), 2) for name in runs[0]}
    found["ratio to before"] = {name: round(found["with"][name] / value, 2) for name, value in found["before"].items()}


def open_mapped(path: Path, fields: bool) -> dict[str, float]:
    """Seconds and own memory of opening the file of an index and reading an item of it by its id."""
    path = path.with_name(f"{path.name} {'with' if fields else 'without'} fields.arrow")
    Items(["x"], fields={"f": [1]}).mask({"f": 1})  # loads the libraries
    before, start = anonymous(), time.process_time()
    items = Items.from_arrow(path)
    items.check_ids()
    row = items.row("item 5")
    items.texts_of([row]), items.fields_of([row])
    seconds = time.process_time() - start
    return {"seconds": round(seconds, 3), "own_mb": round(anonymous() - before, 1), "file_mb": mb_of(path)}


def mb_of(path: Path) -> float:
    return round(path.stat().st_size / 2**20, 1)


def time_filters(path: Path, indexed: Sequence[str]) -> dict[str, dict[str, float]]:
    """Milliseconds of each filter with an index on these fields: the first time, and the median of later ones."""
    Items(["x"], fields={"f": [1]}).mask({"f": 1})  # loads the libraries
    found = {}
    for name, condition in FILTERS.items():
        items = Items.from_arrow(path).index_fields(*indexed)
        times = []
        for _ in range(1 + REPEATS_OF_A_FILTER):
            start = time.process_time()
            mask = items.mask(condition)
            times.append(1000 * (time.process_time() - start))
        first, later = round(times[0], 2), round(median(times[1:]), 2)
        found[name] = {"items": int(mask.sum()), "first_ms": first, "later_ms": later}
    return found


def write_files(folder: Path, items: int) -> dict[str, Any]:
    """The same items in all formats, and mapped with and without fields."""
    with (folder / "corpus.jsonl").open("w") as lines, (folder / "corpus.csv").open("w", newline="") as table:
        writer = csv.DictWriter(table, ["id", "text", *FIELDS])
        writer.writeheader()
        for record in make_records(items):
            lines.write(json.dumps(record) + "\n")
            writer.writerow(record)
    made = Items.from_path(folder / "corpus.csv")
    made.to_parquet(folder / "corpus.parquet")
    made.to_arrow(folder / "items with fields.arrow")
    Items(made.texts, ids=made.ids).to_arrow(folder / "items without fields.arrow")
    return {}


def make_records(items: int) -> Iterator[dict[str, Any]]:
    """Words, of which some are frequent, with five fields, of which each is null in a tenth of the items."""
    rng = np.random.default_rng(0)
    for row in range(items):
        section, size, day = (int(one) for one in rng.integers((50, 1_000_000, 5_000)))
        fields = {
            "section": f"section {section}",
            "size": size,
            "rate": round(float(rng.random()), 4),
            "free": bool(rng.integers(2)),
            "released": str(date(2010, 1, 1) + timedelta(day)),
        }
        missing = rng.random(len(fields)) < 0.1
        kept = {name: None if gone else value for (name, value), gone in zip(fields.items(), missing, strict=True)}
        text = " ".join(f"word{word}" for word in rng.zipf(1.2, WORDS) % VOCABULARY)
        yield {"id": f"item {row}", "text": text, **kept}


if __name__ == "__main__":
    main()
