"""Estimate of the share of matching pairs that a search has found, from a stratified sample of unscored pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crossknn.matching.pair_scores import PairScorer
from crossknn.types import Proposal, Rows

EDGES: Final = (0, 10, 30, 100, 300, 1_000)  # of the strata, by rank in the first stage's list of a record
SAMPLED_RECORDS: Final = 1_000  # whose lists the strata are made of
ENUMERATED: Final = 100_000  # pairs in no list that are all looked up, if there are no more
BATCH: Final = 256  # records whose lists are retrieved together
Z: Final = 1.96  # of a 95% interval

Propose = Callable[[Rows, int], list[Proposal]]


@dataclass(frozen=True)
class Stratum:
    """Unscored pairs whose ranks in the first stage's lists are alike, and the sample of them.

    Attributes:
        first_rank, last_rank: From 1; None for pairs that the lists do not hold.
        pairs: Unscored pairs in the stratum, in a self-join estimated from both records' lists.
        sampled: Pairs scored at random.
        matches: Those that match.
        missed: Estimated matches among its pairs.
        variance: Of that estimate.
    """

    first_rank: int
    last_rank: int | None
    pairs: float
    sampled: int
    matches: int
    missed: float
    variance: float


@dataclass(frozen=True)
class RecallEstimate:
    """The share of all matching pairs that are among the pairs found, estimated by stratified sampling.

    Strata without a match in their sample add nothing to the estimate or its interval: `strata` says how many of how
    many pairs were looked at.

    Attributes:
        recall: The estimate; the pairs that the sample found count as found.
        low, high: 95% interval by the normal approximation.
        missed: Estimated number of matching pairs that were not found.
        calls: What the sample cost.
        strata: By rank in the first stage's lists.
    """

    recall: float
    low: float
    high: float
    missed: float
    calls: int
    strata: tuple[Stratum, ...]

    def __str__(self) -> str:
        sampled = sum(one.sampled for one in self.strata)
        return f"{self.recall:.1%} of all matching pairs found ({self.low:.1%} to {self.high:.1%}, {sampled:,} sampled)"


def estimate_recall(
    scorer: PairScorer, propose: Propose, threshold: float, *, sample: int, seed: int = 0
) -> RecallEstimate | None:
    """Score `sample` random unscored pairs of distinct texts, as many per stratum, and estimate the matches missed.

    None where the limits of `scorer` cut the sample.
    """
    left, right, scores = scorer.scored_pairs()
    found = int(((scores >= threshold) & ~(scorer.self_join & (left == right))).sum())
    before = scorer.calls
    rng = np.random.default_rng(seed)
    pools = _Pools.draw(scorer, propose, rng)
    drawn = [pools.sample(stratum, count, rng) for stratum, count in enumerate(_spread(sample, pools.sizes))]
    scorer.score(*(np.concatenate(parts) for parts in zip(*drawn, strict=True)))
    strata: list[Stratum] = []
    extra: set[tuple[int, int]] = set()
    for stratum, (records, rows) in enumerate(drawn):
        values = scorer.known(records, rows)
        if np.isnan(values).any():
            return None
        matches = values >= threshold
        found_now = zip(records[matches].tolist(), rows[matches].tolist(), strict=True)
        extra |= {_unordered(pair, scorer.self_join) for pair in found_now}
        ranks = EDGES[stratum] + 1, EDGES[stratum + 1] if stratum + 1 < len(EDGES) else None
        strata.append(_estimate(*ranks, pools.sizes[stratum], pools.weight, matches))
    missed = max(0.0, sum(one.missed for one in strata) - len(extra))
    error = Z * sqrt(sum(one.variance for one in strata))
    bounds = [_share(found + len(extra), max(0.0, missed + shift)) for shift in (error, -error)]
    return RecallEstimate(
        _share(found + len(extra), missed), *bounds, missed=missed, calls=scorer.calls - before, strata=tuple(strata)
    )


def _estimate(first: int, last: int | None, size: int, weight: float, matches: NDArray[np.bool_]) -> Stratum:
    sampled, chance = len(matches), float(matches.mean()) if len(matches) else 0.0
    variance = (size * weight) ** 2 * chance * (1 - chance) / sampled * (1 - sampled / size) if sampled else 0.0
    return Stratum(first, last, size * weight, sampled, int(matches.sum()), size * weight * chance, variance)


class _Pools(NamedTuple):
    """The unscored pairs of some records by stratum; those in no list are counted, and found only as they are drawn.

    Attributes:
        weight: Pairs that each of these stands for: of other records, and in a self-join half, since both records of a
            pair have it.
    """

    scorer: PairScorer
    listed: list[tuple[Rows, Rows]]  # by stratum: records and rows
    records: Rows
    lists: list[Rows]
    others: NDArray[np.int64]  # (records,) unscored pairs in no list
    weight: float

    @classmethod
    def draw(cls, scorer: PairScorer, propose: Propose, rng: np.random.Generator) -> _Pools:
        every = scorer.left.representatives
        records = np.sort(rng.permutation(every)[:SAMPLED_RECORDS])
        lists = [
            one.rows
            for start in range(0, len(records), BATCH)
            for one in propose(records[start : start + BATCH], EDGES[-1])
        ]
        listed = [_unscored(scorer, records, [rows[low:high] for rows in lists]) for low, high in _ranges()]
        left, right, _ = scorer.scored_pairs()
        distinct = left != right if scorer.self_join else np.ones(len(left), np.bool_)
        ends = np.concatenate([left, right])[np.tile(distinct, 2)] if scorer.self_join else left
        scored = np.bincount(ends, minlength=len(scorer.left.items))[records]
        in_lists = sum(np.bincount(rows, minlength=len(scorer.left.items))[records] for rows, _ in listed)
        others = len(scorer.right) - scorer.self_join - scored - in_lists
        weight = len(every) / max(1, len(records)) / (1 + scorer.self_join)
        return cls(scorer, listed, records, lists, others, weight)

    @property
    def sizes(self) -> list[int]:
        return [*(len(rows) for _, rows in self.listed), int(self.others.sum())]

    def sample(self, stratum: int, count: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
        """Distinct random pairs of a stratum."""
        if stratum < len(self.listed):
            records, rows = self.listed[stratum]
            chosen = rng.permutation(len(rows))[:count]
            return records[chosen], rows[chosen]
        if self.others.sum() <= ENUMERATED:
            unlisted = [self._unlisted(place) for place in range(len(self.records))]
            chosen = rng.permutation(sum(map(len, unlisted)))[:count]
            return np.repeat(self.records, list(map(len, unlisted)))[chosen], np.concatenate(unlisted)[chosen]
        pairs: dict[tuple[int, int], None] = {}
        chances = self.others / self.others.sum()
        while len(pairs) < count:
            place = int(rng.choice(len(self.records), p=chances))
            pairs[int(self.records[place]), int(rng.choice(self._unlisted(place)))] = None
        drawn = np.array(list(pairs), np.int64).reshape(-1, 2)
        return drawn[:, 0], drawn[:, 1]

    def _unlisted(self, place: int) -> Rows:
        """The unscored rows of a record that its list does not hold."""
        rows = np.setdiff1d(self.scorer.right.representatives, self.lists[place])
        if self.scorer.self_join:
            rows = rows[rows != self.records[place]]
        return rows[np.isnan(self.scorer.known(np.full(len(rows), self.records[place]), rows))]


def _ranges() -> list[tuple[int, int]]:
    return list(pairwise(EDGES))


def _unscored(scorer: PairScorer, records: Rows, lists: list[Rows]) -> tuple[Rows, Rows]:
    queries = np.repeat(records, [len(rows) for rows in lists])
    rows = np.concatenate([np.empty(0, np.int64), *lists])
    missing = np.isnan(scorer.known(queries, rows))
    return queries[missing], rows[missing]


def _spread(sample: int, sizes: list[int]) -> list[int]:
    """The sample over the strata: even, but no more than each holds."""
    counts = [0] * len(sizes)
    rest, places = sample, sorted(range(len(sizes)), key=lambda place: sizes[place])
    for done, place in enumerate(places):
        counts[place] = min(sizes[place], rest // (len(places) - done))
        rest -= counts[place]
    return counts


def _unordered(pair: tuple[int, int], self_join: bool) -> tuple[int, int]:
    return (min(pair), max(pair)) if self_join else pair


def _share(found: int, missed: float) -> float:
    return found / (found + missed) if found + missed else 1.0
