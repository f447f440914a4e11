"""AXN against the paper: Algorithm 1, the mixture, normalization, the shortlist, and its equalities."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.strategies.axn import Axn
from crossknn.strategies.exact import Exact
from crossknn.strategies.least_squares import solve_query_vectors
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.rerank import Rerank
from crossknn.vectors.exact import ExactSearch
from tests.worlds import World, all_rows, best


def algorithm_1(world: World, query: int, budget: int, rounds: int, mix: float, first: str) -> list[int]:
    """The paper's Algorithm 1 for one query, as plainly as numpy says it."""
    share = budget // rounds
    scored = world.context().propose(first, share)[1][query].rows.tolist()
    for _ in range(2, rounds + 1):
        early = scored[: max(share, 10)]  # where no α and β are given, they come from the query's first scores
        guesses = world.vectors[early] @ world.query_vectors[query]
        norm = world.normalization or Normalization.fit(world.scores[query, early], guesses)
        targets = norm.beta * (world.scores[query, scored] - norm.alpha)
        u = (1 - mix) * np.linalg.pinv(world.vectors[scored].astype(np.float64)) @ targets
        u = u + mix * world.query_vectors[query]
        order = np.argsort(-(world.vectors @ u), kind="stable")
        scored += [row for row in order.tolist() if row not in set(scored)][:share]
    return scored


