"""Sampling of a build: pseudo-queries cut from the items, and the pairs to score (the nonzero pattern of G)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive, check_range, check_seed
from crossknn.errors import InputError
from crossknn.indexing.score_matrix import Numbers, Pairs
from crossknn.items.items import Items
from crossknn.types import Proposal, VectorSearch

ITEM_BATCH = 8_192  # items whose nearest queries are searched together
SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+|\n+")
OPENING_WORDS, SPAN_WORDS = (3, 8), (4, 12)  # shortest and longest
MAX_SENTENCE_WORDS = 24
ITEMS_PER_QUERY = 4  # items tried for each query before giving up on finding more

Propose = Callable[[str, int], Sequence[Proposal]]
"""`propose(retriever, n)`: the top n rows of every train query."""


def cut_queries(items: Items, n: int, *, seed: int = 0) -> list[str]:
    """At most `n` distinct queries: in turn the opening, the first sentence and a span of a random item."""
    check_positive("n", n)
    rng = np.random.default_rng(seed)
    found: dict[str, None] = {}
    for number, text in enumerate(_draw_texts(items, n, rng)):
        query = _cut(text, number % 3, rng)
        if query:
            found[query] = None
        if len(found) == n:
            break
    if not found:
        raise InputError("No queries could be cut from the items because their texts are empty. Pass `queries`.")
    return list(found)


def _draw_texts(items: Items, n: int, rng: np.random.Generator) -> list[str]:
    """Texts of random items; items repeat only if there are too few."""
    count = ITEMS_PER_QUERY * n
    passes = min(-(-count // len(items)), 3 * ITEMS_PER_QUERY)
    rows = np.concatenate([rng.permutation(len(items))[:count] for _ in range(passes)])
    return items.texts_of(rows[:count])


def _cut(text: str, kind: int, rng: np.random.Generator) -> str:
    """The opening (0), first sentence (1) or a span (2) of the text, with whitespace collapsed."""
    if kind == 1:
        text = SENTENCE_END.split(text.strip(), maxsplit=1)[0]
        return " ".join(text.split()[:MAX_SENTENCE_WORDS])
    words = text.split()
    shortest, longest = OPENING_WORDS if kind == 0 else SPAN_WORDS
    length = min(int(rng.integers(shortest, longest + 1)), len(words))
    start = 0 if kind == 0 else int(rng.integers(len(words) - length + 1))
    return " ".join(words[start : start + length])


@dataclass(frozen=True)
class PerQuery:
    """`items` items for each train query (k_d of the paper, strategy Q).

    Args:
        retriever: Whose top items are taken, such as "dense"; None draws all items at random.
        at_random: The share of items drawn at random instead of from the retriever.
    """

    items: int = 100
    retriever: str | None = None
    at_random: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive("items", self.items)
        check_range("at_random", self.at_random, 0, 1)
        check_seed(self.seed)


@dataclass(frozen=True)
class PerItem:
    """`queries` train queries for each item (k_d of the paper, strategy I), so that every item is scored.

    Args:
        nearest: The share that are the item's nearest queries by encoder vectors; the rest are drawn at random.
    """

    queries: int = 8
    nearest: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive("queries", self.queries)
        check_range("nearest", self.nearest, 0, 1)
        check_seed(self.seed)


Sampling = PerQuery | PerItem


def prior_sampling(calls_per_item: int, *, n_queries: int, n_items: int, seed: int = 0) -> list[Sampling]:
    """About `calls_per_item` calls to fit a prior: one for top items of the fused retriever, the rest at random."""
    top = PerQuery(items=max(1, n_items // n_queries), retriever="fused", seed=seed)
    at_random: list[Sampling] = [PerItem(queries=calls_per_item - 1, seed=seed)] if calls_per_item > 1 else []
    return [*at_random, top]


def sample_per_query(plan: PerQuery, *, n_queries: int, n_items: int, propose: Propose | None = None) -> Pairs:
    """At most `plan.items` distinct items for every query; fewer only if there are fewer items.

    Random items make up for a retriever that proposes too few.
    """
    per_query = min(plan.items, n_items)
    proposed: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * n_queries
    if plan.retriever is not None:
        if propose is None:
            raise InputError(f"`propose` is required to sample from the retriever {plan.retriever!r}.")
        if top := per_query - round(plan.at_random * per_query):
            proposed = [proposal.rows[:top] for proposal in propose(plan.retriever, top)]
        if len(proposed) != n_queries:
            raise InputError(f"`propose` must return {n_queries} proposals, one per query, got {len(proposed)}.")
    rng = np.random.default_rng(plan.seed)
    rows = [np.concatenate([top, _draw_others(top, per_query - len(top), n_items, rng)]) for top in proposed]
    queries = np.repeat(np.arange(n_queries, dtype=np.int32), [len(own) for own in rows])
    all_rows = np.concatenate(rows) if rows else np.empty(0, np.int64)
    return _sort_pairs(queries, all_rows.astype(np.int32), n_queries, n_items)


def sample_per_item(
    plan: PerItem,
    *,
    n_queries: int,
    n_items: int,
    queries: VectorSearch | None = None,
    item_vectors: NDArray[np.generic] | None = None,
) -> Pairs:
    """`plan.queries` distinct queries for every item; fewer only if there are fewer queries.

    The nearest ones are found by a search over the `queries`' vectors with `item_vectors` (items, dim).
    """
    per_item = min(plan.queries, n_queries)
    nearest = round(plan.nearest * per_item)
    if nearest and (queries is None or item_vectors is None):
        raise InputError("`nearest` requires the vectors of the queries and the items.")
    rng = np.random.default_rng(plan.seed)
    batches = [np.empty((0, per_item), np.int32)]
    for start in range(0, n_items, ITEM_BATCH):
        size = min(ITEM_BATCH, n_items - start)
        chosen = np.empty((size, 0), np.int32)
        if nearest and queries is not None and item_vectors is not None:
            found = queries.search(np.asarray(item_vectors[start : start + size], np.float32), nearest)
            chosen = np.stack([proposal.rows for proposal in found]).astype(np.int32)
        batches.append(_pad_randomly(chosen, per_item, n_queries, rng))
    numbers = np.concatenate(batches)
    rows = np.repeat(np.arange(n_items, dtype=np.int32), per_item)
    return _sort_pairs(numbers.ravel(), rows, n_queries, n_items)


def merge(*samples: Pairs) -> Pairs:
    """The union of several samples, without duplicates."""
    if not samples:
        raise InputError("`samples` must hold at least one sample.")
    sizes = {(pairs.n_queries, pairs.n_items) for pairs in samples}
    if len(sizes) != 1:
        raise InputError(f"`samples` must be of the same queries and items, got the sizes {sorted(sizes)}.")
    ((n_queries, n_items),) = sizes
    keys = np.unique(np.concatenate([pairs.keys() for pairs in samples]))
    return Pairs((keys // n_items).astype(np.int32), (keys % n_items).astype(np.int32), n_queries, n_items)


def _sort_pairs(queries: Numbers, rows: Numbers, n_queries: int, n_items: int) -> Pairs:
    """Sorted by query, then row, so that pairs scored together share queries."""
    order = np.lexsort((rows, queries))
    return Pairs(queries[order], rows[order], n_queries, n_items)


def _draw_others(taken: NDArray[np.int64], count: int, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`count` distinct integers below `size`, none of them taken."""
    if not count:
        return np.empty(0, np.int64)
    if 2 * (count + len(taken)) >= size:
        return rng.permutation(np.setdiff1d(np.arange(size), taken))[:count]
    found = np.empty(0, np.int64)
    while len(found) < count:
        drawn = rng.integers(size, size=2 * count)
        found = np.concatenate([found, drawn[~np.isin(drawn, taken)]])
        found = found[np.sort(np.unique(found, return_index=True)[1])]  # distinct, in the order drawn
    return found[:count]


def _pad_randomly(chosen: Numbers, width: int, size: int, rng: np.random.Generator) -> Numbers:
    """(rows, width): every row of `chosen` padded with random integers below `size`, distinct within the row."""
    rows, given = chosen.shape
    if given == width:
        return chosen
    if 2 * width >= size:
        order = rng.random((rows, size)).argsort(axis=1).astype(np.int32)
        free = ~(order[:, :, None] == chosen[:, None, :]).any(axis=2)
        rank = np.cumsum(free, axis=1)
        return np.concatenate([chosen, order[free & (rank <= width - given)].reshape(rows, -1)], axis=1)
    padded = np.concatenate([chosen, rng.integers(size, size=(rows, width - given), dtype=np.int32)], axis=1)
    redraw = np.arange(rows)
    while len(redraw := redraw[_has_duplicates(padded[redraw])]):
        padded[redraw, given:] = rng.integers(size, size=(len(redraw), width - given), dtype=np.int32)
    return padded


def _has_duplicates(rows: Numbers) -> NDArray[np.bool_]:
    ordered = np.sort(rows, axis=1)
    return np.asarray((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
