"""`--engine ray` on the command line with real models, the code of docs/scaling.md, and models that travel by name."""

import pickle
import re

import pytest

import crossknn as ck
from tests.cli.test_cli import invoke
from tests.cli.test_index import TRAIN, write_corpus
from tests.docs.doc_pages import code_of, move_into_world
from tests.evaluate.folders import write_beir

RAY = ["--engine", "ray", "--workers", 1]


def files_in(folder):
    """All content but for what tells seconds."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.name != "index.json"}


@pytest.fixture(scope="module")
def models(bert_folder):
    return ["--scorer", bert_folder, "--encoder", "embedded"]


@pytest.mark.usefixtures("ray")
def test_a_build_is_that_of_this_process(models, tmp_path):
    (tmp_path / "train.txt").write_text("\n".join(TRAIN))
    build = ["build", write_corpus(tmp_path / "corpus.jsonl", range(30)), "--queries", tmp_path / "train.txt"]
    for name, engine in (("with", RAY), ("without", [])):
        said = invoke(*build, *models, *engine, "-o", tmp_path / name / "index", "--chunk", 64).stdout
        assert re.search(r"(\d\d+) calls, \1 of them in this run", said)
    assert files_in(tmp_path / "with") == files_in(tmp_path / "without")


@pytest.mark.usefixtures("ray")
def test_the_exact_scores_of_a_benchmark_are_those_of_this_process(models, tmp_path):
    write_beir(tmp_path / "set", items=20, splits=("test",))
    bench = ["bench", "set", tmp_path / "set", "--budgets", "3", "--k", "1", "--strategies", "rerank:retriever=bm25"]
    for name, engine in (("with", RAY), ("without", [])):
        invoke(*bench, *models, *engine, "--work-dir", tmp_path / name)
    assert files_in(tmp_path / "with") == files_in(tmp_path / "without")


@pytest.mark.usefixtures("ray")
def test_the_code_of_the_page_runs_as_it_stands(tmp_path, monkeypatch):
    (tmp_path / "train.txt").write_text("river ice\nlake snow\n")
    (tmp_path / "queries.txt").write_text("winter river\noven bread\n")
    move_into_world(tmp_path, monkeypatch)
    names = {}
    exec(compile(code_of("docs/scaling.md"), "docs/scaling.md", "exec"), names)
    assert isinstance(names["index"], ck.Index)
    assert names["scores"].shape == (2, len(names["items"]))


def test_models_travel_as_their_name_and_settings(bert_folder, encoder_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(bert_folder.parent)
    for model in (
        ck.CrossEncoder(bert_folder.name, max_item_tokens=9, long_items="max", stride=3, batch_tokens=77),
        ck.EmbCrossEncoder(encoder_folder, item_pooling="title", title_token="[T]", max_length=20),
        ck.SentenceEncoder("embedded", max_tokens=11, normalize=False, item_prompt="item: ", batch_size=5),
    ):
        data = pickle.dumps(model)
        with monkeypatch.context() as elsewhere:
            elsewhere.chdir(tmp_path)
            opened = pickle.loads(data)
        assert len(data) < 1000
        assert type(opened) is type(model)
        assert opened.fingerprint == model.fingerprint
        for setting in ("batch_tokens", "batch_size", "limits", "max_tokens"):
            assert getattr(opened, setting, None) == getattr(model, setting, None)
