"""`crossknn match`: files of pairs and clusters, a second table, resuming, and options that are refused."""

import csv
import json

import pytest
from typer.testing import CliRunner

from crossknn.cli import app
from tests.cli.test_cli import invoke

pytest.importorskip("sentence_transformers")

TEXTS = ["red apple pie", "apple pie red", "blue whale", "a whale that is blue", "gravel road", "apple pie, red!"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(f'{row},"{text}",{row % 2}' for row, text in enumerate(TEXTS))
    (tmp_path / "records.csv").write_text(f"id,text,parity\n{rows}\n")
    (tmp_path / "other.csv").write_text("id,text\nx,a blue whale\ny,pie of red apple\n")
    return tmp_path


def models(bert_folder):
    return ["--scorer", str(bert_folder), "--encoder", "none"]


def test_pairs_and_clusters_are_written_and_a_second_run_pays_for_nothing(folder, bert_folder):
    line = ["match", "records.csv", "--threshold", "-1000", "--budget", "5", "--sample", "0", *models(bert_folder)]
    line += ["-o", "pairs.csv", "--clusters", "clusters.jsonl"]
    first = invoke(*line)
    with (folder / "pairs.csv").open() as file:
        pairs = list(csv.DictReader(file))
    assert len(pairs) == 15 == len({(one["left"], one["right"]) for one in pairs})
    assert {one["left_parity"] for one in pairs} == {"0", "1"}
    assert [float(one["score"]) for one in pairs] == sorted((float(one["score"]) for one in pairs), reverse=True)
    clusters = [json.loads(text) for text in (folder / "clusters.jsonl").read_text().splitlines()]
    assert [one["cluster"] for one in clusters] == [0] * len(TEXTS)
    assert "15 calls" in first.stderr
    assert "earlier run" not in first.stderr
    before = (folder / "pairs.csv").read_bytes()
    assert "15 of an earlier run" in invoke(*line).stderr
    assert (folder / "pairs.csv").read_bytes() == before


def test_a_second_table(folder, bert_folder):
    line = ["match", "records.csv", "--other", "other.csv", "-k", "1", "--budget", "2", "--json", *models(bert_folder)]
    found = [json.loads(text) for text in invoke(*line).stdout.splitlines()]
    assert sorted(one["left"] for one in found) == sorted({one["left"] for one in found})
    assert {one["right"] for one in found} <= {"x", "y"}
    assert all(one["right_text"] in ("a blue whale", "pie of red apple") for one in found)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--threshold"),
        (["--threshold", "0", "-o", "pairs.txt"], "--output"),
        (["--threshold", "0", "--clusters", "missing/c.csv"], "--clusters"),
        (["--threshold", "0", "--other", "records.csv.gz"], "records.csv.gz"),
        (["--threshold", "nan"], "--threshold"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_about_options(folder, bert_folder, options, words):
    result = CliRunner().invoke(app, ["match", "records.csv", *options, *models(bert_folder)])
    assert result.exit_code != 0
    assert words in str(result.exception)


def test_ids_that_are_not_unique_are_refused(folder, bert_folder):
    (folder / "twice.csv").write_text("id,text\na,one\na,two\n")
    result = CliRunner().invoke(app, ["match", "twice.csv", "--threshold", "0", *models(bert_folder)])
    assert "not unique" in str(result.exception)
    (folder / "empty.csv").write_text("id,text\n")
    result = CliRunner().invoke(app, ["match", "empty.csv", "--threshold", "0", *models(bert_folder)])
    assert "no items" in str(result.exception)


def test_the_file_of_options_names_corpus_and_models(folder, bert_folder):
    (folder / "crossknn.toml").write_text(f'corpus = "records.csv"\n[models]\nscorer = "{bert_folder}"\n')
    line = ["match", "--threshold", "-1000", "--budget", "5", "--sample", "0", "--encoder", "none", "--json"]
    assert len(invoke(*line).stdout.splitlines()) == 15
