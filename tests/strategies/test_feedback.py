"""Relevance feedback: the query vector against qdrant-client's local mode and a plain reading, and its equalities."""

import re
from itertools import permutations

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.strategies.exact import Exact
from crossknn.strategies.feedback import Feedback
from crossknn.strategies.rerank import Rerank
from tests.worlds import World, all_rows, best


def plain_score(settings, query, examples, scores, item):
    value = settings.a * query @ item
    for p, n in permutations(range(len(scores)), 2):
        if scores[p] > scores[n]:
            value += settings.c * (scores[p] - scores[n]) ** settings.b * (examples[p] - examples[n]) @ item
    return value


@pytest.mark.parametrize("weights", [(1.0, 1.0, 0.01), (0.5, 0.5, 0.2), (2.0, 0.0, 0.1), (0.0, 2.0, 1.0)])
def test_equals_a_plain_reading(weights):
    world = World.low_rank(seed=1)
    settings = Feedback(30, 6, "random", *weights)
    seeds = world.context().propose("random", 6)[1]
    for query, one in enumerate(world.run(settings)):
        rows = seeds[query].rows
        assert one.rows[0].tolist() == rows.tolist()
        scores = world.scores[query, rows].astype(np.float64)
        values = np.array(
            [
                plain_score(settings, world.query_vectors[query], world.vectors[rows], scores, item)
                for item in world.vectors
            ]
        )
        values[rows] = -np.inf
        assert one.rows[1].tolist() == np.argsort(-values, kind="stable")[:24].tolist()
        assert one.proposed_by == ["random", "feedback"]


@pytest.mark.parametrize("weights", [(1.0, 1.0, 0.01), (0.5, 0.5, 0.2), (2.0, 0.0, 0.1)])
def test_equals_the_local_mode_of_qdrant(weights):
    """The same order and scores as its relevance-feedback query over the same points."""
    qdrant = pytest.importorskip("qdrant_client")
    models = qdrant.models
    if not hasattr(models, "RelevanceFeedbackQuery"):
        pytest.skip("this qdrant-client has no relevance feedback")
    world = World.low_rank(queries=3, seed=2)
    a, b, c = weights
    client = qdrant.QdrantClient(":memory:")
    size = models.VectorParams(size=world.vectors.shape[1], distance=models.Distance.DOT)
    client.create_collection("items", vectors_config=size)
    points = [models.PointStruct(id=row, vector=vector.tolist()) for row, vector in enumerate(world.vectors)]
    client.upsert("items", points=points)
    settings = Feedback(40, 5, "random", a, b, c)
    for query, one in enumerate(world.run(settings)):
        seeds, scores = one.rows[0], one.scores[0]
        feedback = [
            models.FeedbackItem(example=int(row), score=float(score)) for row, score in zip(seeds, scores, strict=True)
        ]
        strategy = models.NaiveFeedbackStrategy(naive=models.NaiveFeedbackStrategyParams(a=a, b=b, c=c))
        target = world.query_vectors[query].tolist()
        asked = models.RelevanceFeedbackQuery(
            relevance_feedback=models.RelevanceFeedbackInput(target=target, feedback=feedback, strategy=strategy)
        )
        found = client.query_points("items", query=asked, limit=35).points  # without the examples
        assert one.rows[1].tolist() == [point.id for point in found]
        vector = settings.query_vector(world.query_vectors[query], world.vectors[seeds], scores)
        np.testing.assert_allclose(world.vectors[one.rows[1]] @ vector, [p.score for p in found], rtol=1e-3, atol=1e-3)


def test_as_many_seeds_as_calls_are_rerank():
    world = World.low_rank()
    rerank = world.run(Rerank(budget=20, retriever="dense"))
    for one, other in zip(world.run(Feedback(20, seeds=50, first="dense")), rerank, strict=True):
        assert np.array_equal(one.rows, other.rows)


def test_without_pairs_it_is_dense_retrieval():
    world = World.low_rank()
    dense = world.context().propose("dense", 200)[1]
    for one, ranking in zip(world.run(Feedback(30, 4, "random", c=0.0)), dense, strict=True):
        rest = [row for row in ranking.rows.tolist() if row not in one.rows[0]]
        assert one.rows[1].tolist() == rest[:26]


def test_a_budget_of_all_items_is_exact():
    world = World.low_rank(items=100)
    for one, other in zip(world.run(Feedback(250)), world.run(Exact()), strict=True):
        assert best(one, 100) == best(other, 100)


def test_a_batch_is_its_queries_one_by_one_and_a_filter_holds():
    world = World.low_rank(queries=5)
    allowed = np.arange(200) % 2 == 0
    together = world.run(Feedback(30), allowed=allowed)
    for query, one in enumerate(together):
        assert allowed[all_rows(one)].all()
        alone = world.run(Feedback(30), only=slice(query, query + 1), allowed=allowed)
        assert all_rows(alone[0]) == all_rows(one)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seeds": 0}, "`seeds` must be a positive integer, got 0"),
        ({"b": -0.5}, "`b` must be a nonnegative number, got -0.5"),
    ],
)
def test_invalid_settings_are_rejected(settings, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Feedback(**settings)
