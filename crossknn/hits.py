"""What a search gives back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np

from crossknn.items import Items
from crossknn.strategies.base import Found
from crossknn.types import Scores


@dataclass(frozen=True, slots=True)
class Hit:
    """One item that was scored.

    score        the scorer's raw logit
    estimate     what its proposer expected before it was scored: in an adaptive round on the scale of
                 scores, in a first round on the retriever's own scale; None where nobody expected anything
    round        the round in which it was scored, from 1
    proposed_by  the retriever or strategy that asked for it
    row          its position in the items
    """

    id: str
    score: float
    estimate: float | None
    round: int
    proposed_by: str
    row: int


@dataclass(frozen=True)
class Hits(Sequence[Hit]):
    """The best k items of one query, highest score first, and what finding them cost.

    calls          pairs that were scored for this query: never more than the budget
    rounds         rounds that scored something
    stopped        None where the search came to its end, else why it ended early: "deadline" or "cancelled"
    seconds        wall time of the search; queries searched together share it
    score_seconds  the part of it spent in the scorer
    solve_seconds  the part of it in which the strategy learned from scores
    estimates      (items,) estimated scores of all items, where the strategy was asked for them
    """

    query: str
    hits: tuple[Hit, ...]
    calls: int
    rounds: int
    stopped: str | None = None
    seconds: float = 0.0
    score_seconds: float = 0.0
    solve_seconds: float = 0.0
    estimates: Scores | None = field(default=None, repr=False, compare=False)

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


def best_hits(
    query: str, found: Found, items: Items, k: int, *, seconds: float, score_seconds: float, solve_seconds: float
) -> Hits:
    """The `k` best of what was scored; equal scores keep the order of the rows."""
    rows = np.concatenate([np.empty(0, np.int64), *found.rows])
    scores = np.concatenate([np.empty(0, np.float32), *found.scores])
    estimates = np.concatenate([np.empty(0, np.float32), *found.estimates])
    rounds = np.repeat(np.arange(len(found.rows)), [len(r) for r in found.rows])
    best = np.lexsort((rows, -scores))[:k]
    hits = tuple(
        Hit(
            id=id_,
            score=float(scores[i]),
            estimate=None if np.isnan(estimates[i]) else float(estimates[i]),
            round=int(rounds[i]) + 1,
            proposed_by=found.proposed_by[rounds[i]],
            row=int(rows[i]),
        )
        for id_, i in zip(items.ids_of(rows[best]), best.tolist(), strict=True)
    )
    return Hits(
        query=query,
        hits=hits,
        calls=found.calls,
        rounds=sum(1 for r in found.rows if len(r)),
        stopped=found.stopped,
        seconds=seconds,
        score_seconds=score_seconds,
        solve_seconds=solve_seconds,
        estimates=found.all_estimates,
    )
