"""The HTTP API on a real server: responses equal the library's results, and errors give their reason."""

import json
import logging
import re
from dataclasses import dataclass

import httpx
import numpy as np
import pytest

import crossknn as ck
from crossknn.search.searcher import Searcher
from crossknn.serve.monitoring import JsonFormatter
from crossknn.serve.settings import Limits
from crossknn.strategies.registry import STRATEGIES
from tests.serve.servers import ENCODER, FIELDS, ITEMS, QUERIES, TEXTS, WatchedScorer, opened, serving, true_score

LIMITS = Limits(k=50, budget=200, queries=4, pairs=20, filter_ids=10, text_bytes=100, body_bytes=5_000, deadline=10.0)


@pytest.fixture(scope="module")
def client():
    with opened(limits=LIMITS) as service, serving(service) as url, httpx.Client(base_url=url) as client:
        yield client


@pytest.fixture(scope="module")
def searcher():
    return Searcher(ITEMS, scorer=WatchedScorer(), encoder=ENCODER)


def search(client, **request):
    response = client.post("/search", json=request)
    assert response.status_code == 200, response.text
    return response.json()


def error_message(response, status, type_):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["type"] == type_
    assert error["request_id"] == response.headers["x-request-id"]
    return error["message"]


def test_a_search_equals_the_library(client, searcher):
    expected = searcher.search("river ice", k=5, budget=40)
    answer = search(client, query="river ice", k=5, budget=40)
    (result,) = answer["results"]
    assert [hit["id"] for hit in result["hits"]] == expected.ids
    for response, hit in zip(result["hits"], expected, strict=True):
        assert response == {
            "id": hit.id,
            "score": hit.score,
            "probability": None,
            "round": hit.round,
            "proposed_by": hit.proposed_by,
            "estimate": hit.estimate,
            "deviation": hit.deviation,
            "ranks": dict(hit.ranks),
            "text": ITEMS.text(hit.row),
            "fields": ITEMS.fields_of([hit.row])[0],
        }
    assert (result["query"], result["calls"], result["rounds"], result["stopped"]) == ("river ice", 40, 10, None)
    assert result["expected_recall"] == pytest.approx(expected.expected_recall)
    assert 0 < result["score_seconds"] < result["seconds"]
    assert answer["strategy"] == "Posterior(budget=40)"
    assert answer["index"] == ITEMS.fingerprint


def nested(depth):
    """A filter that is nested this deep."""
    found = {"size": 3}
    for _ in range(depth):
        found = {"not": found}
    return found


def test_several_queries_in_one_request(client, searcher):
    answer = search(client, queries=QUERIES[:4], k=3, budget=30, texts=False, fields=False)
    expected = searcher.search_many(QUERIES[:4], k=3, budget=30)
    assert [[hit["id"] for hit in result["hits"]] for result in answer["results"]] == [hits.ids for hits in expected]
    assert not {"text", "fields"} & answer["results"][0]["hits"][0].keys()


@pytest.mark.parametrize(
    ("given", "strategy"),
    [
        ("rerank", ck.Rerank(50)),
        ({"name": "rerank", "retriever": "bm25"}, ck.Rerank(50, retriever="bm25")),
        ({"name": "axn", "rounds": 5, "mix": 0.8}, ck.Axn(50, rounds=5, mix=0.8)),
        ({"name": "axn", "mix": 1, "shortlist": 60}, ck.Axn(50, mix=1, shortlist=60)),
        ({"name": "gar", "neighbors": 4}, ck.Gar(50, neighbors=4)),
        ({"name": "tour", "loss": "mse"}, ck.Tour(50, loss="mse")),
        ("adacur", ck.AdaCur(50)),
        ("anncur", ck.AnnCur(50)),
        ({"name": "posterior", "first": "bm25", "rounds": 3}, ck.Posterior(50, 3, first="bm25")),
    ],
    ids=str,
)
def test_strategies_and_their_settings(client, searcher, given, strategy):
    answer = search(client, query="lake top", budget=50, strategy=given)
    assert answer["strategy"] == repr(strategy)
    assert [hit["id"] for hit in answer["results"][0]["hits"]] == searcher.search("lake top", strategy=strategy).ids


