"""The searcher: equalities, filters, deadlines, cancellation, and errors."""

import asyncio
import json
import threading
import time

import numpy as np
import pytest
import torch

from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.errors import EncoderError, InputError, ScorerError
from crossknn.items.items import Items
from crossknn.retrievers.bm25 import Bm25
from crossknn.retrievers.simple import Given
from crossknn.scorers.base import function_scorer
from crossknn.search.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.cur import AdaCur, AnnCur
from crossknn.strategies.exact import Exact
from crossknn.strategies.gar import Gar
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.strategies.tour import Tour
from crossknn.testing import MatrixScorer
from tests.worlds import World

STRATEGIES = [
    Exact(),
    Rerank(budget=30, retriever="dense"),
    Rerank(budget=30, retriever="random"),
    Axn(budget=30, rounds=3, mix=0.0),
    Axn(budget=30, rounds=3, mix=0.5, first="bm25"),
    Axn(budget=30, rounds=3, mix=0.5, first="tfidf", shortlist=60),
    AnnCur(budget=30, anchors=12),
    AdaCur(budget=30, rounds=3, first="dense"),
    Tour(budget=30, rounds=3),
    Tour(budget=30, rounds=3, loss="mse"),
    Gar(budget=30, rounds=3, first="bm25"),
    Posterior(budget=30, rounds=3),
]


class Setup:
    """A searcher over a world whose texts are "item 0", "item 1", …"""

    def __init__(self, *, scorer=None, **options):
        self.world = World.low_rank(queries=6, items=120)
        self.scorer = MatrixScorer(self.world.scores) if scorer is None else scorer
        names = MatrixScorer(self.world.scores)
        self.queries = names.queries
        fields = {"parity": ["even", "odd"] * 60, "row": range(120)}
        self.items = Items(names.items, ids=[f"id-{row}" for row in range(120)], fields=fields)
        encoder = PrecomputedEncoder(queries=(names.queries, self.world.query_vectors))
        settings = {"encoder": encoder, "vectors": self.world.vectors, "normalization": Normalization(), **options}
        self.searcher = Searcher(self.items, scorer=self.scorer, **settings)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_batch_is_single_and_async_is_sync(strategy):
    setup = Setup()
    together = setup.searcher.search_many(setup.queries, k=10, strategy=strategy)
    for query, hits in zip(setup.queries, together, strict=True):
        alone = setup.searcher.search(query, k=10, strategy=strategy)
        later = asyncio.run(setup.searcher.asearch(query, k=10, strategy=strategy))
        assert [(h.id, h.score, h.round) for h in hits] == [(h.id, h.score, h.round) for h in alone]
        assert [(h.id, h.score, h.round) for h in alone] == [(h.id, h.score, h.round) for h in later]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_hits_are_the_best_of_what_was_scored_and_calls_are_counted(strategy):
    setup = Setup()
    for position, hits in enumerate(setup.searcher.search_many(setup.queries, k=10, strategy=strategy)):
        assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)
        assert len(hits) == len(set(hits.ids)) == 10
        for hit in hits:
            assert hit.score == setup.world.scores[position, hit.row]
            assert hit.id == f"id-{hit.row}"
        assert hits.complete
    assert (
        sum(hits.calls for hits in setup.searcher.search_many(setup.queries, strategy=strategy)) * 2
        == setup.scorer.calls
    )
    assert len(set(setup.scorer.pairs)) * 2 == setup.scorer.calls  # two searches, no pair twice in either


def test_one_scorer_call_per_round_for_all_queries():
    setup = Setup()
    setup.searcher.search_many(setup.queries, strategy=Axn(budget=30, rounds=3))
    assert setup.scorer.batches == [60, 60, 60]


