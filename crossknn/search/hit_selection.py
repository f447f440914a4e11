"""From scored rows to hits: order, threshold, diversity, and the candidates that a deadline left unscored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from crossknn.items.items import Items
from crossknn.retrievers.cache import CandidateCache
from crossknn.search.fusion import ScoreFusion
from crossknn.search.results import Hit, Hits, Trace
from crossknn.strategies.base import QueryResult, join_rounds
from crossknn.types import Proposal, Rows, Scores

NOT_SCORED: Final = 0  # the round of a hit that was not scored


@dataclass(frozen=True)
class Selection:
    """Which of the scored rows become hits, and in which order: by score, or by `fusion`."""

    k: int
    fusion: ScoreFusion | None = None

    def choose(self, query: int, rows: Rows, scores: Scores) -> Rows:
        """Positions of the best rows; ties go to the higher score, then the lower row."""
        keys = (rows, -scores) if self.fusion is None else (rows, -scores, -self.fusion.fuse(query, rows, scores))
        best: Rows = np.lexsort(keys)[: self.k]
        return best

    def room(self, chosen: int) -> int:
        """How many rows that were not scored may follow."""
        return self.k - chosen


class StrategyRun(NamedTuple):
    """What a strategy found for the queries of one search, and the time spent in the scorer and in learning."""

    queries: Sequence[str]
    items: Items
    results: list[QueryResult]
    candidates: CandidateCache
    traced: bool  # every scored item; otherwise only the hits
    score_seconds: float
    solve_seconds: float

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
            hits=self._with_contents(found),
            calls=result.calls,
            rounds=sum(1 for part in result.rows if len(part)),
            stopped=result.stopped,
            seconds=seconds,
            score_seconds=self.score_seconds,
            solve_seconds=self.solve_seconds,
            expected_recall=result.expected_recall,
            estimates=result.all_estimates,
            trace=trace,
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

    def _with_contents(self, hits: list[Hit]) -> tuple[Hit, ...]:
        rows = np.array([hit.row for hit in hits], np.int64)
        contents = zip(self.items.texts_of(rows), self.items.fields_of(rows), strict=True)
        return tuple(replace(hit, text=text, fields=fields) for hit, (text, fields) in zip(hits, contents, strict=True))
