"""The report as a browser shows it, opened from a file."""

import pytest

FIGURES = 10


@pytest.fixture
def address(studied):
    return studied.as_uri()


class Visit:
    """The page opened once, with everything it asked for and complained about."""

    def __init__(self, browser, address, *, width=1280, scheme="light"):
        self.page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(address, wait_until="load")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 700, 1280])
def test_it_has_no_errors_loads_nothing_and_never_scrolls_sideways(browser, address, width, scheme):
    with Visit(browser, address, width=width, scheme=scheme) as visit:
        assert visit.complaints == []
        assert visit.requests[0] == address
        assert all(url.startswith("data:") for url in visit.requests[1:])
        root = "document.documentElement"
        assert visit.page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth")
        assert visit.page.evaluate("document.body.scrollWidth <= document.body.clientWidth")
        shown = visit.page.evaluate("[...document.images].map(i => i.complete && i.naturalWidth > 0)")
        assert shown == [True] * FIGURES


def test_a_wide_table_scrolls_in_its_own_place(browser, address):
    with Visit(browser, address, width=360) as visit:
        assert visit.page.evaluate("(e => e.scrollWidth > e.clientWidth)(document.querySelector('section > .scroll'))")
    with Visit(browser, address, width=1280) as visit:
        assert visit.page.evaluate("(e => e.scrollWidth <= e.clientWidth)(document.querySelector('section > .scroll'))")


def test_dark_mode_changes_the_paper_and_the_figures(browser, address):
    looks = []
    for scheme in ("light", "dark"):
        with Visit(browser, address, scheme=scheme) as visit:
            paper = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
            looks.append((paper, visit.page.evaluate("getComputedStyle(document.images[0]).filter")))
    assert looks[0] == ("rgb(255, 255, 255)", "none")
    assert looks[1][0] == "rgb(20, 24, 31)"
    assert "invert" in looks[1][1]


def test_a_wide_figure_scrolls_in_its_own_place_on_a_narrow_screen(browser, address):
    with Visit(browser, address, width=360) as visit:
        assert visit.page.evaluate("(e => e.scrollWidth > e.clientWidth)(document.querySelector('figure .scroll'))")


def test_the_policy_stops_whatever_would_slip_in(browser, address):
    """The tests above would pass on a page without a policy; this one would not."""
    with Visit(browser, address) as visit:
        visit.page.evaluate("""() => {
            const image = document.createElement('img');
            image.src = 'http://127.0.0.1:9/x.png';
            document.body.append(image);
        }""")
        visit.page.wait_for_function(f"document.images[{FIGURES}].complete")
        assert any("Content Security Policy" in complaint for complaint in visit.complaints)
