"""BM25 against the formula written out by hand, and against bm25s."""

import math
import os
import pickle
import subprocess
import sys
from collections import Counter

import bm25s
import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.items.items import Items
from crossknn.retrievers.bm25 import METHODS, Bm25

TEXTS = ["cat cat dog", "dog bird", "fish", "cat bird bird snake", ""]
K1, B = 0.9, 0.4


def lucene(query: str, texts: list[str]) -> list[float]:
    documents = [text.split() for text in texts]
    mean_length = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        counts, score = Counter(document), 0.0
        for word in query.split():
            holding = sum(word in other for other in documents)
            if not holding:
                continue
            idf = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
            score += idf * counts[word] / (counts[word] + K1 * (1 - B + B * len(document) / mean_length))
        scores.append(score)
    return scores


@pytest.mark.parametrize("query", ["cat", "bird dog", "cat cat fish", "unicorn", "unicorn snake", ""])
def test_bm25_is_the_formula(query):
    retriever = Bm25(K1, B, stemmer=None, stopwords=None).fit(Items(TEXTS))
    np.testing.assert_allclose(retriever.scores(query), lucene(query, TEXTS), rtol=1e-5)
    assert retriever.scores(query).dtype == np.float32


@pytest.mark.parametrize("method", METHODS)
def test_bm25_is_bm25s(method):
    rng = np.random.default_rng(0)
    documents = [[f"w{word}" for word in rng.zipf(1.5, size=size) % 50] for size in rng.integers(0, 30, size=200)]
    library = bm25s.BM25(k1=1.2, b=0.6, method=method)
    library.index(documents, create_empty_token=False, show_progress=False)
    retriever = Bm25(1.2, 0.6, method=method, stemmer=None, stopwords=None).fit(Items(map(" ".join, documents)))
    for query in (["w1"], ["w2", "w7", "w2"], ["w3", "w49", "w12", "w5"]):
        np.testing.assert_allclose(retriever.scores(" ".join(query)), library.get_scores(query), rtol=1e-6)


def test_bm25_stems_and_leaves_stop_words_out():
    retriever = Bm25().fit(Items(["The rivers are freezing", "a bird", "of the"]))
    assert retriever.scores("the river freezes")[0] > 0
    assert retriever.scores("the of are").tolist() == [0, 0, 0]


def test_bm25_with_own_stop_words():
    retriever = Bm25(stopwords=["Cat"]).fit(Items(TEXTS))
    assert not retriever.scores("cat").any()
    assert retriever.scores("dog").any()


def test_bm25_zero_scores_follow_in_row_order():
    (found,) = Bm25(stemmer=None).fit(Items(TEXTS)).retrieve(["fish"], 4)
    assert found.rows.tolist() == [2, 0, 1, 3]
    assert found.estimates[1:].tolist() == [0, 0, 0]


def test_bm25_is_the_same_in_blocks(monkeypatch):
    whole = Bm25().fit(Items(TEXTS)).scores("bird cat")
    monkeypatch.setattr("crossknn.retrievers.bm25.TEXT_BLOCK", 2)
    np.testing.assert_array_equal(Bm25().fit(Items(TEXTS)).scores("bird cat"), whole)


def test_bm25_can_be_sent_to_another_process():
    retriever = Bm25().fit(Items(TEXTS))
    again = pickle.loads(pickle.dumps(retriever))
    np.testing.assert_array_equal(again.scores("cat"), retriever.scores("cat"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k1": -1}, "`k1` must be a nonnegative number, got -1"),
        ({"b": 1.5}, "`b` must be between 0 and 1, got 1.5"),
        ({"method": "best"}, "`method` must be one of .*, got 'best'"),
        ({"stemmer": "klingon"}, "`stemmer` must be None or one of .*, got 'klingon'"),
        ({"stopwords": "klingon"}, "`stopwords` must be None, a list .*, got 'klingon'"),
        ({"name": ""}, "`name` must be a nonempty string"),
    ],
)
def test_bm25_settings_are_checked_when_made(settings, message):
    with pytest.raises(InputError, match=message):
        Bm25(**settings)


def test_bm25_does_not_import_jax_which_would_take_the_memory_of_a_gpu(tmp_path):
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("print('jax is imported')")
    code = "from crossknn import Bm25, Items; Bm25().fit(Items(['a river froze'])); print('fitted'); import jax"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["fitted", "jax is imported"]
