"""Posterior search of many records under one budget, whose calls go where a match is likeliest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from crossknn.matching.pair_scores import PairScorer
from crossknn.matching.unscored import Unscored
from crossknn.strategies.base import Flow, Round, SearchContext
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.types import EMPTY_PROPOSAL, Rows

if TYPE_CHECKING:
    from crossknn.strategies.base import Observations
    from crossknn.strategies.posterior.session import PosteriorMeans, PosteriorSession

MIN_CANDIDATES: Final = 16  # unscored rows of a record that compete for the next round's calls, or
CANDIDATES_PER_CALL: Final = 4  # this many times the mean number of calls

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False, kw_only=True)
class MatchSearch(Posterior):
    """Posterior search for pairs above a threshold, with one budget for all records of a batch.

    The first round is the same for every record. In each later round the unscored pairs of all records compete: the
    likeliest to match are scored. Pairs that another record's search has paid for are learned from at once.

    Args:
        budget: Pairs that one record's search may learn from, those that cost it nothing included.
        scorer: Scores the pairs, and knows how many calls are left.
        records: (queries,) the rows of the records searched.
        threshold: Of the score of a match.
        k: Matches wanted per record; a pair must then also beat a record's k-th best score so far.
        most: Calls for one record at most.
        unscored: Where the pairs that are left are added in the end.
    """

    scorer: PairScorer
    records: Rows
    threshold: float
    k: int | None
    most: int
    unscored: Unscored | None = None

    def flow(self, context: SearchContext) -> Flow:
        first, session = self._start(context)

        def next_round(number: int) -> Round:
            pairs = self._pairs_of_round(number, context)
            if session.exhausted or not pairs:
                return Round([EMPTY_PROPOSAL] * context.queries, "posterior")
            width = max(MIN_CANDIDATES, -(-CANDIDATES_PER_CALL * pairs // context.queries))
            width = min(width, self.most, context.reachable)
            means = session.posterior_means(width)
            counts = self._allocate(session, means, width, pairs)
            known = self._known_rows(session, counts)
            counts = [count + len(rows) for count, rows in zip(counts, known, strict=True)]
            return self._choose_rows(context, session, means, counts)

        yield from self._run_rounds(first, session.observations, next_round)
        if self.unscored is not None:
            self.unscored.add_predicted(self.records, session, self.threshold)
        return None

    def _share(self, context: SearchContext, number: int, spent: int) -> int:  # noqa: ARG002
        """Rows of each record in the first round."""
        share = self._pairs_of_round(number, context) // context.queries
        return min(max(1, share), self.most, context.reachable)

    def _pairs_of_round(self, number: int, context: SearchContext) -> int:  # noqa: ARG002
        """Of all records together: an even share of the calls that are left."""
        pairs = self.scorer.calls_left // self.scorer.calls_per_pair
        return -(-pairs // (self.round_count - number + 1))

    def _allocate(self, session: PosteriorSession, means: PosteriorMeans, width: int, pairs: int) -> list[int]:
        """How many rows of each record are scored next."""
        levels = np.array([self._level(observed) for observed in session.observations])
        chances = np.minimum.accumulate(session.chances_above(means, width, levels), axis=1)
        room = np.array([self.most - len(observed.rows) for observed in session.observations])
        chances[np.arange(width) >= room[:, None]] = -1
        order = np.argsort(-chances, axis=None, kind="stable")[:pairs]
        chosen = order[chances.ravel()[order] >= 0]
        counts: list[int] = np.bincount(chosen // width, minlength=len(session)).tolist()
        return counts

    def _level(self, observed: Observations) -> float:
        """The score that a new pair of this record must reach."""
        if self.k is None or len(observed.scores) < self.k:
            return self.threshold
        return max(self.threshold, float(np.partition(observed.scores, -self.k)[-self.k]))

    def _known_rows(self, session: PosteriorSession, counts: Sequence[int]) -> list[list[int]]:
        """The rows that other records' searches have scored with each record, as many as the budget has room for."""
        found = session.unscored_rows([self.scorer.partners.get(one, []) for one in self.records.tolist()])
        room = [self.budget - len(one.rows) - count for one, count in zip(session.observations, counts, strict=True)]
        return [rows[: max(0, most)] for rows, most in zip(found, room, strict=True)]

    def _rows_before(
        self, context: SearchContext, session: PosteriorSession, counts: list[int]
    ) -> tuple[list[str], list[list[int]]]:
        names, before = super()._rows_before(context, session, counts)
        known = self._known_rows(session, [0] * len(counts))
        return names, [list(dict.fromkeys([*some, *others])) for some, others in zip(known, before, strict=True)]
