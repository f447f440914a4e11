"""Whether a model explains scores worse than retrievers alone do, or orders them worse.

Both come down to a few sums for each query, which are taken where the scores are; the rest is done on a CPU, which has
so little to do faster than a GPU is asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

ENOUGH: Final = 10  # scores, to tell anything
SURE: Final = 1 - 1e-6  # the largest correlation that is told from 1
TINY: Final = 1e-12  # the least mean square of residuals
GOALS: Final = 3  # 1, a and m, each over γ


class Evidence:
    """What the scores of each query say about the model: sums over all of them, in views of one tensor.

    A score a, of which m was expected with the deviation γ, has the residual r, a sum of the goals 1, a and m over γ.

    moments   (queries, numbers, numbers) products of any two of these numbers: a row's `narrow` features, which are
              what retrievers say and the constant; the goals; 1, a and m
    solved    (queries, 3, 3) products of the goals, after they are multiplied with L⁻¹ (`Beliefs`)
    residual  (queries, 3) what goals are multiplied with, to give r
    squares   (queries, 1) of all features
    volume    (queries, 1) the logarithm of |K|
    """

    def __init__(self, numbers: Tensor, narrow: int, noise: float) -> None:
        side = narrow + 2 * GOALS
        parts = torch.split(numbers, self._sizes(narrow), 1)
        self.moments, self.solved = parts[0].view(-1, side, side), parts[1].view(-1, GOALS, GOALS)
        self.residual, self.squares, self.volume = parts[2:]
        self.count, self.score, self.mean = torch.split(self.moments[:, -3, -3:], 1, 1)  # (queries, 1)
        self._numbers, self._narrow, self._noise = numbers, narrow, noise

    @classmethod
    def none(cls, queries: int, *, narrow: int, noise: float, device: torch.device) -> Evidence:
        """Before the first score, and with r = (a − m) / γ."""
        numbers = torch.zeros((queries, sum(cls._sizes(narrow))), dtype=torch.float64, device=device)
        found = cls(numbers, narrow, noise)
        found.residual[:, 1], found.residual[:, 2] = 1, -1
        return found

    @staticmethod
    def _sizes(narrow: int) -> list[int]:
        return [(narrow + 2 * GOALS) ** 2, GOALS**2, GOALS, 1, 1]

    def cpu(self) -> Evidence:
        """The same on a CPU, moved at once."""
        return Evidence(self._numbers.cpu(), self._narrow, self._noise)

    def advantage(self) -> Tensor:
        """(queries,) how much better scores fit than with retrievers alone: the logarithm of the ratio of likelihoods.

        Each of the two models is taken on the scale that suits it best.
        """
        told, across = self.moments[:, : self._narrow, : self._narrow], self.moments[:, : self._narrow, -6:-3]
        residual, count = self.residual[:, :, None], self.count.clamp(min=1)
        rest = self._noise + (self.squares - told.diagonal(dim1=1, dim2=2).sum(1, keepdim=True)) / count
        whole, plain = ((residual.mT @ sums @ residual)[:, 0] for sums in (self.solved, self.moments[:, -6:-3, -6:-3]))
        plain, volume = _solve_narrow(told, across @ residual, rest, plain, self.count)
        whole, plain = ((square / count).clamp(min=TINY).log() for square in (whole, plain))
        ratio: Tensor = 0.5 * (self.count * (plain - whole) + volume - self.volume)
        return ratio[:, 0]

    def agrees(self) -> Tensor:
        """(queries,) whether scores rise with what was expected before any was seen."""
        return (self.count * self.moments[:, -2, -1:] > self.score * self.mean)[:, 0]


def _solve_narrow(inner: Tensor, along: Tensor, noise: Tensor, square: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """goalᵀ K⁻¹ goal and the logarithm of |K|, of K = F Fᵀ + noise with few columns in F; (queries, 1).

    `inner` is Fᵀ F, `along` Fᵀ goal and `square` goalᵀ goal.
    """
    factor = torch.linalg.cholesky(inner + torch.diag_embed(noise.expand(inner.shape[:2])))
    solved = torch.linalg.solve_triangular(factor, along, upper=False)
    left = (square - solved.square().sum(1)) / noise
    return left, log_volume(factor) + (count - inner.shape[1]) * noise.log()


def log_volume(factors: Tensor) -> Tensor:
    """(queries, 1) the logarithm of |L Lᵀ|."""
    return 2 * factors.diagonal(dim1=1, dim2=2).log().sum(1, keepdim=True)


def rank_correlations(several: Sequence[Tensor], other: Tensor, known: Tensor) -> Tensor:
    """(several, lines) between −1 and 1: how much each has the other's order; 0 where one of them is constant.

    Of each line, (lines, values), only what is `known` counts.
    """
    return _correlate(_multiply_ranks([*several, other], known))


def order_worse(estimates: Tensor, others: Tensor, scores: Tensor, known: Tensor) -> Tensor:
    """(lines,) by how many standard errors `estimates` have less of the scores' order than `others` have."""
    sums = _multiply_ranks([others, estimates, scores], known)
    better, worse = _correlate(sums).clamp(-SURE, SURE).arctanh()
    count = sums[:, -1, -1]
    errors: Tensor = (better - worse) * ((count - 3).clamp(min=0) / 2).sqrt()
    return errors.masked_fill_(count < ENOUGH, 0)


def _multiply_ranks(several: Sequence[Tensor], known: Tensor) -> Tensor:
    """(lines, several + 1, several + 1) sums of the products of any two ranks; the last rank is 1 for all."""
    values = torch.stack([*several], 1).masked_fill_(~known[:, None], torch.inf)
    ranks = torch.cat([_ranks(values) * known[:, None], known[:, None]], 1).double()
    return torch.bmm(ranks, ranks.mT).cpu()


def _correlate(sums: Tensor) -> Tensor:
    """Of each with the last."""
    total, count = sums[:, :-1, -1:], sums[:, -1:, -1:].clamp(min=1)
    shared = sums[:, :-1, :-1] - total * total.mT / count  # of whole numbers, so that no digit is lost
    squares = shared.diagonal(dim1=1, dim2=2)
    return (shared[:, :-1, -1] / (squares[:, :-1] * squares[:, -1:]).sqrt().clamp(min=1)).T


def _ranks(values: Tensor) -> Tensor:
    """The rank of each value in its line (last), from 0; equal ones have the same, and none is left out."""
    ordered, order = values.sort(dim=-1)
    steps = (ordered[..., 1:] > ordered[..., :-1]).cumsum(-1)
    return torch.zeros_like(order).scatter_(-1, order[..., 1:], steps)
