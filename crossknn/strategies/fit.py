"""Whether a model of scores orders them worse than a retriever does."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crossknn.types import Scores

ENOUGH = 10  # scores, to tell anything
SURE = 1 - 1e-6  # the largest correlation that is told from 1


def rank_correlation(one: Scores, other: Scores) -> float:
    """Between −1 and 1: how much the two have the same order; 0 where one of them is constant."""
    ranks = [np.unique(values, return_inverse=True)[1].astype(np.float64) for values in (one, other)]
    first, second = (values - values.mean() for values in ranks)
    length = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / length if length else 0.0


def order_worse(estimates: Scores, others: Scores, scores: Scores) -> float:
    """By how many standard errors `estimates` have less of the scores' order than `others` have."""
    if len(scores) < ENOUGH:
        return 0.0
    both: NDArray[np.float64] = np.array([rank_correlation(others, scores), rank_correlation(estimates, scores)])
    better, worse = np.arctanh(np.clip(both, -SURE, SURE))
    return float((better - worse) * np.sqrt((len(scores) - 3) / 2))
