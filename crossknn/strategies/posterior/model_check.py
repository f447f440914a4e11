"""Whether a model explains scores worse than retrievers alone do, or orders them worse.

Both come down to a few sums for each query, which are taken where the scores are; the rest is done with arrays, which
is faster for so few numbers than to ask a GPU, or torch, for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.float64]

ENOUGH: Final = 10  # scores, to tell anything
SURE: Final = 1 - 1e-6  # the largest correlation that is told from 1
TINY: Final = 1e-12  # the least mean square of residuals
GOALS: Final = 3  # 1, a and m, each over γ


class ModelEvidence:
    """What the scores of each query say about the model: sums over all of them, in views of one tensor, or array.

    A score a, of which m was expected with the deviation γ, has the residual r, a sum of the goals 1, a and m over γ.

    moments   (queries, numbers, numbers) products of any two of these numbers: a row's `narrow` features, which are
              what retrievers say and the constant; the goals; 1, a and m
    solved    (queries, 3, 3) products of the goals, after they are multiplied with L⁻¹ (`Beliefs`)
    residual  (queries, 3) what goals are multiplied with, to give r
    squares   (queries, 1) of all features
    volume    (queries, 1) the logarithm of |K|
    """

    def __init__(self, numbers: Any, narrow: int, noise: float) -> None:
        side = narrow + 2 * GOALS
        ends = np.cumsum([0, *self._sizes(narrow)]).tolist()
        parts = [numbers[:, start:end] for start, end in pairwise(ends)]
        self.moments, self.solved = parts[0].reshape(-1, side, side), parts[1].reshape(-1, GOALS, GOALS)
        self.residual, self.squares, self.volume = parts[2:]
        last = self.moments[:, -3]
        self.count, self.score, self.mean = last[:, -3:-2], last[:, -2:-1], last[:, -1:]  # (queries, 1)
        self._numbers, self._narrow, self._noise = numbers, narrow, noise

    @classmethod
    def none(cls, queries: int, *, narrow: int, noise: float, device: torch.device) -> ModelEvidence:
        """Before the first score, and with r = (a − m) / γ; tensors."""
        numbers = torch.zeros((queries, sum(cls._sizes(narrow))), dtype=torch.float64, device=device)
        found = cls(numbers, narrow, noise)
        found.residual[:, 1], found.residual[:, 2] = 1, -1
        return found

    @staticmethod
    def _sizes(narrow: int) -> list[int]:
        return [(narrow + 2 * GOALS) ** 2, GOALS**2, GOALS, 1, 1]

    def on_arrays(self) -> ModelEvidence:
        """The same as arrays, moved at once."""
        return ModelEvidence(self._numbers.cpu().numpy(), self._narrow, self._noise)

    def advantage(self) -> Numbers:
        """(queries,) how much better scores fit than with retrievers alone: the logarithm of the ratio of likelihoods.

        Each of the two models is taken on the scale that suits it best. On arrays, as `agrees`.
        """
        told, across = self.moments[:, : self._narrow, : self._narrow], self.moments[:, : self._narrow, -6:-3]
        residual, count = self.residual[:, :, None], np.maximum(self.count, 1)
        rest = self._noise + (self.squares - np.trace(told, axis1=1, axis2=2)[:, None]) / count
        goals = self.moments[:, -6:-3, -6:-3]
        whole, plain = ((residual.transpose(0, 2, 1) @ sums @ residual)[:, 0] for sums in (self.solved, goals))
        plain, volume = _solve_narrow(told, across @ residual, rest, plain, self.count)
        whole, plain = (np.log(np.maximum(square / count, TINY)) for square in (whole, plain))
        ratio: Numbers = 0.5 * (self.count * (plain - whole) + volume - self.volume)
        return ratio[:, 0]

    def agrees(self) -> NDArray[np.bool_]:
        """(queries,) whether scores rise with what was expected before any was seen."""
        rise: NDArray[np.bool_] = self.count * self.moments[:, -2, -1:] > self.score * self.mean
        return rise[:, 0]


def _solve_narrow(
    inner: Numbers, along: Numbers, noise: Numbers, square: Numbers, count: Numbers
) -> tuple[Numbers, Numbers]:
    """goalᵀ K⁻¹ goal and the logarithm of |K|, of K = F Fᵀ + noise with few columns in F; (queries, 1).

    `inner` is Fᵀ F, `along` Fᵀ goal and `square` goalᵀ goal.
    """
    width = inner.shape[1]
    factor = np.linalg.cholesky(inner + noise[:, :, None] * np.eye(width))
    solved = np.linalg.solve(factor, along)
    left = (square - np.square(solved).sum(1)) / noise
    volume = 2 * np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(1, keepdims=True)
    return left, volume + (count - width) * np.log(noise)


def rank_correlations(several: Sequence[Tensor], other: Tensor, known: Tensor) -> Numbers:
    """(several, lines) between −1 and 1: how much each has the other's order; 0 where one of them is constant.

    Of each line, (lines, values), only what is `known` counts.
    """
    return _correlate(_multiply_ranks([*several, other], known))


def order_worse(estimates: Tensor, others: Tensor, scores: Tensor, known: Tensor) -> Numbers:
    """(lines,) by how many standard errors `estimates` have less of the scores' order than `others` have."""
    sums = _multiply_ranks([others, estimates, scores], known)
    better, worse = np.arctanh(np.clip(_correlate(sums), -SURE, SURE))
    count = sums[:, -1, -1]
    errors: Numbers = (better - worse) * np.sqrt(np.maximum(count - 3, 0) / 2)
    return np.where(count < ENOUGH, 0, errors)


def _multiply_ranks(several: Sequence[Tensor], known: Tensor) -> Numbers:
    """(lines, several + 1, several + 1) sums of the products of any two ranks; the last rank is 1 for all."""
    values = torch.stack([*several], 1).masked_fill_(~known[:, None], torch.inf)
    ranks = torch.cat([_ranks(values) * known[:, None], known[:, None]], 1).double()
    return np.asarray(torch.bmm(ranks, ranks.mT).cpu().numpy())


def _correlate(sums: Numbers) -> Numbers:
    """Of each with the last."""
    total, count = sums[:, :-1, -1:], np.maximum(sums[:, -1:, -1:], 1)
    shared = sums[:, :-1, :-1] - total * total.transpose(0, 2, 1) / count  # of whole numbers, so that no digit is lost
    squares = np.diagonal(shared, axis1=1, axis2=2)
    sizes = np.maximum(np.sqrt(squares[:, :-1] * squares[:, -1:]), 1)
    correlations: Numbers = shared[:, :-1, -1] / sizes
    return correlations.T


def _ranks(values: Tensor) -> Tensor:
    """The rank of each value in its line (last), from 0; equal ones have the same, and none is left out."""
    ordered, order = values.sort(dim=-1)
    steps = (ordered[..., 1:] > ordered[..., :-1]).cumsum(-1)
    return torch.zeros_like(order).scatter_(-1, order[..., 1:], steps)
