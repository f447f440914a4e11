"""Graph-based adaptive re-ranking against a plain reading, and its equalities."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.strategies.exact import Exact
from crossknn.strategies.gar import Gar
from crossknn.strategies.rerank import Rerank
from crossknn.types import Proposal
from crossknn.vectors.exact import ExactSearch
from tests.worlds import World, all_rows, best


def plain_gar(world, query, budget, rounds, neighbors, ranking, allowed):
    """GAR's alternation with the whole graph and the whole frontier in every round."""
    similar = world.vectors @ world.vectors.T
    np.fill_diagonal(similar, -np.inf)
    similar[:, ~allowed] = -np.inf
    graph = [
        [row for row in np.argsort(-line, kind="stable").tolist() if line[row] > -np.inf][:neighbors]
        for line in similar
    ]
    scored = []
    for number in range(1, rounds + 1):
        sources = sorted(scored, key=lambda row: (-world.scores[query, row], row))
        frontier = [row for source in sources for row in graph[source]]
        turns = [*ranking, *frontier] if number % 2 else [*frontier, *ranking]
        new = [row for row in dict.fromkeys(turns) if row not in set(scored)]
        scored += new[: -(-(budget - len(scored)) // (rounds - number + 1))]
    return scored


@pytest.mark.parametrize("first", ["dense", "random"])
@pytest.mark.parametrize("neighbors", [1, 3, 16])
@pytest.mark.parametrize(("budget", "rounds"), [(30, 3), (60, 6), (23, 4), (20, 20)])
@pytest.mark.parametrize("share", [1, 3])
def test_equals_a_plain_reading(budget, rounds, neighbors, first, share):
    world = World.low_rank(seed=1)
    allowed = np.arange(200) % share == 0
    found = world.run(Gar(budget=budget, rounds=rounds, neighbors=neighbors, first=first), allowed=allowed)
    rankings = world.context(allowed=allowed).propose(first, budget)[1]
    for query, one in enumerate(found):
        ranking = rankings[query].rows.tolist()
        assert all_rows(one) == plain_gar(world, query, budget, rounds, neighbors, ranking, allowed)
        assert one.proposed_by == [first] + ["gar"] * (rounds - 1)


def test_a_cluster_that_the_ranking_sees_one_item_of_is_found():
    """Rows 100 to 119 lie together and score high; the ranking has row 100 early and the others last."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(200, 32)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[100:120] = vectors[100] + 0.01 * vectors[100:120]
    scores = np.zeros((1, 200), np.float32)
    scores[0, 100:120] = np.arange(20, 0, -1)
    world = World(scores, vectors, np.zeros((1, 32), np.float32))
    ranking = np.array([100, *range(100), *range(120, 200), *range(101, 120)])
    given = Proposal(ranking, np.zeros(200, np.float32))
    context = replace(world.context(), propose=lambda name, n: ("given", [given.first(n)]))

    (found,) = world.run(Gar(budget=40, rounds=4, neighbors=19), context=context)
    assert best(found, 20) == list(range(100, 120))
    assert set(found.rows[1].tolist()) < set(range(101, 120))
    assert found.estimates[1].tolist() == [20.0] * 10  # the score of the item they are neighbors of
    (reranked,) = world.run(Rerank(budget=40), context=context)
    assert best(reranked, 2) == [100, 0]


class RecordingSearch(ExactSearch):
    """Exact search that records which rows each search excludes: for neighbors, the row that is searched with."""

    def __init__(self, vectors):
        super().__init__(vectors)
        self.excluded = []

    def search(self, queries, n, **options):
        self.excluded.extend(options["exclude"])
        return super().search(queries, n, **options)


def test_neighbors_are_searched_once_for_all_queries_and_only_when_needed():
    world = World.low_rank(queries=4)
    world.scores[:] = world.scores[0]
    world.query_vectors[:] = world.query_vectors[0]  # the same query four times
    items = RecordingSearch(world.vectors)
    context = replace(world.context(), item_vectors=lambda: items)
    world.run(Gar(budget=40, rounds=4), context=context)
    rows = np.concatenate(items.excluded).tolist()
    assert len(rows) == len(set(rows)) < 30
    items.excluded.clear()
    world.run(Gar(budget=40, rounds=1), context=context)
    assert items.excluded == []


def test_one_round_is_rerank():
    world = World.low_rank()
    rerank = world.run(Rerank(budget=20, retriever="dense"))
    for one, other in zip(world.run(Gar(budget=20, rounds=1, first="dense")), rerank, strict=True):
        assert np.array_equal(one.rows, other.rows)
        assert one.proposed_by == other.proposed_by == ["dense"]


@pytest.mark.parametrize("strategy", [Gar(250), Gar(100, rounds=7), Gar(100, neighbors=150)], ids=repr)
def test_a_budget_of_all_items_is_exact(strategy):
    world = World.low_rank(items=100)
    for one, other in zip(world.run(strategy), world.run(Exact()), strict=True):
        assert best(one, 100) == best(other, 100)
        assert one.calls == 100


def test_a_batch_is_its_queries_one_by_one():
    world = World.low_rank(queries=6)
    strategy = Gar(budget=23, rounds=4, neighbors=3)
    together = world.run(strategy)
    for query in range(6):
        assert all_rows(world.run(strategy, only=slice(query, query + 1))[0]) == all_rows(together[query])


def test_ties_go_to_the_lower_row():
    world = World.low_rank(items=30)
    world.vectors[:], world.scores[:] = 1.0, 0.0
    assert all_rows(world.run(Gar(budget=20, rounds=4, neighbors=25))[0]) == list(range(20))


@pytest.mark.parametrize(("kept", "neighbors", "calls"), [(0, 8, 0), (1, 8, 40), (3, 199, 40)])
def test_a_short_ranking_is_filled_from_the_frontier_and_an_empty_one_ends(kept, neighbors, calls):
    world = World.low_rank(queries=2)
    context = world.context()
    short = replace(context, propose=lambda name, n: ("given", [p.first(kept) for p in context.propose(name, n)[1]]))
    found = world.run(Gar(budget=40, rounds=4, neighbors=neighbors), context=short)
    assert [one.calls for one in found] == [calls] * 2


def test_the_search_ends_where_ranking_and_frontier_do():
    """Two pairs of neighbors, one of them in the ranking: nothing leads to the other."""
    vectors = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], np.float32)
    world = World(np.ones((1, 4), np.float32), vectors, np.zeros((1, 2), np.float32))
    context = replace(
        world.context(), propose=lambda name, n: ("given", [Proposal(np.array([0]), np.ones(1, np.float32))])
    )
    (found,) = world.run(Gar(budget=4, rounds=4, neighbors=1), context=context)
    assert [rows.tolist() for rows in found.rows] == [[0], [1]]


@given(st.data())
def test_no_setting_breaks_the_budget_the_filter_or_asks_twice(data):
    """And none leaves a call unused while an allowed item is left."""
    items = data.draw(st.integers(1, 60), "items")
    budget = data.draw(st.integers(1, 80), "budget")
    rounds = data.draw(st.integers(1, budget), "rounds")
    neighbors = data.draw(st.integers(1, 70), "neighbors")
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=items, max_size=items), "allowed"))
    world = World.low_rank(queries=3, items=items, dim=4)
    world.vectors[: items // 2] = world.vectors[0]  # duplicates
    first = data.draw(st.sampled_from(["dense", "random"]), "first")
    for one in world.run(Gar(budget, rounds, neighbors, first), allowed=allowed):
        rows = np.concatenate([np.empty(0, np.int64), *one.rows])
        assert len(rows) == len(set(rows.tolist())) == min(budget, allowed.sum())
        assert allowed[rows].all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 5, "rounds": 6}, "`rounds` must be between 1 and `budget` (5), got 6"),
        ({"budget": 2.5}, "`budget` must be a positive integer, got 2.5"),
        ({"neighbors": 0}, "`neighbors` must be a positive integer, got 0"),
    ],
)
def test_invalid_settings_are_rejected(settings, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Gar(**settings)


def test_the_repr_is_a_short_name():
    assert repr(Gar(budget=50, first="bm25")) == "Gar(budget=50, first='bm25')"
