"""pgvector on a real PostgreSQL: rows that stay, filters, many changes at once, and a server that goes away."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import psycopg
import pytest

from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.errors import InputError, StoreError
from crossknn.items.items import Items
from crossknn.scorers.base import function_scorer
from crossknn.search.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.testing import check_store, check_vector_search
from crossknn.vectors.base import recall_against_exact
from crossknn.vectors.exact import ExactSearch
from crossknn.vectors.postgres_search import BY_HNSW
from crossknn.vectors.postgres_table import PgTable
from tests.stores import world as store_world

QUERIES_OF_STORE = store_world.QUERIES
ROWS, DIM = 300, 8
NUMBERS = count()
RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(ROWS, DIM)).astype(np.float32)
QUERIES = RNG.normal(size=(5, DIM)).astype(np.float32)
LANGUAGES = ["de" if row % 3 == 0 else "en" for row in range(ROWS)]


def some_items(start, stop):
    return Items([f"word{row} text" for row in range(start, stop)], ids=[f"id-{row}" for row in range(start, stop)])


@pytest.fixture
def table(postgres):
    metadata = [{"lang": language, "size": row} for row, language in enumerate(LANGUAGES)]
    table = PgTable.create(postgres.url, f"items{next(NUMBERS)}", some_items(0, ROWS), VECTORS, metadata=metadata)
    yield table
    postgres.start()
    table.drop()
    table.close()


def rows_of(proposals):
    return [proposal.rows.tolist() for proposal in proposals]


def test_items_go_in_and_come_out(table):
    search = table.open()
    assert list(search.items.ids) == list(some_items(0, ROWS).ids)
    assert list(search.items.texts) == list(some_items(0, ROWS).texts)
    assert (len(search), search.dim, table.type) == (ROWS, DIM, "vector")
    np.testing.assert_array_equal(search.take(np.array([5, 3, 5])), VECTORS[[5, 3, 5]])
    assert search.take(np.empty(0, np.int64)).shape == (0, DIM)


def test_ties_go_to_the_lower_row(postgres):
    table = PgTable.create(postgres.url, "ties", some_items(0, 40), np.ones((40, 2), np.float32))
    assert table.open().search(np.ones((1, 2)), 30)[0].rows.tolist() == list(range(30))


def test_rows_stay_while_others_add_and_remove(table):
    before = table.open()
    expected = rows_of(before.search(QUERIES, 20))
    table.add(some_items(ROWS, ROWS + 2), 100 * QUERIES[:2])
    assert rows_of(before.search(QUERIES, 20)) == expected  # what was added since is not found
    gone = expected[0][0]
    table.remove([f"id-{gone}"])
    exclude = [np.array([gone])] * len(QUERIES)
    assert rows_of(before.search(QUERIES, 20)) == rows_of(ExactSearch(VECTORS).search(QUERIES, 20, exclude=exclude))
    np.testing.assert_array_equal(before.take(np.array([gone])), VECTORS[[gone]])  # a search may have scored it already
    assert before.estimates(QUERIES).shape == (5, ROWS)

    after = table.open()
    kept = np.delete(np.arange(ROWS), gone)
    check_vector_search(after, np.concatenate([VECTORS[kept], 100 * QUERIES[:2]]))
    assert list(after.items.ids) == [f"id-{row}" for row in [*kept, ROWS, ROWS + 1]]
    assert list(before.items.ids) == [f"id-{row}" for row in range(ROWS)]


def test_purged_items_cannot_be_used(table):
    before = table.open()
    table.remove(["id-3", "id-4"])
    table.add(some_items(3, 4), VECTORS[:1])  # an id may come again
    assert table.purge() == 2
    with pytest.raises(StoreError, match=r"1 items of 'items.*' were purged since it was opened. Open it again"):
        before.take(np.array([2, 3]))
    with pytest.raises(StoreError, match="2 items"):
        before.estimates(QUERIES)
    with pytest.raises(StoreError, match="2 items"):
        _ = before.items
    assert len(before.search(QUERIES[:1], ROWS)[0]) == ROWS - 2
    assert len(table.open()) == ROWS - 1


def test_conditions_in_sql(table):
    search = table.open()
    german = np.array(LANGUAGES) == "de"
    expected = rows_of(ExactSearch(VECTORS).search(QUERIES, 10, allowed=german))
    view = search.filtered("metadata->>'lang' = %(lang)s", lang="de")
    assert rows_of(view.search(QUERIES, 10)) == expected
    assert rows_of(search.filtered("""metadata @> '{"lang": "de"}'""").search(QUERIES, 10)) == expected
    assert len(search.search(QUERIES[:1], ROWS)[0]) == ROWS  # the search itself is as it was
    small = view.filtered("(metadata->>'size')::int < %(most)s", most=10)
    assert sorted(small.search(QUERIES[:1], 50)[0].rows) == [0, 3, 6, 9]
    assert search.ids_where("metadata->>'lang' = %(lang)s AND number <= %(upto)s", lang="de", upto=7) == [
        "id-0",
        "id-3",
        "id-6",
    ]
    assert search.ids_where("id = %(id)s", id="' OR true --") == []  # a value is never part of the statement


@pytest.mark.parametrize(
    ("condition", "values"),
    [("nonsense = 1", {}), ("id = %(id)s", {}), ("id = ", {}), ("(metadata->>'lang')::int = 1; DROP TABLE x", {})],
)
def test_conditions_that_cannot_be_used_are_refused(table, condition, values):
    with pytest.raises(InputError, match=r"`condition` must be valid SQL"):
        table.open().filtered(condition, **values)


def world(search, answer=None):
    """A searcher over a table, whose scores are a little off the vectors."""
    names = [f"query {number}" for number in range(len(QUERIES))]
    truth = dict(zip(names, QUERIES + 0.3 * RNG.normal(size=QUERIES.shape), strict=True))

    def score(pairs):
        if answer is not None:
            answer()
        return [float(truth[query] @ VECTORS[int(item.split()[0].removeprefix("word"))]) for query, item in pairs]

    encoder = PrecomputedEncoder(queries=dict(zip(names, QUERIES, strict=True)))
    return Searcher(search.items, scorer=function_scorer(score), encoder=encoder, vectors=search), names


def test_a_filter_holds_in_every_round_of_a_search(table):
    search = table.open()
    searcher, names = world(search)
    german = search.ids_where("metadata->>'lang' = %(lang)s", lang="de")
    for strategy in (Posterior(40, 4), Axn(40, 4)):
        for hits in searcher.search_many(names, k=40, strategy=strategy, filter=german):
            assert len(hits) == 40
            assert set(hits.ids) <= set(german)


@pytest.fixture(scope="module")
def stored(postgres):
    """The items of `tests.stores.world`, with their fields as metadata."""
    table = PgTable.create(postgres.url, "stored", store_world.ITEMS, store_world.VECTORS)
    yield table
    postgres.start()
    table.close()
    table.drop()


def test_a_table_is_a_store(stored):
    check_store(stored.open(), store_world.ITEMS, store_world.VECTORS, filters=store_world.FILTERS)


def test_conditions_on_fields_are_sent_instead_of_rows(stored, postgres):
    sent = []

    class Recorder(psycopg.Cursor):
        def execute(self, query, params=None, **options):
            sent.append(params or {})
            return super().execute(query, params, **options)

    def connect():
        connection = psycopg.connect(postgres.url)
        connection.cursor_factory = Recorder
        return connection

    def longest_list(allowed):
        del sent[:]
        search.search(QUERIES_OF_STORE[:1], 3, allowed=allowed)
        return max(len(value) for params in sent for value in params.values() if isinstance(value, list))

    search = PgTable(connect, stored.name).open()
    assert max(longest_list(search.items.mask(condition)) for condition in store_world.FILTERS) == 3
    german = search.items.mask({"lang": "de"})
    others = [german.copy(), store_world.ITEMS.mask({"lang": "de"}), search.items.mask({"lang": ["de", "a\0"]})]
    assert [longest_list(mask) for mask in others] == [60] * 3  # of no known conditions, or of none in SQL


def test_a_filter_by_field_holds_in_every_round(stored):
    searcher = store_world.searcher(stored.open())
    condition = {"lang": "de", "size": {"gt": 0}}
    for strategy in (Posterior(20, 4), Axn(20, 4)):
        for hits in searcher.search_many(store_world.NAMES, k=20, strategy=strategy, filter=condition):
            assert len(hits) == 20
            assert all(hit.fields["lang"] == "de" and hit.fields["size"] > 0 for hit in hits)


def test_metadata_of_several_types_are_filtered_as_items_have_them(postgres):
    metadata = [{"f": 3.0}, {"f": "3"}, {"f": "x", "g": {"in": "objects"}}, {}]
    table = PgTable.create(postgres.url, "mixed", some_items(0, 4), VECTORS[:4], metadata=metadata)
    search = table.open()
    assert search.items.fields == {"f": "string"}
    assert sorted(search.search(QUERIES[:1], 4, allowed=search.items.mask({"f": "3"}))[0].rows) == [0, 1]
    table.drop()


def test_metadata_that_changed_since_do_not_let_others_in(postgres):
    table = PgTable.create(postgres.url, "changed", some_items(0, 3), VECTORS[:3], metadata=[{"f": 1}, {"f": 2}, {}])
    search = table.open()
    mask = search.items.mask({"f": 1})
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("""UPDATE changed SET metadata = '{"f": 1}'""")
    assert rows_of(search.search(QUERIES[:1], 3, allowed=mask)) == [[0]]
    table.drop()


def test_hnsw_of_the_database(table):
    with pytest.raises(InputError, match=r"has no HNSW index"):
        table.open(ef_search=40)
    table.add_hnsw(m=8, ef_construction=32)
    exact, search = table.open(), table.open(ef_search=40)
    plan = explain(search, {"n": 5, "candidates": 10, "normalized": QUERIES[0], "query": QUERIES[0]})
    assert f"Index Scan using {table.name}_vector_idx" in plan
    assert recall_against_exact(search, exact, QUERIES, 10).mean() > 0.9
    view = search.filtered("metadata->>'lang' = %(lang)s", lang="de")
    assert all(len(one) == 10 for one in view.search(QUERIES, 10))
    assert [len(one) for one in view.search(QUERIES, ROWS)] == [100] * 5  # all there are


def explain(search, values):
    """How PostgreSQL finds what the HNSW index proposes, where reading all rows is not the cheapest."""
    with search._connections.transaction() as connection:
        connection.execute("SET LOCAL enable_sort = off")
        lines = search._fetch(connection, "EXPLAIN " + BY_HNSW, values)
    return "\n".join(line for (line,) in lines)


def test_half_precision_where_it_must_be_and_where_it_is_wanted(postgres):
    wide = RNG.normal(size=(6, 2_100)).astype(np.float32)
    table = PgTable.create(postgres.url, "wide", some_items(0, 6), wide)
    assert (table.type, table.dim) == ("halfvec", 2_100)
    check_vector_search(table.open(), wide.astype(np.float16), tolerance=1e-2)
    with pytest.raises(InputError, match="fit in float16"):
        table.add(some_items(6, 7), np.full((1, 2_100), 1e5, np.float32))
    large = PgTable.create(postgres.url, "large", some_items(0, 50), 50 * VECTORS[:50], storage="float16")
    large.add_hnsw()
    found = large.open(ef_search=40).search(1e6 * QUERIES, 5)  # a query that half precision cannot hold
    assert rows_of(found) == rows_of(ExactSearch((50 * VECTORS[:50]).astype(np.float16)).search(1e6 * QUERIES, 5))


def test_columns_are_stored_once(table):
    columns = RNG.normal(size=(ROWS, 3)).astype(np.float32)
    one, other = (table.open().with_columns(columns) for _ in range(2))
    assert one._columns_table == other._columns_table
    table.remove(["id-0"])
    assert 0 not in one.search(np.ones((1, DIM + 3)), ROWS)[0].rows
    with pytest.raises(InputError, match=rf"one row per item \({ROWS}\)"):
        one.with_columns(columns[:-1])


def test_dropping_a_table_drops_its_columns_and_nothing_else(postgres):
    table = PgTable.create(postgres.url, "public.short", some_items(0, 5), VECTORS[:5])
    neighbor = PgTable.create(postgres.url, "short_cols_me", some_items(0, 5), VECTORS[:5])
    table.open().with_columns(np.ones((5, 2), np.float32))
    with psycopg.connect(postgres.url) as connection:
        names = "SELECT relname FROM pg_class WHERE relname LIKE 'short%' AND relkind = 'r' ORDER BY 1"
        assert len(connection.execute(names).fetchall()) == 3
        table.drop()
        assert connection.execute(names).fetchall() == [("short_cols_me",)]
    neighbor.drop()


def test_changes_are_whole_or_not_at_all(table):
    with pytest.raises(InputError, match=r"already has such an item: Key \(id\)=\(id-7\) already exists"):
        table.add(Items(["new", "old"], ids=["new", "id-7"]), VECTORS[:2])
    with pytest.raises(InputError, match=r"has no item 'nobody'. Nothing was removed"):
        table.remove(["id-1", "nobody"])
    with pytest.raises(InputError, match="PostgreSQL rejected an item"):
        table.add(Items(["fine", "a\0b"], ids=["x", "y"]), VECTORS[:2])
    assert len(table.open()) == ROWS


def test_many_add_remove_and_search_at_once(table):
    """Every search sees whole changes only: items come in pairs whose vectors are each other's opposite."""
    stop, errors = threading.Event(), []
    shared = table.open()
    calm = rows_of(shared.search(QUERIES, 10))

    def change(worker):
        mine = PgTable(table._connections._database, table.name)
        for turn in range(12):
            ids = [f"{worker}-{turn}-{side}" for side in "ab"]
            vector = 50 + np.random.default_rng((worker, turn)).random((1, DIM), np.float32)
            mine.add(Items(["word0 a", "word0 b"], ids=ids), np.concatenate([vector, -vector]))
            if turn % 3:
                mine.remove(ids)
        mine.close()

    def look(_):
        while not stop.is_set():
            fresh = table.open()
            try:
                everything = fresh.search(np.ones((1, DIM)), len(fresh))[0]
                sums = fresh.take(np.arange(ROWS, len(fresh))).sum(axis=0)
                assert np.allclose(sums, 0, atol=1e-2)
                assert len(fresh) % 2 == ROWS % 2
                assert len(everything) <= len(fresh)
                assert rows_of(shared.search(QUERIES, 10)) == calm
            except Exception as error:
                errors.append(error)
                return

    with ThreadPoolExecutor(6) as threads:
        lookers = [threads.submit(look, number) for number in range(3)]
        for worker in [threads.submit(change, number) for number in range(3)]:
            worker.result()
        stop.set()
        for looker in lookers:
            looker.result()
    assert not errors
    assert len(table.open()) == ROWS + 3 * 4 * 2
    assert table.purge() == 3 * 8 * 2


@pytest.mark.parametrize("strategy", [Axn(40, 4), Posterior(40, 4)], ids=repr)
def test_a_server_that_stops_in_the_middle_of_a_search(table, postgres, strategy):
    calls = count()
    stop_at = {2}

    def maybe_stop():
        if next(calls) in stop_at:
            postgres.stop()

    searcher, names = world(table.open(), maybe_stop)
    with pytest.raises(StoreError, match=r"PostgreSQL cannot be reached: .*No such file or directory"):
        searcher.search_many(names, k=10, strategy=strategy)
    with pytest.raises(StoreError, match="PostgreSQL cannot be reached"):
        searcher.search_many(names, k=10, strategy=strategy)
    postgres.start()
    stop_at.clear()
    found = searcher.search_many(names, k=10, strategy=strategy)  # the same searcher, as if nothing had been
    exact, _ = world(table.open())
    exact = Searcher(exact.items, scorer=searcher.scorer, encoder=searcher.encoder, vectors=VECTORS)
    assert [hits.ids for hits in found] == [hits.ids for hits in exact.search_many(names, k=10, strategy=strategy)]


def test_a_restarted_server_is_not_noticed(table, postgres):
    calls = count()

    def restart():
        if next(calls) == 1:
            postgres.stop()
            postgres.start()

    searcher, names = world(table.open(), restart)
    assert all(len(hits) == 10 for hits in searcher.search_many(names, k=10, strategy=Axn(40, 4)))


