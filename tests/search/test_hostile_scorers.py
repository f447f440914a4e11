"""Scorers that lie, fail or are interrupted in the middle of a search: a clear error, and nothing is paid for twice."""

from itertools import count

import numpy as np
import pytest

import crossknn as ck
from crossknn.errors import ScorerError


class Lying:
    """True scores of the world until the call `wrong_from`; then what `lie` makes of them."""

    fingerprint = "lying"

    def __init__(self, lie, wrong_from=3):
        self.lie, self.wrong_from, self.calls, self.paid = lie, wrong_from, 0, []

    def score(self, queries, items):
        self.calls += 1
        scores = [float(len(set(query) & set(item))) for query, item in zip(queries, items, strict=True)]
        self.paid += zip(queries, items, strict=True)
        return self.lie(scores) if self.calls == self.wrong_from else scores


def fail(error):
    def lie(scores):
        raise error

    return lie


LIES = {
    "nan": lambda scores: [float("nan")] * len(scores),
    "infinity": lambda scores: [float("inf"), *scores[1:]],
    "too few": lambda scores: scores[:-1],
    "too many": lambda scores: [*scores, 1.0],
    "strings": lambda scores: list(map(str, scores)),
    "nested": lambda scores: [scores],
    "endless": lambda scores: count(),
    "nothing": lambda scores: None,
    "a long message": fail(ScorerError("very " * 10**6)),
    "another error": fail(ConnectionError("gone")),
    "an interrupt": fail(KeyboardInterrupt()),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_search_that_a_scorer_ends_pays_for_no_pair_twice(tmp_path, lie):
    items = ck.Items([f"item {number} {chr(97 + number % 26)}" for number in range(60)])
    liar = Lying(LIES[lie])
    strategy = ck.Gar(budget=20, rounds=5, neighbors=3, first="bm25")

    def search(scorer):
        vectors = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
        searcher = ck.Searcher(items, scorer=ck.Cached(scorer, tmp_path / "scores.db"), vectors=vectors)
        return searcher.search("item 7 c", k=5, strategy=strategy)

    with pytest.raises((ScorerError, ConnectionError, KeyboardInterrupt)):
        search(liar)
    before = liar.paid[:8]
    assert len(liar.paid) == 12
    again = Lying(None, wrong_from=0)
    found = search(again)
    assert found.calls == 20
    assert not {*before} & {*again.paid}
    kept = 3 if lie == "infinity" else 0
    assert len(again.paid) == 12 - kept
