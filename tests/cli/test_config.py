"""`crossknn.toml`: what it stands in for, options over it, and what it refuses."""

import re
import shutil

import pytest
import typer

from crossknn.cli import app, config
from crossknn.cli.config import OPTIONS, TABLES, Config
from crossknn.errors import InputError
from crossknn.scorers.remote import client
from tests.cli.test_cli import as_json, fail, invoke
from tests.cli.test_remembered_models import QUERY, TEXTS, TRAIN, write_corpus
from tests.docs.doc_pages import blocks
from tests.scorers import tiny
from tests.scorers.remote.rerank_server import serving

(EXAMPLE,) = [text for language, text in blocks("docs/cli.md") if language == "toml"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with a corpus of CSV, a model beside it, and no crossknn.toml yet."""
    tiny.save_cross_encoder(tmp_path / "models" / "ce", "bert")
    rows = "".join(f'd{row},"{text}"\n' for row, text in enumerate(TEXTS[:30]))
    (tmp_path / "corpus.csv").write_text(f"key,body\n{rows}")
    (tmp_path / "train.txt").write_text("\n".join(TRAIN))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, text, name="crossknn.toml"):
    (folder / name).write_text(text)


MODELS = '[models]\nscorer = "models/ce"\nencoder = "embedded"\n[fields]\nid = "key"\ntext = ["body"]\n'


def test_the_example_of_the_page(folder, monkeypatch):
    write(
        folder,
        EXAMPLE.replace("cross-encoder/ms-marco-MiniLM-L6-v2", "models/ce").replace(
            "sentence-transformers/all-MiniLM-L6-v2", "embedded"
        ),
    )
    rows = "".join(f'd{row},t,"{text}",utils,{row},x\n' for row, text in enumerate(TEXTS[:30]))
    (folder / "corpus.csv").write_text(f"key,title,body,section,size,other\n{rows}")
    invoke("build", "corpus.csv", "-o", "corpus.ck", "--queries", "train.txt", "--no-prior")
    (found,) = as_json(invoke("search", QUERY, "--json"))
    assert (found["query"], len(found["hits"]), found["calls"]) == (QUERY, 5, 20)
    assert {tuple(hit["fields"]) for hit in found["hits"]} == {("section", "size")}


def test_search_takes_corpus_models_and_settings_from_the_file_and_options_override_it(folder, monkeypatch, capsys):
    write(folder, f'corpus = "corpus.csv"\n{MODELS}[search]\nk = 2\nbudget = 12\nstrategy = "rerank"\n')
    (found,) = as_json(invoke("search", QUERY, "--json"))
    assert (len(found["hits"]), found["calls"], found["rounds"]) == (2, 12, 1)
    first, second = as_json(invoke("search", QUERY, "another query", "--json"))  # both are queries
    assert (first["hits"], second["query"]) == (found["hits"], "another query")
    (other,) = as_json(invoke("search", QUERY, "-k", 3, "--budget", 8, "--strategy", "posterior", "--json"))
    assert (len(other["hits"]), other["calls"]) == (3, 8)
    write_corpus(folder / "other.jsonl", range(5))
    (other,) = as_json(invoke("search", "other.jsonl", QUERY, "--id-field", "_id", "--text-field", "text", "--json"))
    assert other["calls"] == 5
    code, message = fail(monkeypatch, capsys, "search", "gone.jsonl", QUERY)  # not a query
    assert (code, "gone.jsonl" in message) == (2, True)
    assert len(as_json(invoke("score", "ice", "snow", "--json"))) == 1


def test_fields_are_for_items_and_not_for_the_index_of_them(folder):
    write(folder, f'corpus = "corpus.ck"\n{MODELS}')
    (planned, *_) = as_json(invoke("plan", "corpus.csv", "--queries", "train.txt", "--no-prior", "--json"))
    (built,) = as_json(
        invoke("build", "corpus.csv", "-o", "corpus.ck", "--queries", "train.txt", "--no-prior", "--json")
    )
    assert built["report"]["calls"] == planned["calls"] == 8 * 30
    assert len(as_json(invoke("search", QUERY, "--json"))[0]["hits"]) == 10
    assert as_json(invoke("info", "--json"))[0]["items"] == 30
    (folder / "more.csv").write_text("key,body\nnew,a new item\n")
    assert as_json(invoke("add", "corpus.ck", "more.csv", "--json"))[0]["items"] == 31


def test_a_file_of_another_folder_names_its_neighbors(folder, tmp_path_factory, monkeypatch):
    write(folder, f'corpus = "corpus.csv"\n{MODELS}', "other.toml")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    found = as_json(invoke("search", "--config", folder / "other.toml", QUERY, "--budget", 12, "--json"))
    assert found[0]["calls"] == 12


def test_limits_are_those_of_the_service(folder, monkeypatch, capsys):
    write(folder, f'corpus = "corpus.csv"\n{MODELS}[limits]\nmax_budget = -3\n')
    code, message = fail(monkeypatch, capsys, "serve")
    assert (code, "crossknn.toml: limits.max_budget is not valid" in message) == (2, True)
    write(folder, "[limits]\nheader_timeout = -1.5\n")
    code, message = fail(monkeypatch, capsys, "serve", "corpus.csv")
    assert (code, "header-timeout" in message) == (2, True)


def test_a_server_is_called_and_mentioned_if_the_user_names_its_file(folder, monkeypatch):
    monkeypatch.setattr(client, "INITIAL_BACKOFF", 0.01)
    monkeypatch.setenv("CROSSKNN_API_KEY", "sk-secret-0123456789")
    with serving("vllm", key="sk-secret-0123456789") as server:
        write(folder, f"{MODELS.replace('models/ce', server.url)}")
        build = ["build", "corpus.csv", "-o", "corpus.ck", "--queries", "train.txt", "--factors", "none", "--no-prior"]
        refused = invoke(*build, "--per-query", 4, code=1).exception
        assert "--config crossknn.toml" in str(refused)
        assert not server.bodies
        named = ["--config", "crossknn.toml"]
        invoke(*build, "--per-query", 4, *named)
        result = invoke("search", "corpus.ck", QUERY, "--budget", 12, "--json", *named)
        assert as_json(result)[0]["calls"] == 12
        assert server.url in result.stderr
        shutil.move("crossknn.toml", "other.toml")
        server.bodies.clear()
        assert isinstance(invoke("search", "corpus.ck", QUERY, code=1).exception, InputError)
        assert not server.bodies


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("corpsu = 'a'", "unknown key corpsu. The nearest is corpus"),
        ("[modles]", "unknown key modles. The nearest is models"),
        ("[search]\nbugdet = 3", "unknown key search.bugdet. The nearest is search.budget"),
        ("[search]\nscorer = 'a'", "unknown key search.scorer. The nearest is models.scorer"),
        ("k = 3", "unknown key k. The nearest is search.k"),
        ("search = 3", r"search must be a table, \[search\]"),
        ("corpus = 3", "corpus must be the path"),
        ("[models]\napi_key = 'sk-12345678'", "the file never holds keys. Set the environment variable"),
        ("api-key = 'sk-12345678'", "the file never holds keys"),
        ("[server]\ntoken = 'sk-12345678'", "unknown key server"),
        ("[models]\nheaders = {Authorization = 'sk-12345678'}", "the file never holds keys"),
        ("[models]\nscorer = 'https://me:sk-12345678@host/rerank'", "must be a URL without a user, a password"),
        ("[models]\nscorer = 'https://host/rerank?key=sk-12345678'", "must be a URL without a user, a password"),
        ("[search]\nk = 2.5", "search.k is not valid"),
        ("[search]\nk = true", "search.k must be a text or a number, got bool"),
        ("[search]\nbudget = 'many'", "search.budget is not valid"),
        ("[models]\ndtype = 'float33'", "models.dtype is not valid"),
        ("[fields]\ntext = [1]", "fields.text must be the name of a field"),
        ("[models]\nscorer = ['a']", "models.scorer must be a text or a number"),
        ("[models", "is no TOML file"),
        ("x = " + "[" * 10_000, "is no TOML file"),
        ("\udcff", "is no TOML file"),
        ("#" * (config.MAX_BYTES + 1), "more than"),
        ("a." * 65_536 + "a = 1", "more than"),  # for which the reader of TOML needs gigabytes
        ("[search]\nk = " + "9" * 5_000, "is no TOML file"),
        ("[search]\nk = 0x" + "f" * 5_000, "search.k must be a number of at most 64 bits"),
        ('corpus = "\\u0000"', "corpus must be the path"),
        ('[models]\nscorer = "\\u0000"', "models.scorer must not contain a zero character"),
    ],
    ids=lambda text: text[:40],
)
def test_what_is_refused(folder, monkeypatch, capsys, text, message):
    (folder / "crossknn.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    code, said = fail(monkeypatch, capsys, "search", "corpus.csv", QUERY)
    assert code == 2
    assert re.search(rf"crossknn\.toml: .*{message}", said)
    assert "sk-12345678" not in said


def test_a_file_that_is_not_there_is_named(folder, monkeypatch, capsys):
    code, message = fail(monkeypatch, capsys, "search", "--config", "none.toml", "corpus.csv", QUERY)
    assert (code, "none.toml: no such file" in message) == (2, True)


def test_every_key_is_an_option_of_every_command_that_takes_its_table():

    group = typer.main.get_command(app)
    for table, keys in OPTIONS.items():
        takers = [name for name, tables in TABLES.items() if table in tables]
        named = {
            name: {max(one.opts, key=len).lstrip("-").replace("-", "_") for one in group.commands[name].params}
            for name in takers
        }
        for option in keys.values():
            assert any(option in options for options in named.values()), option
            if table in ("search", "limits", "fields"):
                assert all(option in options for options in named.values()), option


def test_paths_are_those_beside_the_file_and_hub_names_stay(folder):
    write(folder, '[models]\nscorer = "models/ce"\nencoder = "someone/encoder"\ncache = "scores.db"\n')
    (folder / "sub").mkdir()
    found = Config.read(folder / "crossknn.toml").options["models"]
    assert found == {
        "scorer": str(folder / "models/ce"),
        "encoder": "someone/encoder",
        "cache": str(folder / "scores.db"),
    }
