"""Qdrant in the client's local mode, and the Rust engine in this process: contract, filters, columns and errors."""

from functools import partial
from itertools import count

import numpy as np
import pytest

from crossknn.errors import InputError, StoreError
from crossknn.items.items import Items
from crossknn.strategies.axn import Axn
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.testing import check_store
from tests.stores.world import DIM, FILTERS, ITEMS, NAMES, ROWS, VECTORS, records, searcher

qdrant_client = pytest.importorskip("qdrant_client")
qdrant_edge = pytest.importorskip("qdrant_edge")
from crossknn.stores.qdrant import QdrantStore, to_filter  # noqa: E402

models = qdrant_client.models
NUMBERS = count()
UNIT = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)


def payloads():
    return [{key: value for key, value in record.items() if key != "_id"} for record in records()]


@pytest.fixture(scope="module")
def client():
    client = qdrant_client.QdrantClient(":memory:")
    yield client
    client.close()


def fill_client(client, *, distance="Dot", names=("",), vectors=VECTORS):
    collection = f"c{next(NUMBERS)}"
    params = models.VectorParams(size=vectors.shape[1], distance=distance)
    client.create_collection(collection, params if names == ("",) else dict.fromkeys(names, params))
    client.upsert(
        collection,
        [
            models.PointStruct(id=row, vector=vector if names == ("",) else dict.fromkeys(names, vector), payload=one)
            for row, (vector, one) in enumerate(zip(vectors.tolist(), payloads(), strict=True))
        ],
    )
    return collection


def fill_shard(folder, *, distance="Dot"):
    params = qdrant_edge.EdgeVectorParams(size=DIM, distance=getattr(qdrant_edge.Distance, distance))
    shard = qdrant_edge.EdgeShard.create(str(folder), qdrant_edge.EdgeConfig(vectors=params))
    points = [
        qdrant_edge.Point(row, vector, one)
        for row, (vector, one) in enumerate(zip(VECTORS.tolist(), payloads(), strict=True))
    ]
    shard.update(qdrant_edge.UpdateOperation.upsert_points(points))
    return shard


@pytest.fixture(params=["client", "edge"])
def opened(request, client, tmp_path):
    """Opens the collection, with options of the store."""
    if request.param == "client":
        yield partial(QdrantStore, client, fill_client(client))
    else:
        shard = fill_shard(tmp_path / "shard")
        yield partial(QdrantStore, shard, exact=True)
        shard.close()


@pytest.mark.parametrize("write_columns", [False, True])
def test_contract(opened, write_columns):
    check_store(opened(write_columns=write_columns), ITEMS, VECTORS, filters=FILTERS)


def test_most_filters_are_applied_by_qdrant(opened):
    store = opened()
    pushed = [to_filter(store.items.mask(one).condition, lambda ids: []) is not None for one in FILTERS]
    assert [one for one, done in zip(FILTERS, pushed, strict=True) if not done] == [
        {"lang": {"gt": "de"}},  # Qdrant has no ranges of strings,
        {"size": {"lt": 2**60}},  # compares integers as floats,
        {"tags": {"ne": "b"}},  # and does not tell an empty list from none
    ]


@pytest.mark.parametrize("distance", ["Cosine", "cosine of edge"])
def test_cosine_is_the_inner_product_of_unit_vectors(client, tmp_path, distance):
    if distance == "Cosine":
        store = QdrantStore(client, fill_client(client, distance="Cosine"))
    else:
        store = QdrantStore(fill_shard(tmp_path / "shard", distance="Cosine"), exact=True)
    check_store(store, ITEMS, UNIT)


def test_named_vectors(client):
    collection = fill_client(client, names=("small", "other"))
    check_store(QdrantStore(client, collection, vector="other", write_columns=True), ITEMS, VECTORS)
    with pytest.raises(InputError, match=r"no vector named '': it has 'small', 'other'"):
        QdrantStore(client, collection)


