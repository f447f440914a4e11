"""The table in a terminal: what stands where, in which color, and within which width."""

import pytest
from rich.console import Console

from crossknn.evaluate.report.table import quality_table, table
from tests.evaluate.conftest import judged, made_by_hand, result, values

LONG = {"scorer": 90.0, "solve": 0.25, "search": 0.75}
GREEN, DIM_RED = "\x1b[32m", "\x1b[2;31m"


def printed(comparison, *, width=100, color=False, **options):
    console = Console(width=width, record=True, force_terminal=color, color_system="standard" if color else None)
    with console.capture() as capture:
        console.print(table(comparison, **options))
    return capture.get()


def test_a_section_per_budget_with_each_adaptive_row_below_its_baseline(comparison):
    lines = [line.strip() for line in printed(comparison).splitlines() if line.strip()]
    assert lines[0] == "Tiny items"
    assert lines[1].split("  ")[0] == "recall, % of the true"
    at = lines.index("budget 100")
    assert [" ".join(line.split()) for line in lines[at + 1 : at + 6]] == [
        "Rerank, BM25 100 80.0 70.0 50.0 24",
        "↳ Axn, BM25 first 100 74.9 64.9 44.9 24",
        "Rerank, dense 100 70.0 60.0 40.0 24",
        "↳ Axn, dense first 100 84.2 74.2 54.2 24",
        "budget 1,000",
    ]
    assert "Exact search 5,183 100.0 100.0 100.0 1,250" in [" ".join(line.split()) for line in lines]


def test_better_is_green_worse_is_dim_red_and_baselines_are_plain(comparison):
    lines = printed(comparison, color=True).splitlines()
    colors = {name: [line for line in lines if name in line] for name in ("Axn, dense", "Axn, BM25", "Rerank")}
    assert all(line.count(GREEN) == 3 and DIM_RED not in line for line in colors["Axn, dense"])
    assert all(line.count(DIM_RED) == 3 and GREEN not in line for line in colors["Axn, BM25"])
    assert not any(GREEN in line or DIM_RED in line for line in colors["Rerank"])


def test_what_is_not_shown_has_no_color():
    unsure = values(0.55, spread=0.4)
    for changes in ({"per_query": unsure}, {"per_query": values(0.6, queries=40)[:19]}, {"per_query": ()}):
        plain = result("a", 9, 1, 0.5, per_query=values(0.5, queries=len(changes["per_query"]) or 40))
        level = made_by_hand(results=[plain, result("b", 9, 1, 0.6, baseline="a", **changes)])
        assert not any(color in printed(level, color=True) for color in (GREEN, DIM_RED, "\x1b[31m"))


def test_the_quality_of_first_stages_stands_before_that_of_the_cross_encoder():
    console = Console(width=100, record=True, force_terminal=True, color_system="standard")
    levels = [judged("exact", None, 0.4), judged("bm25", 0, 0.6), judged("rerank, bm25", 50, 0.7, spread=0.4)]
    with console.capture() as capture:
        console.print(quality_table(levels))
    lines = [line.split() for line in capture.get().splitlines() if "0." in line]
    assert [line[:2] for line in lines] == [["bm25", "0"], ["rerank,", "bm25"], ["exact", "all"]]
    assert "\x1b[2;31m−0.200" in capture.get()
    assert GREEN not in capture.get()


@pytest.mark.parametrize("width", [80, 100, 300])
@pytest.mark.parametrize("name", ["Axn", "Axn, vectors fitted to the cross-encoder, first round fused " * 2, "x" * 90])
def test_nothing_is_cut_and_nothing_is_wider_than_the_terminal(width, name):
    long = [result("Rerank", 100_000, k, 1.0, calls=100_000, seconds=LONG) for k in (1, 10)]
    long += [result(name, 100_000, k, 0.999, calls=99_999.5, baseline="Rerank") for k in (1, 10, 100)]
    text = printed(made_by_hand(results=long, items=10_000_000, exact_seconds=2000.0), width=width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) < 100
    assert max(map(len, text.splitlines())) <= width
    for number in ("100,000", "99,999.5", "91,000", "10,000,000", "2,000,000", "100.0"):
        assert number in text
    for header in ("calls", "top 1", "top 10", "top 100", "ms/query"):
        assert f"{header} " in text
    assert text.count("x") >= name.count("x")


def test_what_was_not_measured_is_a_dash_and_never_a_number():
    partial = [result("Rerank", 50, 1, 0.5, seconds={"search": 0.1}), result("Other", 100, 10, 0.25)]
    lines = printed(made_by_hand(results=partial, exact_seconds=None)).splitlines()
    cells = [line.split() for line in lines if line.strip().startswith(("Rerank", "Other", "Exact"))]
    assert cells == [
        ["Rerank", "50", "50.0", "–", "–", "–"],
        ["Other", "–", "–", "–", "–", "–"],
        ["Rerank", "–", "–", "–", "–", "–"],
        ["Other", "100", "–", "25.0", "–", "24"],
        ["Exact", "search", "5,183", "100.0", "100.0", "100.0", "–"],
    ]


def test_names_are_text_and_never_markup():
    assert "[red]Axn[/red]" in printed(made_by_hand(results=[result("[red]Axn[/red]", 5, 1, 0.5)], title="[b]t[/b]"))
    assert "[b]t[/b]" in printed(made_by_hand(title="[b]t[/b]"))
