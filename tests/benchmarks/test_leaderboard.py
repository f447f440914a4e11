"""The leaderboard: its numbers are those of the result files, and it works in a browser, opened from a file."""

import json

import pytest

from benchmarks.leaderboard import render, write_leaderboard
from benchmarks.leaderboard_rows import Row, find_losses, read_rows
from benchmarks.result_files import RESULTS
from tests.browsers import open_browser

RECORDS = [
    {
        "strategy": name,
        "baseline": None if name.startswith("rerank") else "rerank, fused",
        "budget": budget,
        "k": k,
        "recall": recall + budget / 1000,
        "low": recall - 0.1,
        "high": recall + 0.2,
        "calls": float(budget),
        "seconds": {"scorer": budget / 1000, "solve": 0.001, "search": 0.002},
        "difference": None if name.startswith("rerank") else {"mean": 0.2, "low": 0.1, "high": 0.3},
    }
    for name, recall in (("rerank, fused", 0.5), ("posterior, prior", 0.7), ("axn, λ 0.5", 0.4))
    for budget in (50, 100)
    for k in (1, 10)
]
MADE = {
    "header": {
        "items": 60,
        "command": "crossknn bench set <b>made</b> --scorer ours --encoder small",
        "data": {"data": "made", "queries": 40, "offline calls, prior": 480, "seed": 3},
    },
    "records": RECORDS,
    "provenance": {"command": "crossknn bench set <b>made</b>", "commit": "0123abcd", "hardware": "2 cores", "seed": 3},
}


def test_rows_are_the_records_of_the_files():
    rows = list(read_rows("made.json", MADE))
    (one,) = [row for row in rows if (row.strategy, row.budget, row.k) == ("posterior, prior", 100, 10)]
    assert (one.recall, one.low, one.high, one.difference) == (80.0, 60.0, 90.0, (20.0, 10.0, 30.0))
    assert (one.calls, one.offline, one.milliseconds, one.beside) == (100.0, 8.0, 103.0, 3.0)
    assert (one.scorer, one.encoder, one.set, one.items) == ("ours", "small", "made", 60)


def test_the_recalls_of_posterior_search_are_those_of_its_file():
    found = json.loads((RESULTS / "posterior.json").read_text(encoding="utf-8"))
    rows = {(row.set, row.strategy, row.k, row.budget): row for row in read_rows("posterior.json", found)}
    for one in found["sets"]:
        for cell in one["cells"]:
            row = rows[one["set"], "posterior, prior", cell["k"], cell["budget"]]
            gap = cell["Posterior − Rerank, fused"]
            assert (row.recall, row.low, row.high) == tuple(cell["Posterior"][name] for name in ("mean", "low", "high"))
            assert row.difference == (gap["mean"], gap["low"], gap["high"])


def row(strategy, recall, **changes):
    settings = {"file": "made.json", "set": "made", "items": 60, "queries": 40, "scorer": "s", "encoder": "e", "k": 10}
    return Row(strategy=strategy, recall=recall, **{**settings, "budget": 100, **changes})


def test_settings_in_which_the_default_is_not_the_best():
    rows = [
        row("rerank, fused", 70.0),
        row("posterior", 65.0, baseline="rerank, fused", difference=(-5.0, -8.0, -2.0)),
        row("posterior, prior", 80.0),
        row("gp, prior", 81.0, baseline="posterior, prior", difference=(1.0, -1.0, 3.0)),
        row("axn, oracle", 99.0, oracle=True),
        row("rerank, fused", 40.0, k=1),
        row("posterior", 60.0, k=1),
    ]
    losses, settings = find_losses(rows)
    assert settings == 3
    assert [(one.default.strategy, one.best.strategy, one.gap, one.difference, one.shown) for one in losses] == [
        ("posterior", "rerank, fused", 5.0, (5.0, 2.0, 8.0), True),
        ("posterior, prior", "gp, prior", 1.0, (1.0, -1.0, 3.0), False),
    ]
    page = render({})
    assert "In 0 of 0 settings" in page


def test_with_equal_time_the_calls_differ():
    rows = [row("rerank, fused", 70.0, budget=30, seconds=0.2), row("posterior", 65.0, budget=17, seconds=0.2)]
    assert [one.best.budget for one in find_losses(rows)[0]] == [30]


@pytest.mark.parametrize("name", ["rivals_scifact", "robustness", "time_budget", "posterior", "open_set"])
def test_every_kind_of_result_file_has_rows(name):
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    rows = list(read_rows(f"{name}.json", found))
    assert {"posterior", "rerank, fused"} <= {one.strategy for one in rows}
    assert all(0 <= one.recall <= 100 for one in rows)


def test_every_result_file_is_on_the_page():
    files = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")}
    page = render(files)
    assert all(f'id="{name}"' in page for name in files)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("leaderboard")
    stale = {"provenance": {"sources": {"crossknn/gone.py": "0" * 12}}}
    (folder / "files").mkdir()
    for name, content in {"made.json": MADE, "old.json": {"hardware": "1 core"}, "stale.json": stale}.items():
        (folder / "files" / name).write_text(json.dumps(content), encoding="utf-8")
    return write_leaderboard(folder / "page", folder / "files").as_uri()


def test_in_a_browser(address):
    """Filters choose rows, numbers lead to their origin, and nothing is loaded; on a wide screen and on a phone."""
    with open_browser() as browser:
        for width, scheme in ((1280, "light"), (360, "dark")):
            page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            complaints, requests = [], []
            page.on("console", lambda message: complaints.append(message.text))  # noqa: B023
            page.on("pageerror", lambda error: complaints.append(str(error)))  # noqa: B023
            page.on("request", lambda request: requests.append(request.url))  # noqa: B023
            page.goto(address)
            assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
            assert page.locator("#results tbody tr").count() == 2  # budget 100, k 10; variants with λ are off at first
            first = page.locator("#results tbody tr").first.inner_text()
            assert first.split("\t")[:3] == ["posterior, prior", "100", "80.0"]
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.name") == "set"
            page.select_option("[name=budget]", "all")
            page.check("[value='axn, λ 0.5']")
            assert page.locator("#results tbody tr").count() == 6
            assert page.locator("#plots svg").count() == 2
            assert page.locator("#plots svg").first.locator(".mark").count() == 6
            page.select_option("[name=offline]", "up to 10")
            assert page.locator("#results tbody tr").count() == 4
            page.reload()  # the address keeps the filters
            assert page.locator("#results tbody tr").count() == 4
            page.locator(".mark[tabindex='0']").first.focus()
            page.keyboard.press("ArrowRight")
            assert "100 calls" in page.inner_text("#readout")
            page.get_by_role("button", name="Recall").focus()
            page.keyboard.press("Enter")
            assert "rerank" in page.locator("#results tbody tr").first.inner_text()
            page.locator("#results td.recall a").first.click()
            origin = page.locator("details[open]")
            assert all(text in origin.inner_text() for text in ("<b>made</b>", "0123abcd", "2 cores", "3"))
            assert origin.locator("a").get_attribute("href") == "results/made.json"
            states = page.locator(".state").all_inner_texts()
            assert states == ["unknown", "unknown", "stale"]
            assert complaints == []
            assert {url.partition("?")[0] for url in requests} == {address}
            page.close()