def test_explain_returns_every_call(client, searcher):
    (result,) = search(client, query="river ice", k=2, budget=30, explain=True)["results"]
    expected = searcher.search("river ice", k=2, budget=30).trace
    assert [call["id"] for call in result["trace"]] == [hit.id for hit in expected]
    assert [(call["estimate"], call["deviation"]) for call in result["trace"]] == [
        (hit.estimate, hit.deviation) for hit in expected
    ]
    assert set(result["trace"][0]) == set(result["hits"][0]) - {"fields"}
    assert [call["text"] for call in result["trace"]] == ITEMS.texts_of([hit.row for hit in expected])


def test_highlight_returns_where_words_of_the_query_stand(client):
    (result,) = search(client, query="river ice", k=20, budget=30, highlight=True)["results"]
    for hit in result["hits"]:
        marked = [hit["text"][start:end] for start, end in hit["matches"]]
        assert marked == [word for word in hit["text"].split() if word in ("river", "ice")]


@pytest.mark.parametrize(
    ("filter_", "allowed"),
    [
        ({"word": "snow"}, lambda word, size: word == "snow"),
        (
            {"word": ["snow", "ice"], "size": {"lt": 100}},
            lambda word, size: word in ("snow", "ice") and (size or 999) < 100,
        ),
        ({"and": [{"not": {"size": {"ge": 0}}}]}, lambda word, size: size is None),
        ({"or": [{"word": "snow"}, {"size": 1}]}, lambda word, size: word == "snow" or size == 1),
    ],
    ids=["equality", "list and range", "not", "or"],
)
def test_filters_by_field(client, filter_, allowed):
    (result,) = search(client, query="river ice", k=50, budget=50, filter=filter_, explain=True)["results"]
    expected = {id_ for id_, *values in zip(ITEMS.ids, FIELDS["word"], FIELDS["size"], strict=True) if allowed(*values)}
    assert result["trace"]
    assert {hit["id"] for hit in result["trace"]} <= expected


def test_an_empty_filter_allows_all(client):
    assert len(search(client, query="river ice", k=20, budget=50, filter={})["results"][0]["hits"]) == 20


@pytest.mark.parametrize("filter_", [{"ids": ["r0", "r1", "i20", "elsewhere"]}, {"prefix": "r"}], ids=str)
def test_filters_restrict_the_hits(client, filter_):
    (result,) = search(client, query="river ice", k=50, budget=50, filter=filter_)["results"]
    allowed = filter_.get("ids") or [id_ for id_ in ITEMS.ids if id_.startswith("r")]
    assert result["hits"]
    assert {hit["id"] for hit in result["hits"]} <= set(allowed)


def test_rank_by_and_stop_at_reach_the_search(client, searcher):
    fused = search(client, query="river ice", rank_by="fused")["results"][0]
    assert [hit["id"] for hit in fused["hits"]] == searcher.search("river ice", rank_by="fused").ids
    enough = search(client, query="river ice", budget=200, stop_at=0.5)["results"][0]
    assert enough["calls"] == searcher.search("river ice", budget=200, stop_at=0.5).calls < 200


def test_scores_are_raw_and_in_order(client):
    expected = [np.float32(true_score("river ice", text)) for text in TEXTS[:3]]
    by_items = client.post("/score", json={"query": "river ice", "items": TEXTS[:3]}).json()
    by_pairs = client.post("/score", json={"pairs": [["river ice", text] for text in TEXTS[:3]]}).json()
    assert by_items["scores"] == by_pairs["scores"] == expected
    assert by_items["request_id"] != by_pairs["request_id"]


