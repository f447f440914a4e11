"""Prior of posterior search: the Gaussian model of a query's scores before the first call, fitted once per index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Self, TypedDict

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.storage.json_values import read_as
from crossknn.storage.safetensors import check_array
from crossknn.types import Proposal, Rows, Scores

SIGNALS: Final = ("dense", "bm25")  # the retrievers whose features are used by default
MAX_NUMBER: Final = 1e18  # of its numbers: larger ones overflow in float32
RETRIEVER_DEPTH: Final = 10_000  # rows requested from each retriever; all rows behind them have the same features
RANK_OFFSET: Final = 10.0  # in the feature −log(rank + offset), so that the very first ranks differ little
FEATURES_PER_SIGNAL: Final = 2  # asinh(estimate) and −log(rank + offset)
LATENT_FACTORS: Final = 16  # learned per item
# Variances of the weakly informative prior, for scores standardized to variance 1.
VECTOR_VARIANCE, SIGNAL_VARIANCE, CONSTANT_VARIANCE, NOISE_VARIANCE = 0.3, 0.1, 1.0, 0.2
ARRAY_FIELDS: Final = ("center", "spread", "weights", "variances", "bias_weights")
FLOAT_FIELDS: Final = ("intercept", "noise", "gamma_start", "gamma_slope", "gamma_max")


class StoredPrior(TypedDict):
    """What `Prior.to_dict` gives."""

    signals: list[str]
    intercept: float
    noise: float
    gamma_start: float
    gamma_slope: float
    gamma_max: float
    center: list[float]
    spread: list[float]
    weights: list[float]
    variances: list[float]
    bias_weights: list[float]


SignalFeatures = NDArray[np.float32]  # (rows, signals × FEATURES_PER_SIGNAL)


@dataclass(frozen=True)
class Prior:
    """Gaussian prior of a Bayesian linear model of the scores.

        f(q, i) = m(q, i) + γ(q, i) (w·φ(q, i) + ε),   w ~ N(0, I),   ε ~ N(0, noise)

    The prior mean m is linear in the standardized signal features x, plus the item's bias:
    `m = intercept + weights·x + bias`. The features φ are the item vector, the item's latent factors and bias, the
    signal features and a constant, each scaled by its prior standard deviation. The scale
    `γ = min(1 + gamma_slope · max(intercept + weights·x − gamma_start, 0), gamma_max)` makes the model heteroscedastic:
    scores vary more among items that retrievers rank high.

    The latent factors are probabilistic principal components of the residuals, scaled so that a query's weights have
    variance 1.
    """

    signals: tuple[str, ...]  # names of the retrievers
    center: NDArray[np.float64]  # (features,) mean of each signal feature
    spread: NDArray[np.float64]  # (features,) standard deviation of each signal feature
    weights: NDArray[np.float64]  # (features,) of the standardized signal features in the mean
    intercept: float  # the mean where all signal features are average
    bias: Scores  # (items,) mean residual of each item over queries
    latent_factors: NDArray[Any]  # (items, LATENT_FACTORS) float16; (items, 0) where none were learned
    bias_weights: NDArray[np.float64]  # (dim + 1,) regression of the bias on item vector and constant, for new items
    variances: NDArray[np.float64]  # (features + 3,) of the item vector, each signal feature, bias and constant
    noise: float  # variance of ε
    gamma_start: float
    gamma_slope: float
    gamma_max: float
    fitted: bool = True  # on the scale of the scores; a weakly informative prior is for standardized scores

    @classmethod
    def weakly_informative(cls, signals: Sequence[str]) -> Self:
        """The prior without an index: all signals count the same, there are no biases, and γ is 1.

        It is for scores standardized by the query's own, and signal features standardized per query.
        """
        width = FEATURES_PER_SIGNAL * len(signals)
        return cls(
            signals=tuple(signals),
            center=np.zeros(width),
            spread=np.ones(width),
            weights=np.full(width, 1 / width),
            intercept=0.0,
            bias=np.empty(0, np.float32),
            latent_factors=np.empty((0, 0), np.float16),
            bias_weights=np.zeros(0),
            variances=np.array([VECTOR_VARIANCE, *[SIGNAL_VARIANCE] * width, 0.0, CONSTANT_VARIANCE]),
            noise=NOISE_VARIANCE,
            gamma_start=0.0,
            gamma_slope=0.0,
            gamma_max=1.0,
            fitted=False,
        )

    @property
    def vector_variance(self) -> float:
        return float(self.variances[0])

    @property
    def signal_variances(self) -> NDArray[np.float64]:
        return self.variances[1:-2]

    @property
    def constant_variance(self) -> float:
        return float(self.variances[-1])

    @property
    def item_columns(self) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """The columns that extend the item vectors: (items, LATENT_FACTORS) latent factors and (items, 1) bias."""
        return self.latent_factors, self.bias[:, None]

    @cached_property
    def bias_scale(self) -> float:
        """The factor that turns a bias into a feature: √variance over the standard deviation of the biases."""
        variance = float(self.variances[-2])
        return float(np.sqrt(variance) / (self.bias.std() or 1.0)) if len(self.bias) else 0.0

    def take(self, rows: Rows) -> Self:
        """The prior of these items only."""
        return replace(self, bias=self.bias[rows], latent_factors=self.latent_factors[rows])

    def add(self, vectors: NDArray[Any]) -> Self:
        """The prior with new items appended: their bias is predicted from the item vector, their factors are zero."""
        slope, intercept = self.bias_weights[:-1].astype(np.float32), np.float32(self.bias_weights[-1])
        bias = vectors.astype(np.float32) @ slope + intercept
        zeros = np.zeros((len(vectors), self.latent_factors.shape[1]), self.latent_factors.dtype)
        factors = np.concatenate([self.latent_factors, zeros])
        return replace(self, bias=np.append(self.bias, bias), latent_factors=factors)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the per-item arrays, as JSON."""
        arrays = {name: getattr(self, name).tolist() for name in ARRAY_FIELDS}
        floats = {name: getattr(self, name) for name in FLOAT_FIELDS}
        return {"signals": list(self.signals), **floats, **arrays}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, bias: NDArray[Any], latent_factors: NDArray[Any]) -> Self:
        """The prior that `to_dict` described; memory-mapped arrays stay mapped.

        `InputError` if the description and the arrays do not fit together.
        """
        values: dict[str, Any] = {**read_as(StoredPrior, data, "prior")}
        signals = tuple(values.pop("signals"))
        values |= {name: np.array(values[name], np.float64) for name in ARRAY_FIELDS}
        check_array("bias", bias, (None,), np.floating)
        check_array("latent_factors", latent_factors, (len(bias), None), np.floating)
        width = FEATURES_PER_SIGNAL * len(signals)
        for name, length in {"center": width, "spread": width, "weights": width, "variances": width + 3}.items():
            check_array(name, values[name], (length,), np.float64)
        if any(np.abs(values[name]).max(initial=0) > MAX_NUMBER for name in (*ARRAY_FIELDS, *FLOAT_FIELDS)):
            raise InputError(f"the numbers of a prior must be between -{MAX_NUMBER:g} and {MAX_NUMBER:g}.")
        if not signals or values["noise"] <= 0 or (values["spread"] <= 0).any() or (values["variances"] < 0).any():
            raise InputError("a prior must have signals, positive noise and spread, and no negative variances.")
        if values["gamma_slope"] < 0 or values["gamma_max"] < 1:
            raise InputError("a prior's gamma_slope must not be negative, and its gamma_max at least 1.")
        values |= {"bias": np.asarray(bias, np.float32), "latent_factors": np.asarray(latent_factors, np.float16)}
        return cls(signals=signals, **values)


