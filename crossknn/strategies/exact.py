"""Exhaustive search: the ground truth that every other strategy is measured against."""

from dataclasses import dataclass

import numpy as np

from crossknn.strategies.base import Flow, Round, SearchContext, Settings
from crossknn.types import Proposal


@dataclass(frozen=True, repr=False)
class Exact(Settings):
    """Scores every allowed item in one round. It has no budget."""

    @property
    def budget(self) -> None:
        return None

    def flow(self, context: SearchContext) -> Flow:
        rows = context.allowed_rows
        proposal = Proposal(rows, np.full(len(rows), np.nan, np.float32))
        yield Round([proposal] * context.queries, "exact")
        return None