def test_rerank_in_the_dialect_of_text_embeddings_inference(client):
    body = {"query": "river ice", "texts": TEXTS[:4], "raw_scores": True, "return_text": True, "truncate": True}
    ranked = client.post("/rerank", json=body).json()
    assert [one["score"] for one in ranked] == sorted((one["score"] for one in ranked), reverse=True)
    for one in ranked:
        assert one["text"] == TEXTS[one["index"]]
        assert one["score"] == np.float32(true_score("river ice", one["text"]))
    shares = client.post("/rerank", json={"query": "river ice", "texts": TEXTS[:4]}).json()
    assert set(shares[0]) == {"index", "score"}
    assert [one["score"] for one in shares] == pytest.approx([1 / (1 + np.exp(-one["score"])) for one in ranked])


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank_in_the_dialect_of_jina_cohere_and_vllm(client, path):
    documents = [TEXTS[0], {"text": TEXTS[1], "title": "ignored"}, TEXTS[2]]
    body = {"model": "mine", "query": "river ice", "documents": documents, "top_n": 2, "return_documents": True}
    answer = client.post(path, json=body).json()
    assert answer["model"] == "mine"
    assert answer["usage"]["calls"] == 3
    assert answer["object"] == "rerank"
    version = "1" if path == "/v1/rerank" else "2"
    assert answer["meta"] == {"api_version": {"version": version}, "billed_units": {"search_units": 1}}
    best = sorted(range(3), key=lambda place: -true_score("river ice", TEXTS[place]))[:2]
    assert [one["index"] for one in answer["results"]] == best
    assert [one["document"]["text"] for one in answer["results"]] == [TEXTS[place] for place in best]
    assert all(0 < one["relevance_score"] < 1 for one in answer["results"])


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
def test_empty_texts_are_ranked(client, path):
    ranked = client.post(path, json={"query": "river", "texts": ["", TEXTS[0]], "raw_scores": True}).json()
    assert {one["index"]: one["score"] for one in ranked}[0] == np.float32(true_score("river", ""))
    documents = client.post(path, json={"query": "", "documents": ["", {"text": ""}]}).json()
    assert [one["index"] for one in documents["results"]] == [0, 1]


@pytest.mark.parametrize(("first", "second"), [("queries", "documents"), ("text_1", "text_2"), ("data_1", "data_2")])
def test_scores_in_the_dialect_of_vllm(client, first, second):
    body = {"model": "mine", first: "river ice", second: TEXTS[:3], "use_activation": False, "other": 1}
    answer = client.post("/v1/score", json=body).json()
    expected = [np.float32(true_score("river ice", text)) for text in TEXTS[:3]]
    assert answer["data"] == [{"index": i, "object": "score", "score": score} for i, score in enumerate(expected)]
    assert (answer["object"], answer["model"], answer["usage"]["calls"]) == ("list", "mine", 3)
    pairs = client.post("/v1/score", json={first: ["river ice", "oven"], second: TEXTS[:2]}).json()
    logits = [true_score("river ice", TEXTS[0]), true_score("oven", TEXTS[1])]
    assert [one["score"] for one in pairs["data"]] == pytest.approx([1 / (1 + np.exp(-logit)) for logit in logits])
    one = client.post("/v1/score", json={first: "river", second: TEXTS[0], "use_activation": False}).json()
    assert [entry["score"] for entry in one["data"]] == [np.float32(true_score("river", TEXTS[0]))]


@pytest.mark.parametrize(
    ("path", "dialect"),
    [("/rerank", "tei"), ("/v1/rerank", "vllm"), ("/v2/rerank", "cohere"), ("/v1/score", "auto")],
)
def test_remote_scorer_reads_back_the_scores(client, path, dialect):
    remote = ck.RemoteScorer(f"{client.base_url}{path}", dialect=dialect, batch_size=5)
    scores = remote.score(["river ice"] * 12, TEXTS[:12])
    inside = [max(-16, min(16, true_score("river ice", text))) for text in TEXTS[:12]]  # float32 range of sigmoid
    assert scores == pytest.approx(inside, abs=1e-3 if dialect == "cohere" else 1e-6)


