"""Result files say where they come from, and those whose code has changed are marked, not refused."""

import argparse
import json

from benchmarks import result_files
from benchmarks.result_files import RESULTS, provenance_of, staleness, write_result
from tests.paths import ROOT


def test_a_result_is_written_with_its_provenance(tmp_path):
    options = argparse.Namespace(seed=7, device="cpu")
    write_result(tmp_path / "new" / "one.json", {"recall": 0.5}, options)
    found = json.loads((tmp_path / "new" / "one.json").read_text())
    assert found["recall"] == 0.5
    assert provenance_of(found) == found["provenance"]
    assert found["provenance"]["seed"] == 7
    assert staleness(found) == []


def test_a_result_whose_code_changed_names_the_files():
    assert staleness({"provenance": {"sources": {"crossknn/gone.py": "0" * 12}}}) == ["crossknn/gone.py"]


def test_older_files_stay_as_they_are():
    found = {"hardware": "2 cores", "seed": 0}
    assert provenance_of(found) == {"hardware": "2 cores", "seed": 0}
    assert staleness(found) is None
    bench = {"header": {"command": "crossknn bench", "data": {"seed": 1, "machine": "Linux", "versions": "Python"}}}
    assert provenance_of(bench) == {"command": "crossknn bench", "hardware": "Linux", "versions": "Python", "seed": 1}


def test_every_result_file_has_a_line_in_the_check():
    lines = result_files.check_results().splitlines()
    assert [line.partition(": ")[0] for line in lines] == sorted(path.name for path in RESULTS.glob("*.json"))


def test_every_script_writes_its_result_with_provenance():
    scripts = [path for path in (ROOT / "benchmarks").glob("*.py") if path.name != "result_files.py"]
    assert [path.name for path in scripts if ".out.write_text(" in path.read_text(encoding="utf-8")] == []
