"""Dynamic batching: shares are fair, all pairs are scored, and a failure affects only its own caller."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.errors import InputError, ScorerError
from crossknn.scorers.base import function_scorer
from crossknn.search.searcher import Searcher
from crossknn.serve.dynamic_batching import BatchingScorer, CallCancelled, ScorerUnavailable, fair_shares
from crossknn.strategies.rerank import Rerank
from crossknn.testing import check_scorer
from crossknn.types import SharedScorer
from tests.serve.servers import ENCODER, ITEMS, QUERIES, TEXTS, WatchedScorer, true_score, wait_until


@pytest.fixture
def scorer():
    return WatchedScorer()


@pytest.fixture
def batching(scorer):
    with_scorer = BatchingScorer(scorer, max_pairs=64)
    yield with_scorer
    with_scorer.close()


def true_scores(query, items):
    return [true_score(query, item) for item in items]


def score_together(batching, scorer, calls):
    """The futures of calls that are queued, in this order, while a batch is in flight."""
    scorer.open.clear()
    threads = ThreadPoolExecutor(len(calls) + 1)
    futures = [threads.submit(batching.score, ["ice"], ["snow"])]
    wait_until(lambda: scorer.batches)
    for number, (query, items) in enumerate(calls, 1):
        futures.append(threads.submit(batching.score, [query] * len(items), items))
        wait_until(lambda: len(batching._queue) == number + 1)  # noqa: B023
    scorer.open.set()
    threads.shutdown()
    return futures[1:]


@given(st.integers(1, 100), st.lists(st.integers(1, 80), min_size=1, max_size=30))
def test_capacity_is_shared_fairly_and_completely(capacity, demands):
    shares = fair_shares(capacity, demands)
    assert sum(shares) == min(capacity, sum(demands))
    assert all(0 <= share <= demand for share, demand in zip(shares, demands, strict=True))
    fair = capacity // len(demands)
    assert all(share >= min(demand, fair) for share, demand in zip(shares, demands, strict=True))


def test_it_is_a_shared_scorer(batching):
    assert isinstance(batching, SharedScorer)
    check_scorer(batching, queries=QUERIES[:3], items=TEXTS[:3])
    assert batching.for_caller().fingerprint == "true"


def test_concurrent_calls_share_a_batch_and_get_their_own_scores(batching, scorer):
    calls = [(query, TEXTS[place : place + 5]) for place, query in enumerate(QUERIES[:8])]
    futures = score_together(batching, scorer, calls)
    assert [len(batch) for batch in scorer.batches] == [1, 40]
    for future, (query, items) in zip(futures, calls, strict=True):
        assert future.result().tolist() == pytest.approx(true_scores(query, items))


def test_a_large_call_does_not_delay_small_ones(batching, scorer):
    small = [(query, TEXTS[:4]) for query in QUERIES[1:4]]
    futures = score_together(batching, scorer, [(QUERIES[0], TEXTS[:200]), *small])
    first = scorer.batches[1]
    assert len(first) == 64
    assert {query for query, _ in first} == set(QUERIES[:4])
    assert [len(batch) for batch in scorer.batches[2:]] == [64, 64, 20]
    assert futures[0].result().tolist() == pytest.approx(true_scores(QUERIES[0], TEXTS[:200]))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("raise", "RuntimeError"),
        ("nan", "nan ice"),
        ("few", "3 pairs"),
    ],
)
def test_only_the_call_with_a_faulty_pair_fails(batching, scorer, word, message):
    calls = [("river ice", TEXTS[:3]), (f"{word} ice", TEXTS[:3]), ("lake top", TEXTS[:3])]
    good, bad, other = score_together(batching, scorer, calls)
    assert good.result().tolist() == pytest.approx(true_scores("river ice", TEXTS[:3]))
    assert other.result().tolist() == pytest.approx(true_scores("lake top", TEXTS[:3]))
    with pytest.raises(ScorerError) as error:
        bad.result()
    assert message in str(error.value)
    assert len(batching.score(["ice"], ["snow"])) == 1  # the worker continues


@pytest.mark.parametrize("error", [SystemExit(3), InputError("the score cache /here/it.db cannot be used")], ids=repr)
def test_other_exceptions_fail_their_call_only_and_hide_their_message(error):
    def leave(pairs):
        raise error

    batching = BatchingScorer(function_scorer(leave, fingerprint="leaves"))
    for _ in range(2):
        with pytest.raises(ScorerError, match=rf"^[\w ]+ {type(error).__name__}\.$"):
            batching.score(["a"], ["b"])
    batching.close()


def test_a_scorer_that_hangs_is_stalled_until_it_answers(scorer):
    batching = BatchingScorer(scorer, timeout=0.2)
    scorer.open.clear()
    for _ in range(2):  # the first waits for it, the second need not
        with pytest.raises(ScorerUnavailable, match=r"0\.2 seconds"):
            batching.score(["ice"], ["snow"])
    assert batching.unavailable
    scorer.open.set()
    wait_until(lambda: not batching.unavailable)
    assert batching.score(["ice"], ["snow"]).tolist() == pytest.approx([true_score("ice", "snow")])
    batching.close()


def test_pairs_of_a_cancelled_call_leave_the_queue(batching, scorer):
    scorer.open.clear()
    threads, cancelled = ThreadPoolExecutor(2), threading.Event()
    first = threads.submit(batching.score, ["ice"], ["snow"])
    wait_until(lambda: scorer.batches)
    second = threads.submit(batching.for_caller(cancelled).score, ["lake"] * 50, TEXTS[:50])
    wait_until(lambda: batching.queued_pairs == 51)
    cancelled.set()
    with pytest.raises(CallCancelled):
        second.result(5)
    assert batching.queued_pairs == 1
    scorer.open.set()
    assert len(first.result(5)) == 1
    threads.shutdown()
    assert [len(batch) for batch in scorer.batches] == [1]


def test_closing_fails_waiting_calls(batching, scorer):
    scorer.open.clear()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(batching.score, ["ice"], ["snow"])
        wait_until(lambda: scorer.batches)
        batching.close()
        with pytest.raises(ScorerUnavailable, match="shutting down"):
            waiting.result(5)
    scorer.open.set()


def test_batches_and_waits_are_reported(scorer):
    batches, waits = [], []
    batching = BatchingScorer(scorer, on_batch=lambda *report: batches.append(report), on_wait=waits.append)
    batching.score(["ice"] * 3, TEXTS[:3])
    assert [(pairs, callers) for pairs, callers, _ in batches] == [(3, 1)]
    assert 0 <= batches[0][2] <= waits[0]
    batching.close()


def test_invalid_arguments(batching, scorer):
    with pytest.raises(InputError, match="same length, got 1 and 2"):
        batching.score(["a"], ["b", "c"])
    assert len(batching.score([], [])) == 0
    with pytest.raises(InputError, match="timeout"):
        BatchingScorer(scorer, timeout=0)
    with pytest.raises(InputError, match="max_pairs"):
        BatchingScorer(scorer, max_pairs=0)


def test_concurrent_searches_share_batches_and_find_the_same_hits():
    scorer = WatchedScorer(seconds=0.03)  # per batch, so that other calls queue up
    batching = BatchingScorer(scorer)
    alone = Searcher(ITEMS, scorer=WatchedScorer(), encoder=ENCODER)
    together = Searcher(ITEMS, scorer=batching, encoder=ENCODER)
    expected = [alone.search(query, budget=40) for query in QUERIES[:16]]
    scorer.batches.clear()
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda query: together.search(query, budget=40), QUERIES[:16]))
    assert [hits.hits for hits in found] == [hits.hits for hits in expected]
    assert sum(map(len, scorer.batches)) == 16 * 40
    assert len(scorer.batches) < 16 * 10 / 2  # without sharing, each has ten
    batching.close()


def test_a_cancelled_search_does_not_wait_for_the_scorer(scorer):
    batching, cancelled = BatchingScorer(scorer), threading.Event()
    searcher = Searcher(ITEMS, scorer=batching)
    scorer.open.clear()
    with ThreadPoolExecutor(1) as threads:
        search = threads.submit(
            searcher.search_many, ["ice"], k=1, strategy=Rerank(50, retriever="random"), cancelled=cancelled
        )
        wait_until(lambda: scorer.batches)
        cancelled.set()
        with pytest.raises(CallCancelled):
            search.result(5)
    scorer.open.set()
    batching.close()


def test_a_cancelled_search_returns_its_hits_so_far():
    cancelled = threading.Event()

    def score(pairs):
        cancelled.set()
        return np.zeros(len(pairs))

    found = Searcher(ITEMS, scorer=function_scorer(score), encoder=ENCODER).search_many(
        ["ice"], k=3, cancelled=cancelled
    )
    assert found[0].stopped == "cancelled"
    assert found[0].calls == 10