@pytest.mark.parametrize(
    ("body", "status", "type_", "message"),
    [
        ({"query": " "}, 400, "bad_request", "query"),
        ({"query": "ice", "k": 51}, 400, "bad_request", "`k` must be at most 50"),
        ({"query": "ice", "budget": 201}, 400, "bad_request", "`budget` must be at most 200"),
        ({"query": "ice", "k": 20, "budget": 10}, 400, "bad_request", "budget"),
        ({"query": "ice", "deadline": 11}, 400, "bad_request", "`deadline` must be at most 10 seconds"),
        ({"query": "ice", "strategy": "best"}, 422, "bad_shape", "should be one of posterior, rerank, axn"),
        ({"query": "ice", "strategy": "exact"}, 400, "bad_request", "315 calls per query"),
        ({"query": "ice", "strategy": "exact", "budget": 9}, 400, "bad_request", "'exact' has no budget"),
        ({"query": "ice", "strategy": {"name": "axn", "speed": 3}}, 400, "bad_request", "its settings are rounds, mix"),
        ({"query": "ice", "strategy": {"name": "exact", "rounds": 3}}, 400, "bad_request", "it has no settings"),
        ({"query": "ice", "strategy": {"name": "axn", "budget": 3}}, 400, "bad_request", "its settings are rounds"),
        ({"query": "ice", "strategy": {"name": "axn", "settings": {}}}, 400, "bad_request", "no setting 'settings'"),
        ({"query": "ice", "strategy": {"name": "axn", "mix": 10**400}}, 400, "bad_request", "`mix` must be between 0"),
        ({"query": "ice", "strategy": {"name": "axn", "mix": "x"}}, 400, "bad_request", "`mix` must be of type number"),
        ({"query": "ice", "strategy": {"name": "axn", "mix": 2}}, 400, "bad_request", "between 0 and 1"),
        ({"query": "ice", "strategy": {"name": "gar", "neighbors": 10**9}}, 400, "bad_request", "at most 200"),
        ({"query": "ice", "strategy": {"name": "rerank", "retriever": "x"}}, 400, "bad_request", "retriever"),
        ({"query": "ice", "strategy": "rerank", "stop_at": 0.9}, 400, "bad_request", "Posterior"),
        ({"queries": ["ice"] * 5}, 413, "too_large", "at most 4 queries, got 5"),
        ({"queries": ["ice", "é" * 60]}, 413, "too_large", "query 1 must have at most 100 bytes"),
        ({"query": "ice", "filter": {"ids": ["a"] * 11}}, 413, "too_large", "at most 10 ids"),
        ({"query": "ice", "texts": "x" * 5_000}, 413, "too_large", "at most 5,000 bytes"),
        ({}, 422, "bad_shape", "either query or queries"),
        ({"query": "ice", "queries": ["ice"]}, 422, "bad_shape", "either query or queries"),
        ({"query": "ice", "k": "3"}, 422, "bad_shape", "k: Input should be a valid integer"),
        ({"query": "ice", "k": 0}, 422, "bad_shape", "k: Input should be greater than or equal to 1"),
        ({"query": "ice", "kk": 3}, 422, "bad_shape", "kk: Extra inputs are not permitted"),
        ({"query": "ice", "filter": {"ids": ["a"], "prefix": "b"}}, 422, "bad_shape", "must have either ids or prefix"),
        ({"query": "ice", "filter": {"ids": ["a"], "size": 3}}, 422, "bad_shape", "Extra inputs are not permitted"),
        ({"query": "ice", "filter": ["a"]}, 422, "bad_shape", "filter"),
        ({"query": "ice", "filter": "a"}, 422, "bad_shape", "filter"),
        ({"query": "ice", "filter": {"sise": 3}}, 400, "bad_request", "Their fields: 'part_of_speech' (string), "),
        ({"query": "ice", "filter": {"size": "3"}}, 400, "bad_request", "`filter` must compare 'size' (int64)"),
        ({"query": "ice", "filter": {"size": None}}, 400, "bad_request", "`filter` must compare 'size' (int64)"),
        ({"query": "ice", "filter": {"size": {"like": 3}}}, 400, "bad_request", "by one of eq, ne, in, not_in, lt"),
        ({"query": "ice", "filter": {"size": [3] * 11}}, 413, "too_large", "a filter must have at most 10 values"),
        ({"query": "ice", "filter": {"or": [{"size": [3] * 9}] * 2}}, 413, "too_large", "at most 10 values"),
        ({"query": "ice", "filter": {str(at): 3 for at in range(65)}}, 413, "too_large", "at most 64 conditions"),
        ({"query": "ice", "filter": nested(60)}, 400, "bad_request", "`filter` must be nested at most 32 deep."),
        ({"query": "ice", "filter": nested(300)}, 413, "too_large", "at most 64 conditions"),
        ({"query": "\ud800"}, 422, "bad_shape", "query: Input should be a valid string"),
        ({"query": "ice", "deadline": float("nan")}, 422, "bad_shape", "deadline: Input should be a finite number"),
        ({"query": "ice", "deadline": float("inf")}, 422, "bad_shape", "deadline: Input should be a finite number"),
        ({"query": "ice", "deadline": 10**400}, 422, "bad_shape", "deadline: Input should be"),
        ({"query": "ice", "stop_at": float("nan")}, 422, "bad_shape", "stop_at: Input should be a finite number"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)  # fmt: skip
def test_invalid_searches_are_rejected_with_a_reason(client, body, status, type_, message):
    response = client.post("/search", content=json.dumps(body), headers={"content-type": "application/json"})
    assert message in error_message(response, status, type_)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/score", {"query": "ice", "items": ["a"] * 21}, 413, "at most 20 pairs"),
        ("/score", {"query": "ice"}, 422, "either query and items or pairs"),
        ("/score", {"pairs": [["a", "b", "c"]]}, 422, "pairs.0: List should have at most 2 items"),
        ("/score", {"query": "ice", "items": ["x" * 101]}, 413, "item 0 must have at most 100 bytes"),
        ("/rerank", {"query": "ice", "texts": []}, 422, "texts: List should have at least 1 item"),
        ("/rerank", {"query": "ice"}, 422, "either texts or documents"),
        ("/v1/score", {"queries": ["a", "b"], "documents": ["a", "b", "c"]}, 400, "as many as `documents` (3), got 2"),
        ("/v1/score", {"queries": "a", "text_2": "b"}, 422, "queries and documents"),
        ("/v1/rerank", {"query": "ice", "documents": ["a"], "top_n": 0}, 422, "top_n: Input should be greater"),
    ],
)
def test_invalid_score_requests_are_rejected_with_a_reason(client, path, body, status, message):
    response = client.post(path, json=body)
    assert response.status_code == status
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize("content", [b"{", b"[1,2]", b"\xff\xfe", b"", b"null", b"[" * 4_000, b'{"query": 1}'])
def test_malformed_bodies_are_rejected(client, content):
    response = client.post("/search", content=content, headers={"content-type": "application/json"})
    assert response.status_code in (400, 422)
    assert response.json()["error"]["message"]


