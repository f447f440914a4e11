"""The Cholesky factor of a matrix that grows by some rows and columns at a time."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Cholesky:
    """K = L Lᵀ, of a positive definite K that begins empty; appending n rows to m costs O(m² n), not O((m + n)³)."""

    def __init__(self) -> None:
        self._factor = torch.zeros(0, 0, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self._factor)

    def append(self, across: Array, block: Array) -> None:
        """Let K grow to [[K, across], [acrossᵀ, block]]."""
        side = torch.linalg.solve_triangular(self._factor, torch.from_numpy(across), upper=False)
        corner = torch.linalg.cholesky(torch.from_numpy(block) - side.T @ side)
        above = torch.cat([self._factor, torch.zeros(side.shape, dtype=torch.float64)], 1)
        self._factor = torch.cat([above, torch.cat([side.T, corner], 1)])

    def solve(self, goal: Array) -> Array:
        """K⁻¹ goal."""
        solved: Array = torch.cholesky_solve(torch.from_numpy(goal)[:, None], self._factor)[:, 0].numpy()
        return solved

    def explain(self, across: Array) -> Array:
        """(n,) the diagonal of acrossᵀ K⁻¹ across, of n columns."""
        side = torch.linalg.solve_triangular(self._factor, torch.from_numpy(across), upper=False)
        explained: Array = (side * side).sum(0).numpy()
        return explained

    def log_determinant(self) -> float:
        """Of K."""
        return float(2 * self._factor.diagonal().log().sum())