def test_exact_finds_the_truth_and_a_large_budget_equals_it():
    setup = Setup()
    exact = setup.searcher.search_many(setup.queries, k=20, strategy=Exact())
    for hits, line in zip(exact, setup.world.scores, strict=True):
        assert [h.row for h in hits] == np.argsort(-line)[:20].tolist()
        assert hits[0].estimate is None
    for strategy in (Rerank(budget=500), Axn(budget=500, rounds=5), Axn(budget=120, rounds=120, mix=0.0)):
        found = setup.searcher.search_many(setup.queries, k=20, strategy=strategy)
        assert [hits.ids for hits in found] == [hits.ids for hits in exact]
        assert {hits.calls for hits in found} == {120}


def test_hits_say_who_proposed_them_when_and_with_what_estimate():
    setup = Setup()
    hits = setup.searcher.search(setup.queries[0], k=30, strategy=Axn(budget=30, rounds=3, mix=0.0, first="dense"))
    assert {(h.round, h.proposed_by) for h in hits} == {(1, "dense"), (2, "axn"), (3, "axn")}
    dense = setup.world.query_vectors[0] @ setup.world.vectors.T
    for hit in hits:
        if hit.round == 1:
            assert hit.estimate == pytest.approx(dense[hit.row], abs=1e-4)
        else:  # ten scores in eight dimensions: the estimate is the score
            assert hit.estimate == pytest.approx(hit.score, abs=1e-3)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_the_filter_holds_whichever_way_it_is_given(strategy):
    setup = Setup()
    ids = {f"id-{row}" for row in range(0, 120, 2)}
    by_ids = setup.searcher.search_many(setup.queries, strategy=strategy, filter=ids | {"from another corpus"})
    by_test = setup.searcher.search_many(setup.queries, strategy=strategy, filter=lambda id_: id_ in ids)
    by_field = setup.searcher.search_many(setup.queries, strategy=strategy, filter={"parity": "even", "row": {"ge": 0}})
    assert [h.ids for h in by_ids] == [h.ids for h in by_test] == [h.ids for h in by_field]
    assert all(set(h.ids) <= ids for h in by_ids)
    assert {row % 2 for _, row in setup.scorer.pairs} == {0}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_a_filter_that_lets_nothing_through_costs_nothing(strategy):
    setup = Setup()
    hits = setup.searcher.search(setup.queries[0], strategy=strategy, filter=set())
    assert (len(hits), hits.calls, hits.rounds, setup.scorer.calls) == (0, 0, 0, 0)