@pytest.mark.parametrize("mix", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("normalization", [Normalization(alpha=-3.0, beta=0.7), None])
@pytest.mark.parametrize(("budget", "rounds"), [(30, 3), (60, 6), (8, 4)])
def test_equals_a_plain_reading_of_algorithm_1(budget, rounds, normalization, mix):
    world = World.low_rank(items=300, dim=16, seed=1)
    world.scores = world.scores + np.random.default_rng(2).normal(size=world.scores.shape)  # not exactly low rank
    world.normalization = normalization
    found = world.run(Axn(budget=budget, rounds=rounds, mix=mix, first="random"))
    for query, one in enumerate(found):
        assert all_rows(one) == algorithm_1(world, query, budget, rounds, mix, "random")


def test_finds_the_exact_neighbors_once_the_scores_span_the_space():
    """Scores are u·v exactly, so after 8 random rows in 8 dimensions u is known and round 2 finds the best."""
    world = World.low_rank(items=500, dim=8)
    found = world.run(Axn(budget=40, rounds=2, mix=0.0, first="random"))
    for line, one in zip(world.scores, found, strict=True):
        assert best(one, 10) == np.argsort(-line)[:10].tolist()


def test_beats_rerank_where_the_dual_encoder_is_off():
    world = World.low_rank(queries=20, items=2000, dim=16, noise=1.0)
    truth = np.argsort(-world.scores, axis=1)[:, :50]

    def recall(strategy):
        return np.mean([np.isin(t, all_rows(f)).mean() for t, f in zip(truth, world.run(strategy), strict=True)])

    assert recall(Axn(budget=100, rounds=5, mix=0.0, first="dense")) > 0.99
    assert recall(Rerank(budget=100, retriever="dense")) < 0.7


@pytest.mark.parametrize("budget", [1, 2, 10])
def test_a_scale_of_its_own_needs_no_spread(budget):
    """One row a round, constant scores, equal vectors: nothing to divide by, and nothing breaks."""
    world = World.low_rank(items=20)
    world.normalization, world.scores = None, np.full_like(world.scores, -4.0)
    world.vectors[:] = 1.0
    assert [f.calls for f in world.run(Axn(budget=budget, rounds=budget))] == [budget] * 5


def test_works_without_an_encoder_at_mix_0_only():
    world = World.low_rank(items=300)
    world.normalization = None
    context = replace(world.context(), query_vectors=None)

    assert [f.calls for f in world.run(Axn(budget=40, rounds=4, mix=0.0, first="random"), context=context)] == [40] * 5
    with pytest.raises(InputError, match="above 0 needs query vectors"):
        world.run(Axn(budget=40, rounds=4, mix=0.1, first="random"), context=context)


def test_one_round_is_rerank():
    world = World.low_rank()
    axn = world.run(Axn(budget=20, rounds=1, first="dense"))
    rerank = world.run(Rerank(budget=20, retriever="dense"))
    for one, other in zip(axn, rerank, strict=True):
        assert np.array_equal(one.rows, other.rows)
        assert one.proposed_by == other.proposed_by == ["dense"]


@pytest.mark.parametrize("mix", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("shortlist", [None, 250])
def test_a_budget_of_all_items_is_exact(mix, shortlist):
    world = World.low_rank(items=100)
    exact = world.run(Exact())
    for strategy in (Axn(budget=250, rounds=5, mix=mix, shortlist=shortlist), Rerank(budget=100)):
        for one, other in zip(world.run(strategy), exact, strict=True):
            assert best(one, 100) == best(other, 100)
            assert one.calls == 100


def test_mix_of_one_is_the_dual_encoders_order():
    world = World.low_rank()
    world.normalization = Normalization(alpha=5.0, beta=0.1)
    axn = world.run(Axn(budget=50, rounds=5, mix=1.0, first="dense"))
    for one, line in zip(axn, world.query_vectors @ world.vectors.T, strict=True):
        assert all_rows(one) == np.argsort(-line, kind="stable")[:50].tolist()


@pytest.mark.parametrize("mix", [0.0, 0.5])
def test_a_batch_is_its_queries_one_by_one(mix):
    world = World.low_rank(queries=6)
    strategy = Axn(budget=40, rounds=4, mix=mix)
    together = world.run(strategy)
    for query in range(6):
        alone = world.run(strategy, only=slice(query, query + 1))[0]
        assert all_rows(alone) == all_rows(together[query])


def test_budget_and_rounds_are_kept_to_the_call():
    world = World.low_rank()
    world.run(Axn(budget=23, rounds=4))
    assert [asked[0] for asked in world.asked] == [6, 6, 6, 5]


def test_shortlist_restricts_every_round():
    world = World.low_rank(items=300)
    found = world.run(Axn(budget=40, rounds=4, mix=0.0, first="dense", shortlist=60))
    for one, line in zip(found, world.query_vectors @ world.vectors.T, strict=True):
        assert set(all_rows(one)) <= set(np.argsort(-line)[:60].tolist())
        assert one.calls == 40


def test_the_filter_holds_in_every_round():
    world = World.low_rank()
    allowed = np.arange(200) % 3 == 0
    for strategy in (Axn(budget=60, rounds=3), Axn(budget=60, rounds=3, shortlist=64), Rerank(60), Exact()):
        for one in world.run(strategy, allowed=allowed):
            assert allowed[np.concatenate(one.rows)].all()


def test_estimates_are_on_the_scale_of_scores():
    world = World.low_rank(dim=8)
    world.normalization = Normalization(alpha=0.0, beta=0.01)
    found = world.run(Axn(budget=40, rounds=2, mix=0.0, first="random", estimates=True))
    for one, line in zip(found, world.scores, strict=True):
        np.testing.assert_allclose(one.all_estimates, line, atol=1e-2)
        np.testing.assert_allclose(one.estimates[1], one.scores[1], atol=1e-2)
    assert world.run(Axn(budget=40, rounds=2))[0].all_estimates is None


def test_a_query_without_first_rows_uses_the_dual_encoder_or_ends():
    world = World.low_rank(queries=2)
    context = world.context()
    nothing = replace(context, propose=lambda name, n: ("given", [p.first(0) for p in context.propose(name, n)[1]]))

    assert [f.calls for f in world.run(Axn(budget=20, rounds=4, mix=0.0), context=nothing)] == [0, 0]
    assert [f.calls for f in world.run(Axn(budget=20, rounds=4, mix=0.5), context=nothing)] == [20, 20]


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 10_000), st.integers(0, 3), st.integers(0, 3))
def test_solution_equals_numpy_pinv(rows, dim, seed, copies, unused):
    """Under- and over-determined systems, with rows several times, dimensions of zeros, and of different sizes."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(rows, dim)).astype(np.float32)
    if copies:
        vectors = vectors[np.arange(rows) // (copies + 1)]
    vectors[:, :unused] *= 1e-8 * (unused == 3)
    targets = rng.normal(size=rows).astype(np.float32)
    counts = [rows, rows // 2, 0]
    found = solve_query_vectors(
        ExactSearch(vectors), [np.arange(count) for count in counts], [targets[:count] for count in counts]
    )
    for count, one in zip(counts, found, strict=True):
        wanted = np.linalg.pinv(vectors[:count].astype(np.float64), rcond=1e-6) @ targets[:count]
        np.testing.assert_allclose(one, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max(initial=0))


def repeat_items(vectors, *, unused):
    """Some items twice, and dimensions that no item uses."""
    vectors = vectors.copy()
    half = len(vectors) // 2
    vectors[:half:2] = vectors[1 : half + 1 : 2]
    vectors[:, :unused] = 0
    return vectors


@pytest.mark.parametrize("rows", [12, 30, 60])
@pytest.mark.parametrize("unused", [0, 2])
def test_items_that_are_there_twice_and_unused_dimensions(rows, unused):
    rng = np.random.default_rng(0)
    vectors = repeat_items(rng.normal(size=(rows, 24)).astype(np.float16), unused=unused)
    targets = rng.normal(size=rows)
    (found,) = solve_query_vectors(ExactSearch(vectors), [np.arange(rows)], [targets])
    np.testing.assert_allclose(found, np.linalg.pinv(vectors.astype(np.float64)) @ targets, atol=1e-5)


def test_too_many_rows_to_be_compared_are_solved_all_the_same(monkeypatch):
    monkeypatch.setattr("crossknn.strategies.least_squares.MAX_MERGED_EQUATIONS", 10)
    rng = np.random.default_rng(0)
    vectors = np.repeat(rng.normal(size=(8, 24)).astype(np.float32), 2, axis=0)
    targets = rng.normal(size=16)
    (found,) = solve_query_vectors(ExactSearch(vectors), [np.arange(16)], [targets])
    np.testing.assert_allclose(found, np.linalg.pinv(vectors.astype(np.float64)) @ targets, atol=1e-5)


def test_solution_of_zero_vectors_is_zero():
    (found,) = solve_query_vectors(ExactSearch(np.zeros((3, 4), np.float32)), [np.arange(3)], [np.ones(3)])
    assert found.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 100, "rounds": 200}, "`rounds` must be between 1 and `budget` (100), got 200"),
        ({"budget": 0}, "`budget` must be a positive integer, got 0"),
        ({"budget": 2.5}, "`budget` must be a positive integer, got 2.5"),
        ({"rounds": True}, "`rounds` must be a positive integer, got True"),
        ({"mix": 1.2}, "`mix` must be between 0 and 1, got 1.2"),
        ({"shortlist": 50}, "`shortlist` must be at least `budget` (100), got 50"),
    ],
)
def test_invalid_settings_are_rejected(settings, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Axn(**settings)


def test_the_repr_is_a_short_name():
    assert repr(Axn(budget=50, rounds=5, first="bm25")) == "Axn(budget=50, rounds=5, first='bm25')"
    assert repr(Rerank()) == "Rerank(budget=100)"
    assert repr(Exact()) == "Exact()"
