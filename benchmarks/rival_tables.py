"""Tables of the page about rivals."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import Table, interval, markdown_table, read_result, significant

CELLS = ((1, 10), (1, 25), (1, 100), (10, 100), (100, 500))  # k and budget
TRAP = ((1, 10), (1, 25))
SETTING_NAMES = {"learning_rate": "rate", "length_scale": "ℓ", "neighbors": "degree"}


def rivals() -> Table:
    """The recall of every strategy in some cells, and what each costs beside the scorer."""
    sets = read_result("rivals")["sets"]
    rows = []
    for name in sets[0]["chosen"]:
        shown = [name]
        for found in sets:
            for cell in _cells(found):
                recall = f"{cell['recall'][name]['mean']:.1f}"
                difference = cell["− posterior"].get(name)
                shown.append(recall if difference is None else f"{recall} ({significant(difference)})")
            shown.append(f"{found['milliseconds_at_100'][name]:.0f}")
        rows.append(shown)
    header = ["strategy"]
    for found in sets:
        header += [*(f"{found['set']} {k}@{budget}" for k, budget in CELLS), "ms"]
    return markdown_table(header, rows)


def _cells(found: dict[str, Any]) -> list[dict[str, Any]]:
    cells = {(cell["k"], cell["budget"]): cell for cell in found["cells"]}
    return [cells[place] for place in CELLS]


def level_or_better() -> Table:
    """In how many of its cells each rival is shown to be above, level with and below posterior search."""
    rows = []
    for found in read_result("rivals")["sets"]:
        for name in found["chosen"]:
            differences = [cell["− posterior"][name] for cell in found["cells"] if name in cell["− posterior"]]
            if name.startswith("posterior") or not differences:
                continue
            above = sum(one["low"] > 0 for one in differences)
            below = sum(one["high"] < 0 for one in differences)
            rows.append([found["set"], name, str(above), str(len(differences) - above - below), str(below)])
    return markdown_table(["set", "strategy", "above", "level", "below"], rows)


def first_hit() -> Table:
    """`Posterior` beside fused reranking at the top 1 of few calls."""
    rows = []
    for found in read_result("rivals")["sets"]:
        for cell in found["cells"]:
            if (cell["k"], cell["budget"]) in TRAP:
                shown = [interval(cell["− rerank"][name]) for name in ("posterior", "posterior, prior")]
                rows.append([found["set"], f"{cell['k']}@{cell['budget']}", *shown])
    return markdown_table(["set", "", "no index − rerank", "prior − rerank"], rows)


def nonlinear_residual() -> Table:
    """The gain of an RBF kernel beside posterior search's features."""
    rows = []
    for found in read_result("rivals")["sets"]:
        for vectors, label in (("encoder", "no index"), ("prior", "prior")):
            for cell in found["rbf_on_the_residual"][vectors]:
                differences = [interval(value) for name, value in cell.items() if name.endswith("− without")]
                place = f"{cell['k']}@{cell['budget']}"
                rows.append([found["set"], label, place, f"{cell['without']['mean']:.1f}", *differences])
    return markdown_table(["set", "index", "", "linear", "with RBF"], rows)


def chosen_settings() -> Table:
    sets = read_result("rivals")["sets"]
    rows = [[name, *(_settings(found["chosen"][name]) for found in sets)] for name in sets[0]["chosen"]]
    return markdown_table(["strategy", *(found["set"] for found in sets)], [row for row in rows if any(row[1:])])


def _settings(chosen: dict[str, Any]) -> str:
    values = ((SETTING_NAMES.get(name, name), value) for name, value in chosen.items())
    return ", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in values)


TABLES = {
    "rivals": rivals,
    "level or better": level_or_better,
    "first hit": first_hit,
    "chosen settings": chosen_settings,
    "nonlinear residual": nonlinear_residual,
}
