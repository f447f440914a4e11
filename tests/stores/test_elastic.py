"""Elasticsearch and OpenSearch against a double that checks each request by the engines' published schemas."""

from functools import partial

import numpy as np
import pytest

from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.errors import InputError, StoreError
from crossknn.strategies.axn import Axn
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.testing import check_retriever, check_store
from tests.stores.world import FILTERS, ITEMS, NAMES, QUERIES, ROWS, SCORES, VECTORS, records, searcher

pytest.importorskip("jsonschema")
pytest.importorskip("httpcore")
from crossknn.stores import elastic
from crossknn.stores.elastic import ElasticStore
from crossknn.stores.elastic_filter import to_query
from tests.stores import elastic_schemas
from tests.stores.elastic_server import TYPES, running

ENCODER = PrecomputedEncoder(queries=dict(zip(NAMES, QUERIES, strict=True)))


@pytest.fixture(params=["elasticsearch", "opensearch"])
def server(request):
    documents = {one.pop("_id"): {**one, "vector": VECTORS[row].tolist()} for row, one in enumerate(records())}
    with running(request.param, documents) as server:
        yield server


@pytest.fixture
def opened(server):
    return partial(ElasticStore, server.url, "articles", engine=server.engine)


def test_contract(opened):
    check_store(opened(), ITEMS, VECTORS, filters=FILTERS)


def test_filters_become_queries_of_the_engine(opened):
    items = opened().items
    left = [one for one in FILTERS if to_query(items.mask(one).condition, TYPES) is None]
    assert left == [{"tags": {"ne": "b"}}]  # an empty list is as no value there
    floats = {**TYPES, "rate": "float"}  # numbers that are not those of the source
    assert to_query(items.mask({"rate": {"le": 3.5}}).condition, floats) is None


def test_first_stages(opened):
    store = opened()
    full_text, hybrid = store.full_text().fit(store.items), store.hybrid(ENCODER).fit(store.items)
    for retriever in (full_text, hybrid):
        check_retriever(retriever, NAMES[:2], ROWS)
    allowed = store.items.mask({"lang": "de"})
    found = full_text.retrieve(["word4"], ROWS, allowed=allowed)[0]
    assert sorted(found.rows) == [row for row in range(ROWS) if row % 9 == 4 and row % 4 == 0]
    both = hybrid.retrieve(NAMES[:1], 5, allowed=allowed)[0]
    assert both.rows[0] != full_text.retrieve(NAMES[:1], 5, allowed=allowed)[0].rows[0]
    assert allowed[both.rows].all()
    with pytest.raises(InputError, match=r"search in store.items"):
        store.full_text().fit(ITEMS)


@pytest.mark.parametrize("strategy", [Axn(40, 4), Posterior(40, 4)], ids=repr)
def test_whole_searches_find_what_they_find_in_memory(opened, strategy):
    store = opened()
    options = {"retrievers": [store.full_text()]}
    found = searcher(store, **options).search_many(NAMES, k=10, strategy=strategy, filter={"lang": "de"})
    memory = searcher(store.items, vectors=VECTORS, **options)
    expected = memory.search_many(NAMES, k=10, strategy=strategy, filter={"lang": "de"})
    assert [hits.ids for hits in found] == [hits.ids for hits in expected]
    assert found[0][0].fields["lang"] == "de"


def test_an_index_without_vectors_is_a_first_stage_and_a_store_of_texts(opened):
    store = opened(vector=None)
    plain = searcher(store.items, retrievers=[store.full_text()])
    hits = plain.search(NAMES[0], k=3, strategy=Rerank(20, "bm25"))
    scored = [row for row in range(ROWS) if row % 9 == 0][:20]
    assert {ITEMS.row(id_) for id_ in hits.ids} <= {*scored}
    assert hits[0].score == pytest.approx(SCORES[0, scored].max())
    with pytest.raises(InputError, match="opened without vectors"):
        store.take(np.array([0]))


