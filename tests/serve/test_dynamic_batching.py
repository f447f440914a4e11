"""Calls of many threads in shared batches: fair, complete, and one caller's trouble is not another's."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.errors import InputError, ScorerError
from crossknn.scorers.function import function_scorer
from crossknn.search.searcher import Searcher
from crossknn.serve.dynamic_batching import CallCancelled, BatchingScorer, ScorerStalled, fair_shares
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


def ask_together(batching, scorer, asks):
    """The futures of asks that come while a batch is in flight, in this order."""
    scorer.open.clear()
    threads = ThreadPoolExecutor(len(asks) + 1)
    futures = [threads.submit(batching.score, ["ice"], ["snow"])]
    wait_until(lambda: scorer.batches)
    for number, (query, items) in enumerate(asks, 1):
        futures.append(threads.submit(batching.score, [query] * len(items), items))
        wait_until(lambda: len(batching._queue) == number + 1)  # noqa: B023
    scorer.open.set()
    threads.shutdown()
    return futures[1:]


@given(st.integers(1, 100), st.lists(st.integers(1, 80), min_size=1, max_size=30))
def test_room_is_shared_out_fairly_and_whole(room, wanted):
    shares = fair_shares(room, wanted)
    assert sum(shares) == min(room, sum(wanted))
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))
    fair = room // len(wanted)
    assert all(share >= min(want, fair) for share, want in zip(shares, wanted, strict=True))


def test_it_is_a_scorer_and_a_shared_one(batching):
    assert isinstance(batching, SharedScorer)
    check_scorer(batching, queries=QUERIES[:3], items=TEXTS[:3])
    assert batching.for_caller().fingerprint == "meant"


def test_calls_that_come_together_are_one_batch_and_each_gets_its_own(batching, scorer):
    asks = [(query, TEXTS[place : place + 5]) for place, query in enumerate(QUERIES[:8])]
    futures = ask_together(batching, scorer, asks)
    assert [len(batch) for batch in scorer.batches] == [1, 40]
    for future, (query, items) in zip(futures, asks, strict=True):
        assert future.result().tolist() == pytest.approx(true_scores(query, items))


def test_a_large_call_does_not_hold_up_small_ones(batching, scorer):
    small = [(query, TEXTS[:4]) for query in QUERIES[1:4]]
    futures = ask_together(batching, scorer, [(QUERIES[0], TEXTS[:200]), *small])
    first = scorer.batches[1]
    assert len(first) == 64
    assert {query for query, _ in first} == set(QUERIES[:4])
    assert [len(batch) for batch in scorer.batches[2:]] == [64, 64, 20]
    assert futures[0].result().tolist() == pytest.approx(true_scores(QUERIES[0], TEXTS[:200]))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("raise", "the scorer raised RuntimeError."),
        ("nan", "the scorer returned nan for query 'nan ice'"),
        ("few", "the scorer returned 2 scores for 3 pairs"),
    ],
)
def test_only_the_guilty_caller_fails(batching, scorer, word, message):
    asks = [("river ice", TEXTS[:3]), (f"{word} ice", TEXTS[:3]), ("lake top", TEXTS[:3])]
    good, bad, other = ask_together(batching, scorer, asks)
    assert good.result().tolist() == pytest.approx(true_scores("river ice", TEXTS[:3]))
    assert other.result().tolist() == pytest.approx(true_scores("lake top", TEXTS[:3]))
    with pytest.raises(ScorerError) as error:
        bad.result()
    assert str(error.value).startswith(message)
    assert len(batching.score(["ice"], ["snow"])) == 1  # and it goes on


@pytest.mark.parametrize("error", [SystemExit(3), InputError("the score cache /here/it.db cannot be used")], ids=repr)
def test_other_errors_of_the_scorer_end_their_call_only_and_tell_nothing(error):
    def leave(pairs):
        raise error

    batching = BatchingScorer(function_scorer(leave, fingerprint="leaves"))
    for _ in range(2):
        with pytest.raises(ScorerError, match=rf"^the scorer raised {type(error).__name__}\.$"):
            batching.score(["a"], ["b"])
    batching.close()


def test_a_scorer_that_hangs_is_noticed_and_forgiven(scorer):
    batching = BatchingScorer(scorer, timeout=0.2)
    scorer.open.clear()
    for _ in range(2):  # the first waits for it, the second need not
        with pytest.raises(ScorerStalled, match=r"has not answered for more than 0\.2 seconds"):
            batching.score(["ice"], ["snow"])
    assert batching.stalled
    scorer.open.set()
    wait_until(lambda: not batching.stalled)
    assert batching.score(["ice"], ["snow"]).tolist() == pytest.approx([true_score("ice", "snow")])
    batching.close()


def test_what_a_caller_asked_for_leaves_the_queue_with_it(batching, scorer):
    scorer.open.clear()
    threads, left = ThreadPoolExecutor(2), threading.Event()
    first = threads.submit(batching.score, ["ice"], ["snow"])
    wait_until(lambda: scorer.batches)
    second = threads.submit(batching.for_caller(left).score, ["lake"] * 50, TEXTS[:50])
    wait_until(lambda: batching.queued_pairs == 51)
    left.set()
    with pytest.raises(CallCancelled):
        second.result(5)
    assert batching.queued_pairs == 1
    scorer.open.set()
    assert len(first.result(5)) == 1
    threads.shutdown()
    assert [len(batch) for batch in scorer.batches] == [1]


def test_closing_frees_those_who_wait(batching, scorer):
    scorer.open.clear()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(batching.score, ["ice"], ["snow"])
        wait_until(lambda: scorer.batches)
        batching.close()
        with pytest.raises(ScorerStalled, match="the service ends"):
            waiting.result(5)
    scorer.open.set()


def test_batches_and_waits_are_reported(scorer):
    batches, waits = [], []
    batching = BatchingScorer(scorer, on_batch=batches.append, on_wait=waits.append)
    batching.score(["ice"] * 3, TEXTS[:3])
    assert [(one.pairs, one.callers) for one in batches] == [(3, 1)]
    assert 0 <= batches[0].seconds <= waits[0]
    batching.close()


def test_nonsense_is_refused(batching, scorer):
    with pytest.raises(InputError, match=r"must pair up\. Got 1 and 2"):
        batching.score(["a"], ["b", "c"])
    assert len(batching.score([], [])) == 0
    with pytest.raises(InputError, match="timeout must be a positive number"):
        BatchingScorer(scorer, timeout=0)
    with pytest.raises(InputError, match="max_pairs"):
        BatchingScorer(scorer, max_pairs=0)


def test_searches_of_many_threads_share_batches_and_find_what_they_find_alone():
    scorer = WatchedScorer(seconds=0.03)  # of a batch: the others come meanwhile
    batching = BatchingScorer(scorer)
    alone = Searcher(ITEMS, scorer=WatchedScorer(), encoder=ENCODER)
    together = Searcher(ITEMS, scorer=batching, encoder=ENCODER)
    wanted = [alone.search(query, budget=40) for query in QUERIES[:16]]
    scorer.batches.clear()
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda query: together.search(query, budget=40), QUERIES[:16]))
    assert [hits.hits for hits in found] == [hits.hits for hits in wanted]
    assert sum(map(len, scorer.batches)) == 16 * 40
    assert len(scorer.batches) < 16 * 10 / 2  # alone, each has ten
    batching.close()


def test_a_cancelled_search_of_a_shared_scorer_ends_at_once(scorer):
    batching, left = BatchingScorer(scorer), threading.Event()
    searcher = Searcher(ITEMS, scorer=batching)
    scorer.open.clear()
    with ThreadPoolExecutor(1) as threads:
        search = threads.submit(
            searcher.search_many, ["ice"], k=1, strategy=Rerank(50, retriever="random"), cancelled=left
        )
        wait_until(lambda: scorer.batches)
        left.set()
        with pytest.raises(CallCancelled):
            search.result(5)
    scorer.open.set()
    batching.close()


def test_a_search_ends_with_what_it_has_once_it_is_cancelled():
    left = threading.Event()

    def score(pairs):
        left.set()
        return np.zeros(len(pairs))

    found = Searcher(ITEMS, scorer=function_scorer(score), encoder=ENCODER).search_many(["ice"], k=3, cancelled=left)
    assert found[0].stopped == "cancelled"
    assert found[0].calls == 10
