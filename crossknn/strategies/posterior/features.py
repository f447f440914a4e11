"""What retrievers say about all queries of a search, side by side, and what is expected from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from crossknn.strategies.posterior.prior import PER_SIGNAL, SOFT, Prior
from crossknn.types import Proposal, Scores
from crossknn.vectors.device import to_device
from crossknn.vectors.padding import pad_rows
from crossknn.vectors.topk import stable_topk

SAME: Final = 1e-6  # columns that deviate less are constant


class RetrieverFeatures:
    """Of the rows that retrievers propose for each query, and of all others, which count alike.

    items      how many there are
    rows       (queries, most) lowest first; lines are filled up with the number of items
    filled     (queries, most) where they are
    lines      (queries, 1) the number of each query
    ranks      by retriever (queries, most + 1) the place that it gives, its list's length where it gives none
    columns    (queries, most + 1, signals × 2) what they say of each, and last of all others (`prior.columns_at`)
    base       (queries, most + 1) m but for the biases
    deviation  (queries, most + 1) γ
    shown      (queries, most + 1, columns) features
    told       (queries, most + 1, columns + 3) those, 1, the base and the deviation, side by side
    bias       (queries, most)
    """

    def __init__(
        self,
        lists: Sequence[Sequence[Proposal]],
        prior: Prior,
        *,
        items: int,
        device: torch.device,
        near: Sequence[Proposal] = (),
    ) -> None:
        """`lists` are each retriever's proposals for all queries; `near`, of a first one's, are for a general prior."""
        self.items = items
        self._listen(lists, device)
        self._judge(prior, *self._scale(prior, near))
        self.bias = torch.zeros_like(self.base[:, :-1])
        if prior.fitted:
            self.bias = self._take(prior.bias).masked_fill_(self.filled, 0)

    def _listen(self, lists: Sequence[Sequence[Proposal]], device: torch.device) -> None:
        proposed = [to_device(pad_rows([one.rows for one in mine], self.items), device) for mine in lists]
        self.rows, places = _merge(proposed, self.items)
        self.filled = self.rows == self.items
        self.lines = torch.arange(len(self.rows), device=device)[:, None]
        self.ranks, self._lengths, said = [], [], []
        for where, mine in zip(places, lists, strict=True):
            lengths = to_device(np.array([len(one) for one in mine], np.int64), device)
            with_last = [np.append(one.estimates, one.estimates[-1:]) for one in mine]
            self._lengths.append(lengths)
            self.ranks.append(_rank(where, lengths, self.rows.shape[1]))
            said.append(_say(self.ranks[-1], lengths, to_device(pad_rows(with_last, 0), device)))
        self.columns = torch.cat(said, 2)

    def _judge(self, prior: Prior, center: Tensor, spread: Tensor) -> None:
        weights, variances = (to_device(array, spread.device) for array in (prior.weights, prior.variances))
        slopes, level = weights / spread, prior.intercept - (center / spread) @ weights
        self.base = (self.columns * slopes.float()).sum(2) + level.float()
        self.shown = (self.columns - center.float()) * (variances[1:-2].sqrt() / spread).float()
        self.deviation = (1 + prior.rise * (self.base - prior.low).clamp(min=0)).clamp(max=prior.most)
        plain = [torch.ones_like(self.base), self.base, self.deviation]
        self.told = torch.cat([self.shown, torch.stack(plain, 2)], 2)

    def _take(self, values: Scores) -> Tensor:
        """(queries, most) what the rows have of these values, one for every item; any where lines are filled up."""
        rows = self.rows.clamp(max=self.items - 1)
        if rows.device.type == "cpu":
            return torch.from_numpy(values[rows.numpy()])
        return torch.tensor(values, device=rows.device)[rows]  # faster than to bring all rows here

    def places(self, rows: Tensor) -> Tensor:
        """(queries, some) where these rows of each query are; last where they are among the others."""
        most = self.rows.shape[1]
        if not most:
            return torch.zeros_like(rows)
        spots = torch.searchsorted(self.rows, rows.contiguous())
        found = self.rows.gather(1, spots.clamp(max=most - 1)) == rows
        return torch.where(found, spots, most)

    def best_together(self, n: int, *, near: int, constant: float) -> list[list[int]]:
        """For each query the `n` best of the first `near` rows of every list, by reciprocal rank (`ranking.fuse`)."""
        shares = []
        for ranks, lengths in zip(self.ranks, self._lengths, strict=True):
            counts = (ranks < near) & (ranks < lengths[:, None])
            shares.append(torch.where(counts, 1 / (constant + 1 + ranks.double()), 0.0))
        together = torch.stack(shares, 2)[:, :-1].sort(2).values.sum(2)  # in order of size, so that equal ranks tie
        best, places = stable_topk(together.masked_fill(together <= 0, -torch.inf), n)
        rows = self.rows.gather(1, places).masked_fill_(torch.isinf(best), -1).cpu().numpy()
        return [line[line >= 0].tolist() for line in rows]

    def _scale(self, prior: Prior, near: Sequence[Proposal]) -> tuple[Tensor, Tensor]:
        """What columns are brought to mean 0 and deviation 1 by: the prior's, or those of each query's `near` rows.

        Where a query has none, those of all that was proposed, and of the others.
        """
        if prior.fitted:
            center, spread = (to_device(array, self.rows.device) for array in (prior.center, prior.spread))
            return center, spread
        rows = to_device(pad_rows([one.rows for one in near], -1), self.rows.device)
        none = (rows < 0).all(1, keepdim=True)
        known = torch.cat([rows >= 0, none & ~self.filled, none], 1)[:, :, None]
        some = torch.cat([self.columns[self.lines, self.places(rows)], self.columns], 1).double()
        count = known.sum(1, keepdim=True)
        center = (some * known).sum(1, keepdim=True) / count
        spread = (((some - center) * known).square().sum(1, keepdim=True) / count).sqrt()
        return center, torch.where(spread < SAME, 1.0, spread)


def _merge(proposed: list[Tensor], items: int) -> tuple[Tensor, list[Tensor]]:
    """(queries, most) all rows of these lists, each once, lowest first; and where in them the rows of each list are.

    What fills a list up is at a place of its own, behind that of all others.
    """
    together = torch.cat(proposed, 1)
    ordered, order = together.sort(dim=1)
    is_new = torch.ones_like(ordered, dtype=torch.bool)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    place = is_new.cumsum(1) - 1
    most = int((is_new & (ordered < items)).sum(1).max()) if ordered.shape[1] else 0
    place = torch.where(ordered < items, place, most + 1)
    rows = torch.full((len(together), most + 2), items, device=together.device).scatter_(1, place, ordered)
    places = torch.empty_like(place).scatter_(1, order, place)
    return rows[:, :most].contiguous(), list(torch.split(places, [one.shape[1] for one in proposed], 1))


def _rank(places: Tensor, lengths: Tensor, most: int) -> Tensor:
    """(queries, most + 1) the ranks of rows in a list whose own are at these places; its length where it has none."""
    ranks = lengths[:, None].repeat(1, most + 2)
    ranks.scatter_(1, places, torch.arange(places.shape[1], device=places.device).expand(places.shape))
    return ranks[:, : most + 1]


def _say(ranks: Tensor, lengths: Tensor, estimates: Tensor) -> Tensor:
    """(queries, most + 1, 2) what a retriever says of the rows of these ranks: as `prior.columns_at`."""
    if not estimates.shape[1]:
        return torch.zeros((*ranks.shape, PER_SIGNAL), device=ranks.device)
    both = [estimates.gather(1, ranks).asinh(), -(ranks + SOFT).log()]
    return torch.stack(both, 2) * (lengths > 0)[:, None, None]
