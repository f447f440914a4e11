"""What a search gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from crossknn.items.items import Items
from crossknn.search.trace import Hit as Hit
from crossknn.search.trace import join, trace_calls
from crossknn.strategies.base import QueryResult
from crossknn.types import Rows, Scores


@dataclass(frozen=True)
class Hits(Sequence[Hit]):
    """The best k items of one query, in the order that was asked for (highest score first), and what finding them cost.

    calls          pairs that were scored for this query: never more than the budget
    rounds         rounds that scored something
    stopped        None where the search came to its end, which may be that it expects to have found enough (`stop_at`);
                   else why it ended early: "deadline" or "cancelled"
    seconds        wall time of the search; queries searched together share it
    score_seconds  the part of it spent in the scorer
    solve_seconds  the part of it in which the strategy learned from scores
    expected_recall
                   the share of the query's true top k that the strategy expects among what was scored; of a search
                   that a deadline cut, what it knew last. None where it does not know
    estimates      (items,) estimated scores of all items, where the strategy was asked for them
    trace          every item that was scored, in the order of the calls; of exact search only the hits
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
    query: str,
    found: QueryResult,
    items: Items,
    k: int,
    *,
    ranks: Callable[[Rows], Mapping[str, Rows]],
    fuse: Callable[[Rows, Scores], NDArray[Any]] | None = None,
    traced: bool = True,
    seconds: float,
    score_seconds: float,
    solve_seconds: float,
) -> Hits:
    """The `k` best of what was scored, by score or by what `fuse` makes of rows and scores.

    Equal ones keep the order of the scores, then of the rows. `ranks` gives retrievers' places for rows; only the hits
    are remembered where the search is not to be `traced`.
    """
    rows, scores = join(found.rows), join(found.scores)
    keys = (rows, -scores) if fuse is None else (rows, -scores, -fuse(rows, scores))
    best = np.lexsort(keys)[:k]
    places = np.arange(len(rows)) if traced else np.sort(best)
    trace = trace_calls(found, items, places, ranks)
    return Hits(
        query=query,
        hits=tuple(trace[place] for place in np.searchsorted(places, best).tolist()),
        calls=found.calls,
        rounds=sum(1 for part in found.rows if len(part)),
        stopped=found.stopped,
        seconds=seconds,
        score_seconds=score_seconds,
        solve_seconds=solve_seconds,
        expected_recall=found.expected_recall,
        estimates=found.all_estimates,
        trace=trace,
    )
