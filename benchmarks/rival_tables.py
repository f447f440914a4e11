"""Tables of the pages about rivals, the open set, few calls, expanded queries and robustness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from benchmarks.tables import Table, bold_best, interval, markdown_table, read_result

CELLS = ((10, 25), (10, 100), (100, 500))  # k and budget
OPEN_CELLS = ((1, 10), (1, 25), (10, 25), (10, 100), (100, 200))
JUDGED = 100  # calls
MEASURE = "nDCG@10"
FUSED, DEFAULT = "rerank, fused", "posterior"
CONDITION_CELLS = ("1@10", "10@25", "10@100")
SHORT = {"axn, λ 0.5, fused first": "axn"}  # names of the page


def rivals(name: str) -> Table:
    """The recall of every strategy in some cells of one set, and its nDCG@10."""
    found = _set_of("rivals", name)
    cells = {(cell["k"], cell["budget"]): cell for cell in found["cells"]}
    judged = {one["strategy"]: one for one in found["quality"] if one["budget"] == JUDGED}
    rows = []
    for strategy in found["chosen"]:
        gaps = [cells[place][f"− {DEFAULT}"].get(strategy) for place in CELLS]
        recalls = [f"{cells[place]['recall'][strategy]['mean']:.1f}" for place in CELLS]
        values = [f"{recall}{arrow(gap)}" for recall, gap in zip(recalls, gaps, strict=True)]
        if judged:
            one = judged[strategy]
            values.append(f"{one[MEASURE]['mean']:.1f}{arrow(one.get(f'− {DEFAULT}'))}")
        rows.append([strategy, *values])
    heads = [f"{k}@{budget}" for k, budget in CELLS] + [f"{MEASURE}, {JUDGED} calls"] * bool(judged)
    return markdown_table(["strategy", *heads], rows)


def arrow(difference: Mapping[str, float] | None) -> str:
    """Filled where a difference stands among all comparisons, open where only its own interval excludes zero."""
    if difference is None:
        return ""
    if difference["shown"]:
        return "▲" if difference["shown"] > 0 else "▼"
    return "△" if difference["low"] > 0 else "▽" if difference["high"] < 0 else ""


def rival_times() -> Table:
    """Processor time of one query."""
    sets = [found for found in read_result("rivals")["sets"] if found["milliseconds_at_100"]]
    names = list(sets[0]["milliseconds_at_100"])
    rows = [[name, *(f"{found['milliseconds_at_100'][name]:.0f}" for found in sets)] for name in names]
    return markdown_table(["ms", *(found["set"] for found in sets)], rows)


def open_set() -> Table:
    """Recall and nDCG@10 on the set that any machine can make, from the JSON of `crossknn bench set`."""
    found = read_result("open_set")
    recall = {(one["strategy"], one["k"], one["budget"]): 100 * one["recall"] for one in found["records"]}
    judged = {one["strategy"]: 100 * one[MEASURE] for one in found["quality"] if one["budget"] == JUDGED}
    names = list(dict.fromkeys(strategy for strategy, _, _ in recall))
    columns = [bold_best([recall[name, *cell] for name in names]) for cell in OPEN_CELLS]
    columns.append(bold_best([judged[name] for name in names]))
    heads = [*(f"{k}@{budget}" for k, budget in OPEN_CELLS), f"{MEASURE}, {JUDGED} calls"]
    return markdown_table(["strategy", *heads], zip(names, *columns, strict=True))


def few_calls() -> Table:
    """Recall with few calls, and differences to fused reranking, or for other hedges to the default."""
    rows = []
    for found, cell in _cells("small_budgets"):
        for name, recall in cell["recall"].items():
            against = "posterior, prior" if name.startswith("posterior, prior,") else FUSED
            gap = cell[f"− {against}"].get(name)
            shown = [f"{recall['mean']:.1f}", f"{interval(gap)}{arrow(gap)}" if gap else ""]
            rows.append((name, f"{found['set']} {cell['k']}@{cell['budget']}", shown))
    heads = list(dict.fromkeys(place for _, place, _ in rows))
    names = list(dict.fromkeys(name for name, _, _ in rows))
    table = {(name, place): shown for name, place, shown in rows}
    return markdown_table(
        ["", *names], [[place, *(" ".join(filter(None, table[name, place])) for name in names)] for place in heads]
    )


def expansion() -> Table:
    """What RM3 adds, in every cell."""
    rows = []
    for found, cell in _cells("rm3"):
        gaps = cell["− without"]
        rows.append(
            [f"{found['set']} {cell['k']}@{cell['budget']}", *(interval(gap) + arrow(gap) for gap in gaps.values())]
        )
    names = list(read_result("rm3")["sets"][0]["cells"][0]["− without"])
    return markdown_table(["", *names], rows)


def robustness(name: str) -> Table:
    """Recall under every condition, with the marks of the difference to fused reranking."""
    found = _set_of("robustness", name)
    rows = []
    for condition, strategies in found["conditions"].items():
        for cell in CONDITION_CELLS:
            values = [f"{one[cell]['mean']:.1f}{arrow(one[cell][f'− {FUSED}'])}" for one in strategies.values()]
            rows.append([condition if cell == CONDITION_CELLS[0] else "", cell, *values])
    names = [SHORT.get(one, one) for one in next(iter(found["conditions"].values()))]
    return markdown_table(["", "", *names], rows)


def difficulty() -> Table:
    """The difference of posterior search to fused reranking in thirds of the queries."""
    rows = []
    for found in read_result("robustness")["sets"]:
        for third, strategies in found["difficulty"].items():
            gaps = [strategies[name]["10@100"] for name in (DEFAULT, "posterior, prior")]
            cells = [f"{strategies[FUSED]['10@100']['mean']:.1f}", *(interval(one[f"− {FUSED}"]) for one in gaps)]
            rows.append([f"{found['set']}, {third}", *cells])
    return markdown_table(["10@100", FUSED, "posterior", "posterior, prior"], rows)


def _set_of(result: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in read_result(result)["sets"] if one["set"] == name)
    return found


def _cells(result: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for found in read_result(result)["sets"]:
        for cell in found["cells"]:
            yield found, cell


TABLES = {
    "rivals, scifact": partial(rivals, "scifact"),
    "rivals, acl25k": partial(rivals, "acl25k"),
    "rival times": rival_times,
    "open set": open_set,
    "few calls": few_calls,
    "expansion": expansion,
    "robustness, scifact": partial(robustness, "scifact"),
    "robustness, acl25k": partial(robustness, "acl25k"),
    "difficulty": difficulty,
}
