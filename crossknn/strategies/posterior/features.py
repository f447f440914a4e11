"""Retriever features (score, rank) of each candidate, batched over queries, and the prior mean they give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from crossknn.strategies.posterior.prior import FEATURES_PER_SIGNAL, RANK_OFFSET, Prior
from crossknn.types import Proposal, Scores
from crossknn.vectors.device import pad_rows, to_device
from crossknn.vectors.topk import stable_topk

MIN_SPREAD: Final = 1e-6  # a feature with a smaller standard deviation is constant


class SignalTerms(NamedTuple):
    """The retrievers' part of the model for some rows of each query."""

    features: Tensor  # (queries, n, signal features + 1) scaled signal features and the constant 1
    mean: Tensor  # (queries, n) prior mean without the item bias
    gamma: Tensor  # (queries, n) γ


class RetrieverFeatures:
    """Signal features of the candidates, the rows that any retriever proposes for a query, and of all other rows.

    All other rows have the same features. They stand at the last position, behind the candidates. The number of items
    is the padding value of row tensors.

    Args:
        lists: Each retriever's proposals for all queries.
        near: For a weakly informative prior: the rows of each query whose features standardize all features.
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
        self.items = items
        self._merge_lists(lists, device)
        self._apply_prior(prior, *self._standardization(prior, near))
        self.bias = torch.zeros_like(self.terms.mean[:, :-1])  # (queries, candidates)
        if prior.fitted:
            self.bias = self._take(prior.bias).masked_fill_(self.padding, 0)

    def _merge_lists(self, lists: Sequence[Sequence[Proposal]], device: torch.device) -> None:
        padded = [to_device(pad_rows([proposal.rows for proposal in found], self.items), device) for found in lists]
        self.rows, list_positions = _unique_rows(padded, self.items)  # (queries, candidates) ascending
        self.padding = self.rows == self.items
        self._query_index = torch.arange(len(self.rows), device=device)[:, None]
        self.ranks: list[Tensor] = []  # per retriever (queries, candidates + 1); its list's length where it has none
        self._lengths: list[Tensor] = []
        features = []
        for positions, found in zip(list_positions, lists, strict=True):
            lengths = to_device(np.array([len(proposal) for proposal in found], np.int64), device)
            ranks = _ranks_at(positions, lengths, self.rows.shape[1])
            # The last estimate once more: that of rows that were not proposed.
            estimates = [np.append(proposal.estimates, proposal.estimates[-1:]) for proposal in found]
            features.append(_features_of(ranks, lengths, to_device(pad_rows(estimates, 0), device)))
            self.ranks.append(ranks)
            self._lengths.append(lengths)
        self.raw = torch.cat(features, 2)  # (queries, candidates + 1, signal features), as `prior.signal_features`

    def _apply_prior(self, prior: Prior, center: Tensor, spread: Tensor) -> None:
        weights, variances = (to_device(array, spread.device) for array in (prior.weights, prior.signal_variances))
        # mean = intercept + weights · (raw − center) / spread
        slopes, offset = weights / spread, prior.intercept - (center / spread) @ weights
        mean = (self.raw * slopes.float()).sum(2) + offset.float()
        features = (self.raw - center.float()) * (variances.sqrt() / spread).float()
        gamma = (1 + prior.gamma_slope * (mean - prior.gamma_start).clamp(min=0)).clamp(max=prior.gamma_max)
        # One tensor, so that `at` gathers once.
        self._packed = torch.cat([features, torch.stack([torch.ones_like(mean), mean, gamma], 2)], 2)
        self.terms = SignalTerms(self._packed[:, :, :-2], mean, gamma)

    def _take(self, values: Scores) -> Tensor:
        """(queries, candidates) the candidates' entries of an array over items; arbitrary where padded."""
        rows = self.rows.clamp(max=self.items - 1)
        if rows.device.type == "cpu":
            return torch.from_numpy(values[rows.numpy()])
        return torch.tensor(values, device=rows.device)[rows]  # faster than moving the rows to the host

    def positions(self, rows: Tensor) -> Tensor:
        """(queries, n) the position of each row among the candidates; the last position for all other rows."""
        candidates = self.rows.shape[1]
        if not candidates:
            return torch.zeros_like(rows)
        insertion = torch.searchsorted(self.rows, rows.contiguous())
        found = self.rows.gather(1, insertion.clamp(max=candidates - 1)) == rows
        return torch.where(found, insertion, candidates)

    def at(self, positions: Tensor) -> SignalTerms:
        """The model terms at these positions, (queries, n)."""
        packed = self._packed[self._query_index, positions]
        mean, gamma = packed[:, :, -2:].double().unbind(2)
        return SignalTerms(packed[:, :, :-2], mean, gamma)

    def reciprocal_rank_fusion(self, n: int, *, depth: int, constant: float) -> list[list[int]]:
        """For each query the `n` best rows by the sum of 1 / (constant + rank) over the first `depth` of every list."""
        shares = []
        for ranks, lengths in zip(self.ranks, self._lengths, strict=True):
            counts = (ranks < depth) & (ranks < lengths[:, None])
            shares.append(torch.where(counts, 1 / (constant + 1 + ranks.double()), 0.0))
        fused = torch.stack(shares, 2)[:, :-1].sort(2).values.sum(2)  # in order of size, so that equal ranks tie
        best, positions = stable_topk(fused.masked_fill(fused <= 0, -torch.inf), n)
        rows = self.rows.gather(1, positions).masked_fill_(torch.isinf(best), -1).cpu().numpy()
        return [row[row >= 0].tolist() for row in rows]

    def _standardization(self, prior: Prior, near: Sequence[Proposal]) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the features: the fitted prior's, or over each query's `near` rows.

        Where a query has no such rows, over all its positions.
        """
        if prior.fitted:
            center, spread = (to_device(array, self.rows.device) for array in (prior.center, prior.spread))
            return center, spread
        rows = to_device(pad_rows([proposal.rows for proposal in near], -1), self.rows.device)
        empty = (rows < 0).all(1, keepdim=True)
        used = torch.cat([rows >= 0, empty & ~self.padding, empty], 1)[:, :, None]
        sample = torch.cat([self.raw[self._query_index, self.positions(rows)], self.raw], 1).double()
        count = used.sum(1, keepdim=True)
        center = (sample * used).sum(1, keepdim=True) / count
        spread = (((sample - center) * used).square().sum(1, keepdim=True) / count).sqrt()
        return center, torch.where(spread < MIN_SPREAD, 1.0, spread)


def _unique_rows(lists: list[Tensor], items: int) -> tuple[Tensor, list[Tensor]]:
    """(queries, candidates) the union of the padded lists, ascending; and the position of each list's rows in it.

    Padding of a list has a position of its own, two behind the last candidate.
    """
    joined = torch.cat(lists, 1)
    ascending, order = joined.sort(dim=1)
    is_new = torch.ones_like(ascending, dtype=torch.bool)
    is_new[:, 1:] = ascending[:, 1:] != ascending[:, :-1]
    position = is_new.cumsum(1) - 1
    candidates = int((is_new & (ascending < items)).sum(1).max()) if ascending.shape[1] else 0
    position = torch.where(ascending < items, position, candidates + 1)
    rows = torch.full((len(joined), candidates + 2), items, device=joined.device).scatter_(1, position, ascending)
    positions = torch.empty_like(position).scatter_(1, order, position)
    return rows[:, :candidates].contiguous(), list(torch.split(positions, [found.shape[1] for found in lists], 1))


def _ranks_at(positions: Tensor, lengths: Tensor, candidates: int) -> Tensor:
    """(queries, candidates + 1) the ranks in a list whose rows are at `positions`; its length where it has none."""
    ranks = lengths[:, None].repeat(1, candidates + 2)
    ranks.scatter_(1, positions, torch.arange(positions.shape[1], device=positions.device).expand(positions.shape))
    return ranks[:, : candidates + 1]


def _features_of(ranks: Tensor, lengths: Tensor, estimates: Tensor) -> Tensor:
    """(queries, candidates + 1, 2) asinh(estimate) and −log(rank + offset), as `prior.signal_features`."""
    if not estimates.shape[1]:
        return torch.zeros((*ranks.shape, FEATURES_PER_SIGNAL), device=ranks.device)
    features = [estimates.gather(1, ranks).asinh(), -(ranks + RANK_OFFSET).log()]
    return torch.stack(features, 2) * (lengths > 0)[:, None, None]
