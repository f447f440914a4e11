"""Remote scores equal the model's own, whatever fails on the way, and no call is paid for twice."""

import base64
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import numpy as np
import pytest

import crossknn as ck
from crossknn.errors import InputError, MissingExtra, PartialScores, ScorerError
from crossknn.scorers.remote import client
from crossknn.scorers.remote.scorer import RemoteScorer
from crossknn.testing import check_scorer
from tests.scorers import tiny
from tests.scorers.remote.rerank_server import (
    answer,
    drip,
    drip_headers,
    hang,
    hang_up,
    hang_up_midway,
    lengths,
    refuse,
    respond,
    serving,
)

KEY = "sk-secret-0123456789"
DIALECTS = ["tei", "vllm", "vllm-score", "jina", "cohere", "voyage", "mixedbread", "nim", "deepinfra"]
QUERIES = ["ice", "bread and butter", "é 雪"]
ITEMS = [f"{'x' * number} {number}" for number in range(50)]


@pytest.fixture
def server():
    with serving() as one:
        yield one


def every_pair(queries=QUERIES, items=ITEMS):
    return [query for query in queries for _ in items], [item for _ in queries for item in items]


def known(queries, items):
    return np.array([lengths(query, [item])[0] for query, item in zip(queries, items, strict=True)], np.float32)


def model_of(dialect):
    return None if dialect == "tei" else "a-model"


# What the servers are asked, and what they answer


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_model_behind_a_server_scores_as_the_model_itself(dialect):
    local = ck.CrossEncoder("embedded")

    def score(query, items):
        return local.score([query] * len(items), items).tolist()

    queries, items = ["he sat on the [bank] of the river", "ice"], [*tiny.SENTENCES, "", "the land beside a river"]
    with serving(dialect, score, key=KEY) as server:
        remote = RemoteScorer(server.url, model=model_of(dialect), dialect=dialect, api_key=KEY, batch_size=4)
        scores = remote.score(*every_pair(queries, items))
        np.testing.assert_allclose(scores, local.score(*every_pair(queries, items)), rtol=1e-4, atol=1e-4)
        assert len(server.bodies) == 4
        assert remote.dialect == dialect


@pytest.mark.parametrize("dialect", DIALECTS)
def test_contract(dialect):
    with serving(dialect) as server:
        scorer = RemoteScorer(server.url, model=model_of(dialect), dialect=dialect)
        check_scorer(scorer, QUERIES, ITEMS[:4])


def test_request_bodies_of_each_dialect():
    asked = {}
    for dialect in DIALECTS:
        with serving(dialect) as server:
            RemoteScorer(server.url, model=model_of(dialect), dialect=dialect).score(["ice"] * 2, ["a", "bc"])
            (asked[dialect],) = server.bodies
    common = {"model": "a-model", "query": "ice", "documents": ["a", "bc"], "top_n": 2}
    assert asked["tei"] == {"query": "ice", "texts": ["a", "bc"], "raw_scores": True, "truncate": True}
    assert asked["vllm"] == common | {"use_activation": False, "truncate_prompt_tokens": -1}
    assert asked["jina"] == common | {"return_documents": False}
    assert asked["cohere"] == common
    texts = {"model": "a-model", "query": "ice", "top_k": 2}
    assert asked["voyage"] == texts | {"documents": ["a", "bc"]}
    assert asked["mixedbread"] == texts | {"input": ["a", "bc"]}
    assert asked["nim"] == {
        "model": "a-model", "query": {"text": "ice"}, "passages": [{"text": "a"}, {"text": "bc"}],
    }  # fmt: skip
    assert asked["deepinfra"] == {"model": "a-model", "queries": ["ice"], "documents": ["a", "bc"]}
    assert asked["vllm-score"] == {
        "model": "a-model", "text_1": ["ice", "ice"], "text_2": ["a", "bc"], "use_activation": False,
        "truncate_prompt_tokens": -1,
    }  # fmt: skip


