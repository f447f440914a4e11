"""The linear regression of Algorithm 1: the query vectors that explain the scores so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossknn.types import Rows, Vectors, VectorSearch
from crossknn.vectors.device import as_device_search, to_device
from crossknn.vectors.padding import pad_rows, valid_mask

TOGETHER: Final = {"cpu": 1 << 20, "cuda": 1 << 26}  # numbers of vectors or products held at once: what a cache holds
MERGED: Final = 4_096  # equations at most that are compared with each other
TINY: Final = 1e-30
SAME: Final = 1e-12  # numbers that differ by less than this part of them are equal


def solve_query_vectors(items: VectorSearch, rows: Sequence[Rows], targets: Sequence[NDArray[Any]]) -> Vectors:
    """(queries, dim) for each query the vector that explains the targets of its rows; zeros where there are none."""
    solved, tensors = [np.empty((0, items.dim), np.float32)], as_device_search(items)
    most = max((len(mine) for mine in rows), default=0)
    size = max(1, _together(tensors.device) // max(1, most * items.dim))
    for start in range(0, len(rows), size):
        mine, goals = rows[start : start + size], targets[start : start + size]
        places, known, goal = (
            to_device(array, tensors.device) for array in (pad_rows(mine, 0), valid_mask(goals), pad_rows(goals, 0))
        )
        vectors = tensors.take_tensor(places)
        solved.append(solve(vectors, goal, known).float().cpu().numpy())
    return np.concatenate(solved)


def _together(device: torch.device) -> int:
    return TOGETHER.get(device.type, TOGETHER["cpu"])


def solve(vectors: Tensor, goals: Tensor, known: Tensor) -> Tensor:
    """(queries, dim) for each query the u of least norm among those that minimise |vectors · u − goals|.

    `vectors` are (queries, most, dim); only what is `known` counts. This is `pinv(vectors) @ goals`, solved through the
    smaller of the two Gram matrices in float64. Directions whose singular value is below about 1e-7 of the largest
    (duplicates, up to float32 noise) count as absent.
    """
    there = known.double()
    solutions, safe = _solve_regular(vectors * there[:, :, None], goals * there)
    unsafe = np.flatnonzero(~safe.cpu().numpy())
    if len(unsafe):  # as where an item is there twice
        size = max(1, _together(vectors.device) // vectors.shape[1] ** 2)
        for lines in torch.split(to_device(unsafe, vectors.device), size):
            solutions[lines] = _solve_unsafe(vectors[lines] * there[lines, :, None], goals[lines].double())
    return solutions


def _solve_regular(wide: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
    """The solutions of all queries, and which of them can be relied on; equations that are all 0 are not there."""
    if not wide.shape[1]:
        return wide.sum(1), torch.ones(len(wide), dtype=torch.bool, device=wide.device)
    if wide.shape[1] > wide.shape[2]:  # u = (Vᵀ V)⁺ Vᵀ a
        return _solve_symmetric(torch.bmm(wide.mT, wide), torch.bmm(wide.mT, goal[:, :, None])[:, :, 0])
    solutions, safe = _solve_symmetric(torch.bmm(wide, wide.mT), goal)  # fewer equations than unknowns:
    return torch.bmm(wide.mT, solutions[:, :, None])[:, :, 0], safe  # u = Vᵀ (V Vᵀ)⁺ a


def _solve_symmetric(grams: Tensor, goals: Tensor) -> tuple[Tensor, Tensor]:
    """`inv(gram) @ goal` for positive definite matrices, and which of them are that, safely.

    Numbers whose square is next to nothing are not there: equations that a query does not have, and dimensions that an
    encoder does not use.
    """
    squares = grams.diagonal(dim1=1, dim2=2)
    largest = squares.amax(1, keepdim=True).clamp(min=TINY)
    absent = squares <= SAME * largest
    grams = grams.masked_fill(absent[:, :, None] | absent[:, None], 0)
    grams.diagonal(dim1=1, dim2=2).addcmul_(absent.double(), largest)
    factors, failed = torch.linalg.cholesky_ex(grams)
    pivots = factors.diagonal(dim1=1, dim2=2)
    safe = (failed == 0) & ((pivots.amin(1) / pivots.amax(1)) ** 2 > 1e-10)  # float64 still leaves five digits
    return torch.cholesky_solve(goals.masked_fill(absent, 0)[:, :, None], factors)[:, :, 0], safe


def _solve_unsafe(wide: Tensor, goals: Tensor) -> Tensor:
    """The solutions where equations may be there several times, and some, maybe many, are all 0."""
    if wide.shape[1] <= MERGED:
        wide, goals = merge_duplicates(wide, goals)
    there = wide.any(2)
    order = there.sort(dim=1, descending=True, stable=True).indices  # those that are there first
    solutions = torch.empty_like(wide[:, 0])
    counts = there.sum(1)
    for lines in (counts <= wide.shape[2], counts > wide.shape[2]):  # to be solved through the smaller Gram matrix each
        some = torch.nonzero(lines)[:, 0]
        if len(some):
            chosen = order[some, : int(counts[some].max())]
            rows, goal = wide[some[:, None], chosen], goals[some].gather(1, chosen)
            found, safe = _solve_regular(rows, goal)
            for line in np.flatnonzero(~safe.cpu().numpy()):
                found[line] = _solve_singular(rows[line], goal[line])
            solutions[some] = found
    return solutions


def merge_duplicates(wide: Tensor, goals: Tensor) -> tuple[Tensor, Tensor]:
    """The same equations (queries, most, dim) with equal rows as one: that, times the root of how many it stands for.

    Its goal is their mean, times the same. The solution of least squares stays what it is.
    """
    gram = torch.bmm(wide, wide.mT)
    squares = gram.diagonal(dim1=1, dim2=2)
    both = squares[:, :, None] + squares[:, None]
    same = (both - 2 * gram <= SAME * both) & (squares > 0)[:, :, None] & (squares > 0)[:, None]
    first = same.to(torch.uint8).argmax(2)  # the first that a row is equal to; of a row of zeros any
    counts = torch.zeros_like(squares).scatter_add_(1, first, (squares > 0).double())
    sums = torch.zeros_like(squares).scatter_add_(1, first, goals * (squares > 0))
    weights = counts.sqrt()
    return wide * weights[:, :, None], sums / weights.clamp(min=1)


def _solve_singular(rows: Tensor, goal: Tensor) -> Tensor:
    """The same for one query, ten times slower."""
    wide = len(rows) > rows.shape[1]
    gram = rows.T @ rows if wide else rows @ rows.T
    values, directions = torch.linalg.eigh(gram)
    keep = values > values[-1].clamp(min=0) * len(gram) * torch.finfo(gram.dtype).eps * 10
    kept = directions[:, keep]
    solution: Tensor = kept @ ((kept.T @ (rows.T @ goal if wide else goal)) / values[keep])
    return solution if wide else rows.T @ solution
