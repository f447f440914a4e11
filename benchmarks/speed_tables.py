"""Tables of time and memory: scoring, rounds, a million items, the service, stores, start-up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.tables import Table, markdown_table, read_result, slashed

MODELS = {"ce-ir": "6-layer MiniLM", "bert-base": "BERT-base's shape"}
BUILD_STEPS = {
    "read": "reading the corpus",
    "encode items": "encoding items",
    "sample pairs": "BM25 and sampling pairs",
    "score": "scoring pairs",
    "normalize": "α and β",
    "prior": "fitting the prior",
    "save": "saving",
}


def scoring_on_gpu() -> Table:
    header = ["model", "limit, pairs/s", "sentence-transformers", "crossknn, first pass", "crossknn", "of the limit"]
    files = ("scoring_speed_h200", "scoring_speed_h200_bert_base")
    return markdown_table(header, (_scoring_row(read_result(name)) for name in files))


def scoring_of_shapes() -> Table:
    header = ["shape", "sentence-transformers", "crossknn, first pass", "crossknn", "of the limit", "10 pairs, ms"]
    shapes = read_result("reranker_shapes_h200")["shapes"]
    return markdown_table(header, (_shape_row(name, found) for name, found in shapes.items()))


def _shape_row(name: str, found: dict[str, Any]) -> list[str]:
    speeds, ratios = found["pairs_per_s"], found["ratio"]
    ours = (f"{speeds[side]:,.0f}/s, {ratios[side]:.1f}×" for side in ("crossknn, first pass", "crossknn"))
    share = f"{100 * found['share_of_card']['crossknn']:.0f} %"
    few = found["ms_of_10_pairs"]
    latency = f"{few['crossknn']:.1f} (sentence-transformers {few['sentence-transformers']:.1f})"
    return [name, f"{speeds['sentence-transformers']:,.0f}/s", *ours, share, latency]


def _scoring_row(found: dict[str, Any]) -> list[str]:
    theirs = max(_speed(found, name) for name in found["sides"] if name.startswith("sentence"))
    first, stored = (f"crossknn bfloat16, {kind}" for kind in ("first pass", "tokens stored"))
    return [
        MODELS[found["model"]],
        f"{found['floor']['pairs_per_s']:,}",
        f"{theirs:,.0f}/s",
        *(f"{_speed(found, name):,.0f}/s, {_speed(found, name) / theirs:.1f}×" for name in (first, stored)),
        f"{100 * found['floor']['share_reached'][stored]:.0f} %",
    ]


def _speed(found: dict[str, Any], side: str) -> float:
    return float(found["sides"][side]["pairs_per_s"])


def int8_on_cpu() -> Table:
    found = read_result("int8_cpu")
    header = [
        "",
        "pairs per second",
        "times sentence-transformers",
        "kept of float32's top 10",
        "root mean square error",
    ]
    return markdown_table(header, (_int8_row(found, name) for name in found["sides"]))


def _int8_row(found: dict[str, Any], name: str) -> list[str]:
    side, ranking = found["sides"][name], found["ranking"].get(name)
    kept = f"{100 * ranking['in_top_k']['10']:.0f} %" if ranking else "100 %"
    ratio = f"{side['times_sentence_transformers']['median']:.2f}"
    return [name, str(side["pairs_per_processor_s"]), ratio, kept, f"{side['rms_difference']:.2f}"]


def round_overhead() -> Table:
    header = ["on", "queries", "budget", "`Axn`, ms", "`Posterior`", "with prior", "paper"]
    header += [f"of scoring, {model}" for model in MODELS.values()]
    rows = (
        [machine, *_round_row(cell)]
        for name, machine in {"round_time": "CPU", "round_time_h200": "H200"}.items()
        for cell in read_result(name)["cells"]
        if cell["items"] == 1_000_000
        and (machine, cell["queries"]) != ("H200", 1)
        and (machine, cell["budget"]) != ("CPU", 500)
    )
    return markdown_table(header, rows)


def _round_row(cell: dict[str, Any]) -> list[str]:
    sides = ("Posterior, no index", "Posterior", "AXN as in the paper")
    shares = (cell.get("share_of_scoring", {}).get(model) for model in MODELS)
    return [
        str(cell["queries"]),
        str(cell["budget"]),
        f"{cell['ms']['Axn']:.2f}",
        *(f"{cell['times Axn'][side]:.1f}" for side in sides),
        *("–" if one is None else f"{100 * one['Axn']:.1f} / {100 * one['Posterior']:.1f} %" for one in shares),
    ]


def latency() -> Table:
    found = read_result("latency_h200")
    together = {cell["strategy"]: cell for cell in found["together"] if cell["budget"] == found["budgets"][0]}
    rows = (
        [
            name,
            f"{side['p50_ms']:.0f}, {side['p99_ms']:.0f}",
            f"{side['scorer_p50_ms']:.0f}",
            f"{1000 * together[name]['seconds']:.0f}",
            f"{1000 * together[name]['scorer_seconds']:.0f}",
        ]
        for name, side in found["one query"].items()
        if name in together
    )
    return markdown_table(["strategy", "one query: p50, p99", "scorer", "64 queries", "scorer"], rows)


def million_steps() -> Table:
    found = read_result("million")
    steps = {name: taken["seconds"] for name, taken in found["steps"].items()}
    build = found["build"]["seconds"]
    steps |= build | {"save": steps["build"] - sum(build.values())}
    return markdown_table(["step", "seconds"], ([label, f"{steps[name]:.1f}"] for name, label in BUILD_STEPS.items()))


def million_searches() -> Table:
    header = ["strategy", "calls", "seconds for 64 queries", "outside the scorer", "top 1", "top 10", "top 100"]
    return markdown_table(header, map(_search_row, read_result("million")["searches"]))


def _search_row(found: dict[str, Any]) -> list[str]:
    name, budget = found["strategy"].removesuffix(")").split("(budget=")
    seconds = f"{found['seconds']:.2f}", f"{found['seconds'] - found['score_seconds']:.2f}"
    return [f"`{name}`", budget, *seconds, *(str(found["recall"][k]) for k in ("1", "10", "100"))]


def service_load() -> Table:
    header = [
        "",
        "clients",
        "answers/s",
        "p50, s",
        "p99, s",
        "pairs per batch",
        "requests per batch",
        "errors",
        "equal",
    ]
    labels = {"one at a time": "one request at a time", "shared batches": "dynamic batching", "Rerank": "`Rerank`"}
    rows = (
        [
            labels[load["mode"]],
            str(load["clients"]),
            f"{load['answers_per_second']:.2f}",
            f"{load['p50_seconds']:.1f}",
            f"{load['p99_seconds']:.1f}",
            f"{load['pairs_per_batch']:.0f}",
            f"{load['requests_per_batch']:.1f}",
            str(load["errors"]),
            f"{load['equal']} of {load['answers']}",
        ]
        for load in read_result("service_load")["loads"]
    )
    return markdown_table(header, rows)


def service_soak() -> Table:
    found = read_result("service_soak")
    minutes = found["memory"]["mean_mb_of_each_minute"]
    header = ["minute", *(str(minute) for minute, _ in enumerate(minutes, 1))]
    return markdown_table(header, [["MB", *(f"{mb:,.0f}" for mb in minutes)]])


def stores(part: str = "made") -> Table:
    (found,) = read_result("stores")[part].values()
    many = f"ms, {found['queries']} at once"
    searches = [f"{strategy}, top {cell}" for strategy in ("Axn", "Posterior") for cell in ("10 in 100", "100 in 500")]
    header = ["store", "build, s", "100 nearest", *(name for search in searches for name in (search, "ms"))]
    rows = []
    for name, store in found["stores"].items():
        row = [name, f"{store['build_seconds']:.0f}", f"{store['vectors']['100']:.1f}"]
        for search in searches:
            one = store[search]
            row += [f"{one['recall']:.1f}", slashed(f"{one[ms]:,.0f}" for ms in ("ms, 1 at once", many))]
        rows.append(row)
    return markdown_table(header, rows)


def postgres() -> Table:
    return stores("postgres")


def engines() -> Table:
    """Stores in databases beside those in memory; milliseconds of one query, by part."""
    (found,) = read_result("stores")["engines"].values()
    searches = ("Axn, top 10 in 100", "Posterior, top 10 in 100", "Posterior, top 100 in 500")
    header = ["store", "build, s", "MB", "100 nearest", *(part for one in searches for part in (one, "ms"))]
    rows = []
    for name, store in found["stores"].items():
        row = [name, f"{store['build_seconds']:.0f}", f"{max(store['megabytes'], 0):,}"]
        row.append(f"{store['vectors']['100']:.1f}")
        for one in (store[search] for search in searches):
            parts = one["ms by part"]
            inside = parts["search"] + parts["search with candidates"]
            shown = (one["ms"], inside, parts["vectors"]) if inside else (one["ms"],)
            row += [f"{one['recall']:.1f}", slashed(f"{value:,.0f}" for value in shown)]
        rows.append(row)
    return markdown_table(header, rows)


def columns() -> Table:
    """The prior's columns in the store, and beside it."""
    stores = read_result("stores")
    rows = []
    for part, named in (("columns", "{name}"), ("made columns", "{items:,} made items")):
        for folder, found in stores[part].items():
            label = named.format(name=folder.removeprefix("scores/"), items=found["items"])
            for name, values in found["stores"].items():
                cells = [(values[f"top {cell}"], values[f"ms, top {cell}"]) for cell in ("10 in 100", "100 in 500")]
                rows.append([label, name, *(text for share, ms in cells for text in (f"{share:.1f}", f"{ms:,.0f}"))])
    return markdown_table(
        ["set", "latent factors and biases", "top 10 in 100 calls", "ms", "top 100 in 500", "ms"], rows
    )