def test_pairs_of_many_queries_are_one_request_where_the_server_takes_pairs():
    queries, items = every_pair([f"query {n}" for n in range(9)], ["a", "bc"])
    with serving("vllm-score") as server:
        np.testing.assert_allclose(RemoteScorer(server.url, model="m").score(queries, items), known(queries, items))
        assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("url", "model", "dialect"),
    [
        ("http://localhost:8080/rerank", None, "tei"),
        ("http://localhost:8000/rerank", "a/model", "vllm"),
        ("http://localhost:8000/rerank#a/model", None, "vllm"),
        ("http://localhost:8000/v1/rerank", None, "vllm"),
        ("https://gateway.example/llm/v1/rerank", None, "vllm"),
        ("https://api.cohere.com/v2/rerank#rerank-v3.5", None, "cohere"),
        ("https://api.jina.ai/v1/rerank", "jina-reranker-v2-base-multilingual", "jina"),
        ("https://notjina.ai.example.org/rerank", None, "tei"),
        ("https://api.voyageai.com/v1/rerank", "rerank-2.5", "voyage"),
        ("https://api.mixedbread.com/v1/reranking", "mixedbread-ai/mxbai-rerank-large-v2", "mixedbread"),
        ("https://ai.api.nvidia.com/v1/retrieval/nvidia/reranking", "nvidia/rerank", "nim"),
        ("http://localhost:8000/v1/ranking", "nvidia/rerank", "nim"),
        ("https://api.deepinfra.com/v1/inference/Qwen/Qwen3-Reranker-0.6B", None, "deepinfra"),
        ("http://localhost:8000/score", "a/model", "vllm-score"),
        ("http://localhost:8000/v1/score", "a/model", "vllm-score"),
    ],
)
def test_the_dialect_goes_by_the_url(url, model, dialect):
    scorer = RemoteScorer(url, model=model)
    assert scorer.dialect == dialect
    assert scorer.model == (model or url.partition("#")[2] or None)
    assert "#" not in scorer.url


def test_fields_override_those_of_every_request():
    with serving("cohere") as server:
        fields = {"max_tokens_per_doc": 64}
        RemoteScorer(server.url, model="m", dialect="cohere", fields=fields).score(["a", "b"], ["x", "y"])
        assert [body["max_tokens_per_doc"] for body in server.bodies] == [64, 64]


def test_lone_surrogates_are_replaced(server):
    RemoteScorer(server.url).score(["é\ud800"], ["雪"])
    assert server.bodies[0]["query"] == "é?"
    assert server.bodies[0]["texts"] == ["雪"]


def test_probabilities_are_turned_back_into_logits():
    with serving("cohere") as server:
        pairs = every_pair()
        logits = RemoteScorer(server.url, model="m", dialect="cohere")
        np.testing.assert_allclose(logits.score(*pairs), known(*pairs), atol=1e-3)
        plain = RemoteScorer(server.url, model="m", dialect="cohere", logits=False)
        np.testing.assert_allclose(plain.score(*pairs), 1 / (1 + np.exp(-known(*pairs))), atol=1e-6)
        assert logits.fingerprint != plain.fingerprint


def test_logits_are_clipped_and_need_probabilities(server):
    scorer = RemoteScorer(server.url, logits=True)
    server.faults = [respond([{"index": 0, "score": 1.0}, {"index": 1, "score": 0}, {"index": 2, "score": 0.5}])]
    assert scorer.score(["q"] * 3, ["a", "b", "c"]).tolist() == pytest.approx([16.118, -16.118, 0], abs=1e-3)
    server.faults = [respond([{"index": 0, "score": 1.5}])]
    with pytest.raises(ScorerError, match=r"between 0 and 1, got 1\.5; set `logits` to False"):
        scorer.score(["q"], ["a"])


def test_a_server_that_seems_to_give_probabilities_is_reported_once(caplog):
    def halves(query, items):
        return [0.5] * len(items)

    with serving("tei", halves) as server:
        scorer = RemoteScorer(server.url)
        for _ in range(3):
            scorer.score(*every_pair())
    assert [server.url in record.message for record in caplog.records if "logits=True" in record.message] == [True]
    caplog.clear()
    with serving("tei") as server:
        RemoteScorer(server.url).score(*every_pair())
    assert not caplog.records


# Many requests


def test_requests_are_of_one_query_and_one_batch_and_order_is_kept(server):
    queries, items = every_pair()
    order = np.random.default_rng(0).permutation(len(queries))
    queries, items = [queries[place] for place in order], [items[place] for place in order]
    server.delay = 0.01
    scores = RemoteScorer(server.url, batch_size=20).score(queries, items)
    np.testing.assert_allclose(scores, known(queries, items), rtol=1e-6)
    assert sorted((body["query"], len(body["texts"])) for body in server.bodies) == sorted(
        (query, size) for query in QUERIES for size in (20, 20, 10)
    )


def test_requests_are_in_flight_together_on_connections_that_stay_open(server):
    server.delay = 0.2
    scorer = RemoteScorer(server.url, batch_size=5, concurrency=6)
    start = time.monotonic()
    for _ in range(2):
        scorer.score(*every_pair(items=ITEMS[:20]))
    assert time.monotonic() - start < 2.5  # 24 requests one after the other take 4.8 seconds
    assert server.max_in_flight == 6
    assert server.connections == 6


