"""Every call of a search, and what was known before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from crossknn.items.items import Items
from crossknn.strategies.base import QueryResult
from crossknn.types import Rows, Scores


@dataclass(frozen=True, slots=True)
class Hit:
    """One item that was scored.

    score        the scorer's raw logit
    estimate     what its proposer expected before it was scored: in an adaptive round on the scale of
                 scores, in a first round on the retriever's own scale; None where nobody expected anything
    round        the round in which it was scored, from 1
    proposed_by  the retriever or strategy that asked for it
    row          its position in the items
    deviation    how far the score was expected from the estimate; None where nobody knew
    ranks        by every retriever that was asked, its place in what that one proposed, from 1; None where it
                 was not proposed
    """

    id: str
    score: float
    estimate: float | None
    round: int
    proposed_by: str
    row: int
    deviation: float | None = None
    ranks: Mapping[str, int | None] = field(default_factory=dict, hash=False)

    @property
    def expected(self) -> float | None:
        """The estimate where it is on the scale of scores: a retriever's own is not."""
        return None if self.proposed_by in self.ranks else self.estimate


@dataclass(frozen=True, eq=False)
class Trace(Sequence[Hit]):
    """Items that were scored, in the order of the calls. Each becomes a `Hit` when it is looked at.

    proposed_by  who asked for each round
    ranks        by retriever its place for each item, from 1; 0 where it did not propose it
    """

    ids: Sequence[str]
    rows: Rows
    rounds: Rows  # from 0
    scores: Scores
    estimates: Scores  # NaN where there is none
    deviations: Scores  # NaN where there is none
    proposed_by: Sequence[str]
    ranks: Mapping[str, Rows]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} items>"

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Hit, ...]: ...
    def __getitem__(self, index: int | slice) -> Hit | tuple[Hit, ...]:
        places = range(len(self))[index]
        return self._hit(places) if isinstance(places, int) else tuple(map(self._hit, places))

    def _hit(self, at: int) -> Hit:
        number = int(self.rounds[at])
        return Hit(
            id=self.ids[at],
            score=float(self.scores[at]),
            estimate=_known(self.estimates[at]),
            round=number + 1,
            proposed_by=self.proposed_by[number],
            row=int(self.rows[at]),
            deviation=_known(self.deviations[at]),
            ranks={name: int(places[at]) or None for name, places in self.ranks.items()},
        )


def trace_calls(found: QueryResult, items: Items, places: Rows, ranks: Callable[[Rows], Mapping[str, Rows]]) -> Trace:
    """The calls at these places, counted from the first; `ranks` gives retrievers' places for rows, as in `Trace`."""
    rows = join(found.rows)[places]
    return Trace(
        ids=items.ids_of(rows),
        rows=rows,
        rounds=np.repeat(np.arange(len(found.rows)), [len(part) for part in found.rows])[places],
        scores=join(found.scores)[places],
        estimates=join(found.estimates)[places],
        deviations=join(found.deviations)[places],
        proposed_by=found.proposed_by,
        ranks=ranks(rows),
    )


def join(rounds: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The arrays of all rounds as one."""
    return np.concatenate(rounds) if rounds else np.empty(0, np.int64)


def _known(value: np.float32) -> float | None:
    return None if np.isnan(value) else float(value)
