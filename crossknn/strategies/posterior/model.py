"""Batched Bayesian linear regression with a Gaussian prior on the weights, updated by block Cholesky."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from crossknn.strategies.posterior.diagnostics import TARGETS, ModelEvidence
from crossknn.strategies.posterior.features import RetrieverFeatures
from crossknn.strategies.posterior.prior import Prior

MIN_FLOOR_SLOPE: Final = 1e-3  # smallest derivative of the score floor of a weakly informative prior
MIN_RELATIVE_RANGE: Final = 1e-6  # scores that differ by less than this fraction of the largest are all equal


class CandidateFeatures(NamedTuple):
    """The model's view of some rows of each query, (queries, n), valid until the next update."""

    rows: Tensor  # padded with the number of items
    valid: Tensor  # False where padded
    positions: Tensor  # in `RetrieverFeatures`
    prior_means: Tensor  # m
    gamma: Tensor  # γ
    features: Tensor  # (queries, n, features) φ; 0 where padded
    whitened_cross: Tensor  # (queries, n, scored) φ Φᵀ L⁻ᵀ, the cross-covariance with all scores so far

    def first(self, n: int) -> CandidateFeatures:
        """The first `n` rows of each query."""
        return CandidateFeatures(*(values[:, :n] for values in self)) if n < self.rows.shape[1] else self


