"""k-nearest-neighbor graph of the items, searched only where a strategy looks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from crossknn.strategies.base import SearchContext
from crossknn.types import Proposal, Rows
from crossknn.vectors.ranking import order_rows


@dataclass(slots=True)
class NeighborGraph:
    """The `degree` nearest allowed items of each item by inner product, best first, found when first needed."""

    context: SearchContext
    degree: int
    _found: dict[int, Proposal] = field(default_factory=dict)

    def search(self, rows: Iterable[int]) -> None:
        """Find the neighbors of these rows, all together."""
        missing = np.array(sorted(set(rows) - self._found.keys()), np.int64)
        if not len(missing):
            return
        items = self.context.item_vectors()
        found = items.search(
            items.take(missing), self.degree, exclude=list(missing[:, None]), allowed=self.context.allowed
        )
        self._found.update(zip(missing.tolist(), found, strict=True))

    def neighbors(self, row: int) -> Proposal:
        """The neighbors of a row, with its inner products with them as estimates."""
        self.search([row])
        return self._found[row]

    def nearest_frontier(self, best: Proposal, scored: Rows, n: int) -> Proposal:
        """The first `n` unscored neighbors of the rows of `best`: those of the first row first, its nearest first.

        Their estimates are those of the row they are a neighbor of. The neighbors of later rows are searched only where
        those of earlier ones are too few.
        """
        reach = -(-n // self.degree)  # rows that are enough if all their neighbors are unscored
        while True:
            sources = best.first(reach)
            self.search(sources.rows.tolist())
            found = [self.neighbors(int(row)).rows for row in sources.rows]
            rows = np.concatenate([np.empty(0, np.int64), *found])
            estimates = np.repeat(sources.estimates, [len(one) for one in found])
            frontier = take_new([Proposal(rows, estimates)], scored, n)
            if len(frontier) == n or reach >= len(best):
                return frontier
            reach *= 2

    def set_affinity(self, sources: Proposal, weights: NDArray[np.float64], scored: Rows) -> Proposal:
        """All unscored neighbors of the `sources`, ordered by the sum of weight × inner product with each of them."""
        found = [self.neighbors(int(row)) for row in sources.rows]
        rows = np.concatenate([np.empty(0, np.int64), *(one.rows for one in found)])
        shares = [weight * one.estimates for weight, one in zip(weights, found, strict=True)]
        distinct, place = np.unique(rows, return_inverse=True)
        sums = np.bincount(place, np.concatenate([np.empty(0), *shares]), minlength=len(distinct))
        unscored = ~np.isin(distinct, scored)
        return order_rows(distinct[unscored], sums[unscored])


def take_new(sources: Sequence[Proposal], scored: Rows, n: int) -> Proposal:
    """The first `n` unscored rows of these proposals, one proposal after the other, each row once."""
    rows = np.concatenate([proposal.rows for proposal in sources])
    estimates = np.concatenate([proposal.estimates for proposal in sources])
    first_seen = np.zeros(len(rows), np.bool_)
    first_seen[np.unique(rows, return_index=True)[1]] = True
    kept = first_seen & ~np.isin(rows, scored)
    return Proposal(rows[kept], estimates[kept]).first(n)
