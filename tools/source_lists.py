"""What each train query of `train_source` is shown: relevant items, and items that are not."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from tools.source_set import Query

AT_RANDOM = 4  # negatives of a list that are drawn from the whole pool
QUERIES_AT_ONCE = 256  # whose products with all items are in memory


class Relevance:
    """Which items are relevant to which query. Items of one text are one item."""

    def __init__(self, queries: Sequence[Query], items: Sequence[str], *, device: str) -> None:
        numbers = {text: number for number, text in enumerate(dict.fromkeys(items))}
        self._text = torch.tensor([numbers[text] for text in items], device=device)  # (items,) the number of its text
        self._texts = len(numbers)
        q = [number for number, query in enumerate(queries) for _ in query.rows]
        rows = [row for query in queries for row in query.rows]
        keys = self._key(torch.tensor(q, device=device), torch.tensor(rows, device=device))
        self._known = keys.unique()  # rising

    def holds(self, q: Tensor, i: Tensor) -> Tensor:
        """True where an item is relevant to a query, for numbers of any shapes that go together."""
        keys = self._key(q, i)
        places = torch.searchsorted(self._known, keys).clamp(max=len(self._known) - 1)
        return self._known[places] == keys

    def most(self) -> int:
        """How many items are relevant to the query that has most of them."""
        copies = self._text.bincount()[self._known % self._texts]
        return int((self._known // self._texts).bincount(copies).max())

    def _key(self, q: Tensor, i: Tensor) -> Tensor:
        return q * self._texts + self._text[i]


def nearest(queries: Tensor, items: Tensor, count: int, *, without: Relevance | None = None) -> Tensor:
    """(queries, count) the items of largest inner product, best first; on request none that are relevant."""
    rows = torch.arange(len(items), device=items.device)
    found = []
    for q in torch.arange(len(queries), device=items.device).split(QUERIES_AT_ONCE):
        products = queries[q] @ items.T
        if without is not None:
            products.masked_fill_(without.holds(q[:, None], rows), -torch.inf)
        found.append(products.topk(count).indices)
    return torch.cat(found)


def draw_positives(queries: Sequence[Query], rng: random.Random, *, device: str) -> Tensor:
    """(queries,) one relevant item of each."""
    return torch.tensor([rng.choice(query.rows) for query in queries], device=device)


def draw_negatives(near: Tensor, size: int, items: int, relevance: Relevance) -> Tensor:
    """(queries, size) items that are not relevant: some of those that lie near the query, and some at random."""
    hard = min(size - AT_RANDOM, near.shape[1])
    places = torch.rand(near.shape).argsort(1)[:, :hard].to(near.device)
    others = torch.randint(items, (len(near), size - hard)).to(near.device)
    q = torch.arange(len(near), device=near.device)[:, None]
    others = torch.where(relevance.holds(q, others), near[:, :1], others)
    return torch.cat([near.gather(1, places), others], 1)
