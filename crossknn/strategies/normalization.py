"""Score normalization of the paper: the cross-encoder's scores on the dual encoder's scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crossknn._checks import check_number, check_range
from crossknn.errors import InputError

MIN_RELATIVE_RANGE = 1e-6  # values within float32 rounding of each other count as equal


@dataclass(frozen=True, slots=True)
class Normalization:
    """The paper's α and β: `β (score − α)` has the mean and standard deviation of the dual encoder's estimates.

    Used inside the regression only; it never changes how scored items are ranked.
    """

    alpha: float = 0.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        check_range("alpha", self.alpha)
        check_number("beta", self.beta)

    def normalize(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Scores on the scale of the estimates."""
        return self.beta * (scores - self.alpha)

    def restore(self, estimates: NDArray[Any]) -> NDArray[Any]:
        """Estimates on the scale of the scores."""
        return estimates / self.beta + self.alpha

    @classmethod
    def fit(cls, scores: ArrayLike, estimates: ArrayLike) -> Self:
        """α and β from scores and estimates of the same pairs; the paper uses those of 100 train queries."""
        target, source = np.asarray(estimates, np.float64), np.asarray(scores, np.float64)
        if target.shape != source.shape or source.size < 2:
            raise InputError(
                "`scores` and `estimates` must have the same shape and at least two values, "
                f"got {source.shape} and {target.shape}."
            )
        if not varies(source) or not varies(target):
            raise InputError("α and β cannot be estimated from scores or estimates that are all equal.")
        beta = target.std() / source.std()
        return cls(alpha=float(source.mean() - target.mean() / beta), beta=float(beta))

    @classmethod
    def fit_query(cls, scores: NDArray[Any], estimates: NDArray[Any] | None) -> Self:
        """α and β from one query's earliest scores and estimates, where there are no train queries.

        Raw logits would be fitted by a vector far too long, and would make every direction not yet scored look better
        than the negative scores already seen.
        """
        if not len(scores):
            return cls()
        if estimates is None:  # unknown items count as the worst score seen
            return cls(alpha=float(scores.min()))
        if not varies(scores) or not varies(estimates):
            return cls(alpha=float(scores.mean() - estimates.mean()))
        return cls.fit(scores, estimates)


def varies(values: ArrayLike) -> bool:
    """Whether the values differ by more than float32 rounding."""
    array = np.asarray(values, np.float64)
    return bool(array.size) and bool(np.ptp(array) > MIN_RELATIVE_RANGE * np.abs(array).max())
