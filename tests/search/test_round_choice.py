"""The number of rounds that a search chooses where none is named."""

import time

import numpy as np
import pytest

from crossknn.encoders.base import function_encoder
from crossknn.items.items import Items
from crossknn.scorers.base import function_scorer
from crossknn.scorers.remote.scorer import RemoteScorer
from crossknn.search.round_choice import RoundTimes
from crossknn.search.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.vectors.exact import ExactSearch
from tests.scorers.remote.rerank_server import RerankServer, running

TEXTS = [f"item {number}" for number in range(150)]
VECTORS = np.random.default_rng(0).normal(size=(len(TEXTS), 6)).astype(np.float32)


def rows_of(texts):
    return [int(text.split()[-1]) for text in texts]


def make_searcher(scorer=None, **options):
    encoder = function_encoder(lambda texts: VECTORS[rows_of(["0"] if texts == ["dimension"] else texts)])
    scorer = scorer or function_scorer(lambda pairs: VECTORS[rows_of([item for _, item in pairs]), 0])
    return Searcher(Items(TEXTS), scorer=scorer, encoder=encoder, **{"vectors": VECTORS, **options})


@pytest.mark.parametrize(
    ("times", "deadline", "rounds"),
    [
        (RoundTimes(), None, 10),
        (RoundTimes(outside=0.01, scoring=0.005), None, 10),
        (RoundTimes(outside=0.08, scoring=0.005), None, 5),  # a million items on a CPU
        (RoundTimes(outside=0.4, scoring=0.005), None, 3),
        (RoundTimes(outside=0.4, scoring=0.5), None, 10),  # a slow model on this machine: rounds are nothing beside it
        (RoundTimes(remote=True), None, 5),
        (RoundTimes(remote=True, scoring=0.02), None, 10),
        (RoundTimes(remote=True, scoring=0.08), None, 5),
        (RoundTimes(remote=True, scoring=0.9), None, 3),
        (RoundTimes(outside=0.01), 60.0, 10),
        (RoundTimes(outside=0.01), 0.3, 5),
        (RoundTimes(outside=0.01), 0.05, 3),
        (RoundTimes(), 0.05, 10),
    ],
)
def test_as_many_rounds_as_pay(times, deadline, rounds):
    choice = times.choose(100, deadline)
    assert choice.rounds == rounds
    assert choice.reason
    assert times.choose(2, deadline).rounds == 2


def test_times_are_measured_once():
    times = RoundTimes()
    times.measured_outside([0.2, 0.1, 0.3])
    times.measured_outside([5.0])
    times.measured_scoring(0.01)
    times.measured_scoring(5.0)
    assert (times.outside, times.scoring) == (0.1, 0.01)


@pytest.mark.parametrize("kind", [Posterior, Axn])
def test_a_search_says_why_it_had_so_many_rounds(kind):
    searcher = make_searcher()
    chosen, named = searcher.search("item 1", strategy=kind(50)), searcher.search("item 1", strategy=kind(50, 10))
    assert (chosen.rounds, chosen.ids) == (10, named.ids)
    assert chosen.rounds_reason == chosen.to_dict()["rounds_reason"] == "the default"
    assert named.rounds_reason is None
    assert searcher.search("item 1", strategy=Rerank(50)).rounds_reason is None


class SlowSearch(ExactSearch):
    """As of very many items."""

    def take_tensor(self, rows):
        time.sleep(0.06)
        return super().take_tensor(rows)


def test_slow_rounds_become_few_once_they_are_measured():
    searcher = make_searcher(vectors=SlowSearch(VECTORS))
    assert searcher.search("item 1", budget=20).rounds == 10
    searcher.prepare()
    few = searcher.search("item 1", budget=20)
    assert few.rounds in (3, 5)
    assert "a round takes" in few.rounds_reason
    assert searcher.search("item 1", strategy=Posterior(20, 10)).rounds == 10


def test_a_remote_scorer_gets_few_rounds_by_its_round_trip():
    with running(RerankServer("tei", lambda _, texts: VECTORS[rows_of(texts), 0].tolist())) as server:
        server.delay = 0.2
        searcher = make_searcher(RemoteScorer(server.url))
        searcher.prepare()
        assert not server.bodies
        found = [searcher.search("item 1", budget=30) for _ in range(3)]
    assert [hits.rounds for hits in found] == [5, 3, 3]
    assert len({hits.rounds_reason for hits in found[1:]}) == 1
