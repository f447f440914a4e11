"""Reciprocal rank fusion (Cormack, Clarke and Büttcher, 2009)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from crossknn.errors import InputError
from crossknn.retrievers.base import check_fitted, check_name, check_request
from crossknn.types import EMPTY_PROPOSAL, Mask, Proposal, Retriever
from crossknn.vectors.ranking import reciprocal_rank_fusion

if TYPE_CHECKING:
    from crossknn.items.items import Items

Ask = Callable[[Retriever, list[int], int], list[Proposal]]
"""For the queries at these places, at most so many rows that a member proposes."""


class Fused:
    """Several retrievers as one: a row's estimate is the sum of 1 / (constant + rank) over the members.

    Ranks count from 1 and down to `depth` in each member's list. Where more rows are wanted than the
    lists of that depth hold, the members are asked for twice as many, and the new rows, ranked among
    themselves, follow the old ones; and so on until every member is exhausted. So a shorter list is
    always the beginning of a longer one, and every row that any member proposes can be reached.
    """

    def __init__(
        self, retrievers: Sequence[Retriever], *, constant: float = 60, depth: int = 1000, name: str = "fused"
    ) -> None:
        if not len(retrievers):
            raise InputError("retrievers must hold at least one retriever.")
        for member in retrievers:
            if not isinstance(member, Retriever):
                raise InputError(f"retrievers must hold retrievers. Got a {type(member).__name__} instead.")
        if not 0 <= constant < np.inf:
            raise InputError(f"constant must be a finite number of at least 0. Got {constant!r} instead.")
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
            raise InputError(f"depth must be an integer of at least 1. Got {depth!r} instead.")
        self.retrievers = tuple(retrievers)
        self.constant = constant
        self.depth = depth
        self.name = check_name(name)
        self.n_items: int | None = None

    def fit(self, items: Items) -> Self:
        """Fit the members that were not fitted yet; those that were must know as many items."""
        for member in self.retrievers:
            known = getattr(member, "n_items", None)
            if known is None:
                member.fit(items)
            elif known != len(items):
                raise InputError(
                    f"the retriever {member.name!r} was fitted on {known} items, but there are {len(items)}: "
                    "fit it on these items, or hand over a fresh one."
                )
        self.n_items = len(items)
        return self

    def retrieve(self, queries: Sequence[str], n: int, *, allowed: Mask | None = None) -> list[Proposal]:
        check_request(check_fitted(self.n_items, self.name), queries, n, allowed)

        def ask(member: Retriever, places: list[int], depth: int) -> list[Proposal]:
            return member.retrieve([queries[place] for place in places], depth, allowed=allowed)

        return self.fuse_lists(len(queries), n, ask)

    def fuse_lists(self, queries: int, n: int, ask: Ask) -> list[Proposal]:
        """The same for so many queries, with what `ask` says that members propose."""
        n_items = check_fitted(self.n_items, self.name)
        fused = [EMPTY_PROPOSAL] * queries
        short = list(range(queries)) if n else []  # positions of queries that want more rows
        depth = self.depth
        while short:
            lists = [ask(member, short, depth) for member in self.retrievers]
            still_short = []
            for place, members in zip(short, zip(*lists, strict=True), strict=True):
                fused[place] = _append(fused[place], reciprocal_rank_fusion(members, constant=self.constant))
                exhausted = all(len(proposal) < depth for proposal in members) or depth >= n_items
                if len(fused[place]) < n and not exhausted:
                    still_short.append(place)
            short, depth = still_short, depth * 2
        return [proposal.first(n) for proposal in fused]


def _append(head: Proposal, deeper: Proposal) -> Proposal:
    """`head`, then the rows of `deeper` that are not in it, with estimates that do not rise again."""
    if not len(head):
        return deeper
    fresh = ~np.isin(deeper.rows, head.rows)
    estimates = np.minimum(deeper.estimates[fresh], head.estimates[-1])
    return Proposal(np.concatenate([head.rows, deeper.rows[fresh]]), np.concatenate([head.estimates, estimates]))
