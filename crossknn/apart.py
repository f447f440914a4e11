"""Searching among some rows while the inner products of the others are told."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossknn.types import ApartSearch, Mask, Proposal, Rows, Scores, Vectors, VectorSearch


def search_apart(
    items: VectorSearch,
    queries: Vectors,
    n: int,
    apart: Sequence[Rows],
    *,
    exclude: Sequence[Rows],
    allowed: Mask | None,
) -> tuple[list[Proposal], list[Scores]]:
    """For each query the `n` rows of largest inner product among those not `apart`, and that of each row that is."""
    if isinstance(items, ApartSearch):
        return items.search_apart(queries, n, apart, exclude=exclude, allowed=allowed)
    both = [np.concatenate(rows) for rows in zip(apart, exclude, strict=True)]
    products = [items.take(rows) @ query for rows, query in zip(apart, queries, strict=True)]
    return items.search(queries, n, exclude=both, allowed=allowed), products
