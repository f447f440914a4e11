"""LanceDB on disk: contract, filters in SQL, full text, tables of columns, snapshots and errors."""

from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pytest

from crossknn.errors import InputError, StoreError
from crossknn.items.items import Items
from crossknn.strategies.axn import Axn
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.testing import check_retriever, check_store
from tests.stores.world import DIM, FIELDS, FILTERS, ITEMS, NAMES, ROWS, VECTORS, searcher

lancedb = pytest.importorskip("lancedb")
from crossknn.stores.lance import LanceStore, to_sql  # noqa: E402


def arrow(vectors=VECTORS, **columns):
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    return pa.table({**columns, "vector": fixed})


@pytest.fixture
def database(tmp_path):
    return lancedb.connect(tmp_path)


@pytest.fixture
def table(database):
    ids = [int(id_) for id_ in ITEMS.ids]
    return database.create_table("articles", arrow(id=ids, text=[*ITEMS.texts], **FIELDS))


@pytest.fixture
def indexed(table):
    table.create_index("text", config=lancedb.index.FTS())
    return table


@pytest.mark.parametrize("write_columns", [False, True])
def test_contract(database, table, write_columns):
    store = LanceStore(database, "articles", write_columns=write_columns)
    check_store(store, ITEMS, VECTORS, filters=FILTERS)


def test_all_filters_are_applied_by_lancedb(database, table):
    store = LanceStore(database, "articles")
    assert all(to_sql(store.items.mask(one).condition, lambda ids: "true") for one in FILTERS)


def test_filters_hold_with_columns_too(database, table):
    columns = np.linspace(0, 1, 2 * ROWS, dtype=np.float32).reshape(ROWS, 2)
    store = LanceStore(database, "articles", write_columns=True)
    allowed = store.items.mask({"lang": {"ne": "de"}, "rate": {"gt": 3}})
    for search in (
        store.with_columns(columns),
        LanceStore(database, "articles", write_columns=True).with_columns(columns),
    ):
        found = search.search(np.ones((1, DIM + 2)), ROWS, allowed=np.asarray(allowed))[0]
        assert sorted(found.rows) == list(np.flatnonzero(allowed))
        assert search.search(np.ones((1, DIM + 2)), ROWS, allowed=allowed)[0].rows.tolist() == found.rows.tolist()
    assert len(database.list_tables().tables) == 2


def test_dates_and_times(database):
    moments = [datetime(2024, 5, 1 + row, 12) for row in range(5)]
    fields = {
        "day": [date(2024, 5, 1), None, *(one.date() for one in moments[2:])],
        "at": moments,
        "utc": [one.replace(tzinfo=UTC) for one in moments],
        "half": [0.5, float("nan"), float("inf"), None, -1.5],
    }
    items = Items([*"abcde"], ids=[*"vwxyz"], fields=fields)
    database.create_table("days", arrow(VECTORS[:5], id=[*"vwxyz"], text=[*"abcde"], **fields))
    filters = [
        {"day": {"ge": "2024-05-03"}},
        {"day": ["2024-05-01", "2024-05-04"]},
        {"at": {"lt": "2024-05-03T12:00:00"}},
        {"utc": {"le": "2024-05-03T14:00:00+02:00"}},
        {"half": {"gt": 0}},
        {"not": {"half": {"ne": 0.5}}},
    ]
    check_store(LanceStore(database, "days"), items, VECTORS[:5], filters=filters)


def test_full_text_is_a_retriever(database, indexed):
    store = LanceStore(database, "articles")
    retriever = store.full_text().fit(store.items)
    check_retriever(retriever, NAMES[:2], ROWS)
    allowed = store.items.mask({"lang": "de"})
    found = retriever.retrieve(["word4"], ROWS, allowed=allowed)[0]
    assert sorted(found.rows) == [row for row in range(ROWS) if row % 9 == 4 and row % 4 == 0]
    assert len(retriever.retrieve(["it's \"(word4", "nothing"], 5)[0]) == 5
    with pytest.raises(InputError, match=r"search in store.items"):
        store.full_text().fit(ITEMS)


@pytest.mark.parametrize("strategy", [Axn(40, 4), Posterior(40, 4)], ids=repr)
def test_whole_searches_with_full_text_instead_of_bm25(database, indexed, strategy):
    store = LanceStore(database, "articles")
    mine = searcher(store, retrievers=[store.full_text()])
    found = mine.search_many(NAMES, k=10, strategy=strategy, filter={"free": True})
    memory = searcher(store.items, vectors=VECTORS, retrievers=[store.full_text()])
    expected = memory.search_many(NAMES, k=10, strategy=strategy, filter={"free": True})
    assert [hits.ids for hits in found] == [hits.ids for hits in expected]
    assert found[0][0].fields["free"] is True
    assert found[0][0].text == ITEMS.text(ITEMS.row(found[0][0].id))


def test_an_index_of_lancedb_proposes_rows_with_exact_estimates(database, table):
    table.create_index("vector", config=lancedb.index.IvfPq(distance_type="dot", num_partitions=2, num_sub_vectors=4))
    store = LanceStore(database, "articles", nprobes=2)
    found = store.search(VECTORS[:3], 20)
    for one, products in zip(found, VECTORS[:3] @ VECTORS.T, strict=True):
        np.testing.assert_allclose(one.estimates, products[one.rows], rtol=1e-4)
    check_store(LanceStore(database, "articles", exact=True), ITEMS, VECTORS)


def test_a_search_sees_the_table_as_it_was(database, table):
    store = LanceStore(database, "articles")
    table.delete("id = 3")
    table.add(table.to_arrow().slice(0, 1))
    check_store(store, ITEMS, VECTORS)
    with pytest.raises(InputError, match="not unique"):
        LanceStore(database, "articles")


def test_unusable_tables_and_settings_are_refused(database, table):
    with pytest.raises(InputError, match="`table` must be the name of a table"):
        LanceStore(database, 3)
    with pytest.raises(StoreError, match="LanceDB cannot answer for 'nothing'"):
        LanceStore(database, "nothing")
    for options, message in (
        ({"vector": "text"}, r"`vector` must name a column of vectors .* the type string"),
        ({"vector": "v"}, "no such column"),
        ({"text": "body"}, "has no column 'body', only 'id'"),
        ({"id": "key"}, "has no column 'key'"),
        ({"nprobes": 0}, "`nprobes` must be a positive integer"),
    ):
        with pytest.raises(InputError, match=message):
            LanceStore(database, "articles", **options)
    store = LanceStore(database, "articles")
    with pytest.raises(StoreError, match="LanceDB cannot answer for 'articles'"):
        store.full_text("nope").fit(store.items).retrieve(["x"], 3)


def test_tables_that_are_searched_in_parts_of_memory(database, table):
    texts = LanceStore(database, "articles").items.texts
    assert texts[3] == ITEMS.text(3)
    assert texts[-2:] == [*ITEMS.texts[-2:]]
    assert [*texts] == [*ITEMS.texts]
    assert LanceStore(database, "articles").items.fingerprint == ITEMS.fingerprint
