"""How much an approximate vector search misses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive
from crossknn.types import VectorSearch


def recall_against_exact(
    search: VectorSearch, exact: VectorSearch, queries: NDArray[Any], n: int
) -> NDArray[np.float64]:
    """(queries,) the share of the `n` rows that `exact` finds that `search` finds, too."""
    check_positive("n", n)
    both = zip(search.search(queries, n), exact.search(queries, n), strict=True)
    return np.array([np.isin(true.rows, found.rows).mean() for found, true in both])
