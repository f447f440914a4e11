"""How the time and memory of a build grow with the items: the build of index_memory.py at several sizes, in one run.

    OMP_NUM_THREADS=1 python -m benchmarks.index_growth

Vectors are noise and scores count words, so that what is left is everything but the models. Between the smallest and
the largest size, `per_million` has the seconds and megabytes that a million more items take, `fixed_mb` what is left
of the memory for none.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.result_files import write_result

OUT = Path(__file__).parent / "results" / "index_growth.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[100_000, 400_000, 1_000_000])
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    runs = [build(items) for items in sorted(options.items)]
    builds = [run.pop("build") for run in runs]
    report = {**runs[0], "builds": builds, **growth(builds[0], builds[-1])}
    write_result(options.out, report, options)
    print(json.dumps(report, indent=1))


def build(items: int) -> dict[str, Any]:
    """In a process of its own, as memory has to be."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "build.json"
        command = ["-m", "benchmarks.index_memory", "--items", str(items), "--parts", "build", "--out", str(out)]
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads(out.read_text())
    return found


def growth(small: dict[str, Any], large: dict[str, Any]) -> dict[str, Any]:
    millions = (large["items"] - small["items"]) / 1e6
    seconds = {step: round((large["seconds"][step] - took) / millions, 1) for step, took in small["seconds"].items()}
    per_million = (large["own_mb"]["peak"] - small["own_mb"]["peak"]) / millions
    fixed = small["own_mb"]["peak"] - per_million * small["items"] / 1e6
    return {"per_million": {"seconds": seconds, "own_mb": round(per_million)}, "fixed_mb": round(fixed)}


if __name__ == "__main__":
    main()
