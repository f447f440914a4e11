"""The search page in a real browser against a real server."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise, product
from urllib.parse import urlencode

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

import crossknn as ck
from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.serve.settings import Limits
from crossknn.testing import MatrixScorer
from tests.browsers import open_browser
from tests.serve.servers import opened, serving
from tests.worlds import World

QUERIES = ["how rivers freeze", "why ice is slippery", "held back"]
QUERY, OTHER_QUERY, HELD_QUERY = QUERIES
MARKUP = "<img src=x onerror=alert(1)> & <b>bold</b> <script>alert(2)</script>"
LONG = "water " * 120 + "x" * 300
K, BUDGET = 10, 100
BACKGROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 31)"}
TEXT_CONTRAST, MARK_CONTRAST = 4.5, 3.0  # of WCAG 2, level AA
TIMEOUT = 15_000  # milliseconds, for a busy machine

expect.set_options(timeout=TIMEOUT)


class HeldScorer(MatrixScorer):
    """A scorer that hangs on `HELD_QUERY` until `free` is set."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.free = threading.Event()
        self.free.set()

    def score(self, queries, items):
        if HELD_QUERY in queries:
            self.free.wait(30)
        return super().score(queries, items)


@pytest.fixture(scope="module")
def searcher() -> ck.Searcher:
    """600 items whose best ones no retriever finds; the two best for `QUERY` have difficult texts."""
    world = World.low_rank(queries=len(QUERIES), items=600, noise=3.0)
    texts = [f"item {row} about ice" if row % 3 else f"item {row} about rivers that freeze" for row in range(600)]
    first, second = world.scores[0].argsort()[:-3:-1]
    texts[first], texts[second] = MARKUP, LONG
    fields = {"month": [row % 12 + 1 if row != second else None for row in range(600)], "note": [None] * 600}
    fields["note"][first], fields["note"][second] = MARKUP, LONG
    scorer = HeldScorer(world.scores, queries=QUERIES, items=texts)
    encoder = PrecomputedEncoder(queries=(QUERIES, world.query_vectors), items=(texts, world.vectors))
    return ck.Searcher(ck.Items(texts, fields=fields), scorer=scorer, encoder=encoder)


@contextmanager
def served(searcher, **settings) -> Iterator[str]:
    """The URL of a server with the models and items of this searcher."""
    models = {"scorer": searcher.scorer, "encoder": searcher.encoder}
    with opened(searcher.items, **models, **settings) as service, serving(service) as address:
        yield address


@pytest.fixture(scope="module")
def address(searcher) -> Iterator[str]:
    with served(searcher) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def held(searcher) -> Iterator[threading.Event]:
    """An event that lets the scorer answer `HELD_QUERY`."""
    free = searcher.scorer.free
    free.clear()
    yield free
    free.set()


@contextmanager
def visit(browser, address, *, expected="the server responded with a status of", **options) -> Iterator[Page]:
    """The page; messages in its console other than the expected ones fail the test."""
    page = browser.new_page(viewport={"width": 1280, "height": 800}, **options)
    page.set_default_timeout(TIMEOUT)
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(address)
    yield page
    page.close()
    assert [text for text in messages if expected not in text] == []


def search_url(address, query=QUERY, *strategies, **settings) -> str:
    """The URL of a search."""
    fields = {"q": query, "k": K, "budget": BUDGET, **settings}
    pairs = [*fields.items(), *(("strategy", name) for name in strategies)]
    return f"{address}/?" + "&".join(f"{name}={value}" for name, value in pairs).replace(" ", "+")


def wait_for(page, query=QUERY) -> None:
    expect(page.locator("#status")).to_have_text(f"Results for “{query}”")


def texts_of(page, selector) -> list[str]:
    return page.locator(selector).all_inner_texts()


