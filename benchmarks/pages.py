"""Writes the tables of benchmarks/pages, docs/ablations.md, docs/stores.md and the README from the result files.

python -m benchmarks.pages            # write them
python -m benchmarks.pages --check    # instead say which result files are older than the code that made them
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import (
    ablation_tables,
    fault_tables,
    learning_tables,
    matching_tables,
    recall_tables,
    rival_tables,
    speed_tables,
    teaching_tables,
)
from benchmarks.plots import draw_recall
from benchmarks.result_files import check_results
from benchmarks.tables import RESULTS, marks_of, read_result, replace_tables

ROOT = Path(__file__).parents[1]
TABLES = (
    recall_tables.TABLES
    | speed_tables.TABLES
    | ablation_tables.TABLES
    | teaching_tables.TABLES
    | learning_tables.TABLES
    | fault_tables.TABLES
    | rival_tables.TABLES
    | matching_tables.TABLES
)
PAGES = [
    *sorted((ROOT / "benchmarks" / "pages").glob("*.md")),
    ROOT / "docs" / "ablations.md",
    ROOT / "docs" / "stores.md",
    ROOT / "README.md",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="say which result files are older than their code")
    if parser.parse_args().check:
        print(check_results())
        return
    for path in PAGES:
        path.write_text(filled(path), encoding="utf-8")
    (RESULTS / "recall.png").write_bytes(draw_recall(read_result("posterior")["sets"]))


def filled(path: Path) -> str:
    """The page with its tables as the result files give them."""
    page = path.read_text(encoding="utf-8")
    return replace_tables(page, {name: TABLES[name]() for name in marks_of(page)})


if __name__ == "__main__":
    main()
