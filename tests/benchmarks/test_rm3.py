"""RM3: words of well-scored items join the query, by hand and in searches that keep to the budget."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.rm3 import Expansion, Rm3, WithRows, WithSignal
from crossknn.items.items import Items
from crossknn.strategies.base import Observations
from tests.worlds import World, all_rows

TEXTS = [
    "frozen river ice",
    "glacier ice sheet",
    "glacier melting water",
    "city traffic lights",
    "traffic jam downtown",
    "river boat",
]


def test_words_of_the_best_scored_item_join_the_query():
    expansion = Expansion(Items(TEXTS))
    seen = Observations(np.array([1, 3]), np.array([9.0, -9.0], np.float32))
    ranked = expansion.rank("ice", seen, 6).rows.tolist()
    assert set(ranked[:2]) == {0, 1}
    assert ranked[2] == 2  # shares "glacier" with the item that was scored high
    away = Observations(np.array([1, 3]), np.array([-9.0, 9.0], np.float32))
    assert {3, 4} & set(expansion.rank("ice", away, 6).rows.tolist()[:4])


@pytest.mark.parametrize("kind", [Rm3, WithRows, WithSignal])
def test_searches_spend_the_budget(kind):
    world = World.low_rank(queries=3, items=60, dim=5, seed=0)
    rng = np.random.default_rng(0)
    words = np.array(["ice", "river", "city", "boat", "glacier", "traffic", "water", "lights"])
    expansion = Expansion(Items([" ".join(rng.choice(words, 4)) + f" nr{place}" for place in range(60)]))
    settings = {"expansion": expansion, "texts": ("ice river", "city boat", "glacier")}
    context = world.context()
    fused = replace(context, propose=lambda name, n: context.propose("dense" if name == "fused" else name, n))
    for one in world.run(kind(20, 4, **settings), context=fused):
        assert len(set(all_rows(one))) == 20