def store_memory() -> Table:
    """Peaks of a process's own memory, as a LanceDB table grows."""
    steps = ("opened", "search", "filtered", "posterior", "import")
    rows = [
        [f"{one['items']:,}", f"{one['table_mb']:,}", *(f"{one[f'{step}_mb']:,}" for step in steps)]
        for one in read_result("store_memory")["tables"]
    ]
    return markdown_table(
        ["items", "table, MB", "opened", "search", "with a filter", "whole search with `Posterior`", "import"], rows
    )


def vector_precision() -> Table:
    kinds = ("float32", "float16", "int8", "FAISS, int8")
    rows = (
        [
            found["set"],
            name,
            *(slashed(f"{sides[kind][cell]['recall']:.1f}" for cell in ("10@100", "100@500")) for kind in kinds),
        ]
        for found in read_result("vector_storage")["sets"]
        for name, sides in found["strategies"].items()
    )
    return markdown_table(["set", "strategy", *kinds], rows)


def startup() -> Table:
    rows = (
        [name, f"{took['processor_ms']:,.0f}", f"{100 * took['share']:.1f} %"]
        for name, took in read_result("startup")["starts"].items()
    )
    return markdown_table(["", "ms", "of `import sentence_transformers`"], rows)


def stored_bm25() -> Table:
    parts = ("prepare_processor_seconds", "first_query_processor_seconds")
    names = {"fitted": "fitted", "kept": "opened from the index"}
    rows = (
        [names[name], *(f"{start[part]:.1f}" for part in parts), f"{start['peak_mb']:,}"]
        for name, start in read_result("kept_bm25")["starts"].items()
    )
    return markdown_table(["BM25", "ready, s", "first query, s", "peak, MB"], rows)


