"""A comparison with numbers made by hand, a real one on a tiny world, and a browser."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser

from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.evaluate.comparison import Answer, Comparison, Contender, Line, Reliability, Result
from crossknn.evaluate.quality import Quality
from crossknn.evaluate.report.page import write_report
from crossknn.evaluate.studies import (
    Curve,
    DistributionStudy,
    Histogram,
    Indexed,
    LatencyStudy,
    Point,
    QualityStudy,
    SamplingStudy,
    Studies,
    Sweep,
    Times,
)
from crossknn.items.items import Items
from crossknn.search.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.posterior.calibration import ReliabilityBin
from crossknn.strategies.rerank import Rerank
from crossknn.testing import MatrixScorer
from tests.browsers import open_browser
from tests.worlds import World

LONG_NAME = "Axn, vectors fitted to the cross-encoder, first round fused"
CONTENDERS = [
    Contender("Rerank, dense", partial(Rerank, retriever="dense")),
    Contender("Axn, dense first", partial(Axn, rounds=3, mix=0.0, first="dense"), baseline="Rerank, dense"),
]


class Setup:
    """A searcher over a world of which every score is known."""

    def __init__(self, *, queries: int = 4, items: int = 60, searcher: type[Searcher] = Searcher) -> None:
        self.world = World.low_rank(queries=queries, items=items)
        self.scorer = MatrixScorer(self.world.scores)
        self.queries = self.scorer.queries
        self.searcher = searcher(
            Items(self.scorer.items),
            scorer=self.scorer,
            encoder=PrecomputedEncoder(queries=(self.queries, self.world.query_vectors)),
            vectors=self.world.vectors,
            normalization=self.world.normalization,
        )


@pytest.fixture
def setup() -> Setup:
    return Setup()


def values(mean, *, queries=40, spread=0.0) -> tuple[float, ...]:
    """Values per query with this mean; those with the same spread differ by the same in every query."""
    return tuple((mean + spread * np.resize([-1, 1], queries)).tolist())


def result(strategy, budget, k, recall, *, baseline=None, **changes) -> Result:
    seconds = {"scorer": 0.02, "solve": 0.001, "search": 0.003}
    known = {"low": recall - 0.04, "high": recall + 0.03, "calls": budget, "seconds": seconds}
    known["per_query"] = values(recall)
    return Result(strategy=strategy, baseline=baseline, budget=budget, k=k, recall=recall, **{**known, **changes})


def judged(strategy, budget, mean, *, first_stage=None, **spread) -> Quality:
    """A quality whose nDCG@10 has this mean over the queries."""
    return Quality(strategy, budget, {"nDCG@10": mean}, first_stage, {"nDCG@10": values(mean, **spread)})


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


def sweep(values, *strategies, level="Rerank, BM25") -> Sweep:
    """A curve for each strategy and k that rises by a point with every value."""
    curves = [
        Curve(name, k, [Point(value, 0.5 + place / 100, 0.4, 0.9) for place, value in enumerate(values)])
        for name in strategies
        for k in (1, 10)
    ]
    return Sweep(100, curves, [Curve(level, k, [Point(value, 0.45, 0.4, 0.5) for value in values]) for k in (1, 10)])


def with_studies(name="axn", **changes) -> Comparison:
    """A comparison with all studies and with quality; `name` is that of the strategy which is studied."""
    budgets, values = (50, 100, 1000), {"nDCG@10": 0.625, "MRR@10": 0.5, "accuracy": 0.375}
    results = [result("Rerank, BM25", budget, k, 0.5) for budget in budgets for k in (1, 10)]
    results += [result(name, budget, k, 0.6, baseline="Rerank, BM25") for budget in budgets for k in (1, 10)]
    judged = [Quality(who, budget, values) for who in ("Rerank, BM25", name) for budget in budgets]
    judged.append(Quality("exact", None, {"nDCG@10": 0.7125, "MRR@10": 0.6, "accuracy": 0.5}))
    beside = [
        Quality(one.strategy, one.budget, {"true top 1": 0.5, "true top 10": 0.5, **one.values}) for one in judged
    ]
    ways = ("per item", "per query")
    made = Studies(
        rounds=sweep((1, 2, 5), name, "adacur"),
        mix=sweep((0, 0.5, 1), name),
        sampling=SamplingStudy(
            sweep((2, 4, 8), *(f"axn, {way}" for way in ways), level=name),
            sweep((30, 60, 130), *(f"axn, {way}" for way in ways), level=name),
            [Indexed(way, 60 * n, n, {"score": 9.0 * n, "factorize": 1.25}) for n in (2, 4, 8) for way in ways],
        ),
        latency=LatencyStudy([Times(one.strategy, one.budget, one.seconds) for one in results if one.k == 1]),
        distributions=DistributionStudy(
            [
                Histogram(of, [0, 1, 2], [0.25, 0.75])
                for of in ("scores", "similarities", "scaled scores", "similarities")
            ],
            pairs=1234,
            alpha=-7.5,
            beta=0.0766,
        ),
        quality=QualityStudy(beside),
    )
    bins = [ReliabilityBin(3, 0.25, 0.5), ReliabilityBin(9, 0.75, 0.875)]
    reliability = [Reliability(name, k, 0.0625, bins) for k in (1, 10)]
    settings = {"results": results, "quality": judged, "reliability": reliability, "studies": made}
    return made_by_hand(**{**settings, **changes})


@pytest.fixture(scope="session")
def comparison() -> Comparison:
    return made_by_hand()


@pytest.fixture(scope="session")
def studied(tmp_path_factory) -> Path:
    """The page of a report with studies, with everything that could make it too wide."""
    lines = [Line("x" * 300, 1.0, True), Line("several words " * 40, 0.5, False)]
    wide = with_studies(
        LONG_NAME,
        data={"scorer": "path/" * 60},
        answers=[Answer("<img src=x onerror=alert(1)>" * 5, "y" * 200, dict.fromkeys(("Exact", "a", "b", "c"), lines))],
        command="crossknn " + "--option value " * 30,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crossknn.evaluate.report.plots.DPI", 40)  # which is faster
        return write_report(wide, tmp_path_factory.mktemp("studied"))


@pytest.fixture(scope="module")  # not longer: while it lives, no other test can run an event loop
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser
