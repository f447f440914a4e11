"""Imports: what is in a store becomes files, whatever kills the import, by library and command line."""

import os

import numpy as np
import pytest
from typer.testing import CliRunner

from crossknn.cli import app
from crossknn.errors import InputError, StoreError
from crossknn.items.items import Items
from crossknn.stores import importing
from crossknn.stores.base import StoreSearch
from crossknn.stores.importing import import_store
from crossknn.stores.items import StoreItems
from crossknn.stores.urls import open_store
from crossknn.types import Proposal
from tests.kills import die_at, forking
from tests.stores.world import DIM, FIELDS, ITEMS, ROWS, VECTORS, records


class ListStore(StoreSearch):
    """A store in memory, which counts what is read of it."""

    def __init__(self, rows=range(ROWS)):
        super().__init__()
        self.kept, self.dim, self.read = np.array(rows), DIM, []
        known = records()
        named = ({key: value for key, value in known[row].items() if key != "text"} for row in rows)
        self.items = StoreItems.of_store(named, lambda rows: ITEMS.texts_of(self.kept[rows]))

    def _nearest(self, queries, n, exclude, allowed):
        return [Proposal(np.arange(0), np.empty(0, np.float32)) for _ in queries]

    def _read_vectors(self, rows):
        self.read += rows.tolist()
        return VECTORS[self.kept[rows]]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(importing, "BLOCK_ROWS", 50)


def assert_complete(imported, folder):
    assert [*imported.items.ids] == [*ITEMS.ids]
    assert [*imported.items.texts] == [*ITEMS.texts]
    assert imported.items.fields_of(range(ROWS)) == ITEMS.fields_of(range(ROWS))
    assert imported.items.fields == ITEMS.fields
    np.testing.assert_array_equal(imported.vectors, VECTORS)
    assert not (folder / "import").exists()


@forking
def test_a_killed_import_is_resumed_and_loses_nothing(tmp_path):
    killed = 0
    for number, step in enumerate(range(3, 180, 17)):
        folder = tmp_path / f"corpus{number}"
        child = os.fork()
        if not child:
            die_at(step, folder)
            import_store(ListStore(), folder, source="list")
            os._exit(0)
        killed += os.waitpid(child, 0)[1] != 0
        store = ListStore()
        assert_complete(import_store(store, folder, source="list"), folder)
        assert len(store.read) == len(set(store.read))
    assert 3 < killed < number  # the last ones were done before


def test_what_was_copied_is_not_read_again(tmp_path):
    class Failing(ListStore):
        def _read_vectors(self, rows):
            if len(self.read) >= 100:
                raise StoreError("gone")
            return super()._read_vectors(rows)

    with pytest.raises(StoreError, match="gone"):
        import_store(Failing(), tmp_path / "c", source="list")
    store, steps = ListStore(), []
    import_store(store, tmp_path / "c", source="list", progress=lambda *one: steps.append(one))
    assert store.read == [*range(100, ROWS)]
    assert steps[-1] == ("import vectors", ROWS, ROWS)
    again = ListStore()
    assert_complete(import_store(again, tmp_path / "c", source="list"), tmp_path / "c")
    assert again.read == []


def test_a_store_that_changed_meanwhile(tmp_path):
    class Failing(ListStore):
        def _read_vectors(self, rows):
            raise StoreError("gone")

    with pytest.raises(StoreError, match="gone"):
        import_store(Failing(rows=range(ROWS - 1)), tmp_path / "c", source="list")
    with pytest.raises(StoreError, match="10 items were removed from list since the import began"):
        import_store(ListStore(rows=range(10, ROWS)), tmp_path / "c", source="list")
    grown = import_store(ListStore(), tmp_path / "c", source="list")
    assert len(grown.items) == ROWS - 1
    np.testing.assert_array_equal(grown.vectors, VECTORS[:-1])


def test_other_folders_are_refused(tmp_path):
    import_store(ListStore(), tmp_path / "c", source="list")
    with pytest.raises(InputError, match="holds an import of list, not of other"):
        import_store(ListStore(), tmp_path / "c", source="other")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(InputError, match="holds other files"):
        import_store(ListStore(), tmp_path / "full", source="list")


def run(*arguments):
    return CliRunner().invoke(app, ["import", *map(str, arguments)], catch_exceptions=False)


def test_lancedb_by_the_command_line(tmp_path):
    lancedb = pytest.importorskip("lancedb")
    from tests.stores.test_lance import arrow

    database = lancedb.connect(tmp_path / "db")
    database.create_table("articles", arrow(key=[*ITEMS.ids], body=[*ITEMS.texts], **FIELDS))
    url = f"lancedb://{tmp_path}/db/articles"
    result = run(url, tmp_path / "corpus", "--text", "body", "--id", "key")
    assert result.exit_code == 0, result.output
    assert f"{ROWS} items, vectors of {DIM} dimensions" in result.output
    items = Items.from_parquet(tmp_path / "corpus" / "items.parquet")
    assert items.fields_of(range(ROWS)) == ITEMS.fields_of(range(ROWS))
    np.testing.assert_array_equal(np.load(tmp_path / "corpus" / "vectors.npy"), VECTORS)
    few = run(url, tmp_path / "few", "--text", "body", "--id", "key", "--fields", "lang,size")
    assert few.exit_code == 0
    assert [*Items.from_parquet(tmp_path / "few" / "items.parquet").fields] == ["lang", "size"]


def test_qdrant_by_the_command_line(tmp_path):
    qdrant_client = pytest.importorskip("qdrant_client")
    from tests.stores.test_qdrant import fill_client

    client = qdrant_client.QdrantClient(path=str(tmp_path / "db"))
    collection = fill_client(client)
    client.close()
    result = run(f"qdrant://{tmp_path}/db/{collection}", tmp_path / "corpus")
    assert result.exit_code == 0, result.output
    np.testing.assert_array_equal(np.load(tmp_path / "corpus" / "vectors.npy"), VECTORS)


@pytest.mark.parametrize("engine", ["elasticsearch", "opensearch"])
def test_search_engines_by_the_command_line(tmp_path, engine):
    pytest.importorskip("jsonschema")
    from tests.stores.elastic_server import running

    documents = {one.pop("_id"): {**one, "vector": VECTORS[row].tolist()} for row, one in enumerate(records())}
    with running(engine, documents) as server:
        url = server.url.replace("http://", f"{engine}://me:secret-word@") + "/articles"
        result = run(url, tmp_path / "corpus")
        assert result.exit_code == 0, result.output
    assert "secret-word" not in (tmp_path / "corpus" / "source.json").read_text()
    assert len(Items.from_parquet(tmp_path / "corpus" / "items.parquet")) == ROWS
    np.testing.assert_array_equal(np.load(tmp_path / "corpus" / "vectors.npy"), VECTORS)


@pytest.mark.parametrize("url", ["redis://h/x", "qdrant://host", "elasticsearch:///x", "x", "opensearch://h/x?ssl=1"])
def test_unusable_urls_are_refused(url):
    with pytest.raises(InputError, match="`url` must be qdrant://"):
        open_store(url)


def test_a_password_is_not_repeated():
    with pytest.raises(InputError) as error:
        open_store("redis://me:secret@host/x")
    assert "secret" not in str(error.value)
