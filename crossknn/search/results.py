"""Search results: hits, what finding them cost, and the trace of every call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, overload

import numpy as np

from crossknn.items.items import Items
from crossknn.retrievers.cache import CandidateCache
from crossknn.search.fusion import ScoreFusion
from crossknn.strategies.base import QueryResult, join_rounds
from crossknn.types import Rows, Scores


@dataclass(frozen=True, slots=True)
class Hit:
    """One item that was scored.

    Attributes:
        id: The item's id.
        score: The scorer's raw logit.
        estimate: The proposer's estimate before the call: in an adaptive round on the scale of scores, in a first round
            on the retriever's own scale; None where there was none.
        round: The round in which it was scored, from 1.
        proposed_by: The retriever or strategy that proposed it.
        row: Its position in the items.
        deviation: Predictive standard deviation of the score; None where it is unknown.
        ranks: Rank in the list of every retriever that was used, from 1; None where it was not proposed.
        text: The item's text; empty in a trace.
        fields: The item's fields by name, None where it has none of a name; empty in a trace.
    """

    id: str
    score: float
    estimate: float | None
    round: int
    proposed_by: str
    row: int
    deviation: float | None = None
    ranks: Mapping[str, int | None] = field(default_factory=dict, hash=False)
    text: str = field(default="", compare=False)
    fields: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False)

    @property
    def expected(self) -> float | None:
        """The estimate where it is on the scale of scores: a retriever's is not."""
        return None if self.proposed_by in self.ranks else self.estimate


@dataclass(frozen=True, eq=False)
class Trace(Sequence[Hit]):
    """Scored items in the order of the calls, kept as arrays; an element is made into a `Hit` on access."""

    ids: Sequence[str]
    rows: Rows
    rounds: Rows  # from 0
    scores: Scores
    estimates: Scores  # NaN where there is none
    deviations: Scores  # NaN where there is none
    proposed_by: Sequence[str]  # one per round
    ranks: Mapping[str, Rows]  # by retriever, from 1; 0 where it did not propose the item

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} items>"

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Hit, ...]: ...
    def __getitem__(self, index: int | slice) -> Hit | tuple[Hit, ...]:
        chosen = range(len(self))[index]
        return self._hit(chosen) if isinstance(chosen, int) else tuple(map(self._hit, chosen))

    def _hit(self, call: int) -> Hit:
        number = int(self.rounds[call])
        return Hit(
            id=self.ids[call],
            score=float(self.scores[call]),
            estimate=_not_nan(self.estimates[call]),
            round=number + 1,
            proposed_by=self.proposed_by[number],
            row=int(self.rows[call]),
            deviation=_not_nan(self.deviations[call]),
            ranks={name: int(ranks[call]) or None for name, ranks in self.ranks.items()},
        )


def _not_nan(value: np.float32) -> float | None:
    return None if np.isnan(value) else float(value)


@dataclass(frozen=True)
class Hits(Sequence[Hit]):
    """The best k items of one query, highest score first unless ranked otherwise, and what finding them cost.

    Attributes:
        query: The query.
        hits: The items.
        calls: Pairs scored for this query, never more than the budget.
        rounds: Rounds that scored something.
        stopped: Why the search ended early, "deadline" or "cancelled"; None where it ran to its end, which includes
            early stopping by `stop_at`.
        seconds: Wall time of the search; queries searched together share it.
        score_seconds: Part of it spent in the scorer.
        solve_seconds: Part of it in which the strategy learned from scores.
        expected_recall: Share of the query's true top k that the strategy expects among the scored items; after a
            deadline, the last known value. None where it is unknown.
        estimates: (items,) estimated scores of all items, where the strategy was asked for them.
        trace: Every scored item in the order of the calls; of exact search only the hits.
    """

    query: str
    hits: tuple[Hit, ...]
    calls: int
    rounds: int
    stopped: str | None = None
    seconds: float = 0.0
    score_seconds: float = 0.0
    solve_seconds: float = 0.0
    expected_recall: float | None = None
    estimates: Scores | None = field(default=None, repr=False, compare=False)
    trace: Sequence[Hit] = field(default=(), repr=False, compare=False)

    def scored(self) -> tuple[list[str], list[float]]:
        """Ids and scores of every scored item, in the order of the calls; of exact search those of the hits."""
        if isinstance(self.trace, Trace):
            return list(self.trace.ids), self.trace.scores.tolist()
        return [hit.id for hit in self.trace], [hit.score for hit in self.trace]

    @property
    def complete(self) -> bool:
        """Whether the search ran to its end."""
        return self.stopped is None

    @property
    def ids(self) -> list[str]:
        return [hit.id for hit in self.hits]

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    @overload
    def __getitem__(self, index: int) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Hit, ...]: ...
    def __getitem__(self, index: int | slice) -> Hit | tuple[Hit, ...]:
        return self.hits[index]


class StrategyRun(NamedTuple):
    """What a strategy found for the queries of one search, and the time spent in the scorer and in learning."""

    queries: Sequence[str]
    items: Items
    results: list[QueryResult]
    candidates: CandidateCache
    traced: bool  # every scored item; otherwise only the hits
    score_seconds: float
    solve_seconds: float

    def hits(self, query: int, k: int, fusion: ScoreFusion | None, seconds: float) -> Hits:
        """The `k` best items of a query, by score or by `fusion`; ties go to the higher score, then the lower row."""
        result = self.results[query]
        rows, scores = join_rounds(result.rows), join_rounds(result.scores)
        keys = (rows, -scores) if fusion is None else (rows, -scores, -fusion.fuse(query, rows, scores))
        best = np.lexsort(keys)[:k]
        calls = np.arange(len(rows)) if self.traced else np.sort(best)
        trace = Trace(
            ids=self.items.ids_of(rows[calls]),
            rows=rows[calls],
            rounds=np.repeat(np.arange(len(result.rows)), [len(part) for part in result.rows])[calls],
            scores=scores[calls],
            estimates=join_rounds(result.estimates)[calls],
            deviations=join_rounds(result.deviations)[calls],
            proposed_by=result.proposed_by,
            ranks=self.candidates.ranks(query, rows[calls]),
        )
        held = zip(self.items.texts_of(rows[best]), self.items.fields_of(rows[best]), strict=True)
        hits = (trace[call] for call in np.searchsorted(calls, best).tolist())
        return Hits(
            query=self.queries[query],
            hits=tuple(replace(hit, text=text, fields=fields) for hit, (text, fields) in zip(hits, held, strict=True)),
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