def test_a_body_without_content_length_is_limited(client):
    sent = []

    def chunks():
        for _ in range(1_000):
            sent.append(1)
            yield b" " * 1_000

    response = client.post("/search", content=chunks(), headers={"content-type": "application/json"})
    assert "at most 5,000 bytes" in error_message(response, 413, "too_large")


def test_unknown_paths_and_methods(client):
    error_message(client.get("/nothing"), 404, "not_found")
    error_message(client.get("/search"), 405, "method_not_allowed")
    error_message(client.get("/page/..%2fapp.py"), 404, "not_found")
    error_message(client.get("/page/nothing.js"), 404, "not_found")


def test_valid_request_ids_of_clients_are_kept(client):
    assert client.get("/healthz", headers={"x-request-id": "abc-1.2:3"}).headers["x-request-id"] == "abc-1.2:3"
    for odd in ("a b", "x" * 65, "<script>"):
        assert re.fullmatch(
            "[0-9a-f]{32}", client.get("/healthz", headers={"x-request-id": odd}).headers["x-request-id"]
        )


def test_health_and_readiness(client):
    assert client.get("/healthz").json() == {"status": "alive"}
    assert client.get("/readyz").json() == {"status": "ready"}


def test_info_lists_limits_defaults_and_strategies(client):
    info = client.get("/info").json()
    assert (info["items"], info["fields"]) == (len(ITEMS), ITEMS.fields)
    assert info["limits"] == {
        "k": 50, "budget": 200, "queries": 4, "pairs": 20, "filter_ids": 10, "text_bytes": 100, "body_bytes": 5000,
        "deadline": 10.0,
    }  # fmt: skip
    assert info["defaults"] == {"k": 10, "budget": 100, "strategy": "posterior"}
    strategies = {one["name"]: one["settings"] for one in info["strategies"]}
    assert list(strategies) == ["posterior", "rerank", "axn", "tour", "gar", "quam", "rgs", "ore", "feedback", "gp"]
    assert strategies["axn"]["mix"] == {"default": 0.5, "type": "number"}
    for name in strategies:
        assert search(client, query="ice", strategy=name)["results"][0]["hits"]


