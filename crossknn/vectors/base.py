"""What every vector search checks before it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.types import Mask, Rows, Vectors, VectorSearch


def check_queries(search: VectorSearch, queries: NDArray[Any]) -> Vectors:
    """(queries, dim) float32, if they are vectors of this search."""
    vectors = np.ascontiguousarray(queries, np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != search.dim:
        raise InputError(f"query vectors must have shape (queries, {search.dim}). Got {vectors.shape} instead.")
    if not np.isfinite(vectors).all():
        raise InputError("the query vectors hold NaN or infinity.")
    return vectors


def check_limits(search: VectorSearch, queries: int, *, allowed: Mask | None, **rows: Sequence[Rows] | None) -> None:
    """An error unless there are rows for every query, and a value for every item."""
    for name, given in rows.items():
        if given is not None and len(given) != queries:
            raise InputError(f"{name} must hold one array of rows per query ({queries}). Got {len(given)} instead.")
    if allowed is not None and len(allowed) != len(search):
        raise InputError(f"allowed must hold one value per item ({len(search)}). Got {len(allowed)} instead.")
