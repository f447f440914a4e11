"""Writes tables of benchmarks/README.md, each between its marks, and its pictures, from the result files.

python -m benchmarks.page
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks import posterior_tables, speed_tables
from benchmarks.pictures import draw_recall
from benchmarks.tables import Table, as_table, fill

PAGE = Path(__file__).parent / "README.md"
RESULTS = Path(__file__).parent / "results"
MACHINES = {"round_time": "CPU", "round_time_h200": "H200"}  # by result file; one that is not there is left out
GPU_RUNS = ("h200", "h200_bert_base")
KINDS = {"Posterior": "prior", "Posterior, no index": "no index"}
SAVED = ("1@100", "1@200", "1@500", "10@100", "10@200", "10@500", "100@200", "100@500")
PARTS = {
    "whole": "as it is: 8 calls per item, 10 rounds",
    "without γ": "γ = 1 everywhere",
    "without biases": "no item biases",
    "without traits": "no traits",
    "1 calls per item": "1 call per item, none at random",
    "all train scores": "all train scores (150 and 500 calls per item)",
    "1 rounds": "1 round",
}


def main() -> None:
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")
    (RESULTS / "recall.png").write_bytes(draw_recall(read("posterior")["sets"]))


def tables() -> dict[str, Table]:
    """By the names of their marks."""
    return {name: make() for name, make in TABLES.items()}


@cache
def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def paper_search() -> Table:
    head = ["set", "k", "budget", "`Rerank`", "`Axn`, α, β of train queries", "`Axn`, own α, β", "`Axn`, raw scores"]
    return as_table(head, (row for found in read("paper_search")["sets"] for row in _best_settings(found)))


def _best_settings(found: dict[str, Any]) -> Iterator[list[str]]:
    for best in found["best"]:
        raw = max(
            record["recall"][str(best["k"])]
            for record in found["records"]
            if record["budget"] == best["budget"] and record["strategy"].endswith("αβ=none")
        )
        sides = [best[kind] for kind in ("Rerank", "Axn train", "Axn own")]
        shown = [f"{side['recall']:.1f} ({_setting(side['setting'])})" for side in sides]
        yield [found["set"], str(best["k"]), str(best["budget"]), *shown, f"{raw:.1f}"]


def _setting(name: str) -> str:
    """A setting without the name of its strategy and without where α and β come from."""
    return name.split(" αβ=")[0].split(maxsplit=1)[1]


def posterior() -> Table:
    head = ["set", "k", "budget", "best `Rerank`", "best `Axn`"]
    head += ["`Posterior`, no index", "above fused", "`Posterior`, prior", "above fused"]
    return as_table(head, (_cell(found["set"], cell) for found in read("posterior")["sets"] for cell in found["cells"]))


def _cell(name: str, cell: dict[str, Any]) -> list[str]:
    best = [f"{cell[kind]['mean']} ({_setting(cell[kind]['setting'])})" for kind in ("best Rerank", "best Axn")]
    plain, prior = (cell[kind]["mean"] for kind in ("Posterior, no index", "Posterior"))
    above, further = (_difference(cell[f"{kind} − Rerank, fused"]) for kind in ("Posterior, no index", "Posterior"))
    return [name, str(cell["k"]), str(cell["budget"]), *best, str(plain), above, f"**{prior}**", further]


def _difference(found: dict[str, float]) -> str:
    middle, low, high = (f"{found[part]:+.1f}".replace("-", "−") for part in ("mean", "low", "high"))
    return f"{middle} ({low} to {high})"


def calls_saved() -> Table:
    rows = (
        [found["set"], shown, *(_or_dash(found["calls_saved"][kind][cell]) for cell in SAVED)]
        for found in read("posterior")["sets"]
        for kind, shown in KINDS.items()
    )
    return as_table(["set", "", *SAVED], rows)


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def parts() -> Table:
    sets = [found for found in read("posterior")["sets"] if "ablations" in found]
    names = sets[0]["ablations"]
    rows = ([PARTS.get(name, name), *(_join(found["ablations"][name]) for found in sets)] for name in names)
    return as_table(["", *(found["set"] for found in sets)], rows)


def _join(recalls: dict[str, float]) -> str:
    return " / ".join(str(recall) for recall in recalls.values())


def round_time() -> Table:
    head = ["on", "items", "queries together", "budget", "`Axn`, ms", "`Posterior`, no index", "`Posterior`, prior"]
    head += ["AXN as in the paper", "`Axn` to `Rerank`", "`Posterior` to `Rerank`"]
    head += [f"of scoring by {model}" for model in speed_tables.MODELS.values()]
    found = [(shown, read(name)["cells"]) for name, shown in MACHINES.items() if (RESULTS / f"{name}.json").exists()]
    return as_table(head, ([shown, *_round_cell(cell)] for shown, cells in found for cell in cells))


def _round_cell(cell: dict[str, Any]) -> list[str]:
    """Shares of the scoring time are there only where a model was given, those of `Axn` and `Posterior`."""
    times_axn = (cell["times Axn"].get(side) for side in ("Posterior, no index", "Posterior", "AXN as in the paper"))
    times_rerank = (cell.get("times Rerank", {}).get(side) for side in ("Axn", "Posterior"))
    shares = (cell.get("share_of_scoring", {}).get(model) for model in speed_tables.MODELS)
    return [
        *(f"{cell[part]:,}" for part in ("items", "queries", "budget")),
        f"{cell['ms']['Axn']:.2f}",
        *map(_or_dash, times_axn),
        *map(_or_dash, times_rerank),
        *("–" if one is None else f"{100 * one['Axn']:.1f} and {100 * one['Posterior']:.1f} %" for one in shares),
    ]


def startup() -> Table:
    rows = (
        [
            f"`{name}`" if name.startswith(("import", "python", "crossknn")) else name,
            f"{took['processor_ms']:,.0f}",
            f"{took['processor_ms_above_plain']:,.0f}",
            f"{100 * took['share']:.1f} %",
        ]
        for name, took in read("startup")["starts"].items()
    )
    return as_table(["", "ms", "above plain Python", "of sentence-transformers"], rows)


def index_build() -> Table:
    found = read("index_memory")["build"]
    sizes = _megabytes([*found["own_mb"].values(), found["peak_resident_mb"]])
    head = ["calls", "before", "items read", "peak", "with mapped pages", "own bytes per item"]
    return as_table(head, [[f"{found['calls']:,}", *sizes, f"{found['own_bytes_per_item']:,}"]])


def index_files() -> Table:
    found = read("index_memory")["files"]
    files, arrays = found["bytes_per_item"], found["arrays"]
    sizes = {
        "items: ids and texts": files["items"],
        "vectors, 384 × float16": arrays["vectors"],
        "traits of the prior, 16 × float16": arrays["traits"],
        "bias of the prior, float32": arrays["bias"],
        "BM25": files["postings"] + files["stems"],
    }
    return as_table(["", "bytes per item"], ([name, f"{size:,.0f}"] for name, size in sizes.items()))


def index_search() -> Table:
    searches = read("index_memory")["searches"]
    names = {"started": "started, libraries loaded", "open": "index open", "ready": "retriever ready"}
    rows = []
    for step in searches["Axn"]["steps"]:
        both = [found["steps"][step] for found in searches.values()]
        cells = _megabytes(one[part] for one in both for part in ("own_mb", "index_mb"))
        rows.append([names.get(step, step), *cells])
    peaks = _megabytes(found["peak_own_mb"] for found in searches.values())
    rows.append(["at the peak", peaks[0], "", peaks[1], ""])
    return as_table(["", "`Axn`: own", "of the index", "`Posterior`: own", "of the index"], rows)


def index_processes() -> Table:
    head = ["search", "processes", "resident, each", "own, each", "index, each", "all together", "for each further one"]
    rows = []
    for name, counts in read("index_memory")["together"].items():
        for count, found in counts.items():
            parts = [[one[part] for one in found["processes"]] for part in ("resident_mb", "own_mb", "index_mb")]
            shown = _megabytes([*map(mean, parts), found["pss_mb"]])
            more = found["pss_mb"] - counts["1"]["pss_mb"]
            rows.append([f"`{name}`", count, *shown, "" if count == "1" else f"{more / (int(count) - 1):,.0f}"])
    return as_table(head, rows)


def vector_storage() -> Table:
    kinds = ("float32", "float16", "int8", "FAISS, int8")
    rows = [
        [found["set"], _as_code(name), *(_recalls(sides[kind]) for kind in kinds), *_costs(sides["int8"])]
        for found in read("vector_storage")["sets"]
        for name, sides in found["strategies"].items()
    ]
    return as_table(
        ["set", "strategy", *kinds, *(f"int8’s difference, {cell}" for cell in ("10@100", "100@500"))], rows
    )


def _as_code(name: str) -> str:
    strategy, comma, setting = name.partition(",")
    return f"`{strategy}`{comma}{setting}"


def _recalls(cells: dict[str, dict[str, float]]) -> str:
    return " / ".join(f"{cell['recall']:.1f}" for cell in cells.values())


def _costs(cells: dict[str, dict[str, float]]) -> list[str]:
    return [_difference({**cells[cell], "mean": cells[cell]["above"]}) for cell in ("10@100", "100@500")]


def _megabytes(values: Iterable[float]) -> list[str]:
    return [f"{value:,.0f}" for value in values]


def memory() -> Table:
    items, vectors = read("memory")["items"], read("memory")["vectors"]
    own = vectors["peak_anonymous_mb"] - vectors["anonymous_mb_before"]
    peak, before = items["peak_resident_mb"], items["resident_mb_before"]
    rows = [
        [
            f"loading {items['items']:,} items, a jsonl file of {items['file_mb']:.0f} MB",
            f"{peak:.0f} MB resident at the peak, {before:.0f} MB of them before",
        ],
        [
            f"`ExactSearch` over {vectors['items']:,} × {vectors['dim']} {vectors['dtype']} vectors "
            f"({vectors['file_mb'] / 1000:.1f} GB, memory-mapped), {vectors['queries']} queries, top {vectors['n']}",
            f"{own:.0f} MB of its own",
        ],
    ]
    return as_table(["what", "memory"], rows)


def kept_bm25() -> Table:
    parts = ("prepare_processor_seconds", "first_query_processor_seconds")
    rows = (
        [name, *(f"{start[part]:.1f}" for part in parts), f"{start['peak_mb']:,}"]
        for name, start in read("kept_bm25")["starts"].items()
    )
    return as_table(["BM25", "ready, s", "first query, s", "MB at the peak"], rows)


def fit_memory() -> Table:
    names = {"als": '`Transductive(method="als")`', "adamw": "`Transductive()`", "inductive": "`Inductive()`"}
    fits = read("fit_memory")["fits"].items()
    parts = ("bytes_per_item", "promised_bytes_per_item")
    rows = ([names[name], *(f"{found[part]:,}" for part in parts)] for name, found in fits)
    return as_table(["fit", "bytes per item", "promised"], rows)


TABLES: dict[str, Callable[[], Table]] = {
    "paper search": paper_search,
    "posterior": posterior,
    "calls saved": calls_saved,
    "parts of posterior": parts,
    "stopping": lambda: posterior_tables.stopping(read("stopping")),
    "asking": lambda: posterior_tables.asking(read("asking")),
    "round time": round_time,
    "steps of exact search": lambda: speed_tables.search_steps(read("search_steps")),
    "start-up": startup,
    "kept BM25": kept_bm25,
    "vector storage": vector_storage,
    "memory": memory,
    "memory of fits": fit_memory,
    "memory of a build": index_build,
    "files of an index": index_files,
    "memory of searches": index_search,
    "memory of processes": index_processes,
    "scoring on a GPU": lambda: speed_tables.scoring([read(f"scoring_speed_{name}") for name in GPU_RUNS]),
    "scoring on a CPU": lambda: speed_tables.scoring_on_cpu(read("scoring_speed_cpu")),
    "variants of scoring": lambda: speed_tables.variants(read("scoring_variants_h200")),
    "a million items": lambda: speed_tables.million_steps(read("million")),
    "searches of a million": lambda: speed_tables.million_searches(read("million")),
}


if __name__ == "__main__":
    main()
