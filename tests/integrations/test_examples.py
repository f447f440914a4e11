"""The examples of the integrations, run with the real libraries and the embedded models."""

import re
import runpy
import sys

import pytest

from tests.paths import ROOT

EXAMPLES = ROOT / "examples"
RESULT_LINE = r" +-?\d+\.\d\d  {}  \S.* \((?:noun|verb|adjective|adverb)\): .+\n"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs an example and returns its output."""

    def run_example(name, library, *arguments):
        pytest.importorskip(library, reason=f"{library} is not installed")
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run_example


@pytest.mark.parametrize(
    ("name", "library", "arguments", "best"),
    [
        ("with_langchain", "langchain_core", [], "person.n.1"),
        ("with_llama_index", "llama_index.core", [], "person.n.1"),
        ("with_haystack", "haystack", ["the [head] of the hammer"], "head.n.29"),
    ],
)
def test_search_examples(run, name, library, arguments, best):
    assert re.fullmatch(RESULT_LINE.format(best) + RESULT_LINE.format(r"\S+") * 2, run(name, library, *arguments))


def test_the_pyterrier_example(run):
    lines = run("with_pyterrier", "pyterrier").splitlines()[1:]
    assert [line.split("calls")[0].strip() for line in lines] == ["10", "40"]
    figures = [float(figure) for line in lines for figure in line.split("calls")[1].split()]
    assert len(figures) == 4
    assert all(0.5 < figure < 1 for figure in figures)


def test_mteb_and_beir_measure_the_same(run):
    by_mteb = {line.split()[0]: line.split()[1] for line in run("with_mteb", "mteb").splitlines()}
    by_beir = {line.split()[0]: line.split()[1] for line in run("with_beir", "beir").splitlines()}
    assert by_mteb["ndcg_at_10"] == by_beir["NDCG@10"]
    assert by_mteb["recall_at_10"] == by_beir["Recall@10"]
    assert float(by_mteb["recall_at_10"]) > 0.8