def test_concurrency_of_one(server):
    server.delay = 0.01
    RemoteScorer(server.url, batch_size=5, concurrency=1).score(["q"] * 40, ITEMS[:40])
    assert (server.max_in_flight, server.connections) == (1, 1)


def test_threads_share_a_scorer(server):
    scorer = RemoteScorer(server.url, batch_size=7, concurrency=3)
    results = {}

    def work(number):
        pairs = every_pair([f"query {number}", "ice"])
        results[number] = np.allclose(scorer.score(*pairs), known(*pairs))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(6), True)


FORK = """
import os, sys
from crossknn.scorers.remote.scorer import RemoteScorer

scorer = RemoteScorer(sys.argv[1], concurrency=2)
before = scorer.score(["q", "q"], ["a", "bc"]).tolist()
child = os.fork()
if not child:
    os._exit(0 if scorer.score(["q", "q"], ["a", "bc"]).tolist() == before else 1)
status = os.waitpid(child, 0)[1]
again = scorer.score(["q", "q"], ["a", "bc"]).tolist() == before
sys.exit(os.waitstatus_to_exitcode(status) if again else 2)
"""


def test_a_forked_process_opens_its_own_connections(server):
    """In a process of its own: one that forks while other threads hold locks, as here, may hang in the child."""
    subprocess.run([sys.executable, "-c", FORK, server.url], check=True, timeout=60)
    assert server.connections == 2


def test_a_pickled_scorer_scores_the_same_and_counts_for_itself(server):
    scorer = RemoteScorer(server.url, price_per_1000=1.0, spend_limit=1.0)
    scorer.score(["q"] * 3, ITEMS[:3])
    copy = pickle.loads(pickle.dumps(scorer))
    assert (copy.fingerprint, copy.spent) == (scorer.fingerprint, 0.0)
    assert copy.score(["q"], ["a"]).tolist() == scorer.score(["q"], ["a"]).tolist()
    assert copy.spent == pytest.approx(0.001)


# What goes wrong


@pytest.mark.parametrize(
    "fault",
    [refuse(408), refuse(429), refuse(500), refuse(503), hang_up, hang_up_midway, hang(1.0), drip, drip_headers],
    ids=["408", "429", "500", "503", "closed", "closed midway", "hang", "drip", "drip headers"],
)
def test_temporary_failures_are_retried(server, fault):
    server.faults = [fault, fault]
    start = time.monotonic()
    scores = RemoteScorer(server.url, timeout=0.3).score(["q"] * 5, ITEMS[:5])
    assert time.monotonic() - start < 5
    np.testing.assert_allclose(scores, known(["q"] * 5, ITEMS[:5]), rtol=1e-6)
    assert len(server.bodies) == 3


def test_retry_after_is_honored(server):
    server.faults = [refuse(429, retry_after="1")]
    start = time.monotonic()
    RemoteScorer(server.url).score(["q"], ["a"])
    assert 1.0 <= time.monotonic() - start < 5


def test_retry_after_is_a_number_or_a_date():
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert 28 < client.parse_retry_after(later) <= 30
    assert 28 < client.parse_retry_after(later.replace("GMT", "-0000")) <= 30
    assert client.parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert [client.parse_retry_after(value) for value in ("7", "soon", "", None)] == [7, None, None, None]


def test_a_long_retry_after_is_an_error_at_once(server):
    server.faults = [refuse(429, {"message": "monthly limit"}, retry_after="86400")]
    with pytest.raises(ScorerError, match=r'429: \{"message": "monthly limit"\}\. .* wait of 86,400 sec'):
        RemoteScorer(server.url).score(["q"], ["a"])
    assert len(server.bodies) == 1


