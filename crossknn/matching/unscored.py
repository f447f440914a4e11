"""Pairs that a search has left unscored, each with the evidence that it matches and the number it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossknn.matching.pair_scores import PairScorer
from crossknn.types import Proposal, Rows

if TYPE_CHECKING:
    from crossknn.strategies.posterior.session import PosteriorSession

BEST_ROWS: Final = 1_000  # of each record, all of which are looked at,
OTHER_ROWS: Final = 1_000  # and rows at random, which stand for all others

Array = NDArray[np.float64]


class Prior(NamedTuple):
    """Independent normal priors of the intercept and the slope of the log-odds of a match over evidence."""

    mean: tuple[float, float]
    std: tuple[float, float]


# Evidence is by how many standard deviations a prediction is above the threshold, within limits: errors have longer
# tails than the normal distribution. The priors fit several sets, and matter where few of the drawn pairs match.
BY_POSTERIOR: Final = Prior((-2.5, 1.2), (3.0, 0.4))
LIMITS: Final = (-8.0, 2.0)
BY_RANK: Final = Prior((-3.0, 1.0), (3.0, 0.5))  # evidence is minus the log of the rank in the first stage's list


class UnscoredPairs(NamedTuple):
    """Pairs, the evidence for each, and how many pairs each stands for."""

    records: Rows
    rows: Rows
    evidence: Array
    weights: Array

    def take(self, places: NDArray[np.int64]) -> UnscoredPairs:
        """The pairs in these places."""
        return UnscoredPairs(self.records[places], self.rows[places], self.evidence[places], self.weights[places])


class _Part(NamedTuple):
    records: Rows  # (records,)
    rows: Rows  # (records, n): the best, then others, of any row
    evidence: Array  # (records, n)
    is_best: NDArray[np.bool_]  # (records, n)
    is_other: NDArray[np.bool_]  # (records, n), and not among the best


class Unscored:
    """Rows of some records with the evidence for each, added when the records have been searched.

    Args:
        scorer: Knows which pairs are scored.
        seed: Of the random rows.
    """

    def __init__(self, scorer: PairScorer, seed: int = 0) -> None:
        self._scorer, self._rng = scorer, np.random.default_rng(seed)
        self._reachable = len(scorer.right) - scorer.self_join  # rows of each record
        self._parts: list[_Part] = []
        self.prior = BY_POSTERIOR

    def add_predicted(self, records: Rows, session: PosteriorSession, threshold: float) -> None:
        """Add the records of a session, with its predictions as evidence."""
        best = session.best_rows(min(BEST_ROWS, self._reachable))
        others = self._others(len(records), listed=BEST_ROWS)
        evidence = session.margins(np.concatenate([best, others], 1), threshold)
        self._add(records, best, others, np.clip(evidence, *LIMITS))

    def add_ranked(self, records: Rows, lists: Sequence[Proposal]) -> None:
        """Add records with their lists of a first stage; random rows have ranks at random behind the list."""
        self.prior = BY_RANK
        width = max((len(one.rows) for one in lists), default=0)
        best = np.full((len(records), width), len(self._scorer.right.items))
        for row, one in zip(best, lists, strict=True):
            row[: len(one.rows)] = one.rows
        behind = np.array([[len(one.rows)] for one in lists])
        others = self._others(len(records), listed=int(behind.min(initial=BEST_ROWS)))
        ranks = behind + 1 + self._rng.random(others.shape) * (self._reachable - behind)
        listed = np.broadcast_to(np.arange(1, width + 1), best.shape)
        self._add(records, best, others, -np.log(np.concatenate([listed, ranks], 1)))

    def pairs(self) -> UnscoredPairs:
        """The pairs of these records that are unscored by now, standing for those of all records."""
        scorer = self._scorer
        scored = self._count_scored()
        added = sum(len(part.records) for part in self._parts)
        scale = len(scorer.left) / max(1, added) / (1 + scorer.self_join)  # in a self-join both records have a pair
        nothing = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty(0)
        parts = [nothing]
        for part in self._parts:
            records = np.broadcast_to(part.records[:, None], part.rows.shape)
            is_unscored = np.isnan(scorer.known(records.ravel(), part.rows.ravel())).reshape(part.rows.shape)
            best, others = part.is_best & is_unscored, part.is_other & is_unscored
            left = self._reachable - scored[part.records] - best.sum(1)  # unscored rows that are not among the best
            weights = best + others * (np.maximum(left, 0) / np.maximum(1, others.sum(1)))[:, None]
            kept = weights > 0
            parts.append((records[kept], part.rows[kept], part.evidence[kept], scale * weights[kept]))
        return UnscoredPairs(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _add(self, records: Rows, best: Rows, others: Rows, evidence: Array) -> None:
        items = len(self._scorer.right.items)
        own = others == records[:, None] if self._scorer.self_join else np.zeros(others.shape, np.bool_)
        among = np.array([np.isin(some, known) for some, known in zip(others, best, strict=True)]).reshape(others.shape)
        rows = np.concatenate([best, others], 1)
        is_best = np.concatenate([best < items, np.zeros_like(own)], 1)
        is_other = np.concatenate([np.zeros(best.shape, np.bool_), ~own & ~among], 1)
        self._parts.append(_Part(records, np.minimum(rows, items - 1), evidence, is_best, is_other))

    def _others(self, records: int, *, listed: int) -> Rows:
        """Random rows of each record, none where as many are among the best as there are."""
        count = OTHER_ROWS if self._reachable > listed else 0
        return self._rng.choice(self._scorer.right.representatives, (records, count))

    def _count_scored(self) -> NDArray[np.int64]:
        """(items of the left table,) how many other rows each record is scored with."""
        left, right, _ = self._scorer.scored_pairs()
        distinct = (left != right) | (not self._scorer.self_join)
        ends = np.concatenate([left[distinct], right[distinct]]) if self._scorer.self_join else left
        return np.bincount(ends, minlength=len(self._scorer.left.items))