class BayesianLinearModel:
    """The posterior of all queries of a search under `Prior`, given the scores so far.

    For one query, with Φ the features of the scored rows, K = Φ Φᵀ + noise I = L Lᵀ and the residuals r = (a − m) / γ:

        posterior mean      m + γ φ·w,   w = Φᵀ K⁻¹ r = (L⁻¹ Φ)ᵀ (L⁻¹ r)
        predictive variance γ² (φ φᵀ − φ Φᵀ K⁻¹ Φ φᵀ + noise) = γ² (|φ|² − |φ Φᵀ L⁻ᵀ|² + noise)

    An update factorizes only the new corner of K, and appends to L⁻¹ Φ and L⁻¹ t. The targets t = (1, a, m) / γ replace
    r, because a weakly informative prior standardizes the scores anew after every round, which changes the coefficients
    of r in t and nothing else (`ModelEvidence`). A query with fewer scores than others has rows of zeros.

    φ consists of the augmented item vector (vector and, with a fitted prior, latent factors and bias), the signal
    features and a constant. Rows that no retriever proposes share their signal features, so their posterior mean is a
    constant plus γ times the inner product of `query_vectors` with the augmented item vector.

    Attributes:
        retrieved: The signal features of all candidates.
        query_vectors: (queries, dim) the weights of the augmented item vectors.
        evidence: The statistics of the model check.
    """

    def __init__(self, prior: Prior, retrieved: RetrieverFeatures, dim: int) -> None:
        self.retrieved = retrieved
        self._prior = prior
        terms = retrieved.terms
        queries, signals = len(terms.mean), terms.features.shape[2]  # signals with the constant
        scale = [prior.vector_variance**0.5] * dim
        if prior.fitted:
            scale += [1.0] * prior.latent_factors.shape[1] + [prior.bias_scale]
        self._vector_width = len(scale)
        scale += [1.0] * (signals - 1) + [float(np.sqrt(prior.constant_variance))]
        self._feature_scale = terms.mean.new_tensor(scale, dtype=torch.float64)
        width = len(scale)

        def zeros(*size: int) -> Tensor:
            return terms.mean.new_zeros((queries, *size), dtype=torch.float64)

        self._observed = zeros(0, 3)  # valid, a and m of every scored row
        self._whitened = zeros(0, width + TARGETS)  # L⁻¹ Φ and L⁻¹ t, side by side
        self._target_weights = zeros(TARGETS, width)  # (L⁻¹ t)ᵀ L⁻¹ Φ: the weights w of each target
        self.evidence = ModelEvidence.empty(
            queries, signal_features=signals, noise=prior.noise, device=terms.mean.device
        )
        # Standardization of the scores under a weakly informative prior: score = offset + scale · standardized.
        self._offset, self._scale, self._lowest = zeros(1), zeros(1) + 1, zeros(1)
        self._weights = zeros(width)  # w
        self._prepare_means()
        self._project_weights()

    def _prepare_means(self) -> None:
        """The constant parts of the posterior means.

        An augmented vector holds the bias, which `query_vectors` multiplies by 1/γ of the other rows, so that their
        mean γ · product has the bias once. A candidate's own γ differs, which `_candidate_means` corrects.
        """
        terms = self.retrieved.terms
        other_gamma = terms.gamma[:, -1:]
        self._candidate_means = terms.mean[:, :-1] + self.retrieved.bias * (1 - terms.gamma[:, :-1] / other_gamma)
        self._bias_weights = terms.mean.new_zeros((len(other_gamma), self._vector_width))
        if self._prior.fitted:
            self._bias_weights[:, -1:] = 1 / other_gamma

    @property
    def valid(self) -> Tensor:
        """(queries, scored) False where padded."""
        return self._observed[:, :, 0] > 0

    @property
    def scores(self) -> Tensor:
        """(queries, scored) a."""
        return self._observed[:, :, 1]

    @property
    def prior_means(self) -> Tensor:
        """(queries, scored) m."""
        return self._observed[:, :, 2]

    def candidate_features(self, rows: Tensor, vectors: Tensor) -> CandidateFeatures:
        """The features of these rows, (queries, n), with their augmented vectors, (queries, n, dim)."""
        valid = rows < self.retrieved.items
        positions = self.retrieved.positions(rows)
        signals, means, gamma = self.retrieved.at(positions)
        if self._prior.fitted:
            means = means + vectors[:, :, -1]  # the bias
        features = (torch.cat([vectors, signals], 2) * self._feature_scale).mul_(valid[:, :, None])
        cross = torch.bmm(features, self._whitened[:, :, :-TARGETS].mT)
        return CandidateFeatures(rows, valid, positions, means, gamma, features, cross)

    def update(self, rows: CandidateFeatures, scores: Tensor) -> None:
        """Condition on the scores of these rows, 0 where padded."""
        observed = torch.stack([rows.valid, scores, rows.prior_means], 2) * rows.valid[:, :, None]
        columns = torch.cat([rows.features, observed / rows.gamma[:, :, None]], 2)  # Φ and t of the new rows
        self._observed = torch.cat([self._observed, observed], 1)
        statistics = torch.cat([columns[:, :, self._vector_width :], observed], 2)  # F, t and (1, a, m)
        self.evidence.moments.baddbmm_(statistics.mT, statistics)
        self._append_block(columns, rows)
        if not self._prior.fitted:
            self._standardize_scores()
        # w = Σ coefficient · weights of the target
        self._weights = torch.bmm(self.evidence.coefficients[:, None], self._target_weights)[:, 0]
        self._project_weights()

    def _append_block(self, columns: Tensor, rows: CandidateFeatures) -> None:
        """Extend L and the whitened columns by the new rows.

        With B their whitened cross-covariance, the new corner of L is C with C Cᵀ = Φ_new Φ_newᵀ + noise I − B Bᵀ, and
        the new rows of L⁻¹ X are C⁻¹ (X_new − B L⁻¹ X).
        """
        corner = torch.bmm(rows.features, rows.features.mT)
        diagonal = corner.diagonal(dim1=1, dim2=2)
        self.evidence.feature_trace.add_(diagonal.sum(1, keepdim=True))
        diagonal.add_(1).add_(rows.valid, alpha=self._prior.noise - 1)  # + noise; 1 where padded
        cross = rows.whitened_cross
        factor, failed = torch.linalg.cholesky_ex(corner.baddbmm_(cross, cross.mT, alpha=-1))
        # NaN instead of an error: the search rejects it later, so that nothing waits for the device here.
        factor.masked_fill_((failed > 0)[:, None, None], torch.nan)
        rest = columns.baddbmm_(cross, self._whitened, alpha=-1)
        whitened = torch.linalg.solve_triangular(factor, rest, upper=False)
        self._whitened = torch.cat([self._whitened, whitened], 1)
        features, targets = whitened[:, :, :-TARGETS], whitened[:, :, -TARGETS:]
        self._target_weights.baddbmm_(targets.mT, features)
        self.evidence.whitened_targets.baddbmm_(targets.mT, targets)
        self.evidence.log_det.add_(factor.diagonal(dim1=1, dim2=2).log().sum(1, keepdim=True), alpha=2)

    def _standardize_scores(self) -> None:
        """Offset and scale that give the scores so far standard deviation 1 and the mean of their prior means.

        The residual of a standardized score is r = ((a − offset) / scale − m) / γ.
        """
        count = self.evidence.count.clamp(min=1)
        center, prior_mean = self.evidence.score_sum / count, self.evidence.mean_sum / count
        valid, scores, _ = self._observed.unbind(2)
        centered = torch.addcmul(scores, valid, center, value=-1)  # 0 where padded
        lowest, highest = (center + end for end in torch.aminmax(centered, dim=1, keepdim=True))
        varies = highest - lowest > MIN_RELATIVE_RANGE * torch.maximum(highest.abs(), lowest.abs())
        std = torch.linalg.vector_norm(centered, dim=1, keepdim=True) / count.sqrt()
        self._lowest, self._scale = lowest, torch.where(varies, std, 1.0)
        self._offset = torch.addcmul(center, self._scale, prior_mean, value=-1)
        self.evidence.coefficients[:, :2] = torch.cat([-self._offset, torch.ones_like(center)], 1) / self._scale

    def _project_weights(self) -> None:
        """Split w into query vectors and the signal part of every position, (queries, candidates + 1)."""
        weights = (self._weights * self._feature_scale).float()
        self.query_vectors = weights[:, : self._vector_width] + self._bias_weights
        signal_weights = weights[:, self._vector_width :, None]
        self._signal_part = torch.bmm(self.retrieved.terms.features, signal_weights)[:, :, 0]

    def posterior_mean_of_others(self, products: Tensor) -> Tensor:
        """Posterior means of rows that no retriever proposes, from their inner products with `query_vectors`."""
        mean, gamma = self.retrieved.terms.mean[:, -1:], self.retrieved.terms.gamma[:, -1:]
        return self._to_score_scale(torch.addcmul(mean, gamma, products + self._signal_part[:, -1:]))

    def posterior_mean_of_candidates(self, products: Tensor) -> Tensor:
        """Posterior means of all candidates, from their inner products; arbitrary where padded."""
        gamma = self.retrieved.terms.gamma[:, :-1]
        return self._to_score_scale(torch.addcmul(self._candidate_means, gamma, products + self._signal_part[:, :-1]))

    def posterior_mean(self, rows: CandidateFeatures) -> Tensor:
        """M + γ φ·w of any rows."""
        products = torch.bmm(rows.features, self._weights[:, :, None])[:, :, 0]
        return self._to_score_scale(torch.addcmul(rows.prior_means, rows.gamma, products)).float()

    def _to_score_scale(self, means: Tensor) -> Tensor:
        if self._prior.fitted:
            return means
        return torch.addcmul(self._offset.to(means.dtype), self._scale.to(means.dtype), means)

    def posterior_std(self, rows: CandidateFeatures) -> Tensor:
        """Predictive standard deviation of the scores of these rows: γ √(|φ|² − |φ Φᵀ L⁻ᵀ|² + noise)."""
        prior, explained = (
            torch.linalg.vector_norm(values, dim=2).square() for values in (rows.features, rows.whitened_cross)
        )
        variance = (prior - explained).clamp(min=0) + self._prior.noise
        std: Tensor = self._scale * rows.gamma * variance.sqrt()
        return std.float()

    def apply_score_floor(self, means: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """Posterior means and standard deviations with a soft floor at the lowest score seen.

        A weakly informative prior does not know that most items score about as low as the lowest score seen. With
        z = (mean − lowest) / scale, the mean becomes lowest + scale · softplus(z), and the variance is multiplied by
        the derivative, sigmoid(z). A fitted prior needs no floor.
        """
        if self._prior.fitted:
            return means.double(), std.double()
        z = (means.double() - self._lowest) / self._scale
        slope = torch.sigmoid(z).clamp(min=MIN_FLOOR_SLOPE)
        soft = torch.nn.functional.softplus(z, threshold=500)
        return torch.addcmul(self._lowest, self._scale, soft), slope.sqrt() * std
