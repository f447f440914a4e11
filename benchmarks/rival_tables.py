"""Tables of the pages about rivals, the open set, few calls, expanded queries and robustness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from benchmarks.tables import Table, bold_best, interval, markdown_table, read_result

CELLS = ((10, 25), (10, 100), (100, 500))  # k and budget
OPEN_CELLS = ((1, 10), (1, 25), (10, 25), (10, 100), (100, 200))
RIVAL_SETS = ("scifact", "acl25k", "open-set")
UNTIMED = ("rerank", "axn, fitted", "rbe, 8", "tour, ce, rounds 2")  # as others
FEW = (10, 25)  # calls
JUDGED = 100  # calls
MEASURE = "nDCG@10"
FUSED, DEFAULT = "rerank, fused", "posterior"
EVERY_ROUND = "posterior, prior, hedge in every round"
CONDITION_CELLS = ("10@10", "10@100")
SHORT = {"axn, λ 0.5, fused first": "axn"}  # names of the page


def rivals() -> Table:
    """The recall of every strategy in some cells of each set, and its nDCG@10."""
    sets = [read_result(f"rivals_{name}")["sets"][0] for name in RIVAL_SETS]
    columns = [column for found in sets for column in (_recalls(found), _quality(found))]
    heads = [head for name in RIVAL_SETS for head in (name, MEASURE)]
    names = list(sets[0]["chosen"])
    return markdown_table(["strategy", *heads], [[name, *(column[name] for column in columns)] for name in names])


def _recalls(found: dict[str, Any]) -> dict[str, str]:
    """By strategy the recall in every cell, with marks."""
    cells = {(cell["k"], cell["budget"]): cell for cell in found["cells"]}
    return {
        name: "/".join(
            f"{cells[place]['recall'][name]['mean']:.1f}{arrow(cells[place][f'− {DEFAULT}'].get(name))}"
            for place in CELLS
        )
        for name in found["chosen"]
    }


def _quality(found: dict[str, Any]) -> dict[str, str]:
    judged = [one for one in found["quality"] if one["budget"] == JUDGED]
    return {one["strategy"]: f"{one[MEASURE]['mean']:.1f}{arrow(one.get(f'− {DEFAULT}'))}" for one in judged}


def arrow(difference: Mapping[str, float] | None) -> str:
    """Filled where a difference stands among all comparisons, open where only its own interval excludes zero."""
    if difference is None:
        return ""
    if difference["shown"]:
        return "▲" if difference["shown"] > 0 else "▼"
    return "△" if difference["low"] > 0 else "▽" if difference["high"] < 0 else ""


def rival_times() -> Table:
    """Processor time of one query of acl25k."""
    times = read_result("rivals_acl25k")["sets"][0]["milliseconds_at_100"]
    times = {name.replace("mean ", ""): value for name, value in times.items() if name not in UNTIMED}
    return markdown_table(["ms", *times], [["acl25k", *(f"{value:.0f}" for value in times.values())]])


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
    rows, names = [], (DEFAULT, "posterior, prior", EVERY_ROUND)
    for found, cell in _cells("small_budgets"):
        if cell["budget"] in FEW:
            gaps = [cell[f"− {'posterior, prior' if name == EVERY_ROUND else FUSED}"][name] for name in names]
            shown = [f"{interval(gap)}{arrow(gap)}" for gap in gaps]
            fused = f"{cell['recall'][FUSED]['mean']:.1f}"
            rows.append([f"{found['set']} {cell['k']}@{cell['budget']}", fused, *shown])
    return markdown_table(["", FUSED, *names], rows)


def expansion() -> Table:
    """What RM3 adds, in some cells."""
    rows = []
    for found, cell in _cells("rm3"):
        if (cell["k"], cell["budget"]) not in CELLS:
            continue
        gaps = cell["− without"]
        rows.append(
            [f"{found['set']} {cell['k']}@{cell['budget']}", *(interval(gap) + arrow(gap) for gap in gaps.values())]
        )
    names = list(read_result("rm3")["sets"][0]["cells"][0]["− without"])
    return markdown_table(["", *names], rows)


def robustness(name: str) -> Table:
    """Recall under every condition, with the marks of the difference to fused reranking."""
    (found,) = (one for one in read_result("robustness")["sets"] if one["set"] == name)
    rows = [
        [
            condition,
            *(
                "/".join(f"{one[cell]['mean']:.1f}{arrow(one[cell][f'− {FUSED}'])}" for cell in CONDITION_CELLS)
                for one in strategies.values()
            ),
        ]
        for condition, strategies in found["conditions"].items()
    ]
    return markdown_table([name, *(SHORT.get(one, one) for one in next(iter(found["conditions"].values())))], rows)


def difficulty() -> Table:
    """The difference of posterior search to fused reranking in thirds of the queries."""
    rows = []
    for found in read_result("robustness")["sets"]:
        for third, strategies in found["difficulty"].items():
            gaps = [strategies[name]["10@100"] for name in (DEFAULT, "posterior, prior")]
            cells = [f"{strategies[FUSED]['10@100']['mean']:.1f}", *(interval(one[f"− {FUSED}"]) for one in gaps)]
            rows.append([f"{found['set']}, {third}", *cells])
    return markdown_table(["10@100", FUSED, "posterior", "posterior, prior"], rows)


def _cells(result: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for found in read_result(result)["sets"]:
        for cell in found["cells"]:
            yield found, cell


TABLES = {
    "rivals": rivals,
    "rival times": rival_times,
    "open set": open_set,
    "few calls": few_calls,
    "expansion": expansion,
    "robustness, scifact": partial(robustness, "scifact"),
    "robustness, open-set": partial(robustness, "open-set"),
    "difficulty": difficulty,
}
