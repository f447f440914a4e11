"""The trace of a search: every call, what was known before it, and how little of it is kept."""

import pickle

import numpy as np
import pytest

from crossknn.items.items import Items
from crossknn.retrievers.simple import Given
from crossknn.search.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Round, Settings
from crossknn.strategies.exact import Exact
from crossknn.strategies.gar import Gar
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.testing import MatrixScorer
from crossknn.types import Proposal
from tests.search.test_searcher import STRATEGIES, Clock, Setup, SlowScorer


@pytest.mark.parametrize("strategy", [one for one in STRATEGIES if one != Exact()], ids=repr)
def test_the_trace_is_every_call_in_its_order(strategy):
    setup = Setup()
    found = setup.searcher.search_many(setup.queries, k=5, strategy=strategy)
    for query, hits in enumerate(found):
        trace = hits.trace
        assert [hit.row for hit in trace] == [row for asked, row in setup.scorer.pairs if asked == query]
        assert len(trace) == hits.calls
        assert [hit.score for hit in trace] == setup.world.scores[query, [hit.row for hit in trace]].tolist()
        assert [hit.id for hit in trace] == [f"id-{hit.row}" for hit in trace]
        assert sorted({hit.round for hit in trace}) == list(range(1, hits.rounds + 1))
        assert [hit.round for hit in trace] == sorted(hit.round for hit in trace)
        assert set(hits) <= set(trace)
        assert sorted(hits, key=lambda hit: -hit.score) == sorted(trace, key=lambda hit: -hit.score)[:5]


def test_hits_have_their_items_texts():
    setup = Setup()
    for hits in setup.searcher.search_many(setup.queries, k=5, budget=20):
        assert [hit.text for hit in hits] == [setup.searcher.items.text(hit.row) for hit in hits]


def test_hits_have_their_items_fields():
    setup = Setup()
    sizes = [row if row % 3 else None for row in range(len(setup.items))]
    items = Items(setup.items.texts, ids=setup.items.ids, fields={"size": sizes})
    searcher = Searcher(items, scorer=setup.scorer)
    for hits in searcher.search_many(setup.queries, k=5, strategy=Rerank(20, "random")):
        assert [hit.fields for hit in hits] == [{"size": sizes[hit.row]} for hit in hits]
        assert hash(hits[0]) == hash(hits.hits[0])
    assert setup.searcher.search(setup.queries[0], k=1, budget=5).trace[0].fields == {}


def test_ranks_are_places_in_what_each_retriever_proposed():
    setup = Setup()
    hits = setup.searcher.search(setup.queries[1], k=5, strategy=Posterior(budget=30, rounds=3))
    lists = {
        name: setup.searcher._resources.retriever(name).retrieve([setup.queries[1]], 120)[0].rows.tolist()
        for name in ("dense", "bm25", "fused")
    }
    for hit in hits.trace:
        assert hit.ranks == {name: rows.index(hit.row) + 1 for name, rows in lists.items()}
    assert {hit.proposed_by for hit in hits.trace} == {"fused", "posterior"}


def test_a_rank_is_none_where_the_retriever_did_not_propose_the_item():
    setup = Setup()
    hits = setup.searcher.search(setup.queries[0], k=5, strategy=Axn(budget=30, rounds=3, first="dense"))
    assert [hit.ranks for hit in hits.trace[:10]] == [{"dense": place} for place in range(1, 11)]
    assert {hit.ranks["dense"] for hit in hits.trace[10:]} == {None}


def test_ranks_under_a_filter_are_among_what_is_allowed():
    setup = Setup()
    strategy = Rerank(budget=10, retriever="dense")
    hits = setup.searcher.search(setup.queries[0], k=5, strategy=strategy, filter=lambda id_: int(id_[3:]) % 2)
    assert [hit.ranks["dense"] for hit in hits.trace] == list(range(1, 11))