def test_search_with_the_keyboard(browser, address, searcher):
    with visit(browser, address) as page:
        expect(page.locator("#query")).to_be_focused()
        page.keyboard.type(QUERY)
        page.keyboard.press("Enter")
        wait_for(page)
        hits = searcher.search(QUERY, k=K, budget=BUDGET)
        assert page.locator("article .score").all_text_contents() == [
            f"score {hit.score:.2f}".replace("-", "−") for hit in hits
        ]
        best = " ".join(texts_of(page, "article li:first-child .origin")[0].split())
        assert f"round {hits[0].round} " in best
        assert all(f"{name} rank {rank or '–'}" in best for name, rank in hits[0].ranks.items())
        page.keyboard.press("Tab")
        expect(page.locator("#query")).not_to_be_focused()
        page.keyboard.press("/")
        expect(page.locator("#query")).to_be_focused()
        page.keyboard.type(OTHER_QUERY)
        page.keyboard.press("Enter")
        wait_for(page, OTHER_QUERY)


def test_strategies_are_compared_side_by_side(browser, address, searcher):
    found = [searcher.search(QUERY, k=K, strategy=one) for one in (ck.Posterior(BUDGET), ck.Rerank(BUDGET))]
    scored = [{hit.id: hit.score for hit in hits.trace} for hits in found]
    known = scored[0] | scored[1]
    best = sorted(known, key=known.get, reverse=True)[:K]
    only = [sum(hit.id not in other for hit in hits) for hits, other in zip(found, reversed(scored), strict=True)]
    assert sum(only) > 0, "the strategies find the same hits"
    with visit(browser, search_url(address, QUERY, "posterior")) as page:
        wait_for(page)
        expect(page.locator("article")).to_have_count(1)
        page.get_by_label("Rerank").press("Space")
        expect(page.locator("article .score")).to_have_count(2 * K)
        wait_for(page)
        assert [page.locator("article").nth(place).locator(".only").count() for place in (0, 1)] == only
        cells = "tbody tr:first-child td:nth-child"
        assert texts_of(page, f"{cells}(2)") == [f"{sum(one in mine for one in best)} of {K}" for mine in scored]
        assert texts_of(page, f"{cells}(3)") == [str(hits.calls) for hits in found]
        assert texts_of(page, f"{cells}(4)") == [str(hits.rounds) for hits in found]
        assert texts_of(page, f"{cells}(5)") == [f"{hits[0].score:.2f}" for hits in found]
        assert texts_of(page, f"{cells}(6)")[1] == "–"


def test_items_found_with_a_larger_budget_are_remembered(browser, address, searcher):
    known: dict[str, float] = {}
    with visit(browser, search_url(address, QUERY, "posterior", "rerank")) as page:
        for key, calls in (("End", 500), ("Home", 25)):
            wait_for(page)
            page.locator("#budget").press(key)
            expect(page.locator(".point")).to_have_count(2 * calls)
            found = [searcher.search(QUERY, k=K, strategy=one(calls)) for one in (ck.Posterior, ck.Rerank)]
            scored = [{hit.id: hit.score for hit in hits.trace} for hits in found]
            known |= scored[0] | scored[1]
            best = sorted(known, key=known.get, reverse=True)[:K]
            expected = [f"{sum(one in mine for one in best)} of {K}" for mine in scored]
            assert texts_of(page, "tbody tr:first-child td:nth-child(2)") == expected
    assert expected[1] != f"{K} of {K}", "25 calls find all"


def test_one_strategy_alone_has_no_share_of_what_is_known(browser, address):
    with visit(browser, search_url(address, QUERY, "rerank")) as page:
        wait_for(page)
        expect(page.locator(".summary thead th").nth(1)).to_have_text("Cross-encoder calls")
        expect(page.locator("#summary")).not_to_contain_text("Found")


def test_what_is_searched_and_three_queries_to_click(browser, searcher):
    described = {"title": "Rivers & <b>ice</b>", "example_queries": QUERIES}
    with served(searcher, **described) as address, visit(browser, address) as page:
        expect(page.get_by_role("heading", level=2).first).to_have_text("Rivers & <b>ice</b>")
        expect(page.locator("#examples button")).to_have_text(QUERIES)
        page.get_by_role("button", name=OTHER_QUERY).click()
        wait_for(page, OTHER_QUERY)
        expect(page).to_have_url(re.compile(r"q=why\+ice\+is\+slippery"))
    with served(searcher) as address, visit(browser, address) as page:
        expect(page.locator("#examples button")).to_have_count(3)
        first, *_ = texts_of(page, "#examples button")
        assert any(text.startswith(first) for text in searcher.items.texts)
        expect(page.locator("#title")).to_be_hidden()