def index_files() -> Table:
    found = read_result("index_memory")["files"]
    files, arrays = found["bytes_per_item"], found["arrays"]
    sizes = {
        "ids and texts": files["items"],
        "vectors, 384 × float16": arrays["vectors"],
        "latent factors, 16 × float16": arrays["traits"],
        "bias, float32": arrays["bias"],
        "BM25": files["postings"] + files["stems"],
    }
    return markdown_table(["part", "bytes per item"], ([name, f"{size:,.0f}"] for name, size in sizes.items()))


def build_memory() -> Table:
    found = read_result("index_memory")["build"]
    sizes = _whole([*found["own_mb"].values(), found["peak_resident_mb"]])
    header = ["calls", "before", "items read", "peak", "peak with mapped pages"]
    return markdown_table(header, [[f"{found['calls']:,}", *sizes]])


def item_fields() -> Table:
    found = read_result("item_fields")
    names = {"corpus.jsonl": "read JSON lines", "corpus.csv": "read CSV", "corpus.parquet": "read Parquet"}
    works = {names[name]: work for name, work in found["read"].items()} | {"open the mapped file": found["open"]}
    rows = []
    for name, work in works.items():
        plain, ratio = (
            work[kind] for kind in (("before", "ratio to before") if "before" in work else ("without", "ratio"))
        )
        kinds = (plain, work["with"])
        seconds, own = [f"{one['seconds']:.2f}" for one in kinds], _whole(one["own_mb"] for one in kinds)
        rows.append([name, *seconds, f"{ratio['seconds']:.2f}", *own, f"{ratio['own_mb']:.2f}"])
    return markdown_table(["", "s without", "s with", "ratio", "private MB without", "with", "ratio"], rows)


