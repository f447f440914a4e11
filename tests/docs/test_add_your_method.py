"""docs/add-your-method.md: its twelve lines run as they stand, its one command gives a row, and its row is measured."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from benchmarks.leaderboard import read_rows
from tests.docs.doc_pages import ROOT, blocks, code_of, read
from tests.evaluate.folders import write_beir

PAGE = "docs/add-your-method.md"
NAMES = ("rerank, fused", "rocchio", "posterior")


def test_the_method_has_twelve_lines():
    body = re.search(r"@dataclass.*?(?=^STRATEGIES)", code_of(PAGE), re.S | re.M)[0]
    assert len(list(filter(str.strip, body.splitlines()))) == 12


def test_one_command_gives_a_row(tmp_path):
    (tmp_path / "rocchio.py").write_text(code_of(PAGE), encoding="utf-8")
    write_beir(tmp_path / ".bench" / "open-set", items=240)
    (shell,) = [text for language, text in blocks(PAGE) if language == "bash"]
    _, command = shell.replace("\\\n", " ").splitlines()
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    words = shlex.split(command)
    assert words[:2] == ["python", "rocchio.py"]
    done = subprocess.run(
        [sys.executable, *words[1:]], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "↳ rocchio" in done.stdout
    rows = list(read_rows("rocchio.json", json.loads(Path(tmp_path, "rocchio.json").read_text(encoding="utf-8"))))
    mine = [row for row in rows if row.strategy == "rocchio"]
    assert {(row.k, row.budget) for row in mine} == {(k, budget) for k in (1, 10, 100) for budget in (50, 100, 200)}
    assert all(row.baseline == "rerank, fused" and row.calls == row.budget for row in mine)


def test_its_row_is_that_of_the_result_file():
    found = json.loads((ROOT / "benchmarks" / "results" / "rocchio.json").read_text(encoding="utf-8"))
    rows = {(row.strategy, row.k, row.budget): row for row in read_rows("rocchio.json", found)}
    shown = re.findall(r"^\| (.+?) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", read(PAGE), re.MULTILINE)
    assert [name for name, *_ in shown] == list(NAMES)
    for name, *recalls in shown:
        assert recalls == [f"{rows[name, k, 100].recall:.1f}" for k in (1, 10, 100)]
