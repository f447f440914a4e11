"""`crossknn learn`: an index learns from searches, a work folder or a cache, in place or into another folder."""

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
    options = ["--scores", folder / "log", "--encoder", folder / "encoder", "-o", tmp_path / "new.ck"]
    (said,) = as_json(invoke("learn", folder / "corpus.ck", *scorer, *options, "--json"))
    assert said["taught"]
    assert said["report"]["teaching"]["lists"] == said["lists"] == 9
    assert said["helped"]
    assert not ck.Index.load(folder / "corpus.ck").is_taught
    hits = as_json(invoke("search", tmp_path / "new.ck", builds.NEW_QUERIES[0], *scorer, "-k", 3, "--json"))
    assert len(hits[0]["hits"]) == 3
    # It learns on, in place, without an --encoder.
    first = ck.Index.load(tmp_path / "new.ck").encoder
    output = invoke("learn", tmp_path / "new.ck", *scorer, "--scores", folder / "log").stdout
    assert "taught by 9 lists" in output
    assert ck.Index.load(tmp_path / "new.ck").encoder != first


def test_an_index_learns_from_its_work_folder_and_from_a_cache(files, tmp_path):
    folder, scorer = files
    models = [*scorer, "--encoder", folder / "encoder"]
    queries, cache, new = tmp_path / "queries.txt", tmp_path / "scores.db", ["-o", tmp_path / "new.ck", "--json"]
    queries.write_text("\n".join(builds.QUERIES[:9]))
    settings = [*models, "--budget", "12", "-k", "3"]
    invoke("search", folder / "corpus.ck", "--queries", queries, *settings, "--cache", cache)
    work = ["--scores", folder / "corpus.ck.work"]
    (said,) = as_json(invoke("learn", folder / "corpus.ck", *models, *work, *new))
    assert said["lists"] == said["queries"] > 9  # the train queries of the build
    known = ["--scores", cache, "--queries", queries]
    (said,) = as_json(invoke("learn", folder / "corpus.ck", *models, *known, *new))
    assert (said["lists"], said["report"]["teaching"]["known_scores"]) == (9, 9 * 12)
    (both,) = as_json(invoke("learn", folder / "corpus.ck", *models, *work, *known, *new))
    assert both["lists"] > said["lists"]


def test_a_cache_with_queries_needs_no_file_of_them(files, tmp_path, monkeypatch, capsys):
    folder, scorer = files
    models, cache = [*scorer, "--encoder", folder / "encoder"], tmp_path / "scores.db"
    search = ["search", folder / "corpus.ck", builds.QUERIES[0], *models, "--budget", "12", "--cache-queries"]
    code, message = fail(monkeypatch, capsys, *search)
    assert (code, "--cache" in message) == (2, True)
    invoke(*search, "--cache", cache)
    learn = ["learn", folder / "corpus.ck", *models, "--scores", cache, "-o", tmp_path / "new.ck", "--json"]
    assert as_json(invoke(*learn))[0]["lists"] == 1
    plain = ["search", folder / "corpus.ck", builds.QUERIES[1], *models, "--budget", "12"]
    invoke(*plain, "--cache", tmp_path / "other.db")
    code, message = fail(monkeypatch, capsys, "learn", folder / "corpus.ck", *models, "--scores", tmp_path / "other.db")
    assert code == 2
    assert "as --queries" in message


def test_a_learning_that_does_not_help_leaves_the_index(files, tmp_path):
    folder, scorer = files
    texts = builds.ITEMS.texts[:4]
    (tmp_path / "corpus.txt").write_text("\n".join(texts))
    models = [*scorer, "--encoder", folder / "encoder"]
    invoke("build", tmp_path / "corpus.txt", *models, "-o", tmp_path / "small.ck", "--factors", "none", "--no-teach")
    index = ck.Index.load(tmp_path / "small.ck")
    log = SearchLog(tmp_path / "log", scorer=index.scorer)
    for query in [change(text) for text in texts for change in (str.upper, str.title, str.lower)]:
        log.append(
            query, index.items.ids, [1.0, 2.0, 3.0, 4.0]
        )  # each item is the nearest of its text before and after
    learn = ["learn", tmp_path / "small.ck", *models, "--scores", tmp_path / "log"]
    assert "did not help" in invoke(*learn).stdout
    assert index.is_current()
    (said,) = as_json(invoke(*learn, "-o", tmp_path / "new.ck", "--json"))
    assert not said["helped"]
    assert ck.Index.load(tmp_path / "new.ck").encoder == index.encoder


def test_what_is_no_source_is_refused_and_leaves_the_index(files, tmp_path, monkeypatch, capsys):
    folder, scorer = files
    before = ck.Index.load(folder / "corpus.ck")
    models = [*scorer, "--encoder", folder / "encoder"]
    SearchLog(tmp_path / "other", scorer="another")
    for source, expected in ((tmp_path, "no source of scores"), (tmp_path / "other", "a log of another scorer")):
        code, message = fail(monkeypatch, capsys, "learn", folder / "corpus.ck", *models, "--scores", source)
        assert code == 2
        assert expected in message
    assert before.is_current()
