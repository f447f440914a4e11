"""Loss of a teaching: listwise cross-entropy, squared error, and the evidence of a Bayesian linear model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from crossknn._imports import import_extra

if TYPE_CHECKING:
    from torch import Tensor

VECTOR_VARIANCE, CONSTANT_VARIANCE, NOISE_VARIANCE = 2.0, 0.3, 0.2  # at the start, for standardized scores


class ListLoss:
    """How far inner products are from a list's scores.

    - Cross-entropy between the softmax of the scores and that of the inner products: the order of the best.
    - Squared error of the centered inner products: the whole list.
    - Evidence: the negative log marginal likelihood of the scores under the model that posterior search fits,
      `z ~ N(a q·v, s_v V Vᵀ + s_c 1 1ᵀ + s_n I)`. It teaches vectors from which a few scores predict the others.

    Scores are divided by their deviation within lists. The slope `a` and the variances are learned, too.

    Args:
        deviation: Of scores within lists.
        slope: Of standardized scores on inner products, at the start.
        temperature: Of the softmax of standardized scores.
        squared_error: The weight of the second term.
        evidence: The weight of the third term.
    """

    def __init__(
        self,
        device: Any,
        *,
        deviation: float,
        slope: float,
        temperature: float,
        squared_error: float,
        evidence: float,
    ) -> None:
        self._torch = torch = import_extra("torch", extra="models")
        self._deviation, self._temperature = deviation, temperature
        self._squared_error, self._evidence = squared_error, evidence
        start = [math.log(value) for value in (slope, VECTOR_VARIANCE, CONSTANT_VARIANCE, NOISE_VARIANCE)]
        self._logs = torch.tensor(start, device=device, requires_grad=True)
        self.parameters: list[Tensor] = [self._logs]

    def __call__(self, queries: Tensor, items: Tensor, scores: Tensor) -> Tensor:
        """(lists,) the loss of each list.

        `queries` are (lists, dim), `items` (lists, n, dim), and `scores` (lists, n) with −inf behind the end.
        """
        torch = self._torch
        inside = scores.isfinite()
        slope, *variances = self._logs.exp()
        products = slope * torch.einsum("ld,lnd->ln", queries, items)
        targets = (scores / self._deviation).masked_fill(~inside, 0)
        logits = (products / self._temperature).masked_fill(~inside, -torch.inf)
        wanted = (targets / self._temperature).masked_fill(~inside, -torch.inf).softmax(1)
        loss: Tensor = -(wanted * logits.log_softmax(1).masked_fill(~inside, 0)).sum(1)
        if self._squared_error:
            counts = inside.sum(1, keepdim=True)
            errors = (targets - products).masked_fill(~inside, 0)
            errors = (errors - errors.sum(1, keepdim=True) / counts).masked_fill(~inside, 0)
            loss = loss + self._squared_error * errors.square().sum(1) / counts[:, 0]
        if self._evidence:
            loss = loss + self._evidence * self._surprise(targets - products, items, inside, *variances)
        return loss

    def _surprise(self, residuals: Tensor, items: Tensor, inside: Tensor, *variances: Tensor) -> Tensor:
        """(lists,) negative log marginal likelihood per score, without its constant."""
        torch = self._torch
        vector, constant, noise = variances
        vectors = items.masked_fill(~inside[:, :, None], 0)
        residuals = residuals.masked_fill(~inside, 0)
        both = (inside[:, :, None] & inside[:, None, :]).to(items.dtype)
        covariance = vector * (vectors @ vectors.transpose(1, 2)) + constant * both
        diagonal = torch.where(inside, noise, 1.0)
        factor = torch.linalg.cholesky(covariance + torch.diag_embed(diagonal))
        whitened = torch.linalg.solve_triangular(factor, residuals[:, :, None], upper=False)[:, :, 0]
        log_determinant: Tensor = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
        surprise: Tensor = 0.5 * (whitened.square().sum(1) + log_determinant) / inside.sum(1)
        return surprise