def test_back_off_is_exponential_with_jitter(monkeypatch):
    monkeypatch.setattr(client, "INITIAL_BACKOFF", 0.5)
    waits = [[client.backoff(attempt) for _ in range(200)] for attempt in (1, 2, 3, 50)]
    for drawn, most in zip(waits, (0.5, 1.0, 2.0, 60.0), strict=True):
        assert most / 2 <= min(drawn) < most * 0.6
        assert most * 0.9 < max(drawn) <= most


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (refuse(401, {"message": "no key"}), r'401: \{"message": "no key"\}\. Set `api_key` .* CROSSKNN_API_KEY'),
        (refuse(404), r"404: not now\. Check the URL"),
        (refuse(403, b""), r"403: an empty body\. Set `api_key`"),
        (
            refuse(302, b"", location="https://elsewhere.example/rerank"),
            r"redirects to https://elsewhere.example/rerank",
        ),
        (respond(b"<html>busy</html>"), r"invalid response for query 'q' and item ' 0' and 4 more: not JSON but HTML"),
        (respond(b""), r"4 more: an empty body\."),
        (respond(b'[{"index": 0, "sco'), r"not JSON \(Unterminated string"),
        (respond(b"[" * 200_000), r"not JSON"),
        (respond({"detail": "ok"}), r"no list of results, but an object with 'detail'\."),
        (respond({"error": {"message": "busy"}}), r"no list of results, but an object with 'error'\."),
        (respond(b'"ok"'), r"no list of results, but a JSON str\."),
        (respond({"data": None}), r"no list of results, but an object with 'data'\."),
        (respond({"scores": [1, 2, 3, 4, 5, 6]}), r"6 scores for 5 items"),
        (respond({"scores": [[1, 2, 3, 4, 5]]}), r"1 scores for 5 items"),
        (respond([1, 2, 3, 4, 5]), r"must be an object, got int"),
        (respond([{"index": 0, "score": 1}] * 5), r"index 0 occurs twice"),
        (respond([{"index": i, "score": 1} for i in range(4)]), r"1 of 5 scores are missing, the first at index 4"),
        (respond([{"index": 7, "score": 1}]), r"between 0 and 4, got 7"),
        (respond([{"index": True, "score": 1}]), r"between 0 and 4, got True"),
        (respond([{"index": 0, "score": "0.5"}]), r"score of index 0 must be a finite number, got '0.5'"),
        (respond([{"index": 0, "text": "a"}]), r"index 0 has no score, but is an object with 'index', 'text'"),
        (respond([{"index": i, "score": None} for i in range(4)]), r"1 of 5 scores are missing, the first at index 4"),
        (respond(b'[{"index": 0, "score": 1e400}]'), r"score of index 0 .*, got inf"),
        (respond([{"index": 0, "score": 10**39}]), r"score of index 0 .*, got 1000"),
    ],
)
def test_permanent_failures_are_errors_at_once(server, fault, words):
    server.faults = [fault]
    with pytest.raises(ScorerError, match=words) as raised:
        RemoteScorer(server.url).score(["q"] * 5, ITEMS[:5])
    assert str(raised.value).startswith(server.url)
    assert str(raised.value).endswith(" 0 of 5 pairs of this call were scored.")
    assert len(server.bodies) == 1


def test_after_the_last_attempt_the_error_counts_them(server):
    server.faults = [refuse(503, b"loading")] * 9
    with pytest.raises(ScorerError, match=r"/rerank .* 503: loading \(3 attempts\)\. 0 of 1 pairs"):
        RemoteScorer(server.url, retries=2).score(["q"], ["a"])
    assert len(server.bodies) == 3


def test_a_server_that_never_responds(server):
    server.faults = [hang(1.0)]
    with pytest.raises(ScorerError, match=r"did not respond within 0\.2 seconds\."):
        RemoteScorer(server.url, timeout=0.2, retries=0).score(["q"], ["a"])


def test_a_refused_connection():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/rerank"
        with pytest.raises(ScorerError, match=r"/rerank cannot be reached: .*refused.* \(2 attempts\)"):
            RemoteScorer(url, retries=1).score(["q"], ["a"])


def test_a_huge_error_body_is_truncated(server):
    server.faults = [refuse(400, b"no " * 10_000_000)]
    start = time.monotonic()
    with pytest.raises(ScorerError) as raised:
        RemoteScorer(server.url).score(["q"], ["a"])
    assert len(str(raised.value)) < 600
    assert time.monotonic() - start < 5


def test_a_closed_idle_connection_is_reopened_without_a_wait(server, monkeypatch):
    monkeypatch.setattr(client, "INITIAL_BACKOFF", 60.0)
    scorer = RemoteScorer(server.url, price_per_1000=1.0)
    server.faults = [lambda handler: (answer(handler), hang_up(handler))]
    scorer.score(["q"], ["a"])
    time.sleep(0.05)
    assert scorer.score(["q"], ["bc"]).tolist() == pytest.approx(lengths("q", ["bc"]), rel=1e-5)
    assert scorer.spent == pytest.approx(0.002)


