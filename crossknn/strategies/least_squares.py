"""Batched minimum-norm least squares: the linear regression of Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossknn.types import Rows, Vectors, VectorSearch
from crossknn.vectors.device import as_device_search, pad_rows, to_device, valid_mask

BATCH_ELEMENTS: Final = {"cpu": 1 << 20, "cuda": 1 << 26}  # elements of vectors or Gram matrices in one batch
MAX_MERGED_EQUATIONS: Final = 4_096  # equations per query that are compared pairwise to merge duplicates
MIN_DIAGONAL: Final = 1e-30
RELATIVE_TOLERANCE: Final = 1e-12  # squared norms and distances below this fraction count as zero
MIN_PIVOT_RATIO: Final = 1e-10  # of a Cholesky factor, squared: float64 still leaves five digits


def solve_query_vectors(items: VectorSearch, rows: Sequence[Rows], targets: Sequence[NDArray[Any]]) -> Vectors:
    """(queries, dim) the vector of each query that best explains the targets of its rows; zeros where it has none."""
    search = as_device_search(items)
    solutions = [np.empty((0, items.dim), np.float32)]
    max_rows = max((len(query_rows) for query_rows in rows), default=0)
    size = max(1, _batch_elements(search.device) // max(1, max_rows * items.dim))
    for start in range(0, len(rows), size):
        batch_rows, batch_targets = rows[start : start + size], targets[start : start + size]
        arrays = (pad_rows(batch_rows, 0), valid_mask(batch_targets), pad_rows(batch_targets, 0))
        padded, valid, target = (to_device(array, search.device) for array in arrays)
        solutions.append(solve(search.take_tensor(padded), target, valid).float().cpu().numpy())
    return np.concatenate(solutions)


def _batch_elements(device: torch.device) -> int:
    return BATCH_ELEMENTS.get(device.type, BATCH_ELEMENTS["cpu"])


def solve(vectors: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
    """(queries, dim) the u of least norm among those that minimize |V u − a|.

    This is `pinv(V) @ a`, solved through the smaller of the two Gram matrices in float64. Directions whose singular
    value is below about 1e-7 of the largest (duplicates, up to float32 noise) are dropped. V are the `vectors`,
    (queries, equations, dim), and a the `targets`, (queries, equations), of which only the valid ones count.
    """
    mask = valid.double()
    solutions, stable = _solve_regular(vectors * mask[:, :, None], targets * mask)
    unstable = np.flatnonzero(~stable.cpu().numpy())
    if len(unstable):  # for instance because of duplicate items
        size = max(1, _batch_elements(vectors.device) // vectors.shape[1] ** 2)
        for batch in torch.split(to_device(unstable, vectors.device), size):
            solutions[batch] = _solve_unstable(vectors[batch] * mask[batch, :, None], targets[batch].double())
    return solutions


def _solve_regular(vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The solutions of all queries, and which of them are numerically stable; zero equations are ignored."""
    if not vectors.shape[1]:
        return vectors.sum(1), torch.ones(len(vectors), dtype=torch.bool, device=vectors.device)
    if vectors.shape[1] > vectors.shape[2]:  # u = (Vᵀ V)⁺ Vᵀ a
        projected = torch.bmm(vectors.mT, targets[:, :, None])[:, :, 0]
        return _solve_symmetric(torch.bmm(vectors.mT, vectors), projected)
    solutions, stable = _solve_symmetric(torch.bmm(vectors, vectors.mT), targets)  # u = Vᵀ (V Vᵀ)⁺ a
    return torch.bmm(vectors.mT, solutions[:, :, None])[:, :, 0], stable


def _solve_symmetric(grams: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """`inv(gram) @ target` by Cholesky, and which of the matrices are safely positive definite.

    Zero rows (padding equations, and dimensions that an encoder does not use) get a unit block of their own.
    """
    squares = grams.diagonal(dim1=1, dim2=2)
    largest = squares.amax(1, keepdim=True).clamp(min=MIN_DIAGONAL)
    zero = squares <= RELATIVE_TOLERANCE * largest
    grams = grams.masked_fill(zero[:, :, None] | zero[:, None], 0)
    grams.diagonal(dim1=1, dim2=2).addcmul_(zero.double(), largest)
    factors, failed = torch.linalg.cholesky_ex(grams)
    pivots = factors.diagonal(dim1=1, dim2=2)
    stable = (failed == 0) & ((pivots.amin(1) / pivots.amax(1)) ** 2 > MIN_PIVOT_RATIO)
    return torch.cholesky_solve(targets.masked_fill(zero, 0)[:, :, None], factors)[:, :, 0], stable


def _solve_unstable(vectors: Tensor, targets: Tensor) -> Tensor:
    """The solutions where equations may be repeated or zero."""
    if vectors.shape[1] <= MAX_MERGED_EQUATIONS:
        vectors, targets = merge_duplicates(vectors, targets)
    nonzero = vectors.any(2)
    order = nonzero.sort(dim=1, descending=True, stable=True).indices  # nonzero equations first
    solutions = torch.empty_like(vectors[:, 0])
    counts = nonzero.sum(1)
    for group in (counts <= vectors.shape[2], counts > vectors.shape[2]):  # each has its own smaller Gram matrix
        queries = torch.nonzero(group)[:, 0]
        if len(queries):
            chosen = order[queries, : int(counts[queries].max())]
            kept, target = vectors[queries[:, None], chosen], targets[queries].gather(1, chosen)
            found, stable = _solve_regular(kept, target)
            for query in np.flatnonzero(~stable.cpu().numpy()):
                found[query] = _solve_singular(kept[query], target[query])
            solutions[queries] = found
    return solutions


def merge_duplicates(vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The same equations with equal rows merged into the first, which leaves the least-squares solution unchanged.

    n equal rows v with targets a become √n v with target √n mean(a); the others become zero.
    """
    gram = torch.bmm(vectors, vectors.mT)
    squares = gram.diagonal(dim1=1, dim2=2)
    sums = squares[:, :, None] + squares[:, None]
    equal = (sums - 2 * gram <= RELATIVE_TOLERANCE * sums) & (squares > 0)[:, :, None] & (squares > 0)[:, None]
    first = equal.to(torch.uint8).argmax(2)  # the first row equal to each; arbitrary for zero rows
    counts = torch.zeros_like(squares).scatter_add_(1, first, (squares > 0).double())
    totals = torch.zeros_like(squares).scatter_add_(1, first, targets * (squares > 0))
    weights = counts.sqrt()
    return vectors * weights[:, :, None], totals / weights.clamp(min=1)


def _solve_singular(vectors: Tensor, targets: Tensor) -> Tensor:
    """The solution of one query by eigendecomposition; ten times slower than Cholesky."""
    overdetermined = len(vectors) > vectors.shape[1]
    gram = vectors.T @ vectors if overdetermined else vectors @ vectors.T
    values, directions = torch.linalg.eigh(gram)
    keep = values > values[-1].clamp(min=0) * len(gram) * torch.finfo(gram.dtype).eps * 10
    kept = directions[:, keep]
    solution: Tensor = kept @ ((kept.T @ (vectors.T @ targets if overdetermined else targets)) / values[keep])
    return solution if overdetermined else vectors.T @ solution
