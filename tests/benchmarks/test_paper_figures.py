"""`Rerank` and `Axn` on real cross-encoder scores reproduce the figures of an independent prototype within a point."""

from functools import cache

import pytest

from benchmarks.matrices import Matrix, load
from crossknn.strategies.axn import Axn
from crossknn.strategies.rerank import Rerank
from tests.paths import SHARED

SCORES = SHARED / "scores"
# (set, k, budget): the best retriever and its recall, then the best first round and λ and their recall
FIGURES = {
    ("scifact", 1, 50): ("fused", 95.3, "dense", 0.8, 93.3),
    ("scifact", 1, 100): ("fused", 96.7, "bm25", 0.5, 95.3),
    ("scifact", 1, 200): ("fused", 98.0, "bm25", 0.8, 98.0),
    ("scifact", 1, 500): ("fused", 99.3, "dense", 0.5, 99.3),
    ("scifact", 10, 50): ("fused", 67.0, "bm25", 0.5, 65.5),
    ("scifact", 10, 100): ("fused", 76.6, "bm25", 0.5, 75.1),
    ("scifact", 10, 200): ("fused", 82.8, "bm25", 0.5, 83.7),
    ("scifact", 10, 500): ("fused", 90.9, "bm25", 0.5, 90.9),
    ("scifact", 100, 200): ("fused", 48.1, "bm25", 0.5, 46.4),
    ("scifact", 100, 500): ("fused", 65.7, "bm25", 0.8, 62.8),
    ("acl25k", 1, 100): ("fused", 99.0, "bm25", 0.8, 97.7),
    ("acl25k", 10, 100): ("bm25", 77.8, "bm25", 0.8, 66.5),
}


@cache
def matrix(name: str) -> Matrix:
    if not (SCORES / name).is_dir():
        pytest.skip(f"needs the score matrices of {name} in ../shared/scores")
    return load(SCORES / name)


@cache
def recall(name: str, strategy: Rerank | Axn, k: int) -> float:
    found = matrix(name).run(strategy)
    assert {one.calls for one in found} == {strategy.budget}
    return 100 * float(matrix(name).recall(found, k).mean())


@pytest.mark.parametrize("case", FIGURES, ids=lambda case: f"{case[0]}-{case[1]}@{case[2]}")
def test_recall_is_that_of_the_prototype(case):
    name, k, budget = case
    retriever, rerank, first, mix, axn = FIGURES[case]
    assert recall(name, Rerank(budget, retriever), k) == pytest.approx(rerank, abs=1)
    assert recall(name, Axn(budget, 10, mix, first), k) == pytest.approx(axn, abs=1)
