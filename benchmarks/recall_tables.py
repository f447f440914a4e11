"""Tables of recall: posterior search, its ablations, early stopping, all strategies, item vectors, signals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.tables import Table, bold_best, interval, markdown_table, read_result, signed, significant, slashed

CELLS = ((1, 100), (10, 100), (100, 500))  # k and budget
SIDES = ("best Rerank", "best Axn", "Posterior, no index", "Posterior")
SAVED = ("1@100", "1@500", "10@100", "10@500", "100@200", "100@500")
ABLATIONS = {
    "whole": "all parts: 8 calls per item, 10 rounds",
    "without γ": "γ = 1",
    "without biases": "no item biases",
    "without traits": "no latent factors",
    "1 calls per item": "1 call per item",
    "all train scores": "all train scores (150 and 500 calls per item)",
    "1 rounds": "1 round",
}
FITS = ("uncalibrated", "calibrated")
STOPS = (0.95, 0.99)
BASELINE = "as it is"  # in asking.json


def recall() -> Table:
    header = ["set", "", "best `Rerank`", "best `Axn`", "`Posterior`, no index", "`Posterior`, prior", "prior − fused"]
    rows = (
        [
            found["set"],
            f"{cell['k']}@{cell['budget']}",
            *bold_best([cell[side]["mean"] for side in SIDES]),
            interval(cell["Posterior − Rerank, fused"]),
        ]
        for found in read_result("posterior")["sets"]
        for cell in found["cells"]
        if (cell["k"], cell["budget"]) in CELLS
    )
    return markdown_table(header, rows)


def readme() -> Table:
    header = ["set", "items", "best `Rerank`", "best `Axn`", "`Posterior`, no index", "`Posterior`, prior"]
    rows = []
    for found in read_result("posterior")["sets"]:
        cells = [cell for cell in found["cells"] if (cell["k"], cell["budget"]) in CELLS]
        shown = [bold_best([cell[side]["mean"] for side in SIDES]) for cell in cells]
        rows.append([found["set"], f"{found['items']:,}", *map(slashed, zip(*shown, strict=True))])
    return markdown_table(header, rows)


def calls_saved() -> Table:
    kinds = {"Posterior": "prior", "Posterior, no index": "no index"}
    rows = (
        [found["set"], label, *(_or_dash(found["calls_saved"][kind][cell]) for cell in SAVED)]
        for found in read_result("posterior")["sets"]
        for kind, label in kinds.items()
    )
    return markdown_table(["set", "", *SAVED], rows)


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def ablations() -> Table:
    sets = [found for found in read_result("posterior")["sets"] if "ablations" in found]
    rows = (
        [ABLATIONS.get(name, name), *(slashed(found["ablations"][name].values()) for found in sets)]
        for name in sets[0]["ablations"]
    )
    return markdown_table(["", *(found["set"] for found in sets)], rows)


def batch_choice() -> Table:
    sets = read_result("asking")["sets"]
    cells = [f"{k}@{budget}" for k, budget in CELLS]
    rows = (
        [
            name.replace("neighbours", "neighbors"),
            *(slashed(significant(found["prior"][f"− {BASELINE}"][name][cell]) for cell in cells) for found in sets),
        ]
        for name in sets[0]["prior"][f"− {BASELINE}"]
    )
    return markdown_table(["", *(found["set"] for found in sets)], rows)


def stopping() -> Table:
    header = ["set", "k", "error", "calibrated"]
    for at in STOPS:
        header += [f"`stop_at={at}`", "calibrated"]
    rows = (
        [f"{found['set']}, {side}", str(top["k"]), *_errors(top), *_stops(top)]
        for found in read_result("stopping")["sets"]
        for side, measured in found["sides"].items()
        for top in measured["top"]
    )
    return markdown_table(header, rows)


def _errors(top: dict[str, Any]) -> Iterator[str]:
    for fit in FITS:
        yield f"{top[fit]['calibration_error']:.1f}"


def _stops(top: dict[str, Any]) -> Iterator[str]:
    for at in STOPS:
        for fit in FITS:
            (stop,) = (one for one in top[fit]["stops"] if one["stop_at"] == at)
            yield f"{stop['calls']:.0f}: {stop['measured']}"


def strategies(names: tuple[str, ...] = ("scifact", "acl25k")) -> Table:
    """Recall of every strategy at 10@100 and 100@500, from the JSON of `crossknn bench matrix`."""
    found = {
        (name, one["strategy"], one["k"], one["budget"]): 100 * one["recall"]
        for name in names
        for one in read_result(f"bench_{name}")["records"]
    }
    columns = [(name, k, budget) for name in names for k, budget in CELLS[1:]]
    rows = list(dict.fromkeys(strategy for _, strategy, _, _ in found))
    shown = {column: bold_best([found[column[0], row, *column[1:]] for row in rows]) for column in columns}
    header = ["strategy", *(f"{name.removesuffix('-emb')} {k}@{budget}" for name, k, budget in columns)]
    return markdown_table(
        header, ([row, *(shown[column][place] for column in columns)] for place, row in enumerate(rows))
    )


def time_budget() -> Table:
    """Recall of the exact top 10 within seconds, with the calls that fit."""
    (found,) = read_result("time_budget")["sets"]
    cells = {(one["strategy"], one["seconds"]): one for one in found["cells"] if one["k"] == 10}
    names, times = (list(dict.fromkeys(key[place] for key in cells)) for place in (0, 1))
    shown = {seconds: bold_best([cells[name, seconds]["recall"] for name in names]) for seconds in times}
    rows = (
        [name, *(f"{shown[seconds][place]} ({cells[name, seconds]['calls']:,})" for seconds in times)]
        for place, name in enumerate(names)
    )
    return markdown_table(["strategy", *(f"{seconds:g} s" for seconds in times)], rows)


def paper_setting() -> Table:
    return strategies(("commits-dpdk-emb", "scifact-emb"))


def paper_setting_vectors() -> Table:
    (found,) = read_result("index_quality_emb")["sets"]
    names = ("Rerank", "Axn λ=0.5", "Posterior")
    rows = (
        [way["vectors"], f"{way['calls']:,}", *(f"{way['recall'][name]['10@100']['mean']:.1f}" for name in names)]
        for way in found["ways"]
    )
    return markdown_table(["vectors", "calls", "`Rerank`", "`Axn`", "`Posterior`"], rows)


def item_vectors() -> Table:
    header = ["set", "vectors", "calls", "`Rerank`", "`Axn`", "`Posterior`"]
    rows = (
        [found["set"], way["vectors"], f"{way['calls']:,}", *_recall_pairs(way["recall"])]
        for found in read_result("index_quality")["sets"]
        for way in found["ways"]
    )
    return markdown_table(header, rows)


def _recall_pairs(recall: dict[str, Any]) -> Iterator[str]:
    for name in ("Rerank", "Axn λ=0.5", "Posterior"):
        cells = recall.get(name)
        yield "–" if cells is None else slashed(cells[cell]["mean"] for cell in ("10@100", "100@500"))


def pseudo_queries() -> Table:
    (found,) = read_result("pseudo_queries")["sets"]
    names = {
        "Rerank, fused": "`Rerank`, fused",
        "no index": "`Posterior`, no index",
        "pseudo-queries": "`Posterior`, prior from pseudo-queries",
        "train queries": "`Posterior`, prior from 500 train queries",
    }
    cells = ("1@100", "10@100", "100@500")
    rows = (
        [
            label,
            *(
                f"{found['recall'][name][cell]:.1f}"
                + ("" if name == "no index" else f" ({signed(found['− no index'][name][cell]['mean'])})")
                for cell in cells
            ),
        ]
        for name, label in names.items()
    )
    return markdown_table(["(difference to no index)", *cells], rows)


def fusion() -> Table:
    sets = read_result("rank_by")["sets"]
    columns = [(found, strategy) for found in sets for strategy in ("exact", "posterior")]
    orders = ("by score", "fused, equal weights", "fused, fitted weights")
    rows = (
        [
            order,
            *(
                f"{found[strategy][order]['mean']:.1f}"
                + ("" if order == orders[0] else f" ({signed(found[strategy][order]['− by score']['mean'])})")
                for found, strategy in columns
            ),
        ]
        for order in orders
    )
    return markdown_table(["order", *(f"{found['set']}, {strategy}" for found, strategy in columns)], rows)


def signals() -> Table:
    header = ["set", "index", "", "dense, BM25", "with TF-IDF", "dense, TF-IDF"]
    rows = (
        [
            found["set"],
            label,
            cell,
            f"{found[side]['recall']['dense, bm25'][cell]:.1f}",
            *(
                significant(found[side]["− dense, bm25"][names][cell])
                for names in ("dense, bm25, tfidf", "dense, tfidf")
            ),
        ]
        for found in read_result("signals")["sets"]
        for side, label in (("no index", "none"), ("index", "prior"))
        for cell in ("10@100", "100@500")
    )
    return markdown_table(header, rows)


TABLES = {
    "readme": readme,
    "recall": recall,
    "calls saved": calls_saved,
    "posterior ablations": ablations,
    "batch choice": batch_choice,
    "stopping": stopping,
    "strategies": strategies,
    "time budget": time_budget,
    "paper setting": paper_setting,
    "paper setting vectors": paper_setting_vectors,
    "item vectors": item_vectors,
    "pseudo-queries": pseudo_queries,
    "fusion": fusion,
    "signals": signals,
}
