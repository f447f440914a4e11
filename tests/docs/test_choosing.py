"""docs/choosing-a-strategy.md: its code runs as it stands, and its figures are those of the result files."""

import json
from pathlib import Path

from tests.docs.doc_pages import ROOT, code_of, move_into_world

PAGE = (ROOT / "docs" / "choosing-a-strategy.md").read_text(encoding="utf-8")
SETS = ("scifact", "acl25k")


def read(name):
    return json.loads((ROOT / "benchmarks" / "results" / name).read_text(encoding="utf-8"))


def table(head):
    """The lines of the table that begins so, by their first cell."""
    lines = PAGE[PAGE.index(f"| {head} |") :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in cells}


def percent(value):
    return f"{value:.1f}"


def test_what_strategies_find():
    records = {
        (name, r["strategy"], r["k"], r["budget"]): r for name in SETS for r in read(f"bench_{name}.json")["records"]
    }
    for strategy, (_, *figures) in table("strategy | offline calls per item").items():
        cells = [(name, strategy, k, budget) for name in SETS for k, budget in ((1, 100), (10, 100), (100, 500))]
        assert figures == [percent(100 * records[cell]["recall"]) for cell in cells], strategy


def test_what_more_calls_and_rounds_find():
    sets = {one["set"]: one for one in read("posterior.json")["sets"]}
    cells = {(name, c["k"], c["budget"]): c for name in SETS for c in sets[name]["cells"]}
    for calls, figures in table("calls").items():
        both = [
            cells[name, 10, int(calls)][side]["mean"] for name in SETS for side in ("Posterior, no index", "Posterior")
        ]
        assert figures == list(map(percent, both))
    for rounds, figures in table("rounds").items():
        found = [sets[name]["ablations"]["whole" if rounds == "10" else f"{rounds} rounds"] for name in SETS]
        assert figures == [percent(one["100@500"]) for one in found]


def test_what_the_order_of_hits_is_worth():
    sets = {one["set"]: one for one in read("rank_by.json")["sets"]}
    for order, figures in table("order").items():
        wanted = [sets[name][strategy][order]["mean"] for name in SETS for strategy in ("exact", "posterior")]
        assert figures == list(map(percent, wanted))


def test_the_code_of_the_page_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    move_into_world(tmp_path, monkeypatch)
    names = {}
    exec(code_of("docs/choosing-a-strategy.md"), names)
    assert len(names["hits"].trace) == 50
    assert all(hit.probability >= 0.5 for hit in names["hits"])
    assert Path("calibration.json").is_file()
    assert len(capsys.readouterr().out.splitlines()) == 52
    assert Path("rounds.png").stat().st_size > 10_000
    assert set(names["weights"]) == {"score", "dense", "bm25"}
    assert len(names["fused"]) == 10
