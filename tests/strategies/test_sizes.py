"""A search costs no more than the items it can reach, however large its settings are."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from crossknn.strategies.axn import Axn
from crossknn.strategies.cur import AdaCur, AnnCur
from crossknn.strategies.feedback import Feedback
from crossknn.strategies.gar import Gar
from crossknn.strategies.gp import Gp
from crossknn.strategies.ore import Ore
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.quam import Quam
from crossknn.strategies.rbe import Rbe
from crossknn.strategies.rerank import Rerank
from crossknn.strategies.rgs import Rgs
from crossknn.strategies.tour import Tour
from tests.worlds import World

HUGE = 10**8
ITEMS, QUERIES = 60, 3
MOST = 4_000_000  # bytes, or elements of a tensor
STRATEGIES = [
    Posterior(HUGE),
    Posterior(HUGE, rounds=HUGE, estimates=True),
    Posterior(HUGE, stop_at=0.99),
    Rerank(HUGE),
    Axn(HUGE),
    Axn(HUGE, shortlist=HUGE, rounds=3),
    Tour(HUGE),
    Gar(HUGE, neighbors=HUGE),
    Quam(HUGE, top=HUGE, neighbors=HUGE),
    Rgs(HUGE, neighbors=HUGE, seeds=HUGE),
    Ore(HUGE, batch=HUGE, top=HUGE, neighbors=HUGE),
    Feedback(HUGE, seeds=HUGE),
    Gp(HUGE, pool=HUGE),
    Gp(HUGE, mean="query", beta=1.0),
    Rbe(HUGE, share=0.5),
    AdaCur(HUGE),
    AnnCur(HUGE),
    AnnCur(HUGE, anchors=HUGE),
]


class LargestTensor(TorchFunctionMode):
    """The number of elements of the largest tensor that torch returned."""

    elements = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.numel())
        return result


def test_posterior_search_of_everything_in_one_round_is_linear_in_the_items():
    world = World.low_rank(queries=1, items=3000)
    context = replace(world.context(), k=10)
    with LargestTensor() as tensors:
        (result,) = world.run(Posterior(HUGE), context=context)
    assert (result.calls, result.expected_recall) == (3000, 1.0)
    assert tensors.elements < 3000 * 100


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("filtered", [False, True])
def test_a_budget_far_beyond_the_items_costs_what_the_items_cost(strategy, filtered):
    world = World.low_rank(queries=QUERIES, items=ITEMS)
    allowed = np.arange(ITEMS) % 3 == 0 if filtered else None
    reachable = ITEMS // 3 if filtered else ITEMS
    asked = []

    def propose(name, n):
        asked.append(n)
        return plain.propose(name, n)

    plain = world.context(allowed=allowed)
    context = replace(plain, propose=propose, k=HUGE, signals=("dense", "random"))
    world.run(strategy, context=context)  # imports and caches
    tracemalloc.start()
    try:
        with LargestTensor() as tensors:
            results = world.run(strategy, context=context)
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()
    assert tensors.elements < MOST
    assert max(asked, default=0) <= reachable
    assert [result.calls for result in results] == [reachable] * QUERIES