def test_filters_by_field_hold_in_the_results_and_in_the_url(browser, searcher):
    sizes = [None if row % 7 == 0 else row for row in range(len(searcher.items))]
    kinds = ["even" if row % 2 == 0 else "odd" for row in range(len(searcher.items))]
    items = ck.Items(searcher.items.texts, fields={"size": sizes, "kind": kinds})
    found = ck.Searcher(items, scorer=searcher.scorer, encoder=searcher.encoder)
    wanted = found.search(QUERY, k=K, budget=BUDGET, filter={"kind": "odd", "size": {"lt": 400}})
    with served(found) as address, visit(browser, search_url(address)) as page:
        wait_for(page)
        for field, operator, value in (("size", "<", "400"), ("kind", "is one of", "odd, none")):
            page.get_by_role("button", name="Add a filter").press("Enter")
            row = page.locator(".filter").last
            expect(row.get_by_label("Field")).to_be_focused()
            row.get_by_label("Field").select_option(field)
            row.get_by_label("Condition").select_option(operator)
            row.get_by_label("Value").fill(value)
            row.get_by_label("Value").press("Enter")
        expect(page.locator("article .id bdi").first).to_have_text(wanted[0].id)
        wait_for(page)
        assert texts_of(page, "article .id bdi") == wanted.ids
        page.reload()
        wait_for(page)
        expect(page.locator(".filter")).to_have_count(2)
        assert texts_of(page, "article .id bdi") == wanted.ids
        page.get_by_role("button", name="Remove the filter by size").click()
        expect(page.locator(".filter")).to_have_count(1)
        wait_for(page)
        expect(page).not_to_have_url(re.compile("filter=.*filter="))
        expect(page).to_have_url(re.compile("filter="))
        page.goto(f"{search_url(address)}&filter=constructor%7Ceq%7C1&filter=size%7CtoString%7C1")
        wait_for(page)
        expect(page.locator(".filter")).to_have_count(0)


def test_words_that_bm25_matched_are_highlighted(browser, searcher):
    texts = ["A \U0001f9ca river FREEZES over", "of rivers, freezing\u0301 and frozen", "<b>river</b>", "no match"]
    scorer = MatrixScorer(np.arange(4.0)[None], queries=[QUERY], items=texts)
    with served(ck.Searcher(ck.Items(texts), scorer=scorer)) as address, visit(browser, address) as page:
        page.goto(search_url(address, QUERY, k=4, budget=25))
        wait_for(page)
        marked = [hit.locator("mark").all_text_contents() for hit in page.locator("article li").all()]
        assert marked == [[], ["river"], ["rivers", "freezing"], ["river", "FREEZES"]]
        assert page.locator("article .text").all_text_contents() == texts[::-1]


def test_the_slider_sets_the_budget(browser, address):
    with visit(browser, search_url(address)) as page:
        wait_for(page)
        page.locator("#budget").press("ArrowRight")
        expect(page.locator("#calls")).to_have_text("125 calls")
        expect(page.locator(".point")).to_have_count(125)
        expect(page).to_have_url(re.compile("budget=125"))
        page.locator("#k").fill("200")
        page.locator("#k").press("Enter")
        assert not page.locator("#k").evaluate("box => box.validity.valid")


OUTSIDE = """() => {
    const end = (one) => one.getBoundingClientRect().right;
    const parts = [...document.querySelectorAll('main > *, table, article, figure, .bar')];
    return parts.filter(one => end(one) > end(document.querySelector('main')) + 0.5).map(one => one.outerHTML);
}"""


