"""The core works without the extras; what needs one names it."""

import subprocess
import sys
import textwrap

import pytest

BLOCKED = ["torch", "transformers", "sentence_transformers", "sklearn", "bm25s", "Stemmer", "safetensors", "scipy"]
SETUP = f"""
import sys
for name in {BLOCKED}:
    sys.modules[name] = None  # importing it raises ImportError
import crossknn as ck
import numpy as np
items = ck.Items(["ice on rivers", "bread", "snow"])
scorer = ck.function_scorer(lambda pairs: [float(len(item)) for _, item in pairs])
"""


def run(code: str) -> str:
    script = SETUP + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def test_your_own_candidates_and_scorer_need_no_extra():
    code = """
        searcher = ck.Searcher(items, scorer=scorer, retrievers=[ck.Given({"ice": ["2", "0"]})])
        print(searcher.search("ice", k=2, strategy=ck.Rerank(budget=2, retriever="given")).ids)
        print(searcher.search("ice", k=2, strategy=ck.Rerank(budget=3, retriever="random")).ids)
        print(searcher.search("ice", k=1, strategy=ck.Exact()).ids)
    """
    assert run(code).splitlines() == ["['0', '2']", "['0', '1']", "['0']"]


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("ck.CrossEncoder('folder')", "models"),
        ("ck.EmbCrossEncoder('folder')", "models"),
        ("ck.SentenceEncoder('folder')", "models"),
        ("ck.ExactSearch(np.ones((2, 2), np.float32))", "models"),
        ("ck.Bm25().fit(items)", "retrievers"),
        ("ck.TfIdf().fit(items)", "retrievers"),
        ("ck.Searcher(items, scorer=scorer).search('ice')", "retrievers"),
    ],
)
def test_missing_extras_are_named(code, extra):
    output = run(f"""
        try:
            {code}
        except ck.errors.MissingExtra as error:
            print(error)
    """)
    assert output.endswith(f"pip install 'crossknn[{extra}]'")
