"""One bad document fails neither its request nor its call: it is isolated, named, and the rest is scored."""

import numpy as np
import pytest

import crossknn as ck
from crossknn.errors import InputError, PartialScores, ScorerError
from crossknn.scorers.base import describe_pair
from crossknn.scorers.remote.request_run import MAX_FIRST_FAILURES
from crossknn.scorers.remote.scorer import RemoteScorer
from crossknn.testing import check_scorer
from tests.scorers.remote.rerank_server import RerankServer, lengths, refuse, respond, running

ITEMS = [f"{'x' * number} {number}" for number in range(100)]


class PickyServer(RerankServer):
    """Refuses every request with a text that contains "bad", and those of more than `most` items."""

    status = 422
    most = 1000

    def answer(self, body):
        if len(body["texts"]) > self.most:
            return 413, {"error": "batch too large"}
        if any("bad" in text for text in [body["query"], *body["texts"]]):
            return self.status, {"error": "Input validation error", "error_type": "Validation"}
        if len(body["texts"]) > 32:  # TEI's own limit is of no interest here
            scores = self.score(body["query"], body["texts"])
            return 200, [{"index": index, "score": score} for index, score in enumerate(scores)]
        return super().answer(body)


@pytest.fixture
def server():
    with running(PickyServer()) as one:
        yield one


def with_bad(*rows):
    return [f"bad {item}" if row in rows else item for row, item in enumerate(ITEMS)]


def known(items):
    return np.array(lengths("q", items), np.float32)


@pytest.mark.parametrize("status", [400, 413, 422])
@pytest.mark.parametrize("rows", [(0,), (99,), (37,), (3, 4, 50, 98)])
def test_a_bad_pair_is_named_and_all_others_are_scored(server, status, rows):
    server.status = status
    items = with_bad(*rows)
    with pytest.raises(PartialScores) as raised:
        RemoteScorer(server.url, batch_size=100).score(["q"] * 100, items)
    error = raised.value
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    pair = describe_pair("q", items[rows[0]])
    assert f"gave no score for {pair}{more}: it responded with {status}: " in str(error)
    assert f"`fallback_score`. {100 - len(rows)} of 100 pairs of this call were scored." in str(error)
    assert error.items == [item for item in items if "bad" not in item]
    np.testing.assert_allclose(error.scores, known(error.items), rtol=1e-6)


def test_one_bad_pair_costs_few_requests(server):
    with pytest.raises(PartialScores):
        RemoteScorer(server.url, batch_size=100).score(["q"] * 100, with_bad(37))
    assert len(server.bodies) <= 1 + 2 * 7


def test_other_requests_of_the_call_go_on(server):
    with pytest.raises(PartialScores, match=r"99 of 100 pairs"):
        RemoteScorer(server.url, batch_size=10, concurrency=3).score(["q"] * 100, with_bad(0))


def test_refusals_cost_nothing_and_scores_are_paid_once(server):
    scorer = RemoteScorer(server.url, batch_size=100, price_per_1000=1000.0)
    with pytest.raises(PartialScores):
        scorer.score(["q"] * 100, with_bad(37))
    assert scorer.spent == 99


def test_a_cache_keeps_the_others(server, tmp_path):
    cache = ck.Cached(RemoteScorer(server.url), tmp_path / "scores.db")
    items = with_bad(5, 70)
    with pytest.raises(PartialScores):
        cache.score(["q"] * 100, items)
    assert cache.count_missing(["q"] * 100, items) == 2


def test_a_fallback_score_takes_the_place_of_the_error(server, caplog):
    scorer = RemoteScorer(server.url, batch_size=100, fallback_score=-12)
    items = with_bad(3, 50)
    scores = scorer.score(["q"] * 100, items)
    assert (scores[3], scores[50], scorer.fallbacks) == (-12, -12, 2)
    others = [row for row in range(100) if row not in (3, 50)]
    np.testing.assert_allclose(scores[others], known(items)[others], rtol=1e-6)
    (record,) = caplog.records
    assert "and 1 more: it responded with 422" in record.getMessage()
    check_scorer(scorer, ["ice", "snow"], ["a", "bad", "c"])


