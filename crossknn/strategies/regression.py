"""The linear regression of Algorithm 1: the query vectors that explain the scores so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossknn.apart import move, on_tensors
from crossknn.lines import fill, which_are_there
from crossknn.types import Rows, Vectors, VectorSearch

TOGETHER: Final = {"cpu": 1 << 20, "cuda": 1 << 26}  # numbers of item vectors that are held at once: what a cache holds
TINY: Final = 1e-30


def solve_query_vectors(items: VectorSearch, rows: Sequence[Rows], targets: Sequence[NDArray[Any]]) -> Vectors:
    """(queries, dim) for each query the vector that explains the targets of its rows; zeros where there are none."""
    solved, tensors = [np.empty((0, items.dim), np.float32)], on_tensors(items)
    most = max((len(mine) for mine in rows), default=0)
    size = max(1, TOGETHER.get(tensors.device.type, TOGETHER["cpu"]) // max(1, most * items.dim))
    for start in range(0, len(rows), size):
        mine, goals = rows[start : start + size], targets[start : start + size]
        places, known, goal = (
            move(array, tensors.device) for array in (fill(mine, 0), which_are_there(goals), fill(goals, 0))
        )
        vectors = tensors.take_tensor(places)
        solved.append(solve(vectors, goal, known).float().cpu().numpy())
    return np.concatenate(solved)


def solve(vectors: Tensor, goals: Tensor, known: Tensor) -> Tensor:
    """(queries, dim) for each query the u of least norm among those that minimise |vectors · u − goals|.

    `vectors` are (queries, most, dim); only what is `known` counts. This is `pinv(vectors) @ goals`, solved through the
    smaller of the two Gram matrices in float64. Directions whose singular value is below about 1e-7 of the largest
    (duplicates, up to float32 noise) count as absent.
    """
    there = known.double()
    wide, goal = vectors * there[:, :, None], goals * there
    if not wide.shape[1]:
        return wide.sum(1)
    if wide.shape[1] > wide.shape[2]:  # u = (Vᵀ V)⁺ Vᵀ a
        return _solve_symmetric(torch.bmm(wide.mT, wide), torch.bmm(wide.mT, goal[:, :, None])[:, :, 0])
    gram = torch.bmm(wide, wide.mT)  # fewer equations than unknowns: u = Vᵀ (V Vᵀ)⁺ a
    squares = gram.diagonal(dim1=1, dim2=2)
    largest = squares.amax(1, keepdim=True).clamp(min=TINY)
    squares.addcmul_(1 - there, largest)  # for the equations that a query does not have
    return torch.bmm(wide.mT, _solve_symmetric(gram, goal)[:, :, None])[:, :, 0]


def _solve_symmetric(grams: Tensor, goals: Tensor) -> Tensor:
    """`pinv(gram) @ goal` for positive semi-definite matrices."""
    factors, failed = torch.linalg.cholesky_ex(grams)
    pivots = factors.diagonal(dim1=1, dim2=2)
    safe = (failed == 0) & ((pivots.amin(1) / pivots.amax(1)) ** 2 > 1e-10)  # float64 still leaves five digits
    solutions = torch.cholesky_solve(goals[:, :, None], factors)[:, :, 0]
    for line in np.flatnonzero(~safe.cpu().numpy()):
        solutions[line] = _solve_singular(grams[line], goals[line])
    return solutions


def _solve_singular(gram: Tensor, goal: Tensor) -> Tensor:
    """The same, ten times slower."""
    values, directions = torch.linalg.eigh(gram)
    keep = values > values[-1].clamp(min=0) * len(gram) * torch.finfo(gram.dtype).eps * 10
    kept = directions[:, keep]
    solution: Tensor = kept @ ((kept.T @ goal) / values[keep])
    return solution
