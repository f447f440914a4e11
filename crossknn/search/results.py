"""Search results: hits, what finding them cost, and the trace of every call."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np

from crossknn.errors import MissingExtra
from crossknn.items.fields import fields_as_json
from crossknn.search.rendering import hits_as_html, hits_as_text, one_line
from crossknn.types import Rows, Scores

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Hit:
    """One item that was found.

    Attributes:
        id: The item's id.
        score: The scorer's raw logit; NaN where a deadline came before it was scored (`scored` is False).
        estimate: The proposer's estimate before the call: in an adaptive round on the scale of scores, in a first round
            on the retriever's own scale; None where there was none.
        round: The round in which it was scored, from 1; 0 where it was not scored.
        proposed_by: The retriever or strategy that proposed it.
        row: Its position in the items.
        deviation: Predictive standard deviation of the score; None where it is unknown.
        ranks: Rank in the list of every retriever that was used, from 1; None where it was not proposed.
        text: The item's text; empty in a trace.
        fields: The item's fields by name, None where it has none of a name; empty in a trace.
        probability: Of being relevant, by the searcher's calibration; None without one.
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
    probability: float | None = field(default=None, compare=False)

    @property
    def scored(self) -> bool:
        """Whether the cross-encoder has scored it."""
        return not math.isnan(self.score)

    def to_dict(self) -> dict[str, Any]:
        """The hit as JSON values; `score` is None where it was not scored."""
        return {
            "id": self.id,
            "score": self.score if self.scored else None,
            "probability": self.probability,
            "round": self.round,
            "proposed_by": self.proposed_by,
            "estimate": self.estimate,
            "deviation": self.deviation,
            "ranks": dict(self.ranks),
            "text": self.text,
            "fields": fields_as_json(self.fields),
        }

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


@dataclass(frozen=True, repr=False)
class Hits(Sequence[Hit]):
    """The best k items of one query, highest score first unless ranked otherwise, and what finding them cost.

    `print(hits)` shows them as lines, a notebook as a table. `to_dicts`, `to_json` and `to_pandas` pass them on.

    Attributes:
        query: The query.
        hits: The items. After a deadline, candidates that could not be scored come last, in the order of the first
            stage, up to k; their `scored` is False.
        calls: Pairs scored for this query, never more than the budget.
        rounds: Rounds that scored something.
        stopped: Why the search ended early, "deadline" or "cancelled"; None where it ran to its end, which includes
            early stopping by `stop_at`.
        seconds: Wall time of the search; queries searched together share it.
        score_seconds: Part of it spent in the scorer.
        solve_seconds: Part of it in which the strategy learned from scores.
        rounds_reason: Why there were so many rounds, where the search chose their number; None where it was named.
        expected_recall: Share of the query's true top k that the strategy expects among the scored items; after a
            deadline, the last known value. None where it is unknown.
        estimates: (items,) estimated scores of all items, where the strategy was asked for them.
        trace: Every scored item in the order of the calls; of exact search only the hits.
        final: Whether the search is over; False for those that `stream` gives before its last round.
    """

    query: str
    hits: tuple[Hit, ...]
    calls: int
    rounds: int
    stopped: str | None = None
    seconds: float = 0.0
    score_seconds: float = 0.0
    solve_seconds: float = 0.0
    rounds_reason: str | None = field(default=None, compare=False)
    expected_recall: float | None = None
    estimates: Scores | None = field(default=None, compare=False)
    trace: Sequence[Hit] = field(default=(), compare=False)
    final: bool = True

    def scored(self) -> tuple[list[str], list[float]]:
        """Ids and scores of every scored item, in the order of the calls; of exact search those of the hits."""
        if isinstance(self.trace, Trace):
            return list(self.trace.ids), self.trace.scores.tolist()
        return [hit.id for hit in self.trace], [hit.score for hit in self.trace]

    @property
    def complete(self) -> bool:
        """Whether the search ran to its end."""
        return self.final and self.stopped is None

    @property
    def ids(self) -> list[str]:
        return [hit.id for hit in self.hits]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Every hit as JSON values: id, score, probability, text, fields, round, and who proposed it."""
        return [hit.to_dict() for hit in self.hits]

    def to_dict(self, *, trace: bool = False) -> dict[str, Any]:
        """The answer as JSON values: the hits and what they cost, and with `trace` every scored item."""
        return {
            "query": self.query,
            "hits": self.to_dicts(),
            "calls": self.calls,
            "rounds": self.rounds,
            "rounds_reason": self.rounds_reason,
            "stopped": self.stopped,
            "expected_recall": self.expected_recall,
            "seconds": self.seconds,
            "score_seconds": self.score_seconds,
            "solve_seconds": self.solve_seconds,
            **({"trace": [hit.to_dict() for hit in self.trace]} if trace else {}),
        }

    def to_json(self, *, trace: bool = False) -> str:
        """`to_dict` as JSON text on one line, as `crossknn search --json` prints it."""
        return json.dumps(self.to_dict(trace=trace), ensure_ascii=False, allow_nan=False)

    def to_pandas(self) -> pd.DataFrame:
        """A row for each hit, with its rank from 1; fields and ranks by retriever are columns of their own.

        A field whose name is another column's is called `field_…`.
        """
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise MissingExtra(f"pandas could not be imported ({error}): pip install pandas") from error
        rows = [_as_row(rank, hit) for rank, hit in enumerate(self.hits, 1)]
        return pandas.DataFrame(rows, columns=None if rows else list(_as_row(1, NO_HIT)))

    def __str__(self) -> str:
        return hits_as_text(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} for {one_line(self.query)!r}>"

    def _repr_html_(self) -> str:
        return hits_as_html(self)

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


NO_HIT: Final = Hit("", math.nan, None, 0, "", -1)  # whose columns a frame without rows has


def _as_row(rank: int, hit: Hit) -> dict[str, Any]:
    """A row of a data frame: a hit's dictionary with its ranks and fields as entries of their own."""
    row = {"rank": rank, **hit.to_dict(), "score": hit.score}
    row |= {f"{name}_rank": place for name, place in row.pop("ranks").items()}
    del row["fields"]
    for name, value in hit.fields.items():
        row[f"field_{name}" if name in row else name] = value
    return row
