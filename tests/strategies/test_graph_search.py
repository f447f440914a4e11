"""Searches of the k-nearest-neighbor graph: QuAM and RGS against plain readings, GAR against pyterrier-adaptive."""

import re
from dataclasses import replace

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.strategies.exact import Exact
from crossknn.strategies.gar import Gar
from crossknn.strategies.neighbor_graph import NeighborGraph
from crossknn.strategies.quam import Quam
from crossknn.strategies.rgs import Rgs
from crossknn.types import Proposal
from crossknn.vectors.ranking import order_rows
from tests.worlds import World, all_rows, best

ITEMS = 200


def nearest(world, degree, allowed=None):
    """The nearest allowed items of each item, and the similarities."""
    similar = world.vectors.astype(np.float64) @ world.vectors.T
    np.fill_diagonal(similar, -np.inf)
    if allowed is not None:
        similar[:, ~allowed] = -np.inf
    order = np.argsort(-similar, axis=1, kind="stable")[:, :degree]
    return [[row for row in line.tolist() if similar[item, row] > -np.inf] for item, line in enumerate(order)], similar


def by_score(world, query, rows):
    return sorted(rows, key=lambda row: (-world.scores[query, row], row))


def softmax(values):
    powers = np.exp(np.array(values) - np.max(values))
    return powers / powers.sum()


def plain_quam(world, query, budget, rounds, neighbors, top, ranking):
    graph, similar = nearest(world, neighbors)
    scored = []
    for number in range(1, rounds + 1):
        heads = by_score(world, query, scored)[:top]
        affinity = {}
        for head, weight in zip(
            heads, softmax([world.scores[query, row] for row in heads]) if heads else (), strict=True
        ):
            for row in graph[head]:
                affinity[row] = affinity.get(row, 0.0) + weight * similar[head, row]
        frontier = sorted(affinity, key=lambda row: (-affinity[row], row))
        turns = [*ranking, *frontier] if number % 2 else [*frontier, *ranking]
        new = [row for row in dict.fromkeys(turns) if row not in set(scored)]
        scored += new[: -(-(budget - len(scored)) // (rounds - number + 1))]
    return scored


@pytest.mark.parametrize("neighbors", [2, 16])
@pytest.mark.parametrize("top", [1, 5, 100])
@pytest.mark.parametrize(("budget", "rounds"), [(30, 3), (60, 6), (23, 4)])
def test_quam_equals_a_plain_reading(budget, rounds, top, neighbors):
    world = World.low_rank(seed=1)
    found = world.run(Quam(budget=budget, rounds=rounds, neighbors=neighbors, top=top, first="random"))
    rankings = world.context().propose("random", budget)[1]
    for query, one in enumerate(found):
        ranking = rankings[query].rows.tolist()
        assert all_rows(one) == plain_quam(world, query, budget, rounds, neighbors, top, ranking)
        assert one.proposed_by == ["random"] + ["quam"] * (rounds - 1)


def plain_rgs(world, query, budget, neighbors, seeds, ranking, allowed=None):
    graph, _ = nearest(world, neighbors, allowed)
    scored, expanded = ranking[: min(seeds, budget)], set()
    while len(scored) < budget:
        unexpanded = [row for row in by_score(world, query, scored) if row not in expanded]
        new = []
        for row in unexpanded:
            expanded.add(row)
            new = [near for near in graph[row] if near not in scored]
            if new:
                break
        new = new or [row for row in ranking if row not in scored][:seeds]
        if not new:
            break
        scored = [*scored, *new[: budget - len(scored)]]
    return scored


@pytest.mark.parametrize("neighbors", [1, 3, 16])
@pytest.mark.parametrize(("budget", "seeds"), [(30, 1), (60, 10), (23, 40)])
@pytest.mark.parametrize("share", [1, 3])
def test_rgs_equals_a_plain_reading(budget, seeds, neighbors, share):
    world = World.low_rank(seed=2)
    allowed = np.arange(ITEMS) % share == 0
    found = world.run(Rgs(budget=budget, neighbors=neighbors, seeds=seeds, first="random"), allowed=allowed)
    rankings = world.context(allowed=allowed).propose("random", budget)[1]
    for query, one in enumerate(found):
        ranking = rankings[query].rows.tolist()
        assert all_rows(one) == plain_rgs(world, query, budget, neighbors, seeds, ranking, allowed)


def test_rgs_climbs_a_chain_of_neighbors():
    """Item i is nearest to i − 1 and i + 1; scores rise along the chain, whose start alone the ranking has."""
    angles = np.linspace(0, 3, 60)
    vectors = np.column_stack([np.cos(angles), np.sin(angles)]).astype(np.float32)
    world = World(np.arange(60, dtype=np.float32)[None], vectors, np.zeros((1, 2), np.float32))
    start = Proposal(np.array([0]), np.ones(1, np.float32))
    context = replace(world.context(), propose=lambda name, n: ("given", [start]))
    (one,) = world.run(Rgs(budget=60, neighbors=4), context=context)
    assert all_rows(one)[:3] == [0, 1, 2]
    assert sorted(all_rows(one)) == list(range(60))


@pytest.mark.parametrize(
    "strategy", [Quam(250), Quam(100, top=1), Rgs(100), Rgs(250, seeds=1, neighbors=150)], ids=repr
)
def test_a_budget_of_all_items_is_exact(strategy):
    world = World.low_rank(items=100)
    for one, other in zip(world.run(strategy), world.run(Exact()), strict=True):
        assert best(one, 100) == best(other, 100)
        assert one.calls == 100


@pytest.mark.parametrize("strategy", [Quam(23, 4, 3), Rgs(23, 3, 4)], ids=repr)
def test_a_batch_is_its_queries_one_by_one(strategy):
    world = World.low_rank(queries=6)
    together = world.run(strategy)
    for query in range(6):
        assert all_rows(world.run(strategy, only=slice(query, query + 1))[0]) == all_rows(together[query])


@pytest.mark.parametrize("strategy", [Quam(20), Rgs(20)], ids=repr)
def test_a_query_whose_ranking_is_empty_finds_nothing(strategy):
    world = World.low_rank(queries=2)
    context = world.context()
    none = replace(context, propose=lambda name, n: ("given", [p.first(0) for p in context.propose(name, n)[1]]))
    assert [one.calls for one in world.run(strategy, context=none)] == [0, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Quam(top=0), "`top` must be a positive integer, got 0"),
        (lambda: Rgs(seeds=0), "`seeds` must be a positive integer, got 0"),
    ],
)
def test_invalid_settings_are_rejected(make, message):
    with pytest.raises(InputError, match=re.escape(message)):
        make()