def test_no_horizontal_scrolling_in_light_and_dark_mode(browser, address):
    with visit(browser, search_url(address, QUERY, "posterior", "rerank", "axn")) as page:
        wait_for(page)
        page.locator("summary").first.click()
        for width, (scheme, background) in product((360, 700, 1280), BACKGROUNDS.items()):
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme)
            expect(page.locator(".point")).to_have_count(3 * BUDGET)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(OUTSIDE) == []
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == background


def test_no_external_requests(browser, address):
    with visit(browser, address, expected="Content Security Policy") as page:
        answered = []
        page.on("response", lambda response: answered.append(response.url))
        page.goto(search_url(address))
        wait_for(page)
        page.evaluate(
            "document.body.append(Object.assign(new Image(), {id: 'alien', src: 'http://127.0.0.1:9/x.png'}))"
        )
        is_blocked = "image => image.decode().then(() => false, () => true)"
        assert page.locator("#alien").evaluate(is_blocked)
        assert f"{address}/search" in answered
        assert all(url.startswith(address) for url in answered)


def test_html_in_texts_is_shown_as_text(browser, address):
    with visit(browser, search_url(address)) as page:
        wait_for(page)
        assert texts_of(page, "article li:first-child .text") == [MARKUP]
        page.locator(".point.hit").first.focus()
        page.locator("summary").click()
        expect(page.locator("table.calls")).to_contain_text(MARKUP)
        assert page.locator("img, main script, article b:text('bold')").count() == 0


def test_fields_are_shown_without_nulls_and_as_text(browser, address):
    with visit(browser, search_url(address)) as page:
        wait_for(page)
        first, second = page.locator("article li:first-child dl"), page.locator("article li:nth-child(2) dl")
        assert first.locator("dt").all_text_contents() == ["month", "note"]
        assert first.locator("dd").all_text_contents()[1] == MARKUP
        (shown,) = second.locator("dd").all_text_contents()
        assert LONG.startswith(shown.removesuffix("…"))
        assert page.locator("article li:nth-child(3) dt").all_text_contents() == ["month"]


def test_long_texts_are_cut_off_until_show_all(browser, address):
    with visit(browser, search_url(address)) as page:
        wait_for(page)
        text = page.locator("article li:nth-child(2) .text")
        before = text.bounding_box()["height"]
        page.get_by_role("button", name="Show all").first.press("Enter")
        assert text.bounding_box()["height"] > 2 * before
        page.get_by_role("button", name="Show less").press("Enter")
        assert text.bounding_box()["height"] == before


def test_errors_of_the_server_are_shown(browser, address):
    with visit(browser, search_url(address, "never encoded")) as page:
        expect(page.locator("article .problem")).to_contain_text("never encoded")
        expect(page.locator("#summary")).to_be_hidden()
        page.locator("#query").fill(QUERY)
        page.locator("#query").press("Enter")
        wait_for(page)
        expect(page.locator(".problem:visible")).to_have_count(0)


def test_a_search_without_time_shows_candidates_that_are_not_scored(browser, searcher):
    with (
        served(searcher, limits=Limits(deadline=1e-6)) as address,
        visit(browser, search_url(address)) as page,
    ):
        wait_for(page)
        expect(page.locator("article .origin", has_text="not scored in time")).to_have_count(K)
        assert {text.split()[-1] for text in texts_of(page, "article .score")} == {"–"}
        expect(page.locator("#summary")).to_contain_text("stopped early: deadline")
        expect(page.locator("#plots")).to_be_hidden()


def test_a_busy_server_shows_when_to_retry(browser, searcher, held):
    with (
        served(searcher, running=1, waiting=0) as address,
        visit(browser, search_url(address, HELD_QUERY, "posterior", "rerank")) as page,
    ):
        expect(page.locator("article .problem")).to_contain_text("Try again in")
        held.set()
        wait_for(page, HELD_QUERY)
        expect(page.locator("article .score")).to_have_count(K)


