"""Each retriever runs once in a search, also as a member of a fused one."""

import threading

import numpy as np
import pytest

from crossknn.items.items import Items
from crossknn.retrievers.bm25 import Bm25
from crossknn.retrievers.cache import CandidateCache
from crossknn.retrievers.fused import Fused
from crossknn.retrievers.simple import Random

ITEMS = Items([f"text {row}" for row in range(300)])
QUERIES = ["one", "two", "three"]


class Counting(Random):
    """Records the number of rows of every call."""

    def __init__(self, seed: int, name: str) -> None:
        super().__init__(seed)
        self.name = name
        self.requested: list[int] = []

    def retrieve(self, queries, n, *, allowed=None):
        self.requested.append(n)
        return super().retrieve(queries, n, allowed=allowed)


def make() -> tuple[dict[str, Counting], Fused, CandidateCache]:
    members = {name: Counting(seed, name).fit(ITEMS) for seed, name in enumerate("ab")}
    fused = Fused(list(members.values()), depth=20).fit(ITEMS)
    return members, fused, CandidateCache(QUERIES, {**members, "fused": fused, None: fused}.__getitem__, None)


def same(one, other) -> None:
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine.rows, theirs.rows)
        np.testing.assert_array_equal(mine.estimates, theirs.estimates)


def test_members_with_longer_lists_do_not_run_again():
    members, fused, cache = make()
    cache("a", 100)
    cache("b", 100)
    name, found = cache(None, 30)
    assert name == "fused"
    assert [member.requested for member in members.values()] == [[100], [100]]
    same(found, fused.retrieve(QUERIES, 30))


def test_members_with_shorter_lists_run_again():
    members, fused, cache = make()
    cache("a", 5)
    same(cache("fused", 150)[1], fused.retrieve(QUERIES, 150))
    assert members["a"].requested[:3] == [5, 20, 40]
    same(cache("a", 10)[1], members["a"].retrieve(QUERIES, 10))


def test_only_retrievers_called_by_name_have_ranks():
    _, _, cache = make()
    (rows, *_) = (one.rows for one in cache("fused", 10)[1])
    assert {name: ranks.tolist() for name, ranks in cache.ranks(0, rows).items()} == {"fused": list(range(1, 11))}
    cache("b", 10)
    assert set(cache.ranks(0, rows)) == {"fused", "b"}


def test_a_subclass_of_fused_may_override_retrieve():
    class Own(Fused):
        def retrieve(self, queries, n, *, allowed=None):
            return [proposal.first(1) for proposal in super().retrieve(queries, n, allowed=allowed)]

    own = Own([Counting(0, "a")]).fit(ITEMS)
    assert [len(one) for one in CandidateCache(QUERIES, lambda _: own, None)(None, 10)[1]] == [1, 1, 1]


class Watched(Random):
    """Notes the thread that it works in, and fails on request."""

    threads: tuple[str, ...] = ()
    fails = False

    def retrieve(self, queries, n, *, allowed=None):
        self.threads += (threading.current_thread().name,)
        if self.fails:
            raise RuntimeError("no vectors today")
        return super().retrieve(queries, n, allowed=allowed)


@pytest.mark.parametrize("by", ["names", "fused"])
def test_bm25_works_beside_the_others_with_the_same_result(by):
    other, lexical = Watched(0).fit(ITEMS), Bm25().fit(ITEMS)
    fused = Fused([other, lexical], depth=20).fit(ITEMS)
    retrievers = {"random": other, "bm25": lexical, "fused": fused}
    queries = ["text 1 2", "text 3"]
    cache = CandidateCache(queries, retrievers.__getitem__, None, side_by_side=True)
    if by == "names":
        cache.retrieve_ahead(["random", "bm25"], 20)
    same(cache("fused", 30)[1], fused.retrieve(queries, 30))
    same(cache("bm25", 15)[1], lexical.retrieve(queries, 15))
    assert set(other.threads) == {threading.current_thread().name}  # a user's own may not like any other


def test_an_error_of_one_retriever_is_raised_as_it_is():
    other, lexical = Watched(0).fit(ITEMS), Bm25().fit(ITEMS)
    other.fails = True
    cache = CandidateCache(["text"], {"random": other, "bm25": lexical}.__getitem__, None, side_by_side=True)
    with pytest.raises(RuntimeError, match="no vectors today"):
        cache.retrieve_ahead(["random", "bm25"], 20)
