"""The code of docs/stores.md runs as it stands, but for the addresses of servers."""

import pyarrow as pa
import pytest

import crossknn as ck
from crossknn.errors import MissingExtra
from tests.docs.doc_pages import WORDS, code_of, encode, move_into_world

PAGE = "docs/stores.md"
TEXTS = [f"{a} and {b} in {c}" for a in WORDS for b in WORDS[:4] for c in ("winter", "summer")]
FIELDS = {"lang": [("en", "de")[row % 2] for row in range(len(TEXTS))], "year": [2020 + row % 8 for row in range(96)]}


def fill_qdrant(models, client):
    client.create_collection("articles", models.VectorParams(size=len(WORDS), distance="Dot"))
    payloads = [{"text": text, "lang": FIELDS["lang"][row]} for row, text in enumerate(TEXTS)]
    rows = zip(encode(TEXTS).tolist(), payloads, strict=True)
    client.upsert("articles", [models.PointStruct(id=n, vector=v, payload=one) for n, (v, one) in enumerate(rows)])


def fill_lance(lancedb):
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(encode(TEXTS).ravel()), len(WORDS))
    columns = {"id": range(len(TEXTS)), "text": TEXTS, **FIELDS, "vector": vectors}
    table = lancedb.connect("data/lancedb").create_table("articles", pa.table(columns))
    table.create_index("text", config=lancedb.index.FTS())


def test_the_code_of_the_page_runs_as_it_stands(tmp_path, monkeypatch):
    qdrant_client, lancedb = pytest.importorskip("qdrant_client"), pytest.importorskip("lancedb")
    pytest.importorskip("jsonschema")
    from tests.stores.elastic_server import running

    move_into_world(tmp_path, monkeypatch)
    code, client = code_of(PAGE), qdrant_client.QdrantClient(":memory:")
    fill_qdrant(qdrant_client.models, client)
    fill_lance(lancedb)
    vectors = encode(TEXTS).tolist()
    documents = {str(n): {"text": text, "lang": "en", "vector": vectors[n]} for n, text in enumerate(TEXTS)}
    server, address = 'QdrantClient("http://localhost:6333")', "http://localhost:9200"
    assert server in code
    assert address in code
    with running("elasticsearch", documents) as elastic:
        names = {"client": client}
        exec(compile(code.replace(server, "client").replace(address, elastic.url), PAGE, "exec"), names)
    assert len(names["hits"]) == 10
    assert {hit.text for hit in names["reranked"]} < {*TEXTS}
    assert len(names["searcher"].search("ice", k=3)) == 3


@pytest.mark.parametrize(
    ("module", "extra", "open_it"),
    [
        ("qdrant_client", "qdrant", lambda: ck.stores.open_store("qdrant://localhost/articles")),
        ("lancedb", "lancedb", lambda: ck.stores.LanceStore("folder", "articles")),
        ("httpcore", "remote", lambda: ck.stores.ElasticStore("http://localhost:9200", "articles")),
    ],
)
def test_a_missing_extra_is_named(monkeypatch, module, extra, open_it):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'crossknn\[{extra}\]'"):
        open_it()
