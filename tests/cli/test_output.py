"""Output that cannot be written: one sentence on standard error, the right exit code, no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

FULL = Path("/dev/full")
COMMANDS = {
    "version": ["--version"],
    "help": ["search", "--help"],
    "json": ["info", "INDEX", "--json"],
    "table": ["info", "INDEX"],
    "text": ["verify", "INDEX"],
}


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    from crossknn.encoders.base import function_encoder
    from crossknn.indexing.index import Index
    from crossknn.items.items import Items
    from crossknn.scorers.base import function_scorer

    scorer = function_scorer(lambda pairs: [float(len(item) % 7) for _, item in pairs], fingerprint="lengths")
    encoder = function_encoder(lambda texts: [[len(text), 1.0] for text in texts], fingerprint="lengths")
    folder = tmp_path_factory.mktemp("index")
    items = Items([f"{'long ' * (row % 9)}item {row}" for row in range(40)])
    Index.build(items, scorer=scorer, encoder=encoder, queries=["ice"], factors=None, teach=False).save(folder)
    return str(folder)


def run(arguments, index, *, stdout=subprocess.PIPE, stderr=subprocess.PIPE):
    line = [sys.executable, "-m", "crossknn", *(index if one == "INDEX" else one for one in arguments)]
    return subprocess.run(line, cwd=ROOT, stdout=stdout, stderr=stderr, text=True, timeout=60)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_behind_standard_output(index, name):
    with FULL.open("w") as full:
        done = run(COMMANDS[name], index, stdout=full)
    assert done.returncode == 2
    sentence = " ".join(done.stderr.split())
    assert sentence.startswith("error: standard output or a file cannot be read or written (No space left on device).")
    assert "Traceback" not in sentence
    assert "Exception ignored" not in sentence


@pytest.mark.parametrize("name", ["json", "table"])
def test_a_pipe_that_nobody_reads(index, name):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = run(COMMANDS[name], index, stdout=pipe)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_full_disk_behind_standard_error(index):
    with FULL.open("w") as full:
        assert run(["info", "nowhere"], index, stderr=full).returncode == 2
