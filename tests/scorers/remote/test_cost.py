"""Tokens are counted as the server reports them, estimated where it does not, and never paid for past the limit."""

import pickle

import pytest

from crossknn.errors import InputError, PartialScores, ScorerError
from crossknn.scorers.remote.scorer import RemoteScorer
from tests.scorers.remote.rerank_server import hang, refuse, respond, serving

SCORES = [{"index": 0, "score": 1.0}, {"index": 1, "score": 2.0}]
PAIRS = (["ice", "ice"], ["a" * 100, "雪" * 40])
ESTIMATE = (3 + 100 + 3 + 120) // 2 + 2 * 16  # a token per two bytes, and 16 around each pair


@pytest.fixture
def server():
    with serving() as one:
        yield one


@pytest.mark.parametrize(
    "usage",
    [
        {"usage": {"total_tokens": 61}},
        {"usage": {"prompt_tokens": 60, "completion_tokens": 1}},
        {"usage": {"prompt_tokens": 61, "total_tokens": 61}},
        {"usage": {"input_tokens": 61}},
        {"meta": {"tokens": {"input_tokens": 61}}},
        {"meta": {"billed_units": {"input_tokens": 61}}},
        {"input_tokens": 61},
    ],
)
def test_reported_tokens_are_counted(server, usage):
    server.faults = [respond({"results": SCORES} | usage)]
    scorer = RemoteScorer(server.url, price_per_million_tokens=1e6)
    scorer.score(*PAIRS)
    assert scorer.tokens == scorer.spent == 61


@pytest.mark.parametrize(
    "usage",
    [
        {},
        {"usage": None},
        {"usage": {"total_tokens": 0}},
        {"usage": {"total_tokens": "61"}},
        {"usage": {"total_tokens": 10**4000}},
        {"meta": []},
    ],
)
def test_tokens_are_estimated_where_none_are_reported(server, usage):
    server.faults = [respond({"results": SCORES} | usage)]
    scorer = RemoteScorer(server.url, price_per_million_tokens=1e6)
    scorer.score(*PAIRS)
    assert scorer.tokens == scorer.spent == ESTIMATE


def test_prices_of_pairs_and_tokens_add_up():
    with serving("voyage") as server:
        prices = {"price_per_1000": 1000.0, "price_per_million_tokens": 2e6}
        scorer = RemoteScorer(server.url, model="m", dialect="voyage", batch_size=1, **prices)
        scorer.score(*PAIRS)
    assert (scorer.tokens, scorer.spent) == (2 * 26, 2 + 2 * 2 * 26)


def test_tokens_are_counted_without_a_price():
    with serving("deepinfra") as server:
        scorer = RemoteScorer(server.url, dialect="deepinfra")
        scorer.score(*PAIRS)
    assert (scorer.tokens, scorer.spent) == (7, 0)


def test_a_call_that_may_exceed_the_limit_sends_nothing(server):
    scorer = RemoteScorer(server.url, price_per_million_tokens=1e6, spend_limit=ESTIMATE - 1)
    with pytest.raises(ScorerError, match=rf"`spend_limit` is {ESTIMATE - 1} and 0 is spent: .* may cost {ESTIMATE} m"):
        scorer.score(*PAIRS)
    assert not server.bodies
    RemoteScorer(server.url, price_per_million_tokens=1e6, spend_limit=ESTIMATE).score(*PAIRS)


def test_what_was_estimated_too_high_is_free_again(server):
    server.faults = [respond({"results": SCORES, "usage": {"total_tokens": 1}})] * 5
    scorer = RemoteScorer(server.url, price_per_million_tokens=1e6, spend_limit=ESTIMATE + 3)
    for _ in range(4):
        scorer.score(*PAIRS)
    with pytest.raises(ScorerError, match="`spend_limit`"):
        scorer.score(*PAIRS)
    assert (scorer.spent, len(server.bodies)) == (4, 4)


def test_refused_requests_are_free_and_lost_ones_count_as_estimated(server):
    scorer = RemoteScorer(server.url, price_per_million_tokens=1e6, spend_limit=ESTIMATE * 1.5, timeout=0.2)
    server.faults = [refuse(500), hang(0.5)]
    with pytest.raises(PartialScores, match="`spend_limit`"):
        scorer.score(*PAIRS)
    assert (scorer.tokens, len(server.bodies)) == (ESTIMATE, 2)


def test_a_pickled_scorer_keeps_its_prices_and_counts_for_itself(server):
    scorer = RemoteScorer(server.url, price_per_million_tokens=1e6, spend_limit=ESTIMATE)
    scorer.score(*PAIRS)
    copy = pickle.loads(pickle.dumps(scorer))
    assert copy.spent == 0
    copy.score(*PAIRS)
    with pytest.raises(ScorerError, match="`spend_limit`"):
        copy.score(*PAIRS)


@pytest.mark.parametrize("price", [-1, float("nan"), "2", True])
def test_a_price_must_be_a_number(price):
    with pytest.raises(InputError, match="`price_per_million_tokens` must be a nonnegative number, got"):
        RemoteScorer("http://localhost/rerank", price_per_million_tokens=price)
