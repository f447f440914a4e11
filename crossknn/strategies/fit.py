"""Whether a model of scores orders them worse than a retriever does."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

ENOUGH: Final = 10  # scores, to tell anything
SURE: Final = 1 - 1e-6  # the largest correlation that is told from 1


def rank_correlation(one: Tensor, other: Tensor, known: Tensor) -> Tensor:
    """(lines,) between −1 and 1: how much the two have the same order; 0 where one of them is constant.

    Of each line, (lines, values), only what is `known` counts.
    """
    count = known.sum(1, keepdim=True).clamp(min=1)
    centered = []
    for values in (one, other):
        ranks = _ranks(values.double().masked_fill(~known, torch.inf))
        centered.append((ranks - (ranks * known).sum(1, keepdim=True) / count) * known)
    first, second = centered
    length = (first.square().sum(1) * second.square().sum(1)).sqrt()
    return torch.where(length > 0, (first * second).sum(1) / length.clamp(min=1), 0.0)


def order_worse(estimates: Tensor, others: Tensor, scores: Tensor, known: Tensor) -> Tensor:
    """(lines,) by how many standard errors `estimates` have less of the scores' order than `others` have."""
    count = known.sum(1)
    better, worse = (
        rank_correlation(values, scores, known).clamp(-SURE, SURE).arctanh() for values in (others, estimates)
    )
    errors = (better - worse) * ((count - 3).clamp(min=0) / 2).sqrt()
    return torch.where(count < ENOUGH, 0.0, errors)


def _ranks(values: Tensor) -> Tensor:
    """The rank of each value in its line, from 0; equal ones have the same, and none is left out."""
    ordered, order = values.sort(dim=1)
    steps = (ordered.diff(dim=1) > 0).double().cumsum(1)
    ranks = torch.nn.functional.pad(steps, (1, 0))
    return torch.empty_like(ranks).scatter_(1, order, ranks)
