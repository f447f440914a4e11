"""The linear regression of Algorithm 1: the query vector that explains the scores so far."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

from crossknn.types import Vectors


def solve_query_vector(vectors: NDArray[Any], targets: NDArray[Any]) -> Vectors:
    """The u of least norm among those that minimise |vectors · u − targets|: `pinv(vectors) @ targets`.

    Solved through the smaller of the two Gram matrices in float64. Directions whose singular value
    is below about 1e-7 of the largest (duplicates, up to float32 noise) count as absent.
    """
    wide = torch.tensor(vectors, dtype=torch.float64)
    goal = torch.tensor(targets, dtype=torch.float64)
    if len(wide) <= wide.shape[1]:  # fewer equations than unknowns: u = Vᵀ (V Vᵀ)⁺ a
        solution = wide.T @ _solve_symmetric(wide @ wide.T, goal)
    else:  # u = (Vᵀ V)⁺ Vᵀ a
        solution = _solve_symmetric(wide.T @ wide, wide.T @ goal)
    solved: Vectors = solution.float().numpy()
    return solved


def _solve_symmetric(gram: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    """`pinv(gram) @ goal` for a positive semi-definite matrix."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    pivots = factor.diagonal()
    if not failed and (pivots.min() / pivots.max()) ** 2 > 1e-10:  # float64 still leaves five digits
        return torch.cholesky_solve(goal[:, None], factor)[:, 0]
    values, directions = torch.linalg.eigh(gram)  # ten times slower
    keep = values > values[-1].clamp(min=0) * len(gram) * torch.finfo(gram.dtype).eps * 10
    kept = directions[:, keep]
    solution: torch.Tensor = kept @ ((kept.T @ goal) / values[keep])
    return solution