def test_chunked_responses_and_connection_close(server):
    def in_pieces(handler):
        _, results = handler.server.answer(handler.body)
        data = json.dumps(results).encode()
        handler.send_response(200)
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        for part in (data[:9], data[9:], b""):
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))

    def once(handler):
        handler.reply(*handler.server.answer(handler.body), connection="close")

    server.faults = [in_pieces, in_pieces, once, once, answer]
    scorer = RemoteScorer(server.url)
    for _ in range(5):
        np.testing.assert_allclose(scorer.score(["q"] * 5, ITEMS[:5]), known(["q"] * 5, ITEMS[:5]), rtol=1e-6)
    assert (len(server.bodies), server.connections) == (5, 3)
    scorer.close()
    scorer.close()
    scorer.score(["q"], ["a"])
    assert server.connections == 4


def test_an_interrupt_does_not_wait_for_the_server(server):
    server.faults = [hang(20)] * 4
    code = (
        "import sys, crossknn as ck\n"
        "print('ready', flush=True)\n"
        f"ck.RemoteScorer({server.url!r}, batch_size=1, timeout=20).score(['q'] * 4, ['a', 'b', 'c', 'd'])"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process.stdout.readline()
    while server.in_flight < 4:
        time.sleep(0.01)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(10) != 0
    assert time.monotonic() - start < 5
    process.stdout.close()


# What was scored before a failure is not lost


def test_partial_scores_carry_the_scores_so_far(server):
    server.faults = [answer, refuse(403, b"bad")]
    with pytest.raises(PartialScores, match=r"403: bad\..* 10 of 40 pairs of this call were scored\.") as raised:
        RemoteScorer(server.url, batch_size=10, concurrency=1).score(["q"] * 40, ITEMS[:40])
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.queries, error.items) == (["q"] * 10, ITEMS[:10])
    np.testing.assert_allclose(error.scores, known(["q"] * 10, ITEMS[:10]), rtol=1e-6)
    assert str(error) == str(raised.value)
    assert len(server.bodies) == 2


def test_after_a_failure_requests_in_flight_are_kept_and_no_other_begins(server):
    def slow(handler):
        time.sleep(0.3)
        answer(handler)

    server.faults = [slow, refuse(403)]
    with pytest.raises(PartialScores) as raised:
        RemoteScorer(server.url, batch_size=10, concurrency=2).score(["q"] * 50, ITEMS)
    assert (len(raised.value.scores), len(server.bodies)) == (10, 2)


def test_a_cache_stores_partial_scores(server, tmp_path):
    scorer = RemoteScorer(server.url, batch_size=10, concurrency=1)
    cache = ck.Cached(scorer, tmp_path / "scores.db")
    server.faults = [answer, refuse(403)]
    with pytest.raises(ScorerError):
        cache.score(["q"] * 40, ITEMS[:40])
    assert cache.count_missing(["q"] * 40, ITEMS[:40]) == 30
    np.testing.assert_allclose(cache.score(["q"] * 40, ITEMS[:40]), known(["q"] * 40, ITEMS[:40]), rtol=1e-6)
    assert sum(len(body["texts"]) for body in server.bodies) == 10 + 10 + 30
    assert (cache.misses, cache.hits) == (40, 10)


