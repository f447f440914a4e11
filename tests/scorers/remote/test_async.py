"""Remote scorers on an event loop: many searches at once, without a thread each."""

import asyncio
import threading
import time

import numpy as np
import pytest

import crossknn as ck
from crossknn.errors import PartialScores, ScorerError
from crossknn.scorers.base import ascore_pairs, has_ascore
from crossknn.testing import check_scorer
from tests.scorers.remote.rerank_server import lengths, refuse, serving

ITEMS = ck.Items(["ice " * (row % 60 + 1) + str(row) for row in range(80)])
STRATEGY = ck.Axn(budget=8, rounds=2, first="dense", mix=0.0)
PAIRS = ["q", "q", "question"] * 20, list(ITEMS.texts)[:60]


def together(*awaitables):
    async def run():
        return await asyncio.gather(*awaitables)

    return asyncio.run(run())


def found(hits):
    return [(hit.id, hit.score, hit.round) for hit in hits]


def test_200_searches_wait_for_a_slow_server_with_few_threads():
    queries = [f"ice {number}" for number in range(200)]
    most, idle = 0, count_threads()

    async def watch():
        nonlocal most
        while True:
            most = max(most, count_threads())
            await asyncio.sleep(0.005)

    with serving(score=lengths) as server:
        scorer = ck.RemoteScorer(server.url, concurrency=40)
        searcher = make_searcher(scorer)
        alone = searcher.search_many(queries, k=5, strategy=STRATEGY)
        server.delay = 0.05
        server.max_in_flight = 0

        async def search_all():
            watching = asyncio.create_task(watch())
            hits = await asyncio.gather(*(searcher.asearch(query, k=5, strategy=STRATEGY) for query in queries))
            watching.cancel()
            return hits

        assert list(map(found, asyncio.run(search_all()))) == list(map(found, alone))
    assert 20 < server.max_in_flight <= 40
    assert most - idle <= 40  # the default executor's, of at most 32, and no thread for each search


def count_threads():
    """Threads of this process but those of the server."""
    return sum("process_request_thread" not in thread.name for thread in threading.enumerate())


def make_searcher(scorer):
    vectors = np.random.default_rng(0).normal(size=(len(ITEMS), 8)).astype(np.float32)
    encoder = ck.PrecomputedEncoder(queries=([f"ice {n}" for n in range(200)], np.ones((200, 8), np.float32)))
    return ck.Searcher(ITEMS, scorer=scorer, encoder=encoder, vectors=vectors)


@pytest.mark.parametrize("dialect", ["tei", "vllm-score", "cohere"])
def test_awaited_scores_are_those_of_score(dialect):
    with serving(dialect) as server:
        scorer = ck.RemoteScorer(server.url, dialect=dialect, model=None if dialect == "tei" else "m", batch_size=7)
        (awaited,) = together(ascore_pairs(scorer, *PAIRS))
        np.testing.assert_array_equal(awaited, scorer.score(*PAIRS))
        check_scorer(scorer, ["q", "question"], ["ice", "snow", "a lake"])


def test_faults_are_retried_and_errors_are_those_of_score():
    with serving() as server:
        scorer = ck.RemoteScorer(server.url, batch_size=32, retries=2, timeout=2.0)
        server.faults = [refuse(503), refuse(429)]
        (awaited,) = together(scorer.ascore(["q"], ["ice"]))
        assert awaited == pytest.approx(lengths("q", ["ice"]))
        for code in (401, 422, 500):
            errors = []
            for run in (scorer.score, lambda *pairs: together(scorer.ascore(*pairs))):
                server.faults = [refuse(code)] * 3
                with pytest.raises(PartialScores) as raised:
                    run(["q"], ["ice"])
                errors.append(str(raised.value))
            assert errors[0] == errors[1]


def test_a_server_that_is_not_there():
    scorer = ck.RemoteScorer("http://127.0.0.1:9/rerank", retries=0, price_per_1000=1.0)
    with pytest.raises(ScorerError, match="cannot be reached"):
        together(scorer.ascore(["q"], ["ice"]))
    assert scorer.spent == 0


def test_concurrency_holds_for_all_that_is_awaited():
    with serving() as server:
        server.delay = 0.02
        scorer = ck.RemoteScorer(server.url, concurrency=3)
        together(*(scorer.ascore([f"q{number}"], ["ice"]) for number in range(20)))
    assert server.max_in_flight == 3


def test_connections_are_kept_on_a_loop():
    with serving() as server:
        scorer = ck.RemoteScorer(server.url)

        async def run():
            for _ in range(5):
                await scorer.ascore(["q"], ["ice"])

        asyncio.run(run())
        asyncio.run(run())  # another loop
    assert server.connections == 2


def test_a_cancelled_search_stops_waiting():
    with serving() as server:
        server.delay = 5.0
        searcher = make_searcher(ck.RemoteScorer(server.url))

        async def run():
            task = asyncio.create_task(searcher.asearch("ice 0", strategy=STRATEGY))
            await asyncio.sleep(0.3)
            task.cancel()
            await task

        start = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(run())
        assert time.monotonic() - start < 4.0


def test_a_deadline_cuts_what_is_awaited():
    with serving() as server:
        server.delay = 8.0
        hits = asyncio.run(make_searcher(ck.RemoteScorer(server.url)).asearch("ice 0", strategy=STRATEGY, deadline=0.3))
    assert hits.stopped == "deadline"
    assert hits.calls == 0
    assert hits.seconds < 6.0


def test_a_cache_is_asked_first(tmp_path):
    with serving() as server:
        cached = ck.Cached(ck.RemoteScorer(server.url, fingerprint="f"), tmp_path / "scores.db")
        assert has_ascore(cached)
        first, second = together(ascore_pairs(cached, *PAIRS)), together(ascore_pairs(cached, *PAIRS))
        sent = len(server.bodies)
        np.testing.assert_array_equal(first[0], second[0])
        np.testing.assert_array_equal(first[0], cached.score(*PAIRS))
        assert len(server.bodies) == sent
        assert cached.misses == len(set(zip(*PAIRS, strict=True)))


def test_a_cache_of_a_model_here_cannot_be_awaited(tmp_path):
    scorer = ck.function_scorer(lambda pairs: [0.0] * len(pairs), fingerprint="zero")
    assert not has_ascore(ck.Cached(scorer, tmp_path / "scores.db"))


def test_an_interrupted_call_keeps_the_scores_so_far(tmp_path):
    with serving() as server:
        cached = ck.Cached(
            ck.RemoteScorer(server.url, batch_size=1, concurrency=1, retries=0, fingerprint="f"), tmp_path / "s.db"
        )

        async def run():
            server_hangs = asyncio.create_task(ascore_pairs(cached, ["q"] * 3, ["a", "bb", "hang"]))
            await asyncio.sleep(0.5)
            server_hangs.cancel()
            await server_hangs

        server.score = lambda query, items: time.sleep(3 if "hang" in items[0] else 0) or lengths(query, items)
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(run())
    assert cached.count_missing(["q"] * 3, ["a", "bb", "hang"]) == 1


def test_asynchronous_functions_run_at_the_same_time():
    running = most = 0

    async def score(pairs):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return [float(len(item)) for _, item in pairs]

    searcher = make_searcher(ck.function_scorer(score))

    async def run():
        return await asyncio.gather(*(searcher.asearch(f"ice {n}", strategy=STRATEGY) for n in range(20)))

    together_found = list(map(found, asyncio.run(run())))
    assert most > 10
    assert together_found == [found(searcher.search(f"ice {n}", strategy=STRATEGY)) for n in range(20)]
