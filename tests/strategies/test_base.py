"""The driver: hard budgets, rounds checked before they cost a call, and results kept on early stops."""

from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.errors import StrategyError
from crossknn.strategies.axn import Axn
from crossknn.strategies.base import Round, RoundScores, drive
from crossknn.strategies.cur import AdaCur, AnnCur
from crossknn.strategies.exact import Exact
from crossknn.strategies.gar import Gar
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.strategies.tour import Tour
from crossknn.types import Proposal
from tests.worlds import World, all_rows


@dataclass(frozen=True)
class Scripted:
    """Proposes the given rows, round by round, for every query."""

    script: list[list[int]]
    budget: int | None = 5
    closed: list[bool] = field(default_factory=list)

    def flow(self, context):
        try:
            for rows in self.script:
                yield Round(
                    [Proposal(np.array(rows, np.int64), np.zeros(len(rows), np.float32))] * context.queries, "me"
                )
        except GeneratorExit:
            self.closed.append(True)
            raise
        return None


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ([[1, 2], [3, 4, 5, 6]], "budget of query 0"),
        ([[1, 2], [2]], "'me' proposed a row of query 0 twice"),
        ([[1, 1]], "'me' proposed a row of query 0 twice"),
        ([[-1]], "'me' proposed -1 to -1"),
        ([[200]], "'me' proposed 200 to 200"),
        ([[0]], "outside the filter"),
    ],
)
def test_a_round_that_breaks_the_protocol_is_rejected_before_it_costs_a_call(script, message):
    world = World.low_rank()
    allowed = np.arange(200) != 0
    with pytest.raises(StrategyError, match=message):
        world.run(Scripted(script), allowed=allowed)
    assert sum(sum(asked) for asked in world.asked) == 5 * sum(len(rows) for rows in script[:-1])


@pytest.mark.parametrize(
    ("strategy", "solves"),
    [
        (Axn(budget=20, rounds=4, first="dense"), 3),
        (Axn(budget=20, rounds=4, first="dense", estimates=True), 4),
        (AnnCur(budget=20), 1),
        (AdaCur(budget=20, rounds=4, first="dense"), 3),
        (Tour(budget=20, rounds=4, loss="mse"), 3),
        (Gar(budget=20, rounds=4, first="dense"), 0),
        (Rerank(budget=20, retriever="dense"), 0),
        (Exact(), 0),
    ],
    ids=repr,
)
def test_only_learning_from_scores_is_timed(strategy, solves, monkeypatch):
    """With a clock that advances one second per reading."""
    world, seconds = World.low_rank(), count()
    monkeypatch.setattr("crossknn.strategies.base.time.monotonic", lambda: float(next(seconds)))
    context = world.context()
    world.run(strategy, context=context)
    assert context.solving.seconds == solves


def test_the_wrong_number_of_proposals_is_rejected():
    class OneQuery(Scripted):
        def flow(self, context):
            yield Round([Proposal(np.array([0]), np.zeros(1, np.float32))], "me")
            return None

    with pytest.raises(StrategyError, match=r"must have 5 proposals, one per query, got 1"):
        World.low_rank().run(OneQuery([]))


def test_an_early_stop_keeps_what_was_scored_and_closes_the_strategy():
    world, strategy = World.low_rank(), Scripted([[1, 2], [3, 4], [5]])
    rounds = iter([2, 1])

    def answer(asks):
        keep = next(rounds)
        scores = [line[rows][:keep].astype(np.float32) for line, rows in zip(world.scores, asks, strict=True)]
        return RoundScores(scores, None if keep == 2 else "deadline")

    found = drive(strategy, world.context(), answer)
    assert [all_rows(one) for one in found] == [[1, 2, 3]] * 5
    assert {one.stopped for one in found} == {"deadline"}
    assert strategy.closed == [True]


@given(st.data())
def test_no_setting_breaks_the_budget_the_filter_or_asks_twice(data):
    """And none leaves a call unused while an allowed item is left."""
    items = data.draw(st.integers(1, 60), "items")
    budget = data.draw(st.integers(1, 80), "budget")
    rounds = data.draw(st.integers(1, budget), "rounds")
    shortlist = data.draw(st.none() | st.integers(budget, 100), "shortlist")
    mix = data.draw(st.sampled_from([0.0, 0.4, 1.0]), "mix")
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=items, max_size=items), "allowed"))
    world = World.low_rank(queries=3, items=items, dim=4)
    world.vectors[: items // 2] = world.vectors[0]  # duplicates
    world.normalization = data.draw(st.sampled_from([None, Normalization()]), "normalization")
    first = data.draw(st.sampled_from(["dense", "random"]), "first")
    for strategy in (Axn(budget, rounds, mix, first, shortlist), Rerank(budget, first)):
        for one in world.run(strategy, allowed=allowed):
            rows = np.concatenate([np.empty(0, np.int64), *one.rows])
            assert len(rows) == len(set(rows.tolist())) == min(budget, allowed.sum())
            assert allowed[rows].all()


def test_one_answer_per_round_for_all_queries():
    world = World.low_rank(queries=5)
    world.run(Axn(budget=30, rounds=3))
    assert world.asked == [[10] * 5] * 3
    world.run(Rerank(budget=30))
    assert world.asked == [[30] * 5]


def test_no_queries_cost_nothing():
    assert World.low_rank().run(Axn(), only=slice(0, 0)) == []


def test_a_query_that_is_an_item_does_not_find_itself():
    world, own = World.low_rank(queries=4, items=30), np.array([3, 0, 29, 7])
    found = world.run(Posterior(budget=29, rounds=4), context=_without_own(world, own))
    assert [sorted(all_rows(one)) for one in found] == [[row for row in range(30) if row != mine] for mine in own]
    with pytest.raises(StrategyError, match="itself"):
        world.run(Rerank(budget=30), context=replace(world.context(), own_rows=own))


def _without_own(world, own):
    context = world.context()

    def propose(name, n):
        name, proposals = context.propose(name, n + 1)
        return name, [one.without(row).first(n) for one, row in zip(proposals, own.tolist(), strict=True)]

    return replace(context, propose=propose, own_rows=own)