def run_pyterrier(world, graph, budget, batch):
    """GAR of pyterrier-adaptive with the dense ranking: for each query the batches, in order."""
    pandas = pytest.importorskip("pandas")
    adaptive = pytest.importorskip("pyterrier_adaptive")
    pyterrier = pytest.importorskip("pyterrier")

    class Graph:
        def neighbours(self, docid):
            return [str(row) for row in graph[int(docid)]]

    class Scorer(pyterrier.Transformer):
        def transform(self, batch):
            query = int(batch.qid.iloc[0])
            order.setdefault(query, []).append([int(row) for row in batch.docno])
            return batch.assign(score=[float(world.scores[query, int(row)]) for row in batch.docno])

    order: dict[int, list[list[int]]] = {}
    rankings = world.context().propose("dense", budget)[1]
    rows = [
        {"qid": str(query), "query": "x", "docno": str(row), "score": -float(rank), "rank": rank}
        for query, ranking in enumerate(rankings)
        for rank, row in enumerate(ranking.rows)
    ]
    gar = adaptive.GAR(Scorer(), Graph(), num_results=budget, batch_size=batch, backfill=False)
    gar.transform(pandas.DataFrame(rows))
    return order


@pytest.mark.parametrize("neighbors", [8, 20])
@pytest.mark.parametrize("rounds", [2, 3])
def test_gar_equals_pyterrier_adaptive(rounds, neighbors):
    """The same rows in the same order, as long as there has been one frontier batch."""
    world = World.low_rank(seed=4)
    graph, _ = nearest(world, neighbors)
    theirs = run_pyterrier(world, graph, 12 * rounds, 12)
    for query, one in enumerate(world.run(Gar(12 * rounds, rounds, neighbors, "dense"))):
        assert [rows.tolist() for rows in one.rows] == theirs[query]


@pytest.mark.parametrize("neighbors", [8, 20])
def test_later_frontiers_have_the_priorities_of_pyterrier_adaptive(neighbors):
    """Later on, neighbors of one source tie and stand in another order there: from its state, ours is as good."""
    world = World.low_rank(seed=4)
    graph, _ = nearest(world, neighbors)
    ours = NeighborGraph(world.context(), neighbors)
    for query, batches in run_pyterrier(world, graph, 100, 10).items():
        for number in range(1, 10, 2):
            scored = np.concatenate(batches[:number])
            frontier = ours.nearest_frontier(order_rows(scored, world.scores[query, scored]), scored, 10)
            theirs = [max(world.scores[query, s] for s in scored if row in graph[s]) for row in batches[number]]
            np.testing.assert_allclose(frontier.estimates, sorted(theirs, reverse=True), rtol=1e-5)