def test_a_retriever_is_asked_once_for_the_same_rows():
    asked = []

    class Counting(Given):
        def retrieve(self, queries, n, *, allowed=None):
            asked.append(n)
            return super().retrieve(queries, n, allowed=allowed)

    class AsksTwice(Settings):
        budget = 3

        def flow(self, context):
            context.propose("given", 5)
            name, proposals = context.propose("given", 3)
            assert [len(proposal) for proposal in proposals] == [3]
            yield Round(proposals, name)
            context.propose("given", 6)

        __repr__ = object.__repr__

    items = Items([f"item {row}" for row in range(8)])
    searcher = Searcher(
        items,
        scorer=MatrixScorer(np.arange(8.0)[None], queries=["q"], items=list(items.texts)),
        retrievers=[Counting({"q": [f"{row}" for row in (3, 1, 4, 0, 5, 2, 6)]})],
    )
    hits = searcher.search("q", k=3, strategy=AsksTwice())
    assert asked == [5, 6]
    assert [(hit.row, hit.ranks) for hit in hits.trace] == [(3, {"given": 1}), (1, {"given": 2}), (4, {"given": 3})]


class Told(Settings):
    """Two rounds of one row each; the second says how sure it is."""

    budget = 2

    def flow(self, context):
        nothing = np.array([np.nan], np.float32)
        yield Round([Proposal(np.array([7]), nothing)] * context.queries, "guess")
        sure = Proposal(np.array([5]), np.array([1.5], np.float32), np.array([0.25], np.float32))
        yield Round([sure] * context.queries, "guess")

    __repr__ = object.__repr__


def test_deviations_and_estimates_are_kept_where_somebody_knew_them():
    setup = Setup()
    first, second = setup.searcher.search(setup.queries[0], k=2, strategy=Told()).trace
    assert (first.row, first.estimate, first.deviation, first.expected) == (7, None, None, None)
    assert (second.row, second.estimate, second.deviation, second.expected) == (5, 1.5, 0.25, 1.5)
    assert second.ranks == {}


def test_what_a_retriever_expects_is_not_on_the_scale_of_scores():
    setup = Setup()
    hits = setup.searcher.search(setup.queries[0], k=5, strategy=Axn(budget=30, rounds=3, first="dense"))
    assert all(hit.estimate is not None and hit.expected is None for hit in hits.trace[:10])
    assert all(hit.expected == hit.estimate is not None for hit in hits.trace[10:])


def test_rows_of_the_ranking_have_no_estimate_in_later_rounds_of_gar():
    setup = Setup()
    hits = setup.searcher.search(setup.queries[0], k=5, strategy=Gar(budget=30, rounds=3, first="dense"))
    assert {hit.estimate for hit in hits.trace if hit.round == 3} == {None}
    scores = {hit.score for hit in hits.trace if hit.round == 1}
    assert {hit.estimate for hit in hits.trace if hit.round == 2} <= scores


def test_of_exact_search_only_the_hits_are_kept():
    setup = Setup()
    hits = setup.searcher.search(setup.queries[0], k=7, strategy=Exact())
    assert hits.calls == 120
    assert sorted(hit.row for hit in hits.trace) == [hit.row for hit in hits.trace]
    assert set(hits.trace) == set(hits)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits.trace), reverse=True)


def test_a_trace_is_small_and_reads_as_a_sequence():
    setup = Setup()
    hits = setup.searcher.search(setup.queries[0], k=5, strategy=Posterior(budget=30, rounds=3))
    trace = hits.trace
    assert trace[-1] == trace[29] == list(trace)[29]
    assert trace[:2] == (trace[0], trace[1])
    assert repr(trace) == "<Trace: 30 items>"
    with pytest.raises(IndexError):
        trace[30]
    assert len(pickle.dumps(trace)) < 200 * len(trace)  # neither items nor whole proposals
    assert list(pickle.loads(pickle.dumps(trace))) == list(trace)


def test_what_a_deadline_cut_is_not_in_the_trace(monkeypatch):
    clock = Clock(monkeypatch)
    setup = Setup(scorer=SlowScorer(clock))
    for hits in setup.searcher.search_many(setup.queries, k=5, strategy=Axn(budget=120, rounds=12), deadline=0.25):
        assert hits.stopped == "deadline"
        assert len(hits.trace) == hits.calls < 120


def test_a_search_that_scores_nothing_has_an_empty_trace():
    setup = Setup()
    hits = setup.searcher.search(setup.queries[0], strategy=Rerank(budget=10), filter=set(), rank_by="fused")
    assert (len(hits.trace), list(hits.trace), hits.calls) == (0, [], 0)
