"""The code of docs/vector-stores.md runs as it stands, but for the address of the database."""

from tests.docs.doc_pages import code_of, move_into_world
from tests.vectors.conftest import postgres as postgres

PAGE, ADDRESS = "docs/vector-stores.md", "postgresql://user@localhost/corpus"


def test_the_code_of_the_page_runs_as_it_stands(postgres, tmp_path, monkeypatch, capsys):
    move_into_world(tmp_path, monkeypatch)
    code = code_of(PAGE)
    assert ADDRESS in code
    names = {}
    exec(compile(code.replace(ADDRESS, postgres.url), PAGE, "exec"), names)
    assert "100.0 % of the 100 nearest" in capsys.readouterr().out
    assert len(names["hits"]) == 10
    assert len(names["only"].search(names["queries"], 5)[0]) == 5
    assert len(names["search"]) == len(names["items"])
    assert len(list((tmp_path / "corpus.faiss").iterdir())) == 1