def test_an_interrupted_change_is_reported_and_not_repeated(table, postgres):
    class Stopping(list):
        """Metadata that stop the server when they are read."""

        def __iter__(self):
            yield {}
            postgres.stop()
            yield {}

    with pytest.raises(StoreError, match="PostgreSQL ended the transaction"):
        table.add(some_items(ROWS, ROWS + 2), VECTORS[:2], metadata=Stopping([{}, {}]))
    postgres.start()
    assert len(table.open()) == ROWS
    table.add(some_items(ROWS, ROWS + 2), VECTORS[:2])
    assert len(table.open()) == ROWS + 2


def test_a_function_may_open_connections(table, postgres):
    opened = []

    def connect():
        opened.append(1)
        return psycopg.connect(postgres.url, row_factory=psycopg.rows.dict_row)

    mine = PgTable(connect, table.name)
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda _: rows_of(mine.open().search(QUERIES, 5)), range(9)))
    assert all(rows == found[0] for rows in found)
    assert 1 <= len(opened) <= 4  # one for each thread at most, and used again
    mine.close()


def test_missing_servers_tables_and_extensions_are_named(postgres, table):
    with pytest.raises(StoreError, match="PostgreSQL cannot be reached"):
        PgTable("postgresql://postgres@127.0.0.1:1/postgres", "items")
    with pytest.raises(InputError, match="must be a valid connection string"):
        PgTable("nonsense", "items")
    with pytest.raises(InputError, match=r"`database` must be a connection string or a function, got 3"):
        PgTable(3, "items")
    with pytest.raises(InputError, match=r"has no table 'nothing'"):
        PgTable(postgres.url, "nothing")
    with psycopg.connect(postgres.url) as connection:
        connection.execute("CREATE TABLE other (vector vector(3))")
    with pytest.raises(InputError, match="has no table 'other'"):
        PgTable(postgres.url, "other")
    with pytest.raises(InputError, match=f"The table '{table.name}' already exists"):
        PgTable.create(postgres.url, table.name, some_items(0, 2), VECTORS[:2])
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE bare")
    bare = postgres.url.replace("/postgres?", "/bare?")
    with pytest.raises(InputError, match=r"has no extension vector .* CREATE EXTENSION vector"):
        PgTable(bare, "items")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vectors": VECTORS[:3]}, r"one vector per item \(2\), got 3"),
        ({"vectors": VECTORS[:2, :4]}, "the table's 8 dimensions, got 4"),
        ({"vectors": np.full((2, DIM), np.nan)}, "fit in float32"),
        ({"vectors": [[1.0]]}, r"floating-point array of shape \(items, dim\), got list"),
        ({"metadata": [{}]}, r"one mapping per item \(2\), got 1"),
    ],
)
def test_unusable_items_are_refused(table, change, message):
    given = {"items": some_items(ROWS, ROWS + 2), "vectors": VECTORS[:2], **change}
    with pytest.raises(InputError, match=message):
        table.add(given.pop("items"), given.pop("vectors"), **given)
    assert len(table.open()) == ROWS


def test_unusable_settings_are_refused(table, postgres):
    with pytest.raises(InputError, match="`storage` must be one of 'float32', 'float16', got 'int8'"):
        PgTable.create(postgres.url, "x", some_items(0, 2), VECTORS[:2], storage="int8")
    for name in ("", "a.b.c", ".a", "x" * 41):
        with pytest.raises(InputError, match="`name` must be"):
            PgTable(postgres.url, name)
    with pytest.raises(InputError, match="`ids` must be a collection of ids"):
        table.remove("id-3")
    with pytest.raises(InputError, match="`ef_search` must be a positive integer"):
        table.open(ef_search=0)
    with pytest.raises(InputError, match="`ef_search` must be at most 1000"):
        table.open(ef_search=1_001)
    with pytest.raises(InputError, match="`queries` must be finite"):
        table.open().search(np.full((1, DIM), np.nan), 3)