@dataclass(frozen=True, repr=False)
class Shuffle(ck.Rerank):
    """A strategy that the service knows only from the registry."""

    retriever: str | None = "random"


@dataclass(frozen=True, repr=False)
class ShuffleWithFactors(Shuffle):
    """One that an index of these items does not suffice for."""

    requires = frozenset({"cur_factors"})


def test_a_registered_strategy_is_offered_and_can_be_requested(monkeypatch):
    monkeypatch.setitem(STRATEGIES, "shuffle", Shuffle)
    with opened() as service, serving(service) as url, httpx.Client(base_url=url) as client:
        offered = {one["name"]: one for one in client.get("/info").json()["strategies"]}
        settings = {"retriever": {"default": "random", "type": "string"}}
        about = {"name": "shuffle", "title": "Shuffle", "by_default": True}
        assert offered["shuffle"] == {**about, "settings": settings}
        for strategy, expected in (
            ("shuffle", Shuffle(20)),
            ({"name": "shuffle", "retriever": "bm25"}, Shuffle(20, retriever="bm25")),
        ):
            answer = search(client, query="river ice", budget=20, strategy=strategy)
            assert answer["strategy"] == repr(expected)
            assert answer["results"][0]["calls"] == 20
        assert json.dumps(list(STRATEGIES)) in json.dumps(client.get("/openapi.json").json())
        monkeypatch.setitem(STRATEGIES, "shuffle", ShuffleWithFactors)
        assert "shuffle" not in [one["name"] for one in client.get("/info").json()["strategies"]]


def test_without_an_encoder_reranking_is_the_default():
    with opened(encoder=None) as service, serving(service) as url, httpx.Client(base_url=url) as client:
        answer = search(client, query="river ice", budget=30)
        assert answer["strategy"] == "Rerank(budget=30)"
        info = client.get("/info").json()
        assert [one["name"] for one in info["strategies"]] == ["rerank", "exact"]
        assert info["defaults"]["strategy"] == "rerank"
        exact = search(client, query="river ice", strategy="exact", k=1)["results"][0]
        assert exact["calls"] == len(ITEMS)
        assert exact["hits"][0]["text"] == max(TEXTS, key=lambda text: true_score("river ice", text))


@pytest.mark.parametrize("path", ["/", "/info", "/healthz"])
def test_only_allowed_hosts_are_answered(path):
    with opened(hosts=("localhost", "[::1]")) as service, serving(service) as url, httpx.Client(base_url=url) as client:
        for name in ("localhost", "LOCALHOST:8000", "[::1]", "[::1]:80"):
            assert client.get(path, headers={"Host": name}).status_code == 200
        for name in ("evil.example", "localhost.evil.example:8000", ""):
            assert "--allow-host" in error_message(client.get(path, headers={"Host": name}), 421, "wrong_host")


def test_the_api_key_is_required():
    key = {"authorization": "Bearer s3cret"}
    with opened(api_key="s3cret") as service, serving(service) as url, httpx.Client(base_url=url) as client:
        for path in ("/search", "/score", "/rerank", "/v1/rerank"):
            response = client.post(path, content=b"not even JSON")
            assert "Authorization: Bearer KEY" in error_message(response, 401, "unauthorized")
            assert response.headers["www-authenticate"] == "Bearer"
        for path in ("/info", "/metrics"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers=key).status_code == 200
        for path in ("/", "/healthz", "/readyz", "/page/page.js", "/openapi.json"):
            assert client.get(path).status_code == 200
        for wrong in ("Bearer s3cre", "Bearer", "Basic s3cret", "Bearer sécret"):
            headers = {"authorization": wrong.encode()}
            assert client.post("/search", json={"query": "ice"}, headers=headers).status_code == 401
        assert client.post("/search", json={"query": "ice"}, headers=key).status_code == 200
    with opened(api_key="s3cret", public_info=True) as service, serving(service) as url:
        assert httpx.get(f"{url}/info").status_code == httpx.get(f"{url}/metrics").status_code == 200


