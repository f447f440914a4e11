"""Training lists of `train_source`: positives, hard negatives and random negatives of each query."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from tools.source_set import Query

RANDOM_NEGATIVES = 4  # negatives per list that are drawn from the whole pool
QUERY_BATCH = 256  # queries whose inner products with all items are computed at once


class Relevance:
    """Lookup of which items are relevant to which query. Items with the same text count as one."""

    def __init__(self, queries: Sequence[Query], items: Sequence[str], *, device: str) -> None:
        numbers = {text: number for number, text in enumerate(dict.fromkeys(items))}
        self._text = torch.tensor([numbers[text] for text in items], device=device)  # (items,) the number of its text
        self._texts = len(numbers)
        q = [number for number, query in enumerate(queries) for _ in query.rows]
        rows = [row for query in queries for row in query.rows]
        keys = self._key(torch.tensor(q, device=device), torch.tensor(rows, device=device))
        self._known = keys.unique()  # sorted

    def holds(self, q: Tensor, i: Tensor) -> Tensor:
        """True where an item is relevant to a query; the two index tensors are broadcast."""
        keys = self._key(q, i)
        places = torch.searchsorted(self._known, keys).clamp(max=len(self._known) - 1)
        return self._known[places] == keys

    def max_relevant(self) -> int:
        """The largest number of relevant items of any query."""
        copies = self._text.bincount()[self._known % self._texts]
        return int((self._known // self._texts).bincount(copies).max())

    def _key(self, q: Tensor, i: Tensor) -> Tensor:
        return q * self._texts + self._text[i]


def nearest(queries: Tensor, items: Tensor, count: int, *, exclude: Relevance | None = None) -> Tensor:
    """(queries, count) the items of largest inner product, best first, without those that `exclude` holds."""
    rows = torch.arange(len(items), device=items.device)
    found = []
    for q in torch.arange(len(queries), device=items.device).split(QUERY_BATCH):
        products = queries[q] @ items.T
        if exclude is not None:
            products.masked_fill_(exclude.holds(q[:, None], rows), -torch.inf)
        found.append(products.topk(count).indices)
    return torch.cat(found)


def draw_positives(queries: Sequence[Query], rng: random.Random, *, device: str) -> Tensor:
    """(queries,) one random relevant item of each."""
    return torch.tensor([rng.choice(query.rows) for query in queries], device=device)


def draw_negatives(near: Tensor, size: int, items: int, relevance: Relevance) -> Tensor:
    """(queries, size) irrelevant items: hard negatives from those near the query, and random ones."""
    hard = min(size - RANDOM_NEGATIVES, near.shape[1])
    places = torch.rand(near.shape).argsort(1)[:, :hard].to(near.device)
    others = torch.randint(items, (len(near), size - hard)).to(near.device)
    q = torch.arange(len(near), device=near.device)[:, None]
    others = torch.where(relevance.holds(q, others), near[:, :1], others)
    return torch.cat([near.gather(1, places), others], 1)