def test_a_written_column_is_used_again(client):
    collection = fill_client(client, names=("small",))
    columns = np.linspace(0, 1, ROWS, dtype=np.float32)[:, None]
    for _ in range(2):
        QdrantStore(client, collection, vector="small", write_columns=True).with_columns(columns)
    assert len(client.get_collection(collection).config.params.vectors) == 2


@pytest.mark.parametrize("strategy", [Axn(40, 4), Posterior(40, 4)], ids=repr)
def test_whole_searches_find_what_they_find_in_memory(opened, strategy):
    found = searcher(opened()).search_many(NAMES, k=10, strategy=strategy, filter={"lang": ["de", "en"]})
    exact = searcher(ITEMS, vectors=VECTORS)
    expected = exact.search_many(NAMES, k=10, strategy=strategy, filter={"lang": ["de", "en"]})
    assert [hits.ids for hits in found] == [hits.ids for hits in expected]
    assert found[0][0].text == expected[0][0].text
    assert found[0][0].fields == expected[0][0].fields


def test_rows_stay_while_points_come_and_go(client):
    collection = fill_client(client)
    store = QdrantStore(client, collection)
    new = models.PointStruct(id=10_000, vector=(100 * VECTORS[0]).tolist(), payload={"text": "new"})
    client.upsert(collection, [new])
    assert 10_000 not in store.search(VECTORS[:1], 5)[0].rows
    client.delete(collection, [3])
    with pytest.raises(StoreError, match=r"1 items .* were removed since it was opened. Open it again"):
        store.take(np.array([2, 3]))
    with pytest.raises(StoreError, match="1 items"):
        store.items.text(3)
    assert len(QdrantStore(client, collection)) == ROWS


def test_ids_of_the_payload_and_uuids(client):
    collection = f"c{next(NUMBERS)}"
    client.create_collection(collection, models.VectorParams(size=2, distance="Dot"))
    ids = [f"00000000-0000-0000-0000-00000000000{n}" for n in range(3)]
    points = [
        models.PointStruct(id=id_, vector=[n, 1], payload={"key": f"k{n}", "title": "a", "body": f"b{n}", "x": n})
        for n, id_ in enumerate(ids)
    ]
    client.upsert(collection, points)
    vectors = np.array([[n, 1] for n in range(3)], np.float32)
    items = Items([f"a b{n}" for n in range(3)], ids=[f"k{n}" for n in range(3)], fields={"x": range(3)})
    store = QdrantStore(client, collection, id="key", text=["title", "body"], fields=["x"])
    check_store(store, items, vectors, filters=[{"_id": ["k1"]}, {"x": {"ge": 1}}])
    assert sorted(QdrantStore(client, collection, text="body", fields=[]).items.ids) == ids


def test_unusable_collections_and_settings_are_refused(client):
    with pytest.raises(StoreError, match=r"Qdrant cannot answer for 'nothing': .*not found"):
        QdrantStore(client, "nothing")
    with pytest.raises(InputError, match="compares vectors by euclid"):
        QdrantStore(client, fill_client(client, distance="Euclid"))
    with pytest.raises(InputError, match="`client` must be a QdrantClient or an EdgeShard"):
        QdrantStore("http://localhost", "x")
    with pytest.raises(InputError, match="`collection` must be the name of a collection"):
        QdrantStore(client)
    with pytest.raises(InputError, match="has no field 'key', named by `id`"):
        QdrantStore(client, fill_client(client), id="key")
    with pytest.raises(InputError, match="body"):
        QdrantStore(client, fill_client(client), text="body").items.text(0)


def test_a_server_that_cannot_be_reached_is_named():
    remote = qdrant_client.QdrantClient("http://127.0.0.1:1", timeout=1, check_compatibility=False)
    with pytest.raises(StoreError, match=r"Qdrant cannot answer for 'x': .*refused"):
        QdrantStore(remote, "x")
