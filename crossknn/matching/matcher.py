"""`match`: finds the pairs of records whose cross-encoder score is high, in one table or between two."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_fraction, check_number, check_positive, check_range, check_seed, invalid
from crossknn._progress import choose_progress, end_progress
from crossknn.errors import InputError
from crossknn.indexing.index import Index
from crossknn.items.items import Items
from crossknn.matching.allocation import MatchSearch
from crossknn.matching.matches import Matches
from crossknn.matching.pair_scores import PairScorer
from crossknn.matching.recall_estimate import RecallEstimate, estimate_recall
from crossknn.matching.records import Records
from crossknn.matching.unscored import BEST_ROWS, Unscored
from crossknn.scorers.cached import Cached
from crossknn.search.calibration import ScoreCalibration
from crossknn.search.searcher import Searcher
from crossknn.strategies.base import SearchContext, drive
from crossknn.types import Encoder, Progress, Retriever, Rows, Scorer, Scores, VectorSearch

if TYPE_CHECKING:
    import torch

DEFAULT_BUDGET: Final = 20  # calls per record, on average
MIN_ROUNDS, MAX_ROUNDS, PAIRS_PER_ROUND = 2, 10, 5
MOST_PER_BUDGET: Final = 10  # calls of one record at most, as a multiple of the mean
BATCH: Final = 256  # records searched together
SAMPLE_SHARE, MAX_SAMPLE = 0.1, 2_000  # of the calls, for the estimate of recall
SAMPLED_BATCHES: Final = 4  # of records, whose unscored pairs are looked at for it
CACHED_TOGETHER: Final = 1024  # pairs, the most that a kill can lose


@dataclass(frozen=True)
class MatchOptions:
    """The options of `match` about matches and calls, checked."""

    threshold: float | None = None
    min_probability: float | None = None
    k: int | None = None
    budget: int | None = None
    max_calls: int | None = None
    max_per_record: int | None = None
    symmetric: bool = False
    sample: int | None = None
    deadline: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.threshold is None and self.min_probability is None and self.k is None:
            raise InputError("give `threshold`, `min_probability` or `k`: they say which pairs match.")
        if self.threshold is not None and self.min_probability is not None:
            raise InputError("give either `threshold` or `min_probability`.")
        if self.threshold is not None:
            check_range("threshold", self.threshold)
        if self.min_probability is not None:
            check_fraction("min_probability", self.min_probability)
            if self.min_probability == 1:
                raise invalid("min_probability", "less than 1", self.min_probability)
        for name in ("k", "budget", "max_calls", "max_per_record"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if self.sample is not None and (isinstance(self.sample, bool) or self.sample < 0):
            raise invalid("sample", "a nonnegative integer", self.sample)
        if self.deadline is not None:
            check_number("deadline", self.deadline)
        check_seed(self.seed)

    def total(self, records: int) -> int:
        """The calls for all records."""
        calls = records * (self.budget or DEFAULT_BUDGET) * (2 if self.symmetric and self.budget is None else 1)
        if self.max_calls is None:
            return calls
        return self.max_calls if self.budget is None else min(calls, self.max_calls)

    def sample_calls(self, total: int) -> int:
        """The part of the calls that the estimate of recall gets: none where only the best `k` count."""
        if self.k is not None:
            return 0
        return min(int(SAMPLE_SHARE * total), MAX_SAMPLE) if self.sample is None else min(self.sample, total)


def match(
    items: Items | Index,
    other: Items | Index | None = None,
    *,
    scorer: Scorer,
    encoder: Encoder | None = None,
    threshold: float | None = None,
    min_probability: float | None = None,
    k: int | None = None,
    budget: int | None = None,
    max_calls: int | None = None,
    max_per_record: int | None = None,
    symmetric: bool = False,
    sample: int | None = None,
    calibration: ScoreCalibration | str | Path | None = None,
    vectors: VectorSearch | NDArray[Any] | torch.Tensor | None = None,
    retrievers: Iterable[Retriever] = (),
    check_models: bool = True,
    cache: str | Path | None = None,
    deadline: float | None = None,
    cancelled: threading.Event | None = None,
    device: str | None = None,
    seed: int = 0,
    progress: Progress | bool | None = None,
) -> Matches:
    """The pairs of records that a cross-encoder scores high: duplicates in `items`, or links from `items` to `other`.

    Every record is a query of posterior search among all others. The searches share one table of scores, so that a pair
    is scored once whoever asks, and one budget, which goes to the pairs likeliest to match. Records with equal texts
    are searched once and share their scores; records without text match none. Without an encoder the candidates are
    those of BM25.

    Args:
        items: The records, or an index of them.
        other: The records to link them to; without it, pairs within `items` are found.
        scorer: Any `Scorer`. In a self-join the earlier record of a pair is the query, else that of `items`.
        encoder: Any `Encoder`; an index may bring its own.
        threshold: The lowest score of a match.
        min_probability: The same as a probability of the calibration.
        k: Keep at most this many matches per record of `items`, its best; in a self-join a pair is kept if it is among
            the best of either record.
        budget: Calls per record of `items`, on average over all; by default 20 pairs' worth.
        max_calls: Calls in total. With `budget`, the smaller total holds.
        max_per_record: Calls in the search of one record at most, by default ten times the average.
        symmetric: Score both directions of a pair, two calls, and take their mean.
        sample: Calls, of the total, for an estimate of the share of matching pairs found (`matches.recall`): by default
            10% of the calls and at most 2,000, and none with `k`.
        calibration: Gives pairs their `probability`; as of `Searcher`.
        vectors: Vectors of the records searched, `other` or else `items`; as of `Searcher`.
        retrievers: As of `Searcher`.
        check_models: As of `Searcher`.
        cache: An SQLite file that keeps the scores. Run again after a kill with the same file, the same call pays only
            for what is missing. Needed for `matches.new_calls` to be less than `matches.calls`.
        deadline: Seconds for the whole call; then the pairs found so far come back, without an estimate of recall.
        cancelled: Ends the search after the scorer call in flight once another thread sets it.
        device: As of `Searcher`.
        seed: Of the sample.
        progress: As of `Searcher`.
    """
    start = time.monotonic()
    if other is items:
        raise InputError("`other` is the same table as `items`: leave it out to find pairs within one table.")
    options = MatchOptions(
        threshold, min_probability, k, budget, max_calls, max_per_record, symmetric, sample, deadline, seed
    )
    if cache is not None:
        scorer = Cached(scorer, cache, every=CACHED_TOGETHER)
    show = choose_progress(progress)
    searcher = Searcher(
        items if other is None else other,
        scorer=scorer,
        encoder=encoder,
        vectors=vectors,
        retrievers=retrievers,
        calibration=calibration,
        check_models=check_models,
        device=device,
        progress=False if show is None else show,
    )
    right = Records(searcher.items)
    left = right if other is None else Records(_items_of(items))
    total = options.total(len(left))
    pairs = PairScorer(
        scorer,
        left,
        right,
        symmetric,
        ends=None if deadline is None else start + deadline,
        cancelled=cancelled,
        progress=show,
        total=total,
    )
    misses = scorer.misses if isinstance(scorer, Cached) else 0
    try:
        search = _MatchRun(searcher, pairs, options)
        search.find(total - options.sample_calls(total))
        recall = search.estimate_recall(total)
    finally:
        end_progress(show)
    return Matches(
        left.items,
        right.items,
        *search.choose(),
        calls=pairs.calls,
        new_calls=scorer.misses - misses if isinstance(scorer, Cached) else pairs.calls,
        recall=recall,
        stopped=pairs.stopped,
        seconds=time.monotonic() - start,
    )


def _items_of(items: Items | Index) -> Items:
    found = items.items if isinstance(items, Index) else items
    if not isinstance(found, Items):
        raise invalid("items", "an Index or Items, as from Items.from_path(…)", items)
    return found


class _MatchRun:
    """One call of `match`: the searches of all records, the sample, and the choice of pairs."""

    def __init__(self, searcher: Searcher, pairs: PairScorer, options: MatchOptions) -> None:
        self._searcher, self._pairs, self._options = searcher, pairs, options
        self._threshold = self._find_threshold()
        self._unscored = Unscored(pairs, options.seed)

    def _find_threshold(self) -> float:
        """The score of a match, at least."""
        if self._options.min_probability is None:
            return -np.inf if self._options.threshold is None else self._options.threshold
        if self._searcher.calibration is None:
            raise InputError("`min_probability` needs a `calibration`: see Searcher.fit_calibration.")
        return self._searcher.calibration.score_at(self._options.min_probability)

    def find(self, calls: int) -> None:
        """Search all records with this many calls; every batch has its share, and what the batches before it left."""
        pairs, left = self._pairs, self._pairs.left
        if pairs.self_join:
            pairs.limit = calls
            pairs.score(left.repeated, left.repeated)  # records of equal texts
        done = 0
        sampled = self._sampled_batches() if calls < self._pairs.total else ()
        for number, records in enumerate(self._batches()):
            share = -(-(calls - pairs.calls) * len(records) // (len(left) - done))
            pairs.limit = min(calls, pairs.calls + share)
            self._search(records, pairs.calls_left, sampled=number in sampled)
            done += len(records)
            if pairs.stopped:
                return

    def _batches(self) -> Iterator[Rows]:
        """The records in batches, interleaved: neighbors in a file are often alike."""
        records = self._pairs.left.representatives
        count = -(-len(records) // BATCH)
        return (records[place::count] for place in range(count))

    def _sampled_batches(self) -> list[int]:
        count = -(-len(self._pairs.left) // BATCH)
        chosen: list[int] = np.random.default_rng(self._options.seed).permutation(count)[:SAMPLED_BATCHES].tolist()
        return chosen

    def _search(self, records: Rows, calls: int, *, sampled: bool) -> None:
        context = self._context(records)
        if not context.reachable or calls < self._pairs.calls_per_pair:
            return
        per_pair = self._pairs.calls_per_pair
        mean = -(-calls // (per_pair * len(records)))  # pairs
        most = (self._options.max_per_record or per_pair * MOST_PER_BUDGET * mean) // per_pair
        most = min(max(1, most), context.reachable)
        if not self._searcher.has_query_vectors:
            _, proposals = context.propose(None, min(most, mean))
            self._pairs.ask(records, [one.rows for one in proposals])
            if sampled:
                self._unscored.add_ranked(records, context.propose(None, min(BEST_ROWS, context.reachable))[1])
            return
        budget = min(2 * most, context.reachable)
        strategy = MatchSearch(
            budget,
            min(max(MIN_ROUNDS, min(MAX_ROUNDS, mean // PAIRS_PER_ROUND)), budget),
            scorer=self._pairs,
            records=records,
            threshold=self._threshold,
            k=self._options.k,
            most=most,
            unscored=self._unscored if sampled else None,
        )
        drive(strategy, context, lambda proposed: self._pairs.ask(records, proposed))

    def _context(self, records: Rows) -> SearchContext:
        own = records if self._pairs.self_join else None
        texts = self._pairs.left.items.texts_of(records)
        return self._searcher.context(texts, own_rows=own, allowed=self._pairs.right.mask)

    def estimate_recall(self, calls: int) -> RecallEstimate | None:
        """The estimate, from the calls that are left; None where none is asked for or possible."""
        self._pairs.limit = calls
        sample = min(self._options.sample_calls(calls), self._pairs.calls_left) // self._pairs.calls_per_pair
        if not sample or self._pairs.stopped or not len(self._pairs.left):
            return None
        return estimate_recall(self._pairs, self._unscored, self._threshold, sample=sample, seed=self._options.seed)

    def choose(self) -> tuple[Rows, Rows, Scores, NDArray[np.float64] | None]:
        """The pairs of records that match, best first, and their probabilities."""
        left, right, scores = self._expand(*self._reaching())
        if self._options.k is not None:
            kept = self._best_of_records(left, right, scores, self._options.k)
            left, right, scores = left[kept], right[kept], scores[kept]
        order = np.lexsort((right, left, -scores))
        calibration = self._searcher.calibration
        chances = None if calibration is None else calibration.probabilities(scores[order])
        return left[order], right[order], scores[order], chances

    def _reaching(self) -> tuple[Rows, Rows, Scores]:
        left, right, scores = self._pairs.scored_pairs()
        reaches = scores >= self._threshold
        return left[reaches], right[reaches], scores[reaches]

    def _expand(self, left: Rows, right: Rows, scores: Scores) -> tuple[Rows, Rows, Scores]:
        """All pairs of records whose texts are those of these representatives."""
        parts: list[tuple[Rows, Rows, Scores]] = []
        for one, other, score in zip(left.tolist(), right.tolist(), scores, strict=True):
            rows, others = self._pairs.left.rows_like(one), self._pairs.right.rows_like(other)
            first, second = np.repeat(rows, len(others)), np.tile(others, len(rows))
            if self._pairs.self_join:
                first, second = np.minimum(first, second), np.maximum(first, second)
                distinct = (first < second) & ((one != other) | (np.repeat(rows, len(others)) == first))
                first, second = first[distinct], second[distinct]
            parts.append((first, second, np.full(len(first), score, np.float32)))
        nothing = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32)
        joined = [np.concatenate(column) for column in zip(nothing, *parts, strict=True)]
        return joined[0], joined[1], joined[2]

    def _best_of_records(self, left: Rows, right: Rows, scores: Scores, k: int) -> NDArray[np.bool_]:
        """Which pairs are among the `k` best of a record of `items`; ties go to the earlier record."""
        if not self._pairs.self_join:
            return _ranks(left, right, scores) < k
        # Both records of a pair have it in their list.
        ranks = _ranks(np.concatenate([left, right]), np.concatenate([right, left]), np.tile(scores, 2))
        among: NDArray[np.bool_] = ranks.reshape(2, -1).min(0) < k
        return among


def _ranks(own: Rows, other: Rows, scores: Scores) -> Rows:
    """(pairs,) the rank of each pair among those of its record, from 0."""
    order = np.lexsort((other, -scores, own))
    starts = np.flatnonzero(np.r_[True, own[order][1:] != own[order][:-1]]) if len(own) else np.empty(0, np.int64)
    ranks = np.empty(len(own), np.int64)
    ranks[order] = np.arange(len(own)) - np.repeat(starts, np.diff(np.r_[starts, len(own)]))
    return ranks
