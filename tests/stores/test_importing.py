"""Imports: what is in a store becomes files, whatever kills the import, by library and command line."""

import os
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from crossknn.cli import app
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import InputError, StoreError
from crossknn.indexing.index import Index
from crossknn.items.items import Items
from crossknn.stores import importing
from crossknn.stores.base import StoreSearch
from crossknn.stores.importing import import_store
from crossknn.stores.items import StoreItems
from crossknn.stores.urls import open_store
from crossknn.types import Proposal
from tests.kills import die_at, forking
from tests.scorers import tiny
from tests.stores.world import DIM, FIELDS, ITEMS, ROWS, VECTORS, records

EMBEDDED = ["--encoder", "embedded"]


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
        texts = run(url, tmp_path / "texts", "--vector", "none")
        assert f"{ROWS} items, no vectors" in texts.output
    assert sorted(path.name for path in (tmp_path / "texts").iterdir()) == ["items.parquet", "source.json"]
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


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """An import whose vectors the embedded encoder made."""
    lancedb = pytest.importorskip("lancedb")
    from tests.stores.test_lance import arrow

    folder = tmp_path_factory.mktemp("import")
    texts = [tiny.words(seed, 12) for seed in range(40)]
    vectors = SentenceEncoder("embedded").encode_items(texts)
    vectors[:, 0] += 0.01  # not quite those that a build would make
    table = arrow(id=[f"d{row}" for row in range(40)], text=texts, vectors=vectors)
    lancedb.connect(folder / "db").create_table("articles", table)
    assert run(f"lancedb://{folder}/db/articles", folder / "corpus").exit_code == 0
    return folder / "corpus"


def crossknn(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.mark.parametrize("command", ["build", "search", "plan"])
def test_commands_use_the_vectors_of_an_import(imported, bert_folder, tmp_path, command):
    named = {"build": ["-o", tmp_path / "i.ck", "--no-calibrate"], "search": ["ice", "--budget", "10"], "plan": []}
    said = crossknn(command, imported / "items.parquet", *named[command], "--scorer", bert_folder, *EMBEDDED)
    assert said.exit_code == 0, said.output
    assert f"The vectors of {imported / 'vectors.npy'} are used" in said.output.replace("\n", "")
    if command == "build":
        built = Index.load(tmp_path / "i.ck").vectors
        np.testing.assert_array_equal(built, np.load(imported / "vectors.npy").astype(np.float16))
        again = ["--vectors", "none", "--scorer", bert_folder, *EMBEDDED]
        assert crossknn("build", imported / "items.parquet", *named[command], *again).exit_code == 0
        assert np.abs(Index.load(tmp_path / "i.ck").vectors[:, 0] - built[:, 0]).min() > 0.005


def test_vectors_of_another_model_or_of_half_an_import_are_refused(imported, bert_folder, tmp_path):
    models = ["--scorer", bert_folder, *EMBEDDED]
    np.save(tmp_path / "v.npy", np.ones((40, 7), np.float32))
    build = ["build", imported / "items.parquet", "-o", tmp_path / "i.ck", *models]
    message = said_by(crossknn(*build, "--vectors", tmp_path / "v.npy"))
    assert "v.npy: the vectors must have the" in message
    assert "got 7. Name the encoder that made them with --encoder, or encode the items again with --vectors" in message
    half = tmp_path / "half"
    shutil.copytree(imported, half)
    (half / "import").mkdir()
    assert "this import was interrupted" in said_by(crossknn("search", half / "items.parquet", "ice", *models))


def said_by(result):
    assert isinstance(result.exception, InputError)
    return str(result.exception)
