"""Faults of every kind against the real command line, service and stores, with the packaged models.

    python -m benchmarks.faults                  # everything, some twenty minutes on two cores
    python -m benchmarks.faults --only kills disk --quick
    python -m benchmarks.faults --out benchmarks/results/faults.json

Everything happens in temporary folders and on loopback. Moments and places are drawn from `--seed`. The exit code is 1
if anything was lost.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.faults import clients, clocks, damage, disk, kills, scorers, servers, stores, writers
from benchmarks.faults.report import Report
from benchmarks.faults.world import World
from benchmarks.result_files import write_result

GROUPS = {
    "kills": kills.try_kills,
    "disk": disk.try_disks,
    "damage": damage.try_damage,
    "writers": writers.try_writers,
    "clocks": clocks.try_clocks,
    "scorers": scorers.try_scorers,
    "servers": servers.try_servers,
    "clients": clients.try_clients,
    "stores": stores.try_stores,
}


def main() -> int:
    options = read_options()
    report, seconds = Report(workers=options.workers), {}
    with TemporaryDirectory(prefix="crossknn-faults-") as folder:
        world = World(Path(folder), seed=options.seed, quick=options.quick)
        for name in options.only or GROUPS:
            report.group, began = name, time.monotonic()
            GROUPS[name](report, world)
            seconds[name] = round(time.monotonic() - began, 1)
    rows = report.rows()
    print_table(rows)
    if options.out is not None:
        write_results(options, seconds, rows)
    return int(any(row["lost"] for row in rows))


def write_results(options: argparse.Namespace, seconds: dict[str, float], rows: list[dict[str, Any]]) -> None:
    """Write the result file; groups that were not tried now are kept."""
    earlier = json.loads(options.out.read_text()) if options.only and options.out.exists() else {}
    kinds = [row for row in earlier.get("kinds", ()) if row["group"] not in seconds] + rows
    kinds.sort(key=lambda row: list(GROUPS).index(row["group"]))
    found: dict[str, Any] = {"seed": options.seed, "quick": options.quick}
    found |= {"seconds": {**earlier.get("seconds", {}), **seconds}, "lost": sum(row["lost"] for row in kinds)}
    write_result(options.out, {**found, "kinds": kinds}, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=GROUPS, help="groups to try")
    parser.add_argument("--quick", action="store_true", help="a few trials of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="trials at a time")
    parser.add_argument("--device", default="cpu", choices=["cpu"])
    parser.add_argument("--out", type=Path, help="result file; with --only, its other groups stay")
    return parser.parse_args()


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"\n{'group':<12} {'kind':<44} {'tried':>6} {'held':>6} {'lost':>6}")
    for row in rows:
        numbers = row.get("skipped") or "".join(f"{row[key]:>7}" for key in ("tried", "held", "lost"))
        print(f"{row['group']:<12} {row['kind']:<43} {numbers}")


if __name__ == "__main__":
    raise SystemExit(main())