def field_filters() -> Table:
    found = read_result("item_fields")
    rows = []
    for name, took in found["filters"].items():
        times = [f"{one:.1f}" for one in (took["first_ms"], took["later_ms"])]
        rows.append([name, f"{took['items']:,}", *times, f"{found['indexed filters'][name]['later_ms']:.2f}"])
    return markdown_table(["filter", "items", "first, ms", "later", "indexed"], rows)


def search_memory() -> Table:
    searches = read_result("index_memory")["searches"]
    names = {"started": "libraries loaded", "open": "index open", "ready": "retrievers ready"}
    rows = [
        [
            names.get(step, step),
            *_whole(found["steps"][step][part] for found in searches.values() for part in ("own_mb", "index_mb")),
        ]
        for step in searches["Axn"]["steps"]
    ]
    return markdown_table(["", "`Axn`: private", "mapped", "`Posterior`: private", "mapped"], rows)


def fit_memory() -> Table:
    names = {"als": '`Transductive(method="als")`', "adamw": "`Transductive()`", "inductive": "`Inductive()`"}
    rows = (
        [names[name], f"{found['bytes_per_item']:,}", f"{found['promised_bytes_per_item']:,}"]
        for name, found in read_result("fit_memory")["fits"].items()
    )
    return markdown_table(["fit", "bytes per item", "documented bound"], rows)


def _whole(values: Iterable[float]) -> list[str]:
    return [f"{value:,.0f}" for value in values]


def embedded_model() -> Table:
    found = read_result("example_model")
    models = {"cross-encoder, exact search": "cross-encoder", "dual encoder": "dual encoder", "bm25": "BM25"}
    measures = {"accuracy": "accuracy", "ndcg_at_10": "nDCG@10"}
    rows = []
    for kind in ("sentences", "phrases"):
        for measure, label in measures.items():
            cells = [found[kind][model][measure] for model in models]
            best = max(cell["mean"] for cell in cells)
            shown = [
                f"{_bold(100 * cell['mean'], cell['mean'] == best)} ({100 * cell['low']:.1f}–{100 * cell['high']:.1f})"
                for cell in cells
            ]
            rows.append([f"{found[kind]['queries']} {kind}", label, *shown])
    return markdown_table(["queries", "measure", *models.values()], rows)


def _bold(value: float, best: bool) -> str:
    return f"**{value:.1f}**" if best else f"{value:.1f}"


TABLES = {
    "scoring on a GPU": scoring_on_gpu,
    "scoring of shapes": scoring_of_shapes,
    "int8 on a CPU": int8_on_cpu,
    "round overhead": round_overhead,
    "latency": latency,
    "million steps": million_steps,
    "million searches": million_searches,
    "service load": service_load,
    "service soak": service_soak,
    "stores": stores,
    "postgres": postgres,
    "engines": engines,
    "columns": columns,
    "store memory": store_memory,
    "vector precision": vector_precision,
    "startup": startup,
    "stored BM25": stored_bm25,
    "index files": index_files,
    "build memory": build_memory,
    "search memory": search_memory,
    "item fields": item_fields,
    "field filters": field_filters,
    "fit memory": fit_memory,
    "embedded model": embedded_model,
}