def test_logins_and_keys(server, monkeypatch):
    open_with = partial(ElasticStore, index="articles", engine=server.engine)
    open_with(server.url, api_key="secret-key")
    assert {one["authorization"] for one in server.headers} == {"ApiKey secret-key"}
    server.headers.clear()
    open_with(server.url.replace("//", "//me:pass%40word@"))
    assert {one["authorization"] for one in server.headers} == {"Basic bWU6cGFzc0B3b3Jk"}


def test_answers_that_cannot_be_used(server, opened):
    store = opened()
    server.faults += [(401, {"error": "the key 'secret-key-x' is wrong"})]
    with pytest.raises(
        StoreError, match=r"responded with 401.*Set `api_key` or the environment variable [A-Z]+_API_KEY"
    ):
        opened(api_key="secret-key-x")
    failed = {"timed_out": False, "_shards": {"total": 5, "failed": 2}, "hits": {"hits": []}}
    for answer, message in (
        ({"responses": [failed]}, "2 of 5 shards failed"),
        ({"responses": [{"error": {"reason": "too many clauses"}, "status": 400}]}, "refused a search: .*too many"),
        ("<html>", "sent no JSON"),
    ):
        server.faults += [(200, answer)]
        with pytest.raises(StoreError, match=message):
            store.search(QUERIES[:1], 3)
    del server.documents["3"]
    with pytest.raises(StoreError, match=r"1 items of 'articles' were removed"):
        store.items.text(3)
    server.documents["4"].pop("vector")
    with pytest.raises(StoreError, match="document '4' of 'articles' has no vector"):
        store.take(np.array([4]))


def test_scrolls_are_cleared_at_the_end_and_after_errors(server, opened, monkeypatch):
    monkeypatch.setattr(elastic, "READ_DOCUMENTS", 50)
    assert len(opened()) == ROWS
    assert server.cleared == 1
    assert not server.scrolls
    monkeypatch.setattr(server, "scroll", lambda *_: {"_shards": {"total": 5, "failed": 2}, "hits": {"hits": []}})
    with pytest.raises(StoreError, match="2 of 5 shards failed"):
        opened()
    assert not server.scrolls


def test_a_scroll_that_cannot_be_cleared_expires(server, opened, monkeypatch):
    monkeypatch.setattr(elastic_schemas, "CLEAR_SCROLL", {"type": "string"})  # whatever is sent is refused
    assert len(opened()) == ROWS


def test_a_busy_server_is_asked_again(server, opened):
    server.faults += [(429, {"error": "es_rejected_execution_exception"})]
    assert len(opened()) == ROWS


def test_unusable_settings_are_refused(server, opened):
    with pytest.raises(StoreError, match=r"responded with 404.*Check the address and the name of the index"):
        ElasticStore(server.url, "nothing", engine=server.engine)
    for options, message in (
        ({"engine": "solr"}, "`engine` must be one of 'elasticsearch', 'opensearch'"),
        ({"vector": "v"}, "has no field 'v', named by `vector`"),
        ({"num_candidates": 0}, "`num_candidates` must be between 1 and 10000"),
    ):
        with pytest.raises(InputError, match=message):
            opened(**options)
    with pytest.raises(InputError, match="`url` must be the address of a server"):
        ElasticStore("localhost:9200", "articles")
    with pytest.raises(InputError, match="`index` must be the name of an index"):
        ElasticStore(server.url, "")


def test_the_double_refuses_what_the_engines_refuse(server):
    good = {"query": {"bool": {"filter": [{"terms": {"size": [1]}}]}}, "size": 3}
    server.search_schema.validate(good)
    vector = {"field": "vector", "query_vector": [1.0], "k": 3, "num_candidates": 3}
    theirs = (
        {"query": {"knn": {"vector": {"vector": [1.0], "k": 3}}}}
        if server.engine == "elasticsearch"
        else {"knn": vector}
    )
    for bad in (
        {**good, "size": 10_001},
        {"query": {"term": {}, "ids": {}}},
        {"query": {"bool": {"filters": []}}},
        theirs,
    ):
        assert not server.search_schema.is_valid(bad)