def test_a_search_passes_a_bad_item_by(server):
    items = ck.Items(with_bad(7))
    strategy = ck.Exact()
    hits = ck.Searcher(items, scorer=RemoteScorer(server.url, fallback_score=-20.0)).search(
        "q", k=100, strategy=strategy
    )
    assert hits[99].row == 7
    with pytest.raises(ScorerError, match="gave no score for query 'q' and item 'bad xxxxxxx 7'"):
        ck.Searcher(items, scorer=RemoteScorer(server.url)).search("q", k=5, strategy=strategy)


def test_a_batch_that_is_too_large_is_halved(server):
    server.most = 30
    scores = RemoteScorer(server.url, batch_size=100).score(["q"] * 100, ITEMS)
    np.testing.assert_allclose(scores, known(ITEMS), rtol=1e-6)
    assert [len(body["texts"]) for body in server.bodies] == [100, 50, 25, 25, 50, 25, 25]


@pytest.mark.parametrize("fallback", [None, -10.0])
def test_a_server_that_accepts_nothing_is_an_error_soon(server, fallback):
    server.faults = [refuse(400, b"unknown field")] * 1000
    scorer = RemoteScorer(server.url, batch_size=100, concurrency=1, fallback_score=fallback)
    words = r"responded with 400: unknown field\. If the server speaks another dialect, set `dialect`.* 0 of 100 pairs"
    with pytest.raises(PartialScores, match=words):
        scorer.score(["q"] * 100, ITEMS)
    assert len(server.bodies) == MAX_FIRST_FAILURES
    assert scorer.fallbacks == 0


@pytest.mark.parametrize("fallback", [None, -10.0])
def test_a_refused_first_pair_is_never_taken_for_an_item_of_a_bad_kind(server, fallback):
    with pytest.raises(PartialScores, match=r"it responded with 422: .* set `dialect`"):
        RemoteScorer(server.url, fallback_score=fallback).score(["q"], ["bad"])


def test_once_the_server_has_accepted_a_request_any_number_may_be_refused(server):
    scorer = RemoteScorer(server.url, batch_size=100, fallback_score=-9.0)
    scorer.score(["q"], ["a"])
    assert scorer.score(["bad"] * 100, ITEMS).tolist() == [-9.0] * 100
    assert scorer.fallbacks == 100


@pytest.mark.parametrize("score", ["null", "NaN"])
def test_a_score_that_the_server_could_not_compute(server, score):
    body = b'[{"index": 0, "score": 2.5}, {"index": 1, "score": %s}, {"index": 2, "score": -1}]' % score.encode()
    server.faults = [respond(body)] * 2
    with pytest.raises(
        PartialScores, match=rf"query 'q' and item 'b': it returned {score}\. .* 2 of 3 pairs"
    ) as raised:
        RemoteScorer(server.url).score(["q"] * 3, ["a", "b", "c"])
    assert raised.value.scores == [2.5, -1]
    assert RemoteScorer(server.url, fallback_score=-5).score(["q"] * 3, ["a", "b", "c"]).tolist() == [2.5, -5, -1]


def test_a_bad_window_gives_way_to_the_others(server):
    scorer = RemoteScorer(server.url, max_item_chars=4, long_items="max", stride=4, fallback_score=-50)
    assert scorer.score(["q"], ["okaybad!"]) == pytest.approx(known(["okay"]))
    with pytest.raises(PartialScores, match="gave no score for query 'q' and item 'okaybad!'"):
        RemoteScorer(server.url, max_item_chars=4, long_items="max", stride=4).score(["q"], ["okaybad!"])


def test_the_fingerprint_tells_fallback_scores_apart():
    scorers = [RemoteScorer("http://localhost/rerank", fallback_score=score) for score in (None, 0, -5, -10.0)]
    assert len({scorer.fingerprint for scorer in scorers}) == 4
    assert RemoteScorer("http://localhost/rerank", fallback_score=-10).fingerprint == scorers[3].fingerprint


@pytest.mark.parametrize("score", [float("nan"), float("-inf"), "lowest", True])
def test_a_fallback_score_must_be_finite(score):
    with pytest.raises(InputError, match="`fallback_score` must be a finite number, got"):
        RemoteScorer("http://localhost/rerank", fallback_score=score)
