"""Top-k and rank operations on numpy arrays: largest score first, ties to the lower row; reciprocal rank fusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import RetrieverError
from crossknn.types import EMPTY_PROPOSAL, Mask, Proposal, Rows, Scores

# The n-th largest of many values is bounded from below by a sample first, so that few of them are partitioned.
SAMPLE_STRIDE: Final = 64
SAMPLE_MARGIN: Final = 16


def top_rows(scores: NDArray[Any], n: int, allowed: Mask | None = None) -> Proposal:
    """The `n` allowed rows of largest score, ties to the lower row; O(items) plus sorting `n`.

    `scores` is (items,): finite, or −∞ for rows that are never proposed.
    """
    values: Scores = np.asarray(scores, np.float32)  # rounded before the comparison, so that ties are ties
    if not values.max(initial=-np.inf) < np.inf:  # also where the maximum is NaN
        row = int(np.argmax(np.isnan(values) | (values == np.inf)))
        raise RetrieverError(f"A retriever's scores must be finite, or -inf to skip a row. Row {row}: {values[row]}.")
    if n <= 0 or not len(values):
        return EMPTY_PROPOSAL
    rows = None  # all of them
    if allowed is not None or values.min() == -np.inf:
        rows = np.flatnonzero(values > -np.inf if allowed is None else allowed & (values > -np.inf))
        values = values[rows]
    chosen = _largest(values, n)
    return order_rows(chosen if rows is None else rows[chosen], values[chosen])


def order_rows(rows: Rows, scores: NDArray[Any]) -> Proposal:
    """These rows as a proposal: largest score first, ties to the lower row."""
    order = np.lexsort((rows, -scores))
    return Proposal(rows[order].astype(np.int64, copy=False), scores[order].astype(np.float32))


def reciprocal_rank_fusion(proposals: Sequence[Proposal], *, constant: float) -> Proposal:
    """All rows of these proposals, scored by the sum of 1 / (constant + rank), ranks from 1."""
    rows = np.unique(np.concatenate([proposal.rows for proposal in proposals]))
    reciprocal = np.zeros((len(rows), len(proposals)))
    for column, proposal in enumerate(proposals):
        ranks = np.arange(1, len(proposal) + 1)
        reciprocal[np.searchsorted(rows, proposal.rows), column] = 1 / (constant + ranks)
    # Summed in order of size, so that rows with the same ranks in different proposals tie to the last bit.
    return order_rows(rows, np.sort(reciprocal, axis=1).sum(axis=1))


def ranks_in(proposal: Proposal, rows: Rows) -> Rows:
    """The rank of each row in the proposal, from 0; the proposal's length for rows that are not in it."""
    if not len(proposal):
        return np.zeros(len(rows), np.int64)
    order = np.argsort(proposal.rows)
    nearest = order[np.minimum(np.searchsorted(proposal.rows, rows, sorter=order), len(order) - 1)]
    return np.where(proposal.rows[nearest] == rows, nearest, len(proposal))


def _largest(values: Scores, n: int) -> Rows:
    """Positions of the `n` largest values, in no order; among ties at the threshold the first ones."""
    if n >= len(values):
        return np.arange(len(values))
    threshold = _nth_largest(values, n)
    above = np.flatnonzero(values > threshold)
    tied = np.flatnonzero(values == threshold)[: n - len(above)]
    return np.concatenate([above, tied])


def _nth_largest(values: Scores, n: int) -> np.float32:
    sample = values[::SAMPLE_STRIDE]
    rank = 2 * n // SAMPLE_STRIDE + SAMPLE_MARGIN  # about 2n of all values are above that of this rank in the sample
    if rank < len(sample) // 2:
        bound = _partition(sample, rank)
        likely = values[values >= bound]
        if len(likely) >= n:
            return bound if np.count_nonzero(likely > bound) < n else _partition(likely, n)
    return _partition(values, n)


def _partition(values: Scores, rank: int) -> np.float32:
    found: np.float32 = np.partition(values, len(values) - rank)[len(values) - rank]
    return found
