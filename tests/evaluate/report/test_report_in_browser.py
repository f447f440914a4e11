"""The report as a browser shows it, opened from a file."""

import pytest

PICTURES = 9


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
def test_it_is_quiet_asks_for_nothing_and_never_scrolls_sideways(browser, address, width, scheme):
    with Visit(browser, address, width=width, scheme=scheme) as visit:
        assert visit.complaints == []
        assert visit.requests[0] == address
        assert all(url.startswith("data:") for url in visit.requests[1:])
        root = "document.documentElement"
        assert visit.page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth")
        assert visit.page.evaluate("document.body.scrollWidth <= document.body.clientWidth")
        shown = visit.page.evaluate("[...document.images].map(i => i.complete && i.naturalWidth > 0)")
        assert shown == [True] * PICTURES


def test_a_wide_table_scrolls_in_its_own_place(browser, address):
    with Visit(browser, address, width=360) as visit:
        assert visit.page.evaluate("(e => e.scrollWidth > e.clientWidth)(document.querySelector('.scroll'))")
    with Visit(browser, address, width=1280) as visit:
        assert visit.page.evaluate("(e => e.scrollWidth <= e.clientWidth)(document.querySelector('.scroll'))")


def look(browser, address, **options):
    with Visit(browser, address, **options) as visit:
        paper = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return paper, visit.page.evaluate("document.images[0].currentSrc")


def test_dark_and_narrow_change_the_paper_and_the_picture(browser, address):
    looks = {
        (width, scheme): look(browser, address, width=width, scheme=scheme)
        for width in (360, 1280)
        for scheme in ("light", "dark")
    }
    assert {scheme: paper for (_, scheme), (paper, _) in looks.items()} == {
        "light": "rgb(255, 255, 255)",
        "dark": "rgb(20, 24, 31)",
    }
    assert len({picture for _, picture in looks.values()}) == 4


def test_the_policy_stops_whatever_would_slip_in(browser, address):
    """The tests above would pass on a page without a policy; this one would not."""
    with Visit(browser, address) as visit:
        visit.page.evaluate("""() => {
            const image = document.createElement('img');
            image.src = 'http://127.0.0.1:9/x.png';
            document.body.append(image);
        }""")
        visit.page.wait_for_function(f"document.images[{PICTURES}].complete")
        assert any("Content Security Policy" in complaint for complaint in visit.complaints)