def gamma_at(signal_mean: NDArray[Any], *, gamma_start: float, gamma_slope: float, gamma_max: float) -> NDArray[Any]:
    """γ, the scale of the residuals: 1 up to `gamma_start`, then linear, at most `gamma_max`."""
    return np.minimum(1 + gamma_slope * np.maximum(signal_mean - gamma_start, 0), gamma_max)


def signal_features(proposals: Sequence[Proposal], ranks: Sequence[Rows]) -> SignalFeatures:
    """(rows, signals × 2) features of rows at these ranks of each retriever's proposal: asinh(estimate), −log rank.

    A row that was not proposed has the proposal's length as its rank (`ranking.ranks_in`) and the last estimate.
    """
    return np.concatenate([_features_of(*pair) for pair in zip(proposals, ranks, strict=True)], axis=1)


def estimates_at(proposal: Proposal, ranks: Rows) -> Scores:
    """The retriever's estimates of the rows at these ranks; rows that were not proposed have the last estimate."""
    if not len(proposal):
        return np.zeros(len(ranks), np.float32)
    return np.append(proposal.estimates, proposal.estimates[-1])[ranks]


def _features_of(proposal: Proposal, ranks: Rows) -> SignalFeatures:
    if not len(proposal):
        return np.zeros((len(ranks), FEATURES_PER_SIGNAL), np.float32)
    estimates = estimates_at(proposal, ranks)
    return np.column_stack([np.arcsinh(estimates), -np.log(ranks + RANK_OFFSET)]).astype(np.float32)
