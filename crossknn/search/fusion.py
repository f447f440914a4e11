"""The fused order of hits: by the score and what retrievers say, together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.search.rank_weights import SCORE
from crossknn.strategies.normalization import varies
from crossknn.strategies.posterior.prior import RETRIEVER_DEPTH, estimates_at
from crossknn.types import Proposal, Rows, Scores
from crossknn.vectors.ranking import ranks_in

ORDERS: Final = (SCORE, "fused")


class ScoreFusion:
    """The order of what one search scores, by the weighted sum of z-scores over a query's scored items."""

    def __init__(
        self, weights: Mapping[str, float], propose: Callable[[str | None, int], tuple[str, list[Proposal]]]
    ) -> None:
        self._weights = np.array(list(weights.values()))
        self._signals = [propose(name, RETRIEVER_DEPTH)[1] for name in weights if name != SCORE]

    def columns(self, query: int, rows: Rows, scores: Scores) -> NDArray[np.float64]:
        """(rows, weights) z-scores: of the scores, then of what each retriever says."""
        mine = [proposals[query] for proposals in self._signals]
        said = [estimates_at(one, ranks_in(one, rows)) for one in mine]
        return np.column_stack([_standardize(column) for column in (scores, *said)])

    def fuse(self, query: int, rows: Rows, scores: Scores) -> NDArray[np.float64]:
        """(rows,) the weighted sums."""
        sums: NDArray[np.float64] = self.columns(query, rows, scores) @ self._weights
        return sums


def check_rank_by(value: object) -> None:
    """An error unless it is an order of hits."""
    if value not in ORDERS:
        raise InputError(f"rank_by must be 'score' or 'fused'. Got {value!r} instead.")


def _standardize(values: Scores) -> NDArray[np.float64]:
    """With mean 0 and deviation 1; all 0 where they do not differ."""
    wide = values.astype(np.float64)
    return (wide - wide.mean()) / wide.std() if varies(wide) else np.zeros(len(wide))