class Clock:
    """Stands in for `time.monotonic`: moves only when a scorer takes time."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)


class SlowScorer(MatrixScorer):
    """Takes a millisecond per pair."""

    def __init__(self, clock):
        super().__init__(World.low_rank(queries=6, items=120).scores)
        self.clock = clock

    def score(self, queries, items):
        self.clock.now += 0.001 * len(queries)
        return super().score(queries, items)


@pytest.mark.parametrize("max_pairs", [65_536, 40, 4], ids=lambda n: f"{n} pairs at once")
@pytest.mark.parametrize("strategy", [Exact(), Rerank(budget=120), Axn(budget=120, rounds=12)], ids=repr)
def test_a_deadline_returns_the_best_so_far_and_says_so(strategy, max_pairs, monkeypatch):
    monkeypatch.setattr("crossknn.search.round_scorer.MAX_PAIRS", max_pairs)
    clock = Clock(monkeypatch)
    setup = Setup(scorer=SlowScorer(clock))
    found = setup.searcher.search_many(setup.queries, k=5, strategy=strategy, deadline=0.25)  # 0.72 s without
    assert 100.2 < clock.now <= 100.251
    calls = [hits.calls for hits in found]
    assert min(calls) > 30
    assert max(calls) - min(calls) <= 1  # no query waits for another
    assert {hits.stopped for hits in found} == {"deadline"}
    assert not found[0].complete
    for query, hits in enumerate(found):
        scored = [setup.world.scores[query, row] for asked, row in setup.scorer.pairs if asked == query]
        assert [h.score for h in hits] == sorted(scored, reverse=True)[:5]


def test_a_deadline_over_before_the_first_call_returns_the_first_stages_order(monkeypatch):
    clock = Clock(monkeypatch)

    class SlowRetriever(Bm25):
        def retrieve(self, *arguments, **options):
            clock.now = 200
            return super().retrieve(*arguments, **options)

    setup = Setup(scorer=SlowScorer(clock), retrievers=[SlowRetriever(name="slow")])
    hits = setup.searcher.search(setup.queries[0], strategy=Rerank(retriever="slow"), deadline=5)
    assert (hits.calls, hits.rounds, hits.stopped) == (0, 0, "deadline")
    (first,) = Bm25().fit(setup.items).retrieve([setup.queries[0]], 10)
    assert [hit.row for hit in hits] == first.rows.tolist()
    assert [hit.estimate for hit in hits] == first.estimates.tolist()
    assert [hit.ranks for hit in hits] == [{"slow": place} for place in range(1, 11)]
    assert {(hit.scored, hit.round, hit.proposed_by) for hit in hits} == {(False, 0, "slow")}
    assert len(hits.trace) == 0
    assert hits.scored() == ([], [])


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_what_a_deadline_left_unscored_follows_in_the_first_stages_order(strategy, monkeypatch):
    clock = Clock(monkeypatch)
    setup = Setup(scorer=SlowScorer(clock))
    found = setup.searcher.search_many(setup.queries, k=25, strategy=strategy, deadline=0.03)
    for query, hits in enumerate(found):
        scored = [hit for hit in hits if hit.scored]
        assert {hit.row for hit in scored} == {row for asked, row in setup.scorer.pairs if asked == query}
        assert [hit.scored for hit in hits] == sorted((hit.scored for hit in hits), reverse=True)
        assert len(set(hits.ids)) == len(hits)
        assert all(np.isnan(hit.score) for hit in hits[len(scored) :])
        guesses = [hit.estimate for hit in hits[len(scored) :]]
        if isinstance(strategy, Exact | AnnCur):  # whose rows come in no order
            assert guesses == []
        else:
            assert guesses == sorted(guesses, reverse=True)
            assert len(hits) >= 10
        assert json.loads(hits.to_json())["hits"][-1]["score"] == (None if guesses else scored[-1].score)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_an_ask_too_large_for_one_call_is_scored_in_several(strategy, monkeypatch):
    whole, parts = Setup(), Setup()
    wanted = whole.searcher.search_many(whole.queries, k=10, strategy=strategy)
    monkeypatch.setattr("crossknn.search.round_scorer.MAX_PAIRS", 20)
    assert [hits.hits for hits in parts.searcher.search_many(parts.queries, k=10, strategy=strategy)] == [
        hits.hits for hits in wanted
    ]
    assert max(parts.scorer.batches) <= 20
    assert sorted(parts.scorer.pairs) == sorted(whole.scorer.pairs)


def test_a_deadline_that_is_far_away_changes_nothing():
    setup = Setup()
    strategy = Axn(budget=30, rounds=3)
    near, far = (setup.searcher.search(setup.queries[0], strategy=strategy, deadline=d) for d in (None, 60))
    assert near.ids == far.ids
    assert far.complete


def test_cancelling_ends_the_search_early():
    gate = threading.Event()

    class Gated(MatrixScorer):
        def score(self, queries, items):
            gate.set()
            time.sleep(0.02)
            return super().score(queries, items)

    setup = Setup(scorer=Gated(World.low_rank(queries=6, items=120).scores))
    setup.searcher.prepare("dense")

    async def run():
        task = asyncio.create_task(
            setup.searcher.asearch(setup.queries[0], strategy=Axn(budget=100, rounds=100, first="dense"))
        )
        await asyncio.to_thread(gate.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())  # waits for the thread, which ends after its round
    assert setup.scorer.calls < 10


def test_concurrent_searches_share_the_scorer_one_at_a_time():
    busy, overlaps = threading.Lock(), []

    class Exclusive(MatrixScorer):
        def score(self, queries, items):
            if not busy.acquire(blocking=False):
                overlaps.append(True)
            time.sleep(0.002)
            busy.release()
            return super().score(queries, items)

    setup = Setup(scorer=Exclusive(World.low_rank(queries=6, items=120).scores))
    strategy = Axn(budget=30, rounds=5)

    async def run():
        return await asyncio.gather(*(setup.searcher.asearch(q, strategy=strategy) for q in setup.queries))

    together = asyncio.run(run())
    assert not overlaps
    assert [h.ids for h in together] == [h.ids for h in Setup().searcher.search_many(setup.queries, strategy=strategy)]


def test_estimates_of_all_items_on_request():
    setup = Setup()
    strategy = Axn(budget=30, rounds=3, mix=0.0, first="random", estimates=True)
    for hits, line in zip(
        setup.searcher.search_many(setup.queries, strategy=strategy), setup.world.scores, strict=True
    ):
        np.testing.assert_allclose(hits.estimates, line, atol=1e-3)


def test_own_retrievers_are_used_by_name():
    setup = Setup()
    given = Given({query: ["id-3", "id-1"] for query in setup.queries})
    searcher = Searcher(setup.items, scorer=setup.scorer, retrievers=[given])
    hits = searcher.search(setup.queries[0], k=10, strategy=Rerank(budget=10, retriever="given"))
    assert set(hits.ids) == {"id-1", "id-3"}
    assert hits.calls == 2


def test_normalization_is_fitted_on_train_queries():
    setup = Setup(normalization=None)
    setup.scorer.matrix[:] = setup.scorer.matrix * 5 - 7
    fitted = setup.searcher.fit_normalization(setup.queries, items_per_query=120)
    wanted = Normalization.fit(setup.scorer.matrix, setup.world.query_vectors @ setup.world.vectors.T)
    assert fitted.alpha == pytest.approx(wanted.alpha, abs=1e-3)
    assert fitted.beta == pytest.approx(wanted.beta, abs=1e-4)
    assert setup.searcher.normalization == fitted
    assert setup.scorer.calls == 6 * 120


def test_no_train_queries_are_refused():
    with pytest.raises(InputError, match="at least one train query"):
        Setup().searcher.fit_normalization([])


def test_a_scorers_own_stop_iteration_does_not_end_the_search():
    def careless(pairs):
        return [next(iter(())) for _ in pairs]

    setup = Setup(scorer=function_scorer(careless))
    with pytest.raises(ScorerError, match="the scorer raised StopIteration"):
        setup.searcher.search(setup.queries[0], strategy=Exact())
    with pytest.raises(ScorerError, match="the scorer raised StopIteration"):
        asyncio.run(setup.searcher.asearch(setup.queries[0], strategy=Exact()))


def test_progress_ends_at_the_budget():
    seen = []
    setup = Setup(progress=lambda *event: seen.append(event))
    setup.searcher.search_many(setup.queries, strategy=Axn(budget=30, rounds=3, first="dense"))
    assert seen == [("scoring", 60, 180), ("scoring", 120, 180), ("scoring", 180, 180)]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_score_that_is_no_number_names_its_pair(value):
    setup = Setup()
    setup.scorer.matrix[2, 7] = value
    with pytest.raises(ScorerError, match=r"returned (nan|inf) for query 'query 2' and item 'item 7'"):
        setup.searcher.search_many(setup.queries, strategy=Exact())


def test_a_missing_score_names_its_pair():
    setup = Setup(scorer=function_scorer(lambda pairs: [1.0] * (len(pairs) - 1)))
    with pytest.raises(ScorerError, match=r"returned 29 scores for 30 pairs; the first without one is query 'query 0'"):
        setup.searcher.search(setup.queries[0], strategy=Rerank(budget=30, retriever="dense"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query": ""}, "a query must be a nonempty string, got '' at position 0."),
        ({"query": 3}, "a query must be a nonempty string, got 3 at position 0."),
        ({"k": 0}, "`k` must be a positive integer, got 0."),
        ({"k": 101}, "`k` must be at most the budget (100), got 101."),
        ({"budget": 5, "strategy": Rerank()}, "give either `budget` or `strategy`"),
        ({"strategy": "axn"}, "`strategy` must be a Strategy such as Axn(budget=100), got 'axn'."),
        ({"deadline": 0}, "`deadline` must be a positive number, got 0."),
        (
            {"strategy": Rerank(retriever="bm52")},
            "there is no retriever named 'bm52'; known: bm25, dense, fused, random, tfidf.",
        ),
    ],
)
def test_invalid_arguments_are_rejected_before_a_call(arguments, message):
    setup = Setup()
    with pytest.raises(InputError) as error:
        setup.searcher.search(**{"query": setup.queries[0], **arguments})
    assert message in str(error.value)
    assert setup.scorer.calls == 0


def test_a_string_is_no_list_of_queries():
    with pytest.raises(InputError, match="must be a list of strings"):
        Setup().searcher.search_many("query 0")
    for arguments in ({"queries": {"ice": 1}}, {"queries": ["ice"], "filter": {"id-1": False}}):
        with pytest.raises(InputError, match=r"must be a list of strings|names the field 'id-1'"):
            Setup().searcher.search_many(**arguments)


def test_parts_that_do_not_fit_are_rejected():
    setup = Setup()
    with pytest.raises(InputError, match=r"one vector per item \(120\), got 7"):
        Searcher(setup.items, scorer=setup.scorer, vectors=np.ones((7, 3), np.float32))
    with pytest.raises(InputError, match="`items` must be an Index, a store, or Items"):
        Searcher(["a", "b"], scorer=setup.scorer)
    with pytest.raises(InputError, match="the dense retriever needs an encoder"):
        Searcher(setup.items, scorer=setup.scorer).search("query 0", strategy=Rerank(retriever="dense"))
    wrong = PrecomputedEncoder(queries=(setup.queries, np.ones((6, 3), np.float32)))
    with pytest.raises((InputError, EncoderError), match="3"):
        Searcher(setup.items, scorer=setup.scorer, vectors=setup.world.vectors, encoder=wrong).search("query 0")


@pytest.mark.parametrize(
    ("options", "budget", "strategy"),
    [
        ({}, 40, Posterior(budget=40, rounds=10)),
        ({}, 3, Posterior(budget=3, rounds=3)),
        ({}, None, Posterior(budget=100, rounds=10)),
        ({"encoder": None}, 40, Rerank(budget=40)),
    ],
)
def test_the_default_is_posterior_search_and_without_an_encoder_reranking(options, budget, strategy):
    setup = Setup(**options)
    found = setup.searcher.search_many(setup.queries, k=3, budget=budget)
    wanted = setup.searcher.search_many(setup.queries, k=3, strategy=strategy)
    assert [(hits.ids, hits.calls, hits.rounds) for hits in found] == [
        (hits.ids, hits.calls, hits.rounds) for hits in wanted
    ]


def test_no_queries_no_hits():
    assert Setup().searcher.search_many([]) == []


def test_queries_are_encoded_once_per_search():
    setup = Setup()
    encoded = []

    class Counting(PrecomputedEncoder):
        def encode_queries(self, texts):
            encoded.extend(texts)
            return super().encode_queries(texts)

    encoder = Counting(queries=(setup.queries, setup.world.query_vectors))
    searcher = Searcher(setup.items, scorer=setup.scorer, encoder=encoder, vectors=setup.world.vectors)
    searcher.search_many(setup.queries, strategy=Axn(budget=30, rounds=3, first="fused"))
    assert encoded == setup.queries


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "strategy",
    [Rerank(budget=30, retriever="dense"), Axn(budget=30, rounds=3, first="dense"), Posterior(budget=30, rounds=3)],
)
def test_a_gpu_finds_what_a_cpu_finds(strategy):
    setup = Setup()
    on_gpu = Setup(device="cuda").searcher.search_many(setup.queries, strategy=strategy)
    assert [h.ids for h in on_gpu] == [h.ids for h in setup.searcher.search_many(setup.queries, strategy=strategy)]