def test_a_new_search_cancels_the_running_one(browser, address, held):
    with visit(browser, search_url(address)) as page:
        wait_for(page)
        cancelled = []
        page.on("requestfailed", lambda request: cancelled.append((request.post_data_json["query"], request.failure)))
        page.locator("#query").fill(HELD_QUERY)
        page.locator("#query").press("Enter")
        expect(page.locator("#stop")).to_be_visible()
        expect(page.locator("article")).to_have_attribute("aria-busy", "true")
        page.locator("#query").fill(OTHER_QUERY)
        page.locator("#query").press("Enter")
        held.set()
        wait_for(page, OTHER_QUERY)
        assert [failure for query, failure in cancelled if query == HELD_QUERY] == ["net::ERR_ABORTED"]


def test_a_search_can_be_stopped(browser, address, held):
    with visit(browser, search_url(address, HELD_QUERY)) as page:
        page.locator("#stop").click()
        expect(page.locator("article .problem")).to_have_text("Stopped.")
        expect(page.locator("#stop")).to_be_hidden()
        expect(page.locator("#query")).to_be_focused()


def test_the_api_key_is_requested_once(browser, searcher):
    with served(searcher, api_key="right") as address, visit(browser, search_url(address)) as page:
        for key, message in (("wrong", "requires an API key"), ("right", "rejected this API key")):
            expect(page.locator("#problem")).to_contain_text(message)
            expect(page.get_by_label("API key")).to_be_focused()
            page.keyboard.type(key)
            page.keyboard.press("Enter")
        wait_for(page)
        expect(page.locator("#access")).to_be_hidden()
        page.reload()
        wait_for(page)


def test_the_url_restores_its_search(browser, address):
    with visit(browser, search_url(address, QUERY, "rerank", k=3, budget=50)) as page:
        wait_for(page)
        assert page.locator("#query").input_value() == QUERY
        assert page.locator("#calls").inner_text() == "50 calls"
        assert texts_of(page, "article h3") == ["Rerank"]
        expect(page.locator("article li")).to_have_count(3)
        page.locator("#query").fill(OTHER_QUERY)
        page.locator("#query").press("Enter")
        wait_for(page, OTHER_QUERY)
        page.go_back()
        wait_for(page)
        assert page.locator("#query").input_value() == QUERY


def test_the_plot_has_a_point_for_every_call(browser, address, searcher):
    hits = searcher.search(QUERY, k=K, budget=BUDGET)
    with visit(browser, search_url(address)) as page:
        expect(page.locator(".point")).to_have_count(hits.calls)
        expect(page.locator(".point.hit")).to_have_count(K)
        colors = page.evaluate("[...document.querySelectorAll('.point')].map(p => getComputedStyle(p).fill)")
        assert len(set(colors)) == hits.rounds
        heights = [
            float(at) for at in page.evaluate("[...document.querySelectorAll('.point')].map(p => p.cy.baseVal.value)")
        ]
        order = sorted(range(hits.calls), key=lambda place: hits.trace[place].score)
        assert all(heights[low] >= heights[high] for low, high in pairwise(order))
        page.locator(".point").first.focus()
        page.keyboard.press("ArrowRight")
        second = hits.trace[1]
        expect(page.locator(".readout")).to_contain_text(searcher.items.text(second.row))
        expect(page.locator(".readout")).to_contain_text(f"round {second.round}, ")
        page.keyboard.press("End")
        expect(page.locator(".point").last).to_be_focused()
        page.locator("summary").press("Enter")
        expect(page.locator("table.calls tbody tr")).to_have_count(hits.calls)


UNLABELED = """() => [...document.querySelectorAll('input, output, button')]
    .filter(one => !(one.labels?.length || one.textContent.trim())).map(one => one.outerHTML)"""
