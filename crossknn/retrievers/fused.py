"""Reciprocal rank fusion of retrievers (Cormack, Clarke and Büttcher, 2009)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from crossknn._checks import check_positive, check_range
from crossknn.errors import InputError
from crossknn.retrievers.base import BaseRetriever
from crossknn.types import EMPTY_PROPOSAL, Mask, Proposal, Retriever
from crossknn.vectors.ranking import reciprocal_rank_fusion

if TYPE_CHECKING:
    from crossknn.items.items import Items

RetrieveMember = Callable[[Retriever, list[int], int], list[Proposal]]
"""Called as `retrieve(member, queries, n)`: at most `n` rows of a member for the queries at these positions."""


class Fused(BaseRetriever):
    """Several retrievers as one: a row's estimate is the sum of 1 / (constant + rank) over the members.

    Where the members' lists of length `depth` hold too few rows, the depth is doubled, and the new rows, ranked among
    themselves, follow the old ones; and so on until every member is exhausted. So a shorter list is always the
    beginning of a longer one, and every row that any member proposes can be reached.

    Args:
        retrievers: The members; those that are not fitted yet are fitted with this one.
        constant: The constant of reciprocal rank fusion; ranks count from 1.
        depth: The length of each member's list at first.
    """

    def __init__(
        self, retrievers: Sequence[Retriever], *, constant: float = 60, depth: int = 1000, name: str = "fused"
    ) -> None:
        super().__init__(name)
        if not len(retrievers):
            raise InputError("`retrievers` must hold at least one retriever, got none.")
        for member in retrievers:
            if not isinstance(member, Retriever):
                raise InputError(f"`retrievers` must hold retrievers, got a {type(member).__name__}.")
        check_range("constant", constant, 0)
        check_positive("depth", depth)
        self.retrievers = tuple(retrievers)
        self.constant = constant
        self.depth = depth

    def fit(self, items: Items) -> Self:
        """Fit the members that are not fitted yet; the others must have been fitted on as many items."""
        for member in self.retrievers:
            known = getattr(member, "n_items", None)
            if known is None:
                member.fit(items)
            elif known != len(items):
                raise InputError(
                    f"The retriever {member.name!r} was fitted on {known} items, but there are {len(items)}. "
                    "Fit it on these items, or pass an unfitted one."
                )
        self.n_items = len(items)
        return self

    def _retrieve(self, queries: Sequence[str], n: int, allowed: Mask | None) -> list[Proposal]:
        def retrieve(member: Retriever, places: list[int], depth: int) -> list[Proposal]:
            return member.retrieve([queries[place] for place in places], depth, allowed=allowed)

        return self.fuse_lists(len(queries), n, retrieve)

    def fuse_lists(self, queries: int, n: int, retrieve: RetrieveMember) -> list[Proposal]:
        """`retrieve` for this number of queries, with a function that looks up the members' lists."""
        n_items = self._fitted_items
        fused = [EMPTY_PROPOSAL] * queries
        unfinished = list(range(queries)) if n else []
        depth = self.depth
        while unfinished:
            lists = [retrieve(member, unfinished, depth) for member in self.retrievers]
            short = []
            for query, members in zip(unfinished, zip(*lists, strict=True), strict=True):
                fused[query] = _append(fused[query], reciprocal_rank_fusion(members, constant=self.constant))
                exhausted = all(len(proposal) < depth for proposal in members) or depth >= n_items
                if len(fused[query]) < n and not exhausted:
                    short.append(query)
            unfinished, depth = short, depth * 2
        return [proposal.first(n) for proposal in fused]


def _append(head: Proposal, deeper: Proposal) -> Proposal:
    """`head`, then the rows of `deeper` that are not in it, with estimates capped by the last of `head`."""
    if not len(head):
        return deeper
    fresh = ~np.isin(deeper.rows, head.rows)
    estimates = np.minimum(deeper.estimates[fresh], head.estimates[-1])
    return Proposal(np.concatenate([head.rows, deeper.rows[fresh]]), np.concatenate([head.estimates, estimates]))
