"""Code and commands of README and docs: Python runs as it stands, and commands, options, extras and targets exist."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer

from crossknn.cli import app
from tests.docs.doc_pages import ROOT, blocks, code_of, move_into_world, read

PAGES = [
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
]
LANDING = "docs/index.md"
# Code that needs a world of its own, and the test that runs all of it. Any other page is run here.
RUN_ELSEWHERE = {
    "docs/add-your-method.md": "docs/test_add_your_method.py",
    "README.md": "docs/test_examples.py",
    "docs/choosing-a-strategy.md": "docs/test_choosing.py",
    LANDING: "docs/test_code.py",
    "docs/demo.md": "docs/test_examples.py",
    "docs/evaluating.md": "docs/test_evaluating.py",
    "docs/indexing.md": "docs/test_indexing.py",
    "docs/reproduce.md": "docs/test_reproduce.py",
    "docs/scaling.md": "engines/test_ray_models.py",
    "docs/stores.md": "docs/test_stores.py",
    "docs/vector-stores.md": "docs/test_vector_stores.py",
}
COMMAND = typer.main.get_command(app)
SHELL = ("", "bash", "console", "sh", "shell")
OTHER = ("css", "html", "http", "ini", "javascript", "json", "text", "toml", "yaml")


def shell_lines(page):
    """The lines of a page's shell blocks, continued ones as one."""
    text = "\n".join(text for language, text in blocks(page) if language in SHELL)
    return text.replace("\\\n", " ").splitlines()


def commands(page):
    """The `crossknn` commands of a page, in shell blocks and within the text."""
    shown = [line.removeprefix("$ ") for line in shell_lines(page)]
    prose = re.sub(r"^```.*?^```$", "", read(page), flags=re.DOTALL | re.MULTILINE)
    named = [" ".join(code.split()) for code in re.findall(r"(?<!`)`(crossknn [^`]+)`(?!`)", prose)]
    return [shlex.split(line, comments=True)[1:] for line in [*shown, *named] if line.startswith("crossknn ")]


def find_command(words):
    """The command that the first of these words name, and the others."""
    command = COMMAND
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words[0]]
        words = words[1:]
    return command, words


def unknown_options(words):
    command, words = find_command(words)
    known = {"--help"}.union(*(parameter.opts + parameter.secondary_opts for parameter in command.params))
    return [word for word in words if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]


def test_a_new_kind_of_block_is_noticed():
    assert {language for page in PAGES for language, _ in blocks(page)} <= {"python", *SHELL, *OTHER}


def test_tests_elsewhere_are_about_their_pages():
    for page, test in RUN_ELSEWHERE.items():
        assert Path(page).name in (ROOT / "tests" / test).read_text(encoding="utf-8")
        assert code_of(page)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in RUN_ELSEWHERE and code_of(page)])
def test_code_runs_as_it_stands(page, tmp_path, monkeypatch):
    move_into_world(tmp_path, monkeypatch)
    exec(compile(code_of(page), page, "exec"), {})


def test_the_landing_pages_code_with_the_models_that_it_names(capsys):
    code = code_of(LANDING)
    assert "senses(2_000)" in code
    exec(compile(code.replace("2_000", "120"), LANDING, "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[3] == "100 calls for 120 items"


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_commands_and_their_options_exist(page):
    for words in commands(page):
        command, rest = find_command(words)
        assert not hasattr(command, "commands") or not rest or rest[0].startswith("-"), words
        assert unknown_options(words) == [], words


def test_what_does_not_exist_is_found():
    assert unknown_options(["bench", "set", "scifact", "--buggets", "100"]) == ["--buggets"]
    assert find_command(["serach", "corpus.jsonl"])[1] == ["serach", "corpus.jsonl"]


def test_targets_of_make_exist():
    makefile = read("Makefile")
    named = [re.findall(r"^make ([\w ]+?)(?:  |$)", "\n".join(shell_lines(page)), re.MULTILINE) for page in PAGES]
    targets = {target for lines in named for line in lines for target in line.split()}
    assert {"demo", "docs", "lint", "test", "types"} <= targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_extras_exist():
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    named = {
        extra
        for page in PAGES
        for names in re.findall(r'(?:crossknn|")\.?\[([a-z,-]+)\]"', read(page))
        for extra in names.split(",")
    }
    assert {"all", "bench", "report"} <= named
    assert named <= set(extras)


def test_what_the_landing_page_says_it_finds():
    sets = {one["set"]: one for one in json.loads(read("benchmarks/results/posterior.json"))["sets"]}
    rows = re.findall(
        r"^\| (\S+) \| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \| \*\*([\d.]+)\*\* \|$", read(LANDING), re.MULTILINE
    )
    assert [name for name, *_ in rows] == list(sets)
    for name, items, *figures in rows:
        (cell,) = [cell for cell in sets[name]["cells"] if (cell["k"], cell["budget"]) == (10, 100)]
        found = [cell[side]["mean"] for side in ("best Rerank", "Posterior, no index", "Posterior")]
        assert (items, figures) == (f"{sets[name]['items']:,}", [f"{one:.1f}" for one in found])