LEVELS = "() => [...document.querySelectorAll('h1, h2, h3')].map(one => Number(one.tagName[1]))"
CONTRASTS = """() => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const rgba = (color) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
    const background = (one) => {
        const own = rgba(getComputedStyle(one).backgroundColor);
        return own[3] || !one.parentElement ? own : background(one.parentElement);
    };
    const contrast = (one, color) => {
        const [low, high] = [light(rgba(color)), light(background(one))].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    };
    const texts = [...document.querySelectorAll('body *')].filter(one => one.getClientRects().length
        && [...one.childNodes].some(child => child.nodeType === Node.TEXT_NODE && child.data.trim()));
    const words = texts.map(one => [one.className?.baseVal ?? one.className, one.textContent.slice(0, 30),
        contrast(one, one.closest('svg') ? getComputedStyle(one).fill : getComputedStyle(one).color)]);
    const marks = [...document.querySelectorAll('.point')]
        .map(one => ['point', '', contrast(one, getComputedStyle(one).fill)]);
    return {words, marks};
}"""


def test_labels_headings_and_contrast(browser, address):
    with visit(browser, search_url(address, QUERY, "posterior", "rerank")) as page:
        wait_for(page)
        expect(page.locator(".point")).to_have_count(2 * BUDGET)
        assert page.evaluate(UNLABELED) == []
        levels = page.evaluate(LEVELS)
        assert levels[0] == 1
        assert all(after - before <= 1 for before, after in pairwise(levels))
        for scheme in BACKGROUNDS:
            page.emulate_media(color_scheme=scheme)
            measured = page.evaluate(CONTRASTS)
            assert len(measured["words"]) > 50
            assert [one for one in measured["words"] if one[2] < TEXT_CONTRAST] == []
            assert [one for one in measured["marks"] if one[2] < MARK_CONTRAST] == []


def test_focus_is_visible(browser, address):
    with visit(browser, search_url(address)) as page:
        wait_for(page)
        look = "one => (({outline, strokeWidth}) => [outline, strokeWidth])(getComputedStyle(one))"
        seen = []
        while "SUMMARY" not in seen and len(seen) < 20:
            page.keyboard.press("Tab")
            outline, stroke = page.locator(":focus").evaluate(look)
            assert "solid 2px" in outline or stroke == "3.5px"
            seen.append(page.locator(":focus").evaluate("one => one.id || one.tagName"))
        assert seen[:5] == ["query", "BUTTON", "BUTTON", "BUTTON", "BUTTON"]
        assert seen[5:8] == ["budget", "k", "INPUT"]
        assert seen[-2:] == ["circle", "SUMMARY"]


def test_printing_shows_whole_texts_on_a_light_background(browser, address):
    with visit(browser, search_url(address), color_scheme="dark", reduced_motion="reduce") as page:
        wait_for(page)
        assert page.evaluate("getComputedStyle(document.querySelector('ol')).transitionDuration") == "0s"
        cut = page.locator("article li:nth-child(2) .text").bounding_box()["height"]
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == BACKGROUNDS["light"]
        assert page.locator("article li:nth-child(2) .text").bounding_box()["height"] > cut
        expect(page.locator("button:visible")).to_have_count(0)


SCRIPTS = [
    "<script>alert(1)</script>",
    "</p></li></ol></main><h1 onclick=alert(1)>broken",
    '"><svg onload=alert(1)><a href="javascript:alert(1)">link</a>',
    "' onmouseover='alert(1)' autofocus onfocus='alert(1)",
    '<iframe srcdoc="<script>parent.alert(1)</script>"></iframe><style>* { display: none }</style>',
    "javascript:alert(1) ${alert(1)} {{alert(1)}} &lt;b&gt; &#x202e;",
    "\u202ereversed \u2066 never closed",
    "\u05e9\u05dc\u05d5\u05dd (1) \u0645\u0631\u062d\u0628\u0627",
    "\u200bi\u200dc\u2060e\ufeff \u0000 z" + "\u0300\u0323" * 40,
    "x" * 1_000_000,
]


