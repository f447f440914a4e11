"""Platt scaling of expected recall, reliability diagram and expected calibration error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_number, invalid, is_finite

BIN_EDGES: Final = (0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99)  # between bins of expected recall

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RecallCalibration:
    """Platt scaling of the chance that the r-th best scored row is in the true top k; fitted once per index.

    With λ_r the expected number of unscored rows above it, `log-odds = intercept + slope · log((k − r + 1) / λ_r)`.
    """

    intercept: float
    slope: float  # positive: the chance decreases in λ_r

    def __post_init__(self) -> None:
        if not is_finite(self.intercept):
            raise invalid("intercept", "a finite number", self.intercept)
        check_number("slope", self.slope)

    def log_odds(self, log_ratios: Any) -> Any:
        """The log-odds at values of log((k − r + 1) / λ_r): numpy or torch."""
        return self.intercept + self.slope * log_ratios


class ReliabilityBin(NamedTuple):
    """Searches whose expected recall is about the same."""

    searches: int
    expected: float  # mean
    measured: float  # mean


def reliability_bins(expected: Array, measured: Array) -> list[ReliabilityBin]:
    """The nonempty bins of a reliability diagram; arguments of any shape, one number per search."""
    places = np.digitize(expected, BIN_EDGES)
    inside = [places == place for place in range(len(BIN_EDGES) + 1)]
    return [
        ReliabilityBin(int(chosen.sum()), float(expected[chosen].mean()), float(measured[chosen].mean()))
        for chosen in inside
        if chosen.any()
    ]


def calibration_error(expected: Array, measured: Array) -> float:
    """Expected calibration error: the mean over searches of |expected − measured| recall of their bin."""
    bins = reliability_bins(expected, measured)
    return sum(one.searches * abs(one.expected - one.measured) for one in bins) / max(1, expected.size)
