"""The best items so far after each round, from an iterator or an asynchronous one."""

import asyncio
import threading

import pytest

from crossknn.errors import InputError
from crossknn.strategies.axn import Axn
from crossknn.strategies.exact import Exact
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.testing import MatrixScorer
from tests.search.test_searcher import Setup
from tests.worlds import World

STRATEGIES = [Exact(), Rerank(budget=30), Axn(budget=30, rounds=3), Posterior(budget=30, rounds=3)]


def found(hits):
    return [(hit.id, hit.score, hit.round, hit.proposed_by) for hit in hits], hits.calls, hits.rounds, hits.stopped


async def listed(stream):
    return [hits async for hits in stream]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("options", [{}, {"rank_by": "fused"}, {"filter": {"parity": "even"}, "min_score": 0.0}])
def test_the_last_answer_is_that_of_a_search(strategy, options):
    setup = Setup()
    for query in setup.queries[:2]:
        alone = setup.searcher.search(query, strategy=strategy, **options)
        *earlier, last = setup.searcher.stream(query, strategy=strategy, **options)
        later = asyncio.run(listed(setup.searcher.astream(query, strategy=strategy, **options)))
        assert found(last) == found(alone)
        assert last.expected_recall == alone.expected_recall
        assert list(map(found, [*earlier, last])) == list(map(found, later))
        assert [hits.final for hits in (*earlier, last)] == [False] * len(earlier) + [True]
        assert last.complete
        assert not any(hits.complete for hits in earlier)


def test_each_answer_is_the_best_of_what_was_scored_until_then():
    setup = Setup()
    answers = list(setup.searcher.stream(setup.queries[0], k=10, strategy=Axn(budget=30, rounds=3)))
    assert [(hits.calls, hits.rounds) for hits in answers] == [(10, 1), (20, 2), (30, 3)]
    for hits in answers:
        known = [hit for hit in answers[-1].trace if hit.round <= hits.rounds]
        assert hits.ids == [hit.id for hit in sorted(known, key=lambda hit: -hit.score)[:10]]


def test_expected_recall_is_known_after_each_round_with_stop_at_and_else_at_the_end():
    setup = Setup()
    query, strategy = setup.queries[0], Posterior(budget=40, rounds=4)
    with_stop = [hits.expected_recall for hits in setup.searcher.stream(query, k=5, strategy=strategy, stop_at=1.0)]
    without = [hits.expected_recall for hits in setup.searcher.stream(query, k=5, strategy=strategy)]
    assert None not in with_stop
    assert [value is None for value in without] == [True, True, True, False]


def test_a_filter_that_lets_nothing_through_gives_one_empty_answer():
    setup = Setup()
    (hits,) = setup.searcher.stream(setup.queries[0], filter=set())
    assert (len(hits), hits.calls, hits.final) == (0, 0, True)


def test_closing_ends_the_search():
    setup = Setup()
    stream = setup.searcher.stream(setup.queries[0], strategy=Axn(budget=30, rounds=3))
    assert next(stream).calls == 10
    stream.close()
    assert setup.scorer.calls == 10

    async def first():
        async for hits in setup.searcher.astream(setup.queries[0], strategy=Axn(budget=30, rounds=3)):
            return hits
        return None

    assert asyncio.run(first()).calls == 10
    assert setup.scorer.calls == 20


def test_cancelling_from_another_thread_gives_what_was_found():
    cancelled = threading.Event()

    class Cancelling(MatrixScorer):
        def score(self, queries, items):
            if self.calls:
                cancelled.set()
            return super().score(queries, items)

    setup = Setup(scorer=Cancelling(World.low_rank(queries=6, items=120).scores))
    answers = list(setup.searcher.stream(setup.queries[0], strategy=Axn(budget=30, rounds=3), cancelled=cancelled))
    assert [(hits.calls, hits.stopped, hits.final) for hits in answers] == [
        (10, None, False), (20, None, False), (20, "cancelled", True)
    ]  # fmt: skip


def test_the_deadline_holds():
    setup = Setup()
    (hits,) = setup.searcher.stream(setup.queries[0], deadline=1e-9, strategy=Axn(budget=30, rounds=3))
    assert (hits.stopped, hits.final, hits.calls) == ("deadline", True, 0)


def test_invalid_arguments_are_refused_at_once():
    searcher = Setup().searcher
    with pytest.raises(InputError, match="`k` must be"):
        searcher.stream("q", k=0)
    with pytest.raises(InputError, match="nonempty"):
        searcher.stream("")
    with pytest.raises(InputError, match="`k` must be"):
        searcher.astream("q", k=0)
