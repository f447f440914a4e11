"""The order every retriever keeps: largest estimate first, ties to the lower row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import RetrieverError
from crossknn.types import EMPTY_PROPOSAL, Mask, Proposal, Rows, Scores

ONE_OF = 64  # values that are looked at first
SPARE = 16


def top_rows(scores: NDArray[Any], n: int, allowed: Mask | None = None) -> Proposal:
    """The `n` allowed rows of largest score, ties to the lower row; O(items) plus sorting `n`.

    `scores` is (items,). A row whose score is −∞ is never proposed; NaN and +∞ are an error.
    """
    values: Scores = np.asarray(scores, np.float32)  # compare what is returned, so that ties are ties
    if not values.max(initial=-np.inf) < np.inf:  # NaN, too, is the largest
        _refuse(values)
    if n <= 0 or not len(values):
        return EMPTY_PROPOSAL
    if allowed is None and values.min() > -np.inf:
        chosen = _largest(values, n)
        return order_rows(chosen, values[chosen])
    rows = np.flatnonzero(values > -np.inf if allowed is None else allowed & (values > -np.inf))
    values = values[rows]
    chosen = _largest(values, n)
    return order_rows(rows[chosen], values[chosen])


def order_rows(rows: Rows, scores: NDArray[Any]) -> Proposal:
    """These rows as a proposal: largest score first, ties to the lower row."""
    order = np.lexsort((rows, -scores))
    return Proposal(rows[order].astype(np.int64, copy=False), scores[order].astype(np.float32))


def reciprocal_rank_fusion(proposals: Sequence[Proposal], *, constant: float) -> Proposal:
    """All rows of these proposals by reciprocal rank: the sum of 1 / (constant + rank), ranks from 1."""
    rows = np.unique(np.concatenate([proposal.rows for proposal in proposals]))
    shares = np.zeros((len(rows), len(proposals)))
    for column, proposal in enumerate(proposals):
        ranks = np.arange(1, len(proposal) + 1)
        shares[np.searchsorted(rows, proposal.rows), column] = 1 / (constant + ranks)
    # Summed in order of size, so that the same ranks from other proposals tie to the last bit.
    return order_rows(rows, np.sort(shares, axis=1).sum(axis=1))


def ranks_in(proposal: Proposal, rows: Rows) -> Rows:
    """The place of each row in the proposal, from 0; its length where the row is not in it."""
    if not len(proposal):
        return np.zeros(len(rows), np.int64)
    order = np.argsort(proposal.rows)
    nearest = order[np.minimum(np.searchsorted(proposal.rows, rows, sorter=order), len(order) - 1)]
    return np.where(proposal.rows[nearest] == rows, nearest, len(proposal))


def _largest(values: Scores, n: int) -> Rows:
    """Positions of the `n` largest values, in no order; of equal values at the border the first are taken."""
    if n >= len(values):
        return np.arange(len(values))
    border = _nth_largest(values, n)
    above = np.flatnonzero(values > border)
    at = np.flatnonzero(values == border)[: n - len(above)]
    return np.concatenate([above, at])


def _nth_largest(values: Scores, n: int) -> np.float32:
    """A few values say roughly where it is, so that of a million only some thousands are partitioned."""
    few = values[::ONE_OF]
    place = 2 * n // ONE_OF + SPARE  # of the few, so many are expected above a border that twice `n` are above
    if place < len(few) // 2:
        low = _from_largest(few, place)
        likely = values[values >= low]
        if len(likely) >= n:
            return low if np.count_nonzero(likely > low) < n else _from_largest(likely, n)
    return _from_largest(values, n)


def _from_largest(values: Scores, place: int) -> np.float32:
    found: np.float32 = np.partition(values, len(values) - place)[len(values) - place]
    return found


def _refuse(values: Scores) -> None:
    row = int(np.argmax(np.isnan(values) | (values == np.inf)))
    raise RetrieverError(f"a retriever's scores must be finite, or -inf to leave a row out. Row {row}: {values[row]}.")
