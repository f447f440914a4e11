"""Maximal marginal relevance as the last step of a search."""

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.items.items import Items
from crossknn.search.diversity import diversify
from crossknn.search.searcher import Searcher
from crossknn.strategies.exact import Exact
from crossknn.strategies.rerank import Rerank
from crossknn.testing import MatrixScorer
from tests.search.test_searcher import STRATEGIES, Setup

VECTORS = np.array([[1, 0], [1, 0], [1, 0.1], [0, 2], [0, 1]], np.float32)
RELEVANCE = np.array([10, 9, 8, 6, 0], np.float32)


@pytest.mark.parametrize(
    ("diversity", "order"),
    [(0.0, [0, 1, 2, 3, 4]), (0.1, [0, 1, 2, 3, 4]), (0.5, [0, 3, 1, 2, 4]), (1.0, [0, 3, 2, 1, 4])],
)
def test_the_order_is_that_of_the_formula(diversity, order):
    assert diversify(RELEVANCE, VECTORS, 5, diversity).tolist() == order


def test_each_choice_is_the_best_by_the_formula():
    rng = np.random.default_rng(0)
    relevance, vectors = rng.normal(size=40), rng.normal(size=(40, 4)).astype(np.float32)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled = (relevance - relevance.min()) / np.ptp(relevance)
    order = diversify(relevance, vectors, 15, 0.4).tolist()
    assert order[0] == int(np.argmax(relevance))
    for place in range(1, 15):
        left = sorted(set(range(40)) - set(order[:place]))
        marginal = [0.6 * scaled[row] - 0.4 * max(units[row] @ units[other] for other in order[:place]) for row in left]
        assert order[place] == left[int(np.argmax(marginal))]


def test_equal_scores_zero_vectors_and_nothing_at_all():
    assert diversify(np.ones(3), np.zeros((3, 2), np.float32), 2, 0.5).tolist() == [0, 1]
    assert diversify(np.empty(0), np.empty((0, 2), np.float32), 2, 0.5).tolist() == []


def test_a_search_without_diversity_is_unchanged():
    setup = Setup()
    plain, off = (setup.searcher.search(setup.queries[0], k=10, **more) for more in ({}, {"diversity": 0.0}))
    assert plain.hits == off.hits


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_diverse_hits_are_scored_items_and_cost_no_calls(strategy):
    setup = Setup()
    plain = setup.searcher.search(setup.queries[0], k=12, strategy=strategy)
    diverse = setup.searcher.search(setup.queries[0], k=12, strategy=strategy, diversity=0.9)
    assert diverse.calls == plain.calls
    assert diverse[0] == plain[0]
    assert len(set(diverse.ids)) == 12

    def likeness(hits):
        vectors = setup.world.vectors[[hit.row for hit in hits]]
        units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return float((units @ units.T).sum())

    assert likeness(diverse) < likeness(plain)
    for hit in diverse:
        assert hit.score == setup.world.scores[0, hit.row]


def test_duplicates_do_not_fill_the_answer():
    items = Items(["a", "a again", "a once more", "b", "c"])
    scorer = MatrixScorer([[9.0, 8.9, 8.8, 5.0, 1.0]], queries=["q"], items=list(items.texts))
    vectors = np.array([[1, 0, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32)
    searcher = Searcher(items, scorer=scorer, vectors=vectors)
    assert searcher.search("q", k=3, strategy=Exact()).ids == ["0", "1", "2"]
    assert searcher.search("q", k=3, strategy=Exact(), diversity=0.6).ids == ["0", "3", "4"]
    good = searcher.search("q", k=3, strategy=Exact(), diversity=0.6, min_score=4)
    assert good.ids == ["0", "3", "1"]


def test_what_diversity_needs_is_said_before_any_call():
    setup = Setup()
    plain = Searcher(setup.items, scorer=setup.scorer)
    with pytest.raises(InputError, match="needs an encoder"):
        plain.search(setup.queries[0], strategy=Rerank(budget=10), diversity=0.5)
    for value in (-0.1, 1.1, float("nan"), "high"):
        with pytest.raises(InputError, match="`diversity` must be between 0 and 1"):
            setup.searcher.search(setup.queries[0], diversity=value)
    assert setup.scorer.calls == 0
