"""The docs site as it is built: strictly, with every public name, no dead link, and nothing from another host."""

import functools
import os
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest

import crossknn
from crossknn import testing
from tests.browsers import open_browser
from tests.docs.doc_pages import ROOT, read

REPOSITORY_PAGES = [
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/README.md"),
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "benchmarks" / "pages").glob("*.md"))),
]
LOADED = {"audio", "embed", "iframe", "img", "link", "script", "source", "video"}  # elements that fetch what they name


class Parsed(HTMLParser):
    """The ids of a page, what it links to and what it loads."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        address = given.get("href") or given.get("src")
        if tag in LOADED and address:
            self.loads.append(address)
        elif tag == "a" and address:
            self.links.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site; any warning ends the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def parsed(site):
    """Every page of the site, by its address from the root."""
    pages = {path.relative_to(site): path for path in site.rglob("*.html") if path.name != "404.html"}
    return {str(Path("/", name)): Parsed(path.read_text(encoding="utf-8")) for name, path in pages.items()}


def is_outside(address):
    return re.match(r"[a-z]+:|//", address) is not None and not address.startswith("data:")


def test_every_public_name_has_its_place_in_the_reference(parsed):
    ids = set().union(*(page.ids for name, page in parsed.items() if name.startswith("/reference/")))
    homes = {name: f"{getattr(crossknn, name).__module__}.{name}" for name in crossknn.__all__ if name != "__version__"}
    assert [name for name, home in homes.items() if not ids & {f"crossknn.{name}", home}] == []
    assert {f"crossknn.testing.{name}" for name in testing.__all__} <= ids


def test_arguments_of_docstrings_are_a_table_of_the_page(site):
    page = (site / "reference" / "strategies" / "index.html").read_text(encoding="utf-8")
    assert re.search(r"<code>mix</code>.*?λ", page, re.DOTALL)


def test_every_command_has_its_help(site):
    page = (site / "cli" / "index.html").read_text(encoding="utf-8")
    assert {"crossknn search", "crossknn bench set"} <= set(re.findall(r"<h2 id=\"[^\"]*\">([^<]*)", page))
    assert "--stop-at" in page


def test_no_link_of_the_site_is_dead(site, parsed):
    dead = []
    for name, page in parsed.items():
        for link in (link for link in page.links if not is_outside(link)):
            path, anchor = urldefrag(urljoin(name, unquote(link)))
            path += "index.html" if path.endswith("/") else ""
            if not (site / path[1:]).is_file() or (anchor and path in parsed and anchor not in parsed[path].ids):
                dead.append((name, link))
    assert dead == []


@pytest.mark.parametrize("page", REPOSITORY_PAGES)
def test_no_link_of_the_repository_is_dead(page, parsed):
    for link in re.findall(r"\]\(([^)\s]+)\)", read(page)):
        path, anchor = urldefrag(link)
        if not is_outside(link):
            assert (ROOT / page).parent.joinpath(path).exists(), link
        if anchor and path.startswith("docs/"):
            assert anchor in parsed[f"/{path[5:].removesuffix('.md')}/index.html"].ids, link


def test_files_name_nothing_on_other_hosts_to_load(site, parsed):
    assert [(name, load) for name, page in parsed.items() for load in page.loads if is_outside(load)] == []
    sheets = {path.name: path.read_text(encoding="utf-8") for path in site.rglob("*.css")}
    assert len(sheets) > 2
    assert [name for name, text in sheets.items() if re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", text)] == []


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address(site):
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")  # not longer: while it lives, no other test can run an event loop
def browser():
    with open_browser() as browser:
        yield browser


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_browser_loads_nothing_from_elsewhere_and_pages_fit_it(browser, address, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    asked, problems = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    for path in ("", "reference/searching/", "cli/"):
        page.goto(address + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("body").get_attribute("data-md-color-scheme") == {"light": "default", "dark": "slate"}[scheme]
    assert [url for url in asked if not url.startswith((address, "data:"))] == []
    assert problems == []
    context.close()


def test_search_finds_a_name(browser, address):
    page = browser.new_page()
    page.goto(address)
    page.locator("label[for=__search]").first.evaluate("label => label.click()")
    found = page.locator(".md-search-result__link[href*='reference/searching']").first
    for _ in range(10):  # what is typed before the page is ready goes unnoticed
        page.locator(".md-search__input").fill("")
        page.locator(".md-search__input").press_sequentially("fit_rank_weights")
        page.wait_for_timeout(500)
        if found.count():
            break
        page.wait_for_timeout(4_000)
    assert found.count()
    page.close()
