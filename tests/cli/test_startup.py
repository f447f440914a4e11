"""A command imports what it needs, and refuses bad arguments before it loads a model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import crossknn as ck

MAIN = """
import json, sys
from crossknn.cli import main
sys.argv = ["crossknn", *json.loads(sys.argv[1])]
code = 0
try:
    main()
except SystemExit as end:
    code = end.code
print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules}), sorted(sys.modules)]))
"""
TEXTS = [f"item {number} of ice, snow and water" for number in range(30)]


def run(*arguments: object) -> tuple[int, set[str], str]:
    """The exit code of a command in a process of its own, the modules that it imported, and what it said."""
    command = [sys.executable, "-c", MAIN, json.dumps([str(one) for one in arguments])]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    code, packages, modules = json.loads(ended.stdout.splitlines()[-1])
    return code, {*packages, *modules}, " ".join(ended.stderr.split())


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("startup") / "items.ck"
    scorer, encoder = ck.CrossEncoder("embedded", device="cpu"), ck.SentenceEncoder("embedded", device="cpu")
    ck.Index.build(ck.Items(TEXTS), scorer=scorer, encoder=encoder, factors=None, calibrate=False).save(folder)
    return folder


def test_a_search_on_a_cpu_imports_what_it_needs(index: Path) -> None:
    models = ["--scorer", "embedded", "--encoder", "embedded", "--device", "cpu"]
    code, modules, said = run("search", index, "ice", "--budget", 10, *models)
    assert code == 0, said
    assert "torch" in modules
    heavy = {"sentence_transformers", "sklearn", "pandas", "datasets", "sympy", "torch._dynamo"}
    assert not heavy & modules
    assert "transformers.modeling_utils" not in modules