@pytest.fixture(scope="module")
def hostile() -> Iterator[str]:
    """The URL of a server whose best items, with their ids, and whose queries attack the page."""
    world = World.low_rank(queries=len(SCRIPTS) - 1, items=300)
    texts, ids = ([f"{kind} {row}" for row in range(300)] for kind in ("item", "id"))
    for row, script in zip(world.scores[0].argsort()[::-1], SCRIPTS, strict=False):
        texts[row], ids[row] = script, script[:100] * 2
    scorer = MatrixScorer(world.scores, queries=SCRIPTS[:-1], items=texts)
    encoder = PrecomputedEncoder(queries=(SCRIPTS[:-1], world.query_vectors), items=(texts, world.vectors))
    with opened(ck.Items(texts, ids=ids), scorer=scorer, encoder=encoder) as service, serving(service) as address:
        yield address


@contextmanager
def attacked(browser) -> Iterator[Page]:
    """A page on which nothing opens a dialog, fails or violates the content security policy."""
    dialogs = []
    with visit(browser, "about:blank", expected="no message is expected") as page:
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        yield page
        assert dialogs == []


def search_page(page, address, query) -> None:
    page.goto(f"{address}/?{urlencode({'q': query, 'k': len(SCRIPTS), 'budget': 300})}")
    expect(page.locator("#status bdi")).to_have_js_property("textContent", query.strip())


WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
ENDS = """() => {
    const [first, , last] = document.querySelector('#status').childNodes;
    const place = (node, at) => {
        const range = document.createRange();
        range.setStart(node, at);
        range.setEnd(node, at + 1);
        return range.getBoundingClientRect().left;
    };
    return place(last, 0) - place(first, first.length - 1);
}"""


def test_hostile_items_are_shown_as_text(browser, hostile):
    with attacked(browser) as page:
        search_page(page, hostile, SCRIPTS[0])
        for width in (360, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate(WIDER) <= 0
        shown = page.locator("article .text").all_text_contents()
        assert sorted(shown) == sorted(SCRIPTS)
        assert sorted(page.locator("article .id bdi").all_text_contents()) == sorted(one[:100] * 2 for one in SCRIPTS)
        page.locator("summary").first.click()
        expect(page.locator("table.calls tbody tr")).to_have_count(300)
        page.locator(".point.hit").first.focus()
        assert page.evaluate(WIDER) <= 0
        assert page.locator("main :is(a, img, script, iframe, style, h1, svg svg)").count() == 0


def test_hostile_queries_are_shown_as_text(browser, hostile):
    with attacked(browser) as page:
        for query in SCRIPTS[:-1]:
            search_page(page, hostile, query)
            assert page.locator("#query").input_value() == query.strip()
            assert page.evaluate(ENDS) > 0, (
                "the closing quote stands behind the opening one in any direction of writing"
            )
            assert page.evaluate(WIDER) <= 0
            assert page.locator("main :is(a, img, script, iframe, style, h1)").count() == 0


def test_a_query_that_is_too_long_is_not_sent(browser, address):
    with visit(browser, address) as page:
        page.locator("#query").fill("x" * 1_000_000)
        page.locator("#query").press("Enter")
        assert not page.locator("#query").evaluate("box => box.validity.valid")
        assert page.evaluate(WIDER) <= 0
        page.locator("#query").fill(QUERY)
        page.locator("#query").press("Enter")
        wait_for(page)


def test_hits_are_shown_while_the_search_runs(browser, searcher):
    class Halting(MatrixScorer):
        """Waits before its second round until `free` is set."""

        free = threading.Event()

        def score(self, queries, items):
            if self.calls:
                self.free.wait(30)
            return super().score(queries, items)

    scorer = Halting(searcher.scorer.matrix, queries=QUERIES, items=list(searcher.items.texts))
    with (
        opened(searcher.items, scorer=scorer, encoder=searcher.encoder) as service,
        serving(service) as url,
        visit(browser, search_url(url, QUERY, "axn")) as page,
    ):
        expect(page.locator("article small")).to_have_text("after 10 calls …")
        expect(page.locator("article li")).to_have_count(K)
        expect(page.locator("#stop")).to_be_visible()
        scorer.free.set()
        expect(page.locator("article small")).to_have_count(0)
        expect(page.locator("#status")).to_contain_text("Results for")
        expect(page.locator("#summary")).to_contain_text("100")
