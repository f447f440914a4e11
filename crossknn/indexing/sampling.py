"""Which pairs of train queries and items a build pays for: the non-zero places of the paper's matrix G."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive, check_seed
from crossknn.errors import InputError
from crossknn.indexing.score_matrix import Numbers, Pairs
from crossknn.types import Proposal, VectorSearch

BLOCK = 8_192  # items looked at together
Propose = Callable[[str, int], Sequence[Proposal]]
"""`propose(retriever, n)`: the n best rows for every train query."""


@dataclass(frozen=True)
class PerQuery:
    """`items` items for each train query (k_d of the paper, strategy Q).

    retriever  whose best are taken, such as "dense"; None where all are drawn at random
    at_random  the share that is drawn at random even so
    """

    items: int = 100
    retriever: str | None = None
    at_random: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive("items", self.items)
        _check_share("at_random", self.at_random)
        check_seed(self.seed)


@dataclass(frozen=True)
class PerItem:
    """`queries` train queries for each item (k_d of the paper, strategy I): no item stays unscored.

    nearest  the share that are the item's nearest by the encoder's vectors; the others are drawn at random
    """

    queries: int = 8
    nearest: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive("queries", self.queries)
        _check_share("nearest", self.nearest)
        check_seed(self.seed)


Sampling = PerQuery | PerItem


def sample_per_query(plan: PerQuery, *, n_queries: int, n_items: int, propose: Propose | None = None) -> Pairs:
    """At most `plan.items` different items for every query; fewer only where there are fewer items.

    Where the retriever has less to say than it is asked for, items drawn at random take the places.
    """
    wanted = min(plan.items, n_items)
    best: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * n_queries
    if plan.retriever is not None:
        if propose is None:
            raise InputError(f"items of the retriever {plan.retriever!r} need `propose`, which asks it.")
        from_best = wanted - round(plan.at_random * wanted)
        best = [proposal.rows[:from_best] for proposal in propose(plan.retriever, from_best)] if from_best else best
        if len(best) != n_queries:
            raise InputError(f"propose must answer for {n_queries} queries. Got {len(best)} answers instead.")
    rng = np.random.default_rng(plan.seed)
    rows = [np.concatenate([mine, _others(mine, wanted - len(mine), n_items, rng)]) for mine in best]
    queries = np.repeat(np.arange(n_queries, dtype=np.int32), [len(mine) for mine in rows])
    together = np.concatenate(rows) if rows else np.empty(0, np.int64)
    return _in_order(queries, together.astype(np.int32), n_queries, n_items)


def sample_per_item(
    plan: PerItem,
    *,
    n_queries: int,
    n_items: int,
    queries: VectorSearch | None = None,
    item_vectors: NDArray[np.generic] | None = None,
) -> Pairs:
    """`plan.queries` different queries for every item; fewer only where there are fewer queries.

    For the nearest, `queries` searches the train queries' vectors and `item_vectors` (items, dim) are looked up.
    """
    wanted = min(plan.queries, n_queries)
    near = round(plan.nearest * wanted)
    if near and (queries is None or item_vectors is None):
        raise InputError("the nearest queries of items need the vectors of both.")
    rng = np.random.default_rng(plan.seed)
    blocks = []
    for start in range(0, n_items, BLOCK):
        size = min(BLOCK, n_items - start)
        chosen = np.empty((size, 0), np.int32)
        if near and queries is not None and item_vectors is not None:
            found = queries.search(np.asarray(item_vectors[start : start + size], np.float32), near)
            chosen = np.stack([proposal.rows for proposal in found]).astype(np.int32)
        blocks.append(_fill(chosen, wanted, n_queries, rng))
    numbers = np.concatenate(blocks) if blocks else np.empty((0, wanted), np.int32)
    rows = np.repeat(np.arange(n_items, dtype=np.int32), numbers.shape[1])
    return _in_order(numbers.ravel(), rows, n_queries, n_items)


def merge(*samples: Pairs) -> Pairs:
    """All pairs of several samples, each once."""
    if not samples:
        raise InputError("there must be at least one sample to merge.")
    sizes = {(pairs.n_queries, pairs.n_items) for pairs in samples}
    if len(sizes) != 1:
        raise InputError(f"samples must be of the same queries and items. Got {sorted(sizes)} instead.")
    ((n_queries, n_items),) = sizes
    keys = np.unique(np.concatenate([pairs.keys() for pairs in samples]))
    return Pairs((keys // n_items).astype(np.int32), (keys % n_items).astype(np.int32), n_queries, n_items)


def _in_order(queries: Numbers, rows: Numbers, n_queries: int, n_items: int) -> Pairs:
    """Sorted by query, then by row: what is scored together shares its queries."""
    order = np.lexsort((rows, queries))
    return Pairs(queries[order], rows[order], n_queries, n_items)


def _others(taken: NDArray[np.int64], count: int, below: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`count` different numbers below `below` that are not taken."""
    if not count:
        return np.empty(0, np.int64)
    if 2 * (count + len(taken)) >= below:
        left = np.setdiff1d(np.arange(below), taken)
        return rng.permutation(left)[:count]
    found = np.empty(0, np.int64)
    while len(found) < count:
        drawn = rng.integers(below, size=2 * count)
        found = np.concatenate([found, drawn[~np.isin(drawn, taken)]])
        found = found[np.sort(np.unique(found, return_index=True)[1])]  # different ones, in the order drawn
    return found[:count]


def _fill(chosen: Numbers, width: int, below: int, rng: np.random.Generator) -> Numbers:
    """Every line made `width` wide with numbers below `below` that it does not have yet, drawn at random."""
    lines, given = chosen.shape
    if given == width:
        return chosen
    if 2 * width >= below:
        order = rng.random((lines, below)).argsort(axis=1).astype(np.int32)
        free = ~(order[:, :, None] == chosen[:, None, :]).any(axis=2)
        places = np.cumsum(free, axis=1)
        return np.concatenate([chosen, order[free & (places <= width - given)].reshape(lines, -1)], axis=1)
    filled = np.concatenate([chosen, rng.integers(below, size=(lines, width - given), dtype=np.int32)], axis=1)
    again = np.arange(lines)
    while len(again := again[_has_double(filled[again])]):
        filled[again, given:] = rng.integers(below, size=(len(again), width - given), dtype=np.int32)
    return filled


def _has_double(lines: Numbers) -> NDArray[np.bool_]:
    ordered = np.sort(lines, axis=1)
    return np.asarray((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))


def _check_share(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{name} must be between 0 and 1. Got {value!r} instead.")
