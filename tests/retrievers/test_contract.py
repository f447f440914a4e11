"""Every retriever passes the contract check."""

from collections.abc import Callable

import numpy as np
import pytest

from crossknn.encoders.base import function_encoder
from crossknn.errors import InputError
from crossknn.items.items import Items
from crossknn.retrievers.bm25 import Bm25
from crossknn.retrievers.dense import Dense
from crossknn.retrievers.fused import Fused
from crossknn.retrievers.simple import Given, Random
from crossknn.retrievers.tfidf import TfIdf
from crossknn.testing import check_retriever
from crossknn.types import Retriever
from tests.paths import ROOT

TEXTS = [
    "rivers freeze from the surface down",
    "ice on a river is strongest in January",
    "bread rises because yeast makes gas",
    "bake bread with flour and water",
    "the river carries water to the sea",
    "",
    "stars burn hydrogen",
    "bake bread with flour and water",
]
QUERIES = ["how do rivers freeze", "baking bread", "zzz", ""]
ENCODER = function_encoder(
    lambda texts: [[len(text), text.count("r"), text.count("b"), 1.0] for text in texts], fingerprint="letters"
)
GIVEN = {"baking bread": ["3", "2", "7"], "zzz": [("1", 0.5), ("0", 0.5), ("4", 0.9)]}

MAKERS: dict[str, Callable[[], Retriever]] = {
    "random": Random,
    "given": lambda: Given(GIVEN),
    "tfidf": TfIdf,
    "bm25": Bm25,
    "bm25-plus": lambda: Bm25(method="bm25+", stemmer=None, stopwords=None),
    "dense": lambda: Dense(ENCODER),
    "dense-given": lambda: Dense(ENCODER, vectors=ENCODER.encode_items(TEXTS)),
    "fused": lambda: Fused([Bm25(), TfIdf(), Random()]),
    "fused-shallow": lambda: Fused([Bm25(), Random()], depth=1),
    "fused-given": lambda: Fused([Given(GIVEN), Random(3)], depth=2),
}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[[], Retriever]:
    return MAKERS[request.param]


def test_contract(make):
    check_retriever(make().fit(Items(TEXTS)), QUERIES, len(TEXTS))


@pytest.mark.parametrize("name", [name for name in MAKERS if "given" not in name])
@pytest.mark.parametrize("texts", [["only one"], ["", ""], ["the", "a", "of"]])
def test_contract_on_tiny_and_wordless_items(name, texts):
    retriever = MAKERS[name]().fit(Items(texts))
    check_retriever(retriever, QUERIES, len(texts))
    assert [len(p) for p in retriever.retrieve(QUERIES, 5)] == [len(texts)] * len(QUERIES)


def test_retrieve_before_fit_says_so(make):
    with pytest.raises(InputError, match=r"call fit\(items\) first"):
        make().retrieve(["a"], 1)


def test_fit_returns_the_retriever(make):
    retriever = make()
    assert retriever.fit(Items(TEXTS)) is retriever


def test_a_second_retriever_agrees(make):
    first, second = (make().fit(Items(TEXTS)).retrieve(QUERIES, 5) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a.rows, b.rows)
        np.testing.assert_array_equal(a.estimates, b.estimates)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (lambda r: r.retrieve("one string", 3), "`queries` must be a list"),
        (lambda r: r.retrieve(["a"], -1), "`n` must be a nonnegative integer, got -1"),
        (lambda r: r.retrieve(["a"], 1.5), "`n` must be a nonnegative integer"),
        (lambda r: r.retrieve(["a"], 1, allowed=np.ones(3, np.bool_)), r"shape \(8,\), one per item"),
        (lambda r: r.retrieve(["a"], 1, allowed=np.ones(8)), "must be a boolean array"),
    ],
)
def test_bad_requests(make, request_, message):
    with pytest.raises(InputError, match=message):
        request_(make().fit(Items(TEXTS)))


def test_zero_rows(make):
    assert [len(p) for p in make().fit(Items(TEXTS)).retrieve(QUERIES, 0)] == [0] * len(QUERIES)


def test_retrievers_are_silent(make, capfd):
    make().fit(Items(TEXTS)).retrieve(QUERIES, 2)
    assert capfd.readouterr() == ("", "")


def test_importing_brings_no_heavy_library():
    import subprocess
    import sys

    code = (
        "import sys, pkgutil, importlib, crossknn.retrievers as r, crossknn.encoders as e\n"
        "for p in (r, e):\n"
        "    for m in pkgutil.iter_modules(p.__path__, p.__name__ + '.'): importlib.import_module(m.name)\n"
        "print([m for m in ('torch', 'sklearn', 'scipy', 'bm25s', 'Stemmer', 'sentence_transformers', 'transformers')"
        " if m in sys.modules])"
    )
    root = ROOT
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