def read_metrics(client):
    lines = client.get("/metrics").text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def test_metrics(tmp_path):
    cached = ck.Cached(WatchedScorer(), tmp_path / "scores.db")
    with opened(scorer=cached) as service, serving(service) as url, httpx.Client(base_url=url) as client:
        for _ in range(2):
            search(client, query="river ice", budget=40)
        client.post("/score", json={"query": "ice", "items": TEXTS[:3]})
        client.post("/search", json={})
        metrics = read_metrics(client)
    assert metrics['crossknn_requests_total{route="/search",status="200"}'] == 2
    assert metrics['crossknn_requests_total{route="/search",status="422"}'] == 1
    assert metrics['crossknn_request_seconds_count{route="/search"}'] == 3
    assert metrics["crossknn_calls_total"] == 83
    assert metrics["crossknn_cache_hits_total"] == 40
    assert metrics["crossknn_cache_misses_total"] == 43
    assert metrics["crossknn_batch_pairs_sum"] == 83
    assert metrics["crossknn_batch_pairs_count"] == metrics["crossknn_batch_seconds_count"] == 21
    for step in ("scorer", "solve", "total"):
        assert metrics[f'crossknn_search_seconds_count{{step="{step}"}}'] == 2
    assert (metrics["crossknn_running"], metrics["crossknn_waiting"], metrics["crossknn_ready"]) == (0, 0, 1)
    assert metrics["crossknn_items"] == len(ITEMS)


def logged(caplog, event="request"):
    return [vars(record) for record in caplog.records if record.name.startswith("crossknn.serve") and
            record.getMessage() == event]  # fmt: skip


@pytest.mark.parametrize("log_queries", [False, True])
def test_the_log_has_no_query_unless_enabled(caplog, log_queries):
    caplog.set_level(logging.INFO)
    with opened(log_queries=log_queries) as service, serving(service) as url:
        httpx.post(f"{url}/search", json={"query": "river ice", "budget": 20}, headers={"x-request-id": "one"})
        httpx.post(f"{url}/score", json={"query": "raise river", "items": TEXTS[:2]})
        httpx.post(f"{url}/rerank", json={"query": "nan river", "texts": TEXTS[:2]})
    first, second, third = logged(caplog)
    logged_fields = {name: first[name] for name in ("request_id", "method", "route", "status", "calls", "stopped")}
    assert logged_fields == {
        "request_id": "one", "method": "POST", "route": "/search", "status": 200, "calls": 20, "stopped": None
    }  # fmt: skip
    assert 0 < first["seconds"] < 10
    assert (second["status"], third["status"]) == (500, 500)
    assert second["error"].startswith("RuntimeError at ")
    assert third["error"].startswith("PartialScores at ")
    lines = [JsonFormatter().format(record) for record in caplog.records if record.name.startswith("crossknn.serve")]
    assert all(json.loads(line)["event"] for line in lines)
    assert ("river" in "".join(lines)) == log_queries
    if log_queries:
        assert (first["queries"], third["queries"]) == (["river ice"], ["nan river"])


def test_every_example_of_the_schema_works(client):
    schema = client.get("/openapi.json").json()
    tried = 0
    for path, methods in schema["paths"].items():
        content = methods.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {})
        for example in content.get("examples", {}).values():
            assert client.post(path, json=example["value"]).status_code == 200
            tried += 1
    assert tried == 6 + 2 + 2 + 3 * 2


def test_the_docs_page_shows_routes_and_examples_without_external_resources(client):
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    for text in ("POST /search", "GET /metrics", "a machine for making coffee", "Too many requests"):
        assert text in page.text
    assert "//" not in page.text
