"""From scored rows to hits: order, threshold, diversity, and the candidates that a deadline left unscored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from crossknn.items.items import Items
from crossknn.retrievers.cache import CandidateCache
from crossknn.search.calibration import ScoreCalibration
from crossknn.search.diversity import diversify, pool_size
from crossknn.search.fusion import ScoreFusion
from crossknn.search.results import Hit, Hits, Trace
from crossknn.strategies.base import QueryResult, join_rounds
from crossknn.types import Mask, Proposal, Rows, Scores, Vectors

NOT_SCORED: Final = 0  # the round of a hit that was not scored


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which of the scored rows become hits, and in which order: by score, or by `fusion`."""

    k: int
    fusion: ScoreFusion | None = None
    min_score: float | None = None
    min_probability: float | None = None  # needs a calibration
    diversity: float = 0.0  # above 0 needs vectors
    vectors: Callable[[Rows], Vectors] | None = None
    calibration: ScoreCalibration | None = None

    def choose(self, query: int, rows: Rows, scores: Scores) -> Rows:
        """Positions of the best rows; ties go to the higher score, then the lower row."""
        relevance = scores if self.fusion is None else self.fusion.fuse(query, rows, scores)
        order = np.lexsort((rows, -scores, -relevance))
        best: Rows = order[self._reaches(scores)[order]]
        if self.diversity > 0 and self.vectors is not None:
            best = best[: pool_size(self.k)]
            best = best[diversify(relevance[best], self.vectors(rows[best]), self.k, self.diversity)]
        return best[: self.k]

    def _reaches(self, scores: Scores) -> Mask:
        """Which scores are high enough."""
        reaches = np.ones(len(scores), np.bool_)
        if self.min_score is not None:
            reaches &= scores.astype(np.float64) >= self.min_score
        if self.min_probability is not None and self.calibration is not None:
            reaches &= self.calibration.probabilities(scores) >= self.min_probability
        return reaches

    def room(self, chosen: int) -> int:
        """How many rows that were not scored may follow: none that might not reach the threshold."""
        return self.k - chosen if self.min_score is None and self.min_probability is None else 0

    def probability(self, hit: Hit) -> float | None:
        """Of the hit being relevant, where it was scored and a calibration is at hand."""
        if self.calibration is None or not hit.scored:
            return None
        return float(self.calibration.probabilities(np.array(hit.score)))


class StrategyRun(NamedTuple):
    """What a strategy has found for the queries of one search, and the time spent in the scorer and in learning."""

    queries: Sequence[str]
    items: Items
    results: list[QueryResult]
    candidates: CandidateCache
    traced: bool  # every scored item; otherwise only the hits
    final: bool  # whether the search is over
    score_seconds: float
    solve_seconds: float
    rounds_reason: str | None = None

    def hits(self, query: int, selection: Selection, seconds: float) -> Hits:
        """The best items of a query."""
        result = self.results[query]
        rows, scores = join_rounds(result.rows), join_rounds(result.scores)
        best = selection.choose(query, rows, scores)
        calls = np.arange(len(rows)) if self.traced else np.sort(best)
        trace = self._trace(query, calls)
        found = [trace[call] for call in np.searchsorted(calls, best).tolist()]
        if result.stopped == "deadline":
            found += self._unscored(query, rows, selection.room(len(best)))
        return Hits(
            query=self.queries[query],
            hits=self._complete(found, selection),
            calls=result.calls,
            rounds=sum(1 for part in result.rows if len(part)),
            stopped=result.stopped,
            seconds=seconds,
            score_seconds=self.score_seconds,
            solve_seconds=self.solve_seconds,
            rounds_reason=self.rounds_reason,
            expected_recall=result.expected_recall,
            estimates=result.all_estimates,
            trace=trace,
            final=self.final,
        )

    def _trace(self, query: int, calls: Rows) -> Trace:
        """The scored items of a query at these positions."""
        result = self.results[query]
        rows = join_rounds(result.rows)[calls]
        return Trace(
            ids=self.items.ids_of(rows),
            rows=rows,
            rounds=np.repeat(np.arange(len(result.rows)), [len(part) for part in result.rows])[calls],
            scores=join_rounds(result.scores)[calls],
            estimates=join_rounds(result.estimates)[calls],
            deviations=join_rounds(result.deviations)[calls],
            proposed_by=result.proposed_by,
            ranks=self.candidates.ranks(query, rows),
        )

    def _unscored(self, query: int, scored: Rows, count: int) -> list[Hit]:
        """The first `count` candidates that were not scored: those of the round that was cut, then the first stage's.

        A row that nobody had an estimate of, as in exact search, is no candidate.
        """
        chosen: dict[int, tuple[str, float]] = {}
        seen = set(scored.tolist())
        for name, proposal in self._candidate_lists(query):
            for row, estimate in zip(proposal.rows.tolist(), proposal.estimates.tolist(), strict=True):
                if len(chosen) >= count:
                    break
                if row not in seen and not np.isnan(estimate):
                    chosen.setdefault(row, (name, estimate))
        rows = np.array(list(chosen), np.int64)
        ranks = self.candidates.ranks(query, rows)
        return [
            Hit(
                id=id_,
                score=np.nan,
                estimate=estimate,
                round=NOT_SCORED,
                proposed_by=name,
                row=row,
                ranks={retriever: int(places[place]) or None for retriever, places in ranks.items()},
            )
            for place, (id_, (row, (name, estimate))) in enumerate(
                zip(self.items.ids_of(rows), chosen.items(), strict=True)
            )
        ]

    def _candidate_lists(self, query: int) -> Iterator[tuple[str, Proposal]]:
        """By whom, and which."""
        result = self.results[query]
        if result.cut is not None:
            yield result.proposed_by[-1], result.cut
        if result.proposed_by:
            yield from self.candidates.first_stage(query, result.proposed_by[0])

    def _complete(self, hits: list[Hit], selection: Selection) -> tuple[Hit, ...]:
        """The hits with what a trace does not have: texts, fields and probabilities."""
        rows = np.array([hit.row for hit in hits], np.int64)
        contents = zip(hits, self.items.texts_of(rows), self.items.fields_of(rows), strict=True)
        return tuple(
            replace(hit, text=text, fields=fields, probability=selection.probability(hit))
            for hit, text, fields in contents
        )
