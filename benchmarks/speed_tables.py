"""Tables of how fast scoring is, on a GPU and on a CPU, and what a large corpus takes from end to end."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import Table, as_table

MODELS = {"ce-ir": "6-layer MiniLM", "bert-base": "BERT-base's shape"}
STEPS = {
    "read": "reading the corpus",
    "encode items": "encoding items",
    "encode queries": "encoding train queries",
    "sample pairs": "BM25 and choosing pairs",
    "score": "scoring them",
    "normalise": "α and β",
    "prior": "fitting the prior",
    "save": "saving",
    "open": "opening",
    "prepare": "making ready to search",
    "exact scores": "exact scores of the sample",
}


def scoring(found: list[dict[str, Any]]) -> Table:
    """Of each result file a line."""
    head = ["model", "tokens per pair", "floor, pairs/s", "sentence-transformers", "crossknn, first pass", "crossknn"]
    return as_table([*head, "of the floor"], map(_scoring_row, found))


def scoring_on_cpu(found: dict[str, Any]) -> Table:
    """Times sentence-transformers in float32, by wall time and by processor time."""
    wall, processor = (found[f"{kind}_ratio_to_sentence_transformers"] for kind in ("wall", "processor"))
    head = ["", "pairs per second", "times sentence-transformers", "by processor time"]
    rows = [
        ["sentence-transformers float32", str(found["sides"]["sentence-transformers float32"]["pairs_per_s"]), "1", "1"]
    ]
    for name in wall:
        times = wall[name]["sentence-transformers float32"]
        rows.append([name, str(found["sides"][name]["pairs_per_s"]), f"{times:.2f}", f"{processor[name]:.2f}"])
    return as_table(head, rows)


def _scoring_row(one: dict[str, Any]) -> list[str]:
    theirs = max((name for name in one["sides"] if name.startswith("sentence")), key=lambda name: _speed(one, name))
    first, stored = (f"crossknn bfloat16, {kind}" for kind in ("first pass", "tokens stored"))
    times = [f"{_speed(one, name):,.0f}/s, {_speed(one, name) / _speed(one, theirs):.1f}×" for name in (first, stored)]
    floor = one["floor"]
    return [
        MODELS[one["model"]],
        f"{one['tokens_per_pair']:.0f}",
        f"{floor['pairs_per_s']:,}",
        f"{_speed(one, theirs):,.0f}/s",
        *times,
        f"{100 * floor['share_reached'][stored]:.0f} %",
    ]


def _speed(one: dict[str, Any], side: str) -> float:
    return float(one["sides"][side]["pairs_per_s"])


def variants(found: dict[str, Any]) -> Table:
    head = ["", *(f"{MODELS[shape]}, {part}" for shape in MODELS for part in ("pairs/s", "of the floor"))]
    own, base = (found[shape]["variants"] for shape in ("own", "BERT-base"))
    return as_table(head, ([name, *_variant(own[name]), *_variant(base[name])] for name in own))


def _variant(one: dict[str, Any]) -> list[str]:
    return [f"{one['pairs_per_s']:,}", f"{100 * one['share']:.0f} %"]


def search_steps(found: dict[str, Any]) -> Table:
    """Milliseconds of a search by the kilobytes of a step."""
    steps = found["ms_by_kilobytes"]
    head = ["queries together", *(f"{int(size) / 1024:g} MB" for size in steps)]
    return as_table(head, ([count, *(f"{took[count]:,.0f}" for took in steps.values())] for count in steps["2048"]))


def million_steps(found: dict[str, Any]) -> Table:
    steps = {name: taken["seconds"] for name, taken in found["steps"].items()}
    build = found["build"]["seconds"]
    steps |= build | {"save": steps["build"] - sum(build.values())}
    rows = ([shown, f"{steps[name]:,.1f}", _per_million(steps[name], found["items"])] for name, shown in STEPS.items())
    return as_table(["", "seconds", "seconds per million items"], rows)


def _per_million(seconds: float, items: int) -> str:
    return f"{seconds / items * 1e6:,.1f}"


def million_searches(found: dict[str, Any]) -> Table:
    head = ["", "calls", "seconds for 64 queries", "outside the scorer", "top 1", "top 10", "top 100"]
    return as_table(head, map(_search_row, found["searches"]))


def _search_row(one: dict[str, Any]) -> list[str]:
    name, budget = one["strategy"].removesuffix(")").split("(budget=")
    outside = one["seconds"] - one["score_seconds"]
    return [
        f"`{name}`",
        budget,
        f"{one['seconds']:.2f}",
        f"{outside:.2f}",
        *(str(one["recall"][k]) for k in ("1", "10", "100")),
    ]
