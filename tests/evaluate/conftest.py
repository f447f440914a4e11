"""A comparison with numbers made by hand, a real one on a tiny world, and a browser."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.evaluate.compare import Contender, Result
from crossknn.evaluate.comparison import Answer, Comparison, Line
from crossknn.items import Items
from crossknn.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.rerank import Rerank
from crossknn.testing import MatrixScorer
from tests.worlds import World

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CONTENDERS = [
    Contender("Rerank, dense", partial(Rerank, retriever="dense")),
    Contender("Axn, dense first", partial(Axn, rounds=3, mix=0.0, first="dense"), baseline="Rerank, dense"),
]


class Setup:
    """A searcher over a world of which every score is known."""

    def __init__(self, *, queries: int = 4, items: int = 60) -> None:
        self.world = World.low_rank(queries=queries, items=items)
        self.scorer = MatrixScorer(self.world.scores)
        self.queries = self.scorer.queries
        self.searcher = Searcher(
            Items(self.scorer.items),
            scorer=self.scorer,
            encoder=PrecomputedEncoder(queries=(self.queries, self.world.query_vectors)),
            vectors=self.world.vectors,
            normalization=self.world.normalization,
        )


@pytest.fixture
def setup() -> Setup:
    return Setup()


def result(strategy, budget, k, recall, *, baseline=None, **changes) -> Result:
    known = {"low": recall - 0.04, "high": recall + 0.03, "calls": budget, "seconds": {"scorer": 0.02, "search": 0.004}}
    return Result(strategy=strategy, baseline=baseline, budget=budget, k=k, recall=recall, **{**known, **changes})


def made_by_hand(**changes) -> Comparison:
    """Two pairs out of order, of which one wins and one loses."""
    results = []
    for budget, gain in ((50, 0.0), (100, 0.2), (1000, 0.3)):
        for k, base in ((1, 0.6), (10, 0.5), (100, 0.3)):
            results += [
                result("Rerank, BM25", budget, k, base + gain),
                result("Rerank, dense", budget, k, base + gain - 0.1),
                result("Axn, BM25 first", budget, k, base + gain - 0.051, baseline="Rerank, BM25"),
                result("Axn, dense first", budget, k, base + gain + 0.042, baseline="Rerank, dense"),
            ]
    lines = [Line("ice on rivers", 3.25, True), Line("bread", -1.5, False)]
    settings = {
        "title": "Tiny items",
        "data": {"queries": 40, "scorer": "a matrix", "seed": 0},
        "items": 5183,
        "results": results,
        "exact_seconds": 1.25,
        "answers": [
            Answer("how do rivers freeze", "ice on rivers", {"Exact search": lines[:1], "Rerank, BM25": lines})
        ],
        "command": "make demo",
    }
    return Comparison(**{**settings, **changes})


@pytest.fixture(scope="session")
def comparison() -> Comparison:
    return made_by_hand()


@pytest.fixture(scope="module")  # not longer: while it lives, no other test can run an event loop
def browser() -> Iterator[Browser]:
    """An installed Chromium, else playwright's own."""
    with sync_playwright() as playwright:
        installed = next(filter(None, map(shutil.which, BROWSERS)), playwright.chromium.executable_path)
        if not Path(installed).exists():
            pytest.skip("no Chromium was found: `make browser` installs one")
        browser = playwright.chromium.launch(executable_path=installed, args=FLAGS)
        yield browser
        browser.close()
