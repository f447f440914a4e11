"""A command imports what it needs, and refuses bad arguments before it loads a model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import crossknn as ck
from crossknn.cli import main

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


REFUSED = [  # commands on an index and a file of its items, with models that do not exist, and what is said of each
    (["search", "INDEX", "ice", "-k", 200], "-k must be at most the budget"),
    (["search", "INDEX", "ice", "--budget", 5, "--rounds", 9], "--rounds must be between 1 and --budget"),
    (["search", "INDEX", "ice", "--deadline", 0], "--deadline must be"),
    (["search", "INDEX", "ice", "--retriever", "best"], "no retriever named 'best'"),
    (["search", "INDEX", "ice", "--strategy", "axn:mix=3"], "`mix` must be"),
    (["search", "INDEX", "ice", "--strategy", "rerank", "--stop-at", 0.9], "no setting for"),
    (["search", "INDEX", " "], "nonempty"),
    (["search", "INDEX", "--queries", "NONE"], "cannot be opened"),
    (["search", "INDEX", "ice", "--filter-ids", "NONE"], "cannot be opened"),
    (["search", "INDEX", "ice", "--cache-queries"], "needs a --cache"),
    (["search", "ITEMS", "ice", "--train-queries", "NONE"], "cannot be opened"),
    (["search", "ITEMS", "ice", "--encoder", "none", "--strategy", "posterior"], "needs an encoder"),
    (["search", "ITEMS", "ice", "--encoder", "none", "--vectors", "NONE"], "--vectors needs an --encoder"),
    (["serve", "NONE", "--port", 0], "cannot be opened"),
    (["serve", "INDEX", "--port", 0, "--max-deadline", 0], "--max-deadline must be"),
    (["build", "ITEMS", "-o", "NEW", "--factors", "cur", "--prior"], "Leave --prior out"),
    (["build", "ITEMS", "-o", "NEW", "--no-teach", "--teach-lists", 5], "need --teach"),
    (["build", "ITEMS", "-o", "NEW", "--teach", "--per-item", 5], "--teach chooses the pairs"),
    (["build", "ITEMS", "-o", "NEW", "--encoder", "none"], "--encoder must be"),
    (["build", "ITEMS", "-o", "NEW", "--queries", "NONE"], "cannot be opened"),
    (["add", "INDEX", "ITEMS"], "has an item '0' already"),
    (["learn", "INDEX", "--scores", "NONE"], "there is no such file"),
    (["learn", "INDEX", "--scores", "ITEMS", "--queries", "NONE"], "cannot be opened"),
    (["bench", "set", "NONE"], "does not exist"),
    (["bench", "set", "SET", "--split", "first"], "'first'"),
    (["bench", "set", "SET", "--strategies", "best"], "--strategies must be"),
    (["bench", "set", "SET", "--strategies", "axn:mix=3"], "axn:mix=3"),
    (["score", "--pairs", "NONE"], "cannot be opened"),
]


@pytest.fixture(scope="module")
def places(index: Path) -> dict[str, Path]:
    """By name an index, a file of its items, a set of them, and places where there is nothing."""
    folder = index.parent
    records = [{"_id": str(number), "text": text} for number, text in enumerate(TEXTS)]
    named = {"INDEX": index, "ITEMS": folder / "items.jsonl", "SET": folder / "set"}
    (folder / "set" / "qrels").mkdir(parents=True)
    for file in (named["ITEMS"], named["SET"] / "corpus.jsonl", named["SET"] / "queries.jsonl"):
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
    (named["SET"] / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n0\t1\t1\n")
    return {**named, "NONE": folder / "none.jsonl", "NEW": folder / "new.ck"}


@pytest.mark.parametrize(("command", "said"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_bad_arguments_are_refused_before_models_are_looked_for(
    command: list[object],
    said: str,
    places: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [str(places.get(str(one), one)) for one in command]
    models = ["--scorer", "/no/scorer", "--encoder", "/no/encoder"]
    models = models[:2] if "--encoder" in given or "score" in given else models
    monkeypatch.setattr(sys, "argv", ["crossknn", *given, *models])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_refusal_does_not_import_torch(index: Path) -> None:
    code, modules, said = run("search", index, "ice", "-k", 200, "--scorer", "embedded", "--encoder", "embedded")
    assert (code, "at most the budget" in said) == (2, True)
    assert not {"torch", "transformers", "tokenizers"} & modules
