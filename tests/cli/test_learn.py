"""`crossknn learn`: an index learns from a log of searches, in place or into another folder."""

import json

import pytest

import crossknn as ck
from crossknn.storage.search_log import SearchLog
from tests.cli.test_cli import as_json, fail, invoke
from tests.indexing.teaching import builds, world

pytest.importorskip("sentence_transformers")


@pytest.fixture(scope="module")
def files(tmp_path_factory, bert_folder):
    """A folder with an index, its encoder and a log of searches; and the options of the scorer."""
    folder = tmp_path_factory.mktemp("files")
    world.save_encoder(folder / "encoder")
    rows = zip(builds.ITEMS.ids, builds.ITEMS.texts, strict=True)
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"_id": id_, "text": text}) + "\n" for id_, text in rows))
    scorer = ["--scorer", bert_folder, "--device", "cpu"]
    models = [*scorer, "--encoder", folder / "encoder"]
    invoke("build", folder / "corpus.jsonl", *models, "-o", folder / "corpus.ck", "--factors", "none", "--no-teach")
    searcher = ck.Searcher(
        ck.Index.load(folder / "corpus.ck"),
        scorer=ck.CrossEncoder(str(bert_folder), device="cpu"),
        encoder=ck.SentenceEncoder(str(folder / "encoder"), device="cpu"),
    )
    log = SearchLog(folder / "log", scorer=searcher.scorer.fingerprint)
    for hits in searcher.search_many(builds.QUERIES[:9], k=3, budget=12):
        log.append(hits.query, *hits.scored())
    return folder, scorer


def test_an_index_learns_into_another_folder(files, tmp_path):
    folder, scorer = files
    options = ["--searches", folder / "log", "--encoder", folder / "encoder", "-o", tmp_path / "new.ck"]
    (said,) = as_json(invoke("learn", folder / "corpus.ck", *scorer, *options, "--json"))
    assert said["taught"]
    assert said["report"]["teaching"]["lists"] == 9
    assert not ck.Index.load(folder / "corpus.ck").is_taught
    hits = as_json(invoke("search", tmp_path / "new.ck", builds.NEW_QUERIES[0], *scorer, "-k", 3, "--json"))
    assert len(hits[0]["hits"]) == 3
    # It learns on, in place, without an --encoder.
    first = ck.Index.load(tmp_path / "new.ck").encoder
    output = invoke("learn", tmp_path / "new.ck", *scorer, "--searches", folder / "log").stdout
    assert "taught by 9 lists" in output
    assert ck.Index.load(tmp_path / "new.ck").encoder != first


def test_what_is_no_log_is_refused(files, tmp_path, monkeypatch, capsys):
    folder, scorer = files
    models = [*scorer, "--encoder", folder / "encoder"]
    code, message = fail(monkeypatch, capsys, "learn", folder / "corpus.ck", *models, "--searches", tmp_path)
    assert code == 2
    assert "no log of searches" in message
    SearchLog(tmp_path / "other", scorer="another")
    code, message = fail(monkeypatch, capsys, "learn", folder / "corpus.ck", *models, "--searches", tmp_path / "other")
    assert code == 2
    assert "a log of another scorer" in message