def test_an_interrupt_keeps_the_scores_so_far(server, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    def send_signal(handler):
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        server.faults = [answer, answer, send_signal]
        cached = ck.Cached(RemoteScorer(server.url, batch_size=2, concurrency=1), tmp_path / "scores.db")
        with pytest.raises(KeyboardInterrupt):
            cached.score(["q"] * 8, ITEMS[:8])
        assert (cached.count_missing(["q"] * 8, ITEMS[:8]), cached.misses) == (4, 4)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_cache_ignores_partial_scores_of_another_scorer(server, tmp_path):
    remote = RemoteScorer(server.url, batch_size=10, concurrency=1)

    def negative(pairs):
        return -remote.score([query for query, _ in pairs], [item for _, item in pairs])

    cache = ck.Cached(ck.function_scorer(negative, fingerprint="negative"), tmp_path / "scores.db")
    server.faults = [answer, refuse(403)]
    with pytest.raises(PartialScores):
        cache.score(["q"] * 20, ITEMS[:20])
    assert cache.count_missing(["q"] * 20, ITEMS[:20]) == 20


# Money


@pytest.mark.parametrize(("dialect", "spent"), [("vllm", 0.150), ("cohere", 0.006)])
def test_cost_per_pair_or_per_search(dialect, spent):
    with serving(dialect) as server:
        scorer = RemoteScorer(server.url, model="m", dialect=dialect, price_per_1000=1.0, batch_size=25)
        scorer.score(*every_pair())
        assert scorer.spent == pytest.approx(spent)
        assert RemoteScorer(server.url).spent == 0


def test_a_call_over_the_spend_limit_sends_nothing(server):
    scorer = RemoteScorer(server.url, price_per_1000=2.0, spend_limit=0.1)
    scorer.score(["q"] * 40, ITEMS[:40])
    with pytest.raises(ScorerError, match=r"`spend_limit` is 0\.1 and 0\.08 is spent: .* 0\.04 more"):
        scorer.score(["q"] * 20, ITEMS[:20])
    assert sum(len(body["texts"]) for body in server.bodies) == 40
    scorer.score(["q"] * 10, ITEMS[:10])
    assert scorer.spent == pytest.approx(0.1)


def test_the_spend_limit_holds_across_threads(server):
    server.delay = 0.02
    scorer = RemoteScorer(server.url, price_per_1000=1000.0, spend_limit=20, batch_size=1, concurrency=2)
    errors = []

    def work():
        try:
            scorer.score(["q"] * 15, ITEMS[:15])
        except ScorerError as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors
    assert sum(len(body["texts"]) for body in server.bodies) == scorer.spent <= 20


def test_error_responses_are_free_and_lost_requests_are_charged(server):
    scorer = RemoteScorer(server.url, price_per_1000=1000.0, timeout=0.2)
    server.faults = [refuse(500), refuse(429)]
    scorer.score(["q"] * 5, ITEMS[:5])
    assert scorer.spent == 5
    server.faults = [hang(0.5)]
    scorer.score(["q"] * 5, ITEMS[:5])
    assert scorer.spent == 15


def test_an_attempt_over_the_spend_limit_is_not_made(server):
    scorer = RemoteScorer(server.url, price_per_1000=1000.0, spend_limit=7, timeout=0.2)
    server.faults = [hang(0.5)]
    with pytest.raises(PartialScores, match=r"`spend_limit` is 7 and 5 is spent: .* 5 more\. 0 of 5 pairs"):
        scorer.score(["q"] * 5, ITEMS[:5])
    assert len(server.bodies) == 1


def test_reported_billed_units_replace_the_expected_ones():
    with serving("cohere") as server:
        scorer = RemoteScorer(server.url, model="m", dialect="cohere", price_per_1000=1000.0)
        results = [{"index": 0, "relevance_score": 0.3}]
        server.faults = [respond({"results": results, "meta": {"billed_units": {"search_units": 3}}})]
        scorer.score(["q"], ["long " * 5000])
        assert scorer.spent == 3


# Secrets


def test_secrets_are_never_shown(caplog):
    caplog.set_level(logging.DEBUG)
    with serving("cohere", key="another") as server:
        headers = {"X-Team": "team-token-42"}
        scorer = RemoteScorer(f"{server.url}?code={KEY}", model="m", dialect="cohere", api_key=KEY, headers=headers)
        with pytest.raises(ScorerError, match="invalid api token: Bearer •••") as raised:
            scorer.score(["q"], ["a"])
        server.faults = [refuse(400, b"team-token-42 has no rights")]
        with pytest.raises(ScorerError, match="••• has no rights") as other:
            scorer.score(["q"], ["a"])
        assert server.headers[0]["x-team"] == "team-token-42"
    shown = [str(raised.value), str(other.value), repr(scorer), scorer.fingerprint, scorer.url, caplog.text]
    assert not any(secret in text for text in shown for secret in (KEY, "team-token-42"))


ECHOES = {
    "in lines": lambda key: "\n".join(key[start : start + 4] for start in range(0, len(key), 4)),
    "in letters": lambda key: " ".join(key),
    "half of it": lambda key: key[: len(key) // 2],
    "the end of it": lambda key: "…" + key[-8:],
    "in capitals": str.upper,
    "as JSON": lambda key: json.dumps({"key": "\n".join([key[:9], key[9:]])}),
    "as JSON, escaped": lambda key: "".join(f"\\u{ord(character):04x}" for character in key),
    "as in a URL": lambda key: "".join(f"%{ord(character):02X}" for character in key),
    "as in HTML": lambda key: "".join(f"&#{ord(character)};" for character in key),
    "as base64": lambda key: base64.b64encode(f"Bearer {key}".encode()).decode(),
    "as base64 of a URL": lambda key: base64.urlsafe_b64encode(f"user:{key}".encode()).decode(),
    "as digits": lambda key: key.encode().hex(),
}


@pytest.mark.parametrize("how", ECHOES)
def test_a_key_that_is_echoed_in_pieces_is_masked(server, how):
    key = "qZ7-Kd93/xW+b1Rt"
    echo = ECHOES[how](key)
    faults = [
        refuse(401, f"no rights for {echo}, sorry".encode()),
        refuse(302, b"", location="https://x.example/" + echo.replace("\n", "").replace("…", "")),
        respond({echo: 1}),
        respond([{"index": 0, "score": echo}]),
    ]
    for fault in faults:
        server.faults = [fault]
        with pytest.raises(ScorerError) as raised:
            RemoteScorer(server.url, api_key=key, retries=0).score(["q"], ["a"])
        shown = "".join(traceback.format_exception(raised.value))
        length = max(8, 8 * len(echo) // len(key))  # of eight characters of the key, as they are echoed
        pieces = {echo[start : start + length] for start in range(len(echo) - length + 1)}
        assert not any(piece in shown for piece in pieces)
        assert fault is not faults[0] or "•••" in shown


def test_other_secrets_are_masked_and_nothing_commands_the_terminal(server, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://me:proxy-word@127.0.0.1:{server.server_port}")
    monkeypatch.setenv("no_proxy", "")
    server.faults = [refuse(403, "proxy-word\x1b[2J query-word \u202e".encode())]
    with pytest.raises(ScorerError, match=r"403: •••.* •••") as raised:
        RemoteScorer("http://rerank.example/rerank?code=query-word").score(["q"], ["a"])
    assert str(raised.value).isprintable()


def test_the_key_comes_from_the_environment_or_the_argument(server, monkeypatch):
    monkeypatch.setenv("CROSSKNN_API_KEY", KEY)
    RemoteScorer(server.url).score(["q"], ["a"])
    RemoteScorer(server.url, api_key="mine").score(["q"], ["a"])
    RemoteScorer(server.url, api_key="").score(["q"], ["a"])
    RemoteScorer(server.url, headers={"Authorization": "Basic abc"}).score(["q"], ["a"])
    sent = [headers.get("authorization") for headers in server.headers]
    assert sent == [f"Bearer {KEY}", "Bearer mine", None, "Basic abc"]


def test_an_unencrypted_key_is_logged(caplog):
    RemoteScorer("http://rerank.internal/rerank", api_key=KEY)
    assert "rerank.internal without encryption" in caplog.text
    caplog.clear()
    RemoteScorer("https://rerank.internal/rerank", api_key=KEY)
    RemoteScorer("http://localhost/rerank", api_key=KEY)
    assert not caplog.records


def test_the_fingerprint_tells_models_and_settings_apart():
    url = "http://localhost:8080/rerank"
    different = [
        RemoteScorer(url),
        RemoteScorer(url, model="a"),
        RemoteScorer(f"{url}#b"),
        RemoteScorer("http://localhost:8081/rerank"),
        RemoteScorer(f"{url}?deployment=2"),
        RemoteScorer(url, dialect="vllm"),
        RemoteScorer(url, logits=True),
        RemoteScorer(url, fields={"truncation_direction": "Left"}),
        RemoteScorer(url, fingerprint="my-model-v1"),
    ]
    assert len({scorer.fingerprint for scorer in different}) == len(different)
    same = RemoteScorer(url, api_key="k", batch_size=7, timeout=3, retries=0, concurrency=1, price_per_million_tokens=2)
    assert same.fingerprint == RemoteScorer(url).fingerprint
    assert RemoteScorer(url, model="a").fingerprint == RemoteScorer(f"{url}#a").fingerprint
    assert different[1].fingerprint.startswith("remote:localhost:8080/rerank#a:")
    assert different[-1].fingerprint == "my-model-v1"


# Proxies


def test_a_proxy_of_the_environment_is_used_but_not_for_this_machine(server, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://me:pass@127.0.0.1:{server.server_port}")
    monkeypatch.setenv("no_proxy", "")
    RemoteScorer("http://rerank.example/rerank").score(["q"], ["a"])
    assert (server.paths[0], server.headers[0]["host"]) == ("http://rerank.example/rerank", "rerank.example")
    assert server.headers[0]["Proxy-Authorization"] == "Basic bWU6cGFzcw=="
    RemoteScorer(server.url).score(["q"], ["a"])
    assert server.paths[1] == "/rerank"
    assert "Proxy-Authorization" not in server.headers[1]


# Input


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"url": "localhost:8080/rerank"}, "`url` must be the URL of a rerank endpoint"),
        ({"url": "ftp://localhost/rerank"}, "`url` must be the URL of a rerank endpoint"),
        ({"url": "http:///rerank"}, "`url` must be the URL of a rerank endpoint"),
        ({"url": "http://localhost:port/rerank"}, "Port could not be cast"),
        ({"url": "http://a..b/rerank"}, "`url` must be the URL of a rerank endpoint"),
        ({"url": "http://localhost/re rank"}, "`url` must be the URL of a rerank endpoint"),
        ({"url": "http://localhost/\r\nx: y"}, "`url` must be the URL of a rerank endpoint"),
        ({"url": None}, "`url` must be the URL of a rerank endpoint"),
        ({"url": f"http://me:{KEY}@localhost/rerank"}, "no password: use `api_key`"),
        ({"url": f"http://me:{KEY}@localhost:port/rerank"}, "`url` must be the URL of a rerank endpoint"),
        ({"url": f"me:{KEY}@localhost/rerank"}, "got one with a user name or a password"),
        ({"url": "http://localhost/rerank#a", "model": "b"}, "named twice, 'a' in `url` and 'b' in `model`"),
        ({"dialect": "openai"}, "`dialect` must be one of 'auto', 'tei', 'vllm'"),
        ({"batch_size": 0}, "`batch_size` must be a positive integer"),
        ({"concurrency": 1.5}, "`concurrency` must be a positive integer"),
        ({"timeout": 0}, "`timeout` must be a positive number of seconds, at most 1,000,000, got 0"),
        ({"timeout": float("inf")}, "`timeout` must be a positive number of seconds"),
        ({"retries": -1}, "`retries` must be a nonnegative integer"),
        ({"fields": {"model": "b"}}, "`fields` must not contain 'model'"),
        ({"fields": {"a": {1}}}, "`fields` must map names to JSON values"),
        ({"fields": {"a": float("nan")}}, "`fields` must map names to JSON values"),
        ({"api_key": f"{KEY}\n"}, "`api_key` must be ASCII text on one line"),
        ({"headers": {"x y": "a"}}, "`headers` must have names of letters"),
        ({"headers": {"x-y": "a\r\nb: c"}}, "`headers` must be ASCII text on one line; the header 'x-y'"),
        ({"price_per_1000": -1}, "`price_per_1000` must be a nonnegative number, got -1"),
        ({"price_per_1000": 1, "spend_limit": float("nan")}, "`spend_limit` must be a nonnegative number"),
        ({"spend_limit": 5}, "`spend_limit` needs `price_per_1000`"),
        ({"fingerprint": ""}, "`fingerprint` must be a nonempty name"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(arguments, words):
    with pytest.raises(InputError) as raised:
        RemoteScorer(**({"url": "http://localhost:8080/rerank"} | arguments))
    assert words in str(raised.value)
    assert KEY not in str(raised.value)


def test_queries_and_items_must_have_the_same_length(server):
    with pytest.raises(InputError, match="same length"):
        RemoteScorer(server.url).score(["q"], [])
    assert RemoteScorer(server.url).score([], []).shape == (0,)
    assert not server.bodies


# In a search


def test_a_search_with_a_server_finds_what_a_search_with_the_model_finds():
    items = ck.Items([tiny.words(seed, 8) for seed in range(60)])
    local = ck.function_scorer(lambda pairs: [lengths(query, [item])[0] for query, item in pairs])
    with serving("vllm") as server:
        remote = RemoteScorer(server.url, model="m", price_per_1000=1000.0)
        found = {}
        for name, scorer in (("remote", remote), ("local", local)):
            searcher = ck.Searcher(items, scorer=scorer)
            found[name] = searcher.search_many(["ice and snow", "ten best"], k=5, strategy=ck.Rerank(budget=20))
    assert [hits.ids for hits in found["remote"]] == [hits.ids for hits in found["local"]]
    assert remote.spent == sum(hits.calls for hits in found["remote"]) == 40
    assert len(server.bodies) == 2


def test_only_the_remote_extra_is_needed(server):
    blocked = ["torch", "transformers", "sentence_transformers", "requests", "urllib3"]
    code = (
        f"import sys\nfor name in {blocked}: sys.modules[name] = None\n"
        "import json, crossknn as ck\n"
        f"print(json.dumps(ck.RemoteScorer({server.url!r}).score(['q', 'q'], ['a', 'bcd']).tolist()))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    np.testing.assert_allclose(json.loads(output), known(["q", "q"], ["a", "bcd"]), rtol=1e-6)


def test_without_httpcore_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpcore", None)
    with pytest.raises(MissingExtra, match=r"httpcore .* pip install 'crossknn\[remote\]'"):
        RemoteScorer("http://localhost:8080/rerank")
