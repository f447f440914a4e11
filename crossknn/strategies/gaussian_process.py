"""Gaussian-process regression over a fixed pool of vectors, updated by block Cholesky."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class GaussianProcess:
    """The posterior of a zero-mean Gaussian process at every vector of a pool, given noisy values at some of them.

    The kernel is `rbf · exp((cos − 1) / length_scale²) + linear · cos`, with cos the cosine of two vectors. With K the
    kernel matrix of the observed vectors plus noise, and L its Cholesky factor, it keeps the whitened cross-covariance
    W = k(pool, observed) L⁻ᵀ and the whitened targets Z = L⁻¹ t, so that

        posterior mean      W Z c        for the target t c
        posterior variance  k(x, x) − |W|²   by rows

    There may be several columns of targets, whose weights c are chosen when the mean is asked for.

    Args:
        vectors: (pool, dim).
        rbf: Variance of the RBF part.
        linear: Variance of the linear part.
        features: (pool, any) what the linear part is the inner product of, instead of the vectors at length 1.
    """

    def __init__(
        self,
        vectors: NDArray[Any],
        rbf: float,
        linear: float = 0.0,
        *,
        length_scale: float = 1.0,
        noise: float,
        features: NDArray[Any] | None = None,
    ) -> None:
        self._vectors = torch.nn.functional.normalize(torch.from_numpy(np.asarray(vectors, np.float32)), dim=1)
        self._features = None if features is None else torch.from_numpy(np.asarray(features, np.float32))
        self._rbf, self._linear, self._length_scale, self._noise = rbf, linear, length_scale, noise
        self._whitened = self._vectors.new_zeros(len(vectors), 0)  # W
        self._targets: Tensor | None = None  # Z
        self._variance = self._vectors.new_full((len(vectors),), rbf + linear)
        if self._features is not None:
            self._variance += linear * (self._features.square().sum(1) - 1)

    def _kernel(self, at: Tensor) -> Tensor:
        """(pool, at) the covariance of all vectors with some of them."""
        cosines = self._vectors @ self._vectors[at].mT
        products = cosines if self._features is None else self._features @ self._features[at].mT
        covariance = products * self._linear
        if self._rbf:
            cosines.sub_(1).div_(self._length_scale**2).exp_()
            covariance.add_(cosines, alpha=self._rbf)
        return covariance

    def observe(self, at: NDArray[np.int64], targets: NDArray[Any]) -> None:
        """Condition on the targets (n, columns) of the vectors at these places of the pool."""
        places = torch.from_numpy(np.asarray(at, np.int64))
        values = torch.from_numpy(np.asarray(targets, np.float32))
        known = values.new_zeros(0, values.shape[1]) if self._targets is None else self._targets
        cross = self._whitened[places]  # B, the whitened covariance of new and old
        covariance = self._kernel(places)
        corner = covariance[places] - cross @ cross.mT
        corner.diagonal().add_(self._noise)
        factor = torch.linalg.cholesky(corner)
        rest = torch.cat([(covariance - self._whitened @ cross.mT).mT, values - cross @ known], 1)
        solved = torch.linalg.solve_triangular(factor, rest, upper=False)
        new, width = solved[:, : len(self._vectors)].mT, len(self._vectors)
        self._whitened = torch.cat([self._whitened, new], 1)
        self._targets = torch.cat([known, solved[:, width:]])
        self._variance -= new.square().sum(1)

    def mean(self, weights: NDArray[np.float64]) -> NDArray[np.float32]:
        """(pool,) the posterior mean of the targets' weighted sum."""
        if self._targets is None:
            return np.zeros(len(self._vectors), np.float32)
        summed: NDArray[np.float32] = (
            self._whitened @ (self._targets.double() @ torch.from_numpy(weights)).float()
        ).numpy()
        return summed

    def deviation(self) -> NDArray[np.float32]:
        """(pool,) the posterior standard deviation, without noise."""
        deviations: NDArray[np.float32] = self._variance.clamp(min=0).sqrt().numpy()
        return deviations
