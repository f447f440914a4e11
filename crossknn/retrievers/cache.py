"""Cache of the proposals of retrievers for the queries of one search."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from crossknn.retrievers.fused import Fused
from crossknn.types import Mask, Proposal, Retriever, Rows
from crossknn.vectors.ranking import ranks_in, reciprocal_rank_fusion

RANK_CONSTANT = 60  # of reciprocal rank fusion


class CandidateCache:
    """Proposals by retriever name; a retriever runs again only where more rows are requested than before.

    The members of a `Fused` share the cache with the retrievers that are called by name. `find` returns the fitted
    retriever of a name; that of None is the default retriever.
    """

    def __init__(self, queries: Sequence[str], find: Callable[[str | None], Retriever], allowed: Mask | None) -> None:
        self._queries = queries
        self._find = find
        self._allowed = allowed
        self._named: dict[str, Retriever] = {}  # retrievers that were called by name
        self._longest: dict[int, tuple[int, list[Proposal]]] = {}  # by retriever: requested rows, and proposals

    def __call__(self, name: str | None, n: int) -> tuple[str, list[Proposal]]:
        """The retriever's name and at most `n` rows for every query."""
        retriever = self._find(name)
        self._named[retriever.name] = retriever
        return retriever.name, [proposal.first(n) for proposal in self._retrieve(retriever, n)]

    def _retrieve(self, retriever: Retriever, n: int) -> list[Proposal]:
        """At least `n` rows for every query, where the retriever has them."""
        requested, proposals = self._longest.get(id(retriever), (-1, []))
        if requested < n:
            if type(retriever) is Fused:  # a subclass may override `retrieve`
                proposals = retriever.fuse_lists(len(self._queries), n, self._retrieve_member)
            else:
                proposals = retriever.retrieve(self._queries, n, allowed=self._allowed)
            self._longest[id(retriever)] = n, proposals
        return proposals

    def _retrieve_member(self, member: Retriever, places: list[int], n: int) -> list[Proposal]:
        proposals = self._retrieve(member, n)
        return [proposals[place].first(n) for place in places]

    def first_stage(self, query: int, name: str) -> list[tuple[str, Proposal]]:
        """What the retriever of this name proposed; if it was not called, all that were, by reciprocal rank fusion.

        Nothing is retrieved: the list is empty where no retriever was called.
        """
        lists = self._lists(query)
        if not lists:
            return []
        if name in lists:
            return [(name, lists[name])]
        fused = reciprocal_rank_fusion(list(lists.values()), constant=RANK_CONSTANT)
        return [("+".join(lists), fused)]

    def ranks(self, query: int, rows: Rows) -> dict[str, Rows]:
        """By retriever the rank of each row among its proposals for the query, from 1; 0 where it has none."""
        return {name: (ranks_in(one, rows) + 1) % (len(one) + 1) for name, one in self._lists(query).items()}

    def _lists(self, query: int) -> dict[str, Proposal]:
        """What every retriever that was called by name proposed for a query."""
        return {name: self._longest[id(retriever)][1][query] for name, retriever in self._named.items()}
