"""Commands on an index need no options for its models: it remembers them; options take their place."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

import crossknn as ck
from crossknn.cli.options import default_work_dir
from crossknn.scorers.remote import client
from tests.cli.test_cli import as_json, fail, invoke
from tests.indexing.test_crafted_index import rewrite
from tests.scorers import tiny
from tests.scorers.remote.rerank_server import serving

TEXTS = [*tiny.SENTENCES, *(tiny.words(seed, 12) for seed in range(34))]
TRAIN = [tiny.words(1000 + seed, 5) for seed in range(20)]
QUERY = "ice and snow"


def write_corpus(path, rows):
    path.write_text("".join(json.dumps({"_id": f"d{row}", "text": TEXTS[row]}) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory, bert_folder):
    """A folder with corpus.jsonl, more.jsonl, train.txt and an index of the corpus, built in a folder of its own."""
    folder = tmp_path_factory.mktemp("files")
    write_corpus(folder / "corpus.jsonl", range(30))
    write_corpus(folder / "more.jsonl", range(30, 40))
    (folder / "train.txt").write_text("\n".join(TRAIN))
    command = ["build", folder / "corpus.jsonl", "-o", folder / "corpus.ck", "--queries", folder / "train.txt"]
    invoke(*command, "--scorer", bert_folder, "--encoder", "embedded", "--template", "pair")
    return folder


@pytest.fixture
def index(files, tmp_path):
    """A copy of the index, and of the scores of its build, to be changed."""
    shutil.copytree(default_work_dir(files / "corpus.ck"), default_work_dir(tmp_path / "corpus.ck"))
    return shutil.copytree(files / "corpus.ck", tmp_path / "corpus.ck")


def run(*arguments):
    """The output of a command in a new process, with the index in its working directory."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "crossknn", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_search_in_a_new_process(index, bert_folder):
    (found,) = [
        json.loads(line) for line in run("search", index, QUERY, "-k", 3, "--budget", 12, "--json").splitlines()
    ]
    scorer = ck.CrossEncoder(bert_folder, template="pair")
    searcher = ck.Searcher(ck.Index.load(index), scorer=scorer, encoder=ck.SentenceEncoder("embedded"))
    assert [hit["id"] for hit in found["hits"]] == searcher.search(QUERY, k=3, budget=12).ids


def test_add_info_and_verify(index, files):
    (said,) = as_json(invoke("add", index, files / "more.jsonl", "--json"))
    assert (said["added"], said["items"]) == (10, 40)
    (said,) = as_json(invoke("info", index, "--verify", "--json"))
    assert said["items"] == 40
    assert "intact" in invoke("verify", index).stdout
    assert len(as_json(invoke("search", index, QUERY, "--budget", 12, "--json"))[0]["hits"]) == 10


def test_learn(index):
    work = default_work_dir(index)
    (said,) = as_json(invoke("learn", index, "--scores", work, "-o", index.with_name("new.ck"), "--json"))
    assert said["lists"] == 20
    assert len(as_json(invoke("search", index.with_name("new.ck"), QUERY, "--budget", 12, "--json"))[0]["hits"]) == 10


def test_serve(index):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "300"}
    command = [sys.executable, "-m", "crossknn", "serve", str(index), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        lines = []
        while "serving" not in "".join(lines[-1:]):
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        assert re.search(r"serving 30 items at http://", lines[-1])
    finally:
        process.kill()
        process.communicate()


def test_options_take_the_place_of_what_is_remembered(index, bert_folder, tmp_path, monkeypatch, capsys):
    command = ["search", index, QUERY, "-k", 3, "--budget", 12, "--json"]
    (found,) = as_json(invoke(*command))
    moved = shutil.copytree(bert_folder, tmp_path / "moved")
    assert as_json(invoke(*command, "--scorer", moved))[0]["hits"] == found["hits"]
    monkeypatch.setenv("CROSSKNN_SCORER", str(tmp_path / "none"))
    assert fail(monkeypatch, capsys, *command)[0] == 2
    monkeypatch.delenv("CROSSKNN_SCORER")
    for options in (["--scorer", "embedded"], ["--dtype", "int8"], ["--long-items", "max"]):
        code, message = fail(monkeypatch, capsys, *command, *options)
        assert (code, "another scorer" in message) == (2, True)
        assert len(as_json(invoke(*command, *options, "--any-model"))[0]["hits"]) == 3
    assert len(as_json(invoke(*command, "--encoder", "none"))[0]["hits"]) == 3


def test_a_missing_model_is_named(index, tmp_path, monkeypatch, capsys):
    rewrite(index, facts=lambda facts: facts["models"]["scorer"].update(name=str(tmp_path / "gone")))
    code, message = fail(monkeypatch, capsys, "search", index, QUERY)
    assert code == 2
    assert re.search(r"the scorer of the index, CrossEncoder\('.*gone'\), .*give --scorer its folder", message)


def test_a_remembered_server_needs_the_users_word(index, files, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(client, "INITIAL_BACKOFF", 0.01)
    monkeypatch.setenv("CROSSKNN_API_KEY", "sk-secret-0123456789")
    with serving("vllm", key="sk-secret-0123456789") as server:
        build = ["build", files / "corpus.jsonl", "-o", tmp_path / "remote.ck", "--queries", files / "train.txt"]
        settings = ["--encoder", "embedded", "--factors", "none", "--per-query", 4, "--max-item-chars", 9]
        invoke(*build, "--scorer", server.url, *settings)
        server.bodies.clear()
        for command in (["search", QUERY], ["serve", "--port", 0], ["add", files / "more.jsonl"], ["learn"]):
            name, *others = command
            others += ["--scores", tmp_path] if name == "learn" else []
            code, message = fail(monkeypatch, capsys, name, tmp_path / "remote.ck", *others)
            assert (code, f"if you trust it: give --scorer {server.url}" in message) == (2, True)
        assert not server.bodies
        search = ["search", tmp_path / "remote.ck", QUERY, "--budget", 12, "--json"]
        (found,) = as_json(invoke(*search, "--scorer", server.url))
        assert found["calls"] == 12
        assert all(len(text) <= 9 for body in server.bodies for text in body["documents"])
        monkeypatch.setenv("CROSSKNN_SCORER", server.url)
        assert as_json(invoke(*search))[0]["hits"] == found["hits"]
