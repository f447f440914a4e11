"""Retrievers are asked once in a search, whoever wants their rows."""

import numpy as np

from crossknn.items.items import Items
from crossknn.retrievers.cache import CandidateCache
from crossknn.retrievers.fused import Fused
from crossknn.retrievers.simple import Random

ITEMS = Items([f"text {row}" for row in range(300)])
QUERIES = ["one", "two", "three"]


class Counting(Random):
    """Notes how many rows it was asked for."""

    def __init__(self, seed: int, name: str) -> None:
        super().__init__(seed)
        self.name = name
        self.asked: list[int] = []

    def retrieve(self, queries, n, *, allowed=None):
        self.asked.append(n)
        return super().retrieve(queries, n, allowed=allowed)


def make() -> tuple[dict[str, Counting], Fused, CandidateCache]:
    members = {name: Counting(seed, name).fit(ITEMS) for seed, name in enumerate("ab")}
    fused = Fused(list(members.values()), depth=20).fit(ITEMS)
    return members, fused, CandidateCache(QUERIES, {**members, "fused": fused, None: fused}.__getitem__, None)


def same(one, other) -> None:
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine.rows, theirs.rows)
        np.testing.assert_array_equal(mine.estimates, theirs.estimates)


def test_members_that_were_asked_for_more_are_not_asked_again():
    members, fused, proposed = make()
    proposed("a", 100)
    proposed("b", 100)
    name, found = proposed(None, 30)
    assert name == "fused"
    assert [member.asked for member in members.values()] == [[100], [100]]
    same(found, fused.retrieve(QUERIES, 30))


def test_members_that_were_asked_for_less_are_asked_for_more():
    members, fused, proposed = make()
    proposed("a", 5)
    same(proposed("fused", 150)[1], fused.retrieve(QUERIES, 150))
    assert members["a"].asked[:3] == [5, 20, 40]
    same(proposed("a", 10)[1], members["a"].retrieve(QUERIES, 10))


def test_only_those_that_were_named_have_ranks():
    _, _, proposed = make()
    (rows, *_) = (one.rows for one in proposed("fused", 10)[1])
    assert {name: ranks.tolist() for name, ranks in proposed.ranks(0, rows).items()} == {"fused": list(range(1, 11))}
    proposed("b", 10)
    assert set(proposed.ranks(0, rows)) == {"fused", "b"}


def test_one_that_is_derived_from_a_fusing_one_does_as_it_likes():
    class Own(Fused):
        def retrieve(self, queries, n, *, allowed=None):
            return [proposal.first(1) for proposal in super().retrieve(queries, n, allowed=allowed)]

    own = Own([Counting(0, "a")]).fit(ITEMS)
    assert [len(one) for one in CandidateCache(QUERIES, lambda _: own, None)(None, 10)[1]] == [1, 1, 1]
