"""What retrievers propose for the queries of one search, remembered until its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from crossknn.retrievers.fused import Fused
from crossknn.types import Mask, Proposal, Retriever, Rows
from crossknn.vectors.ranking import ranks_in


class CandidateCache:
    """Asks retrievers by name, as `Space.propose` promises; one that was asked for more rows is not asked again.

    Nor are the members of one that fuses others, by whomever they were asked.
    """

    def __init__(self, queries: Sequence[str], find: Callable[[str | None], Retriever], allowed: Mask | None) -> None:
        self._queries = queries
        self._find = find
        self._allowed = allowed
        self._named: dict[str, Retriever] = {}  # those that were asked by name
        self._longest: dict[int, tuple[int, list[Proposal]]] = {}  # by retriever: rows asked for, and the proposals

    def __call__(self, name: str | None, n: int) -> tuple[str, list[Proposal]]:
        """The retriever's name and at most `n` rows for every query; None is the default retriever."""
        retriever = self._find(name)
        self._named[retriever.name] = retriever
        return retriever.name, [proposal.first(n) for proposal in self._ask(retriever, n)]

    def _ask(self, retriever: Retriever, n: int) -> list[Proposal]:
        """At least `n` rows for every query, where there are so many."""
        asked, proposals = self._longest.get(id(retriever), (-1, []))
        if asked < n:
            if type(retriever) is Fused:  # one that is derived from it may do as it likes
                proposals = retriever.fuse_lists(len(self._queries), n, self._ask_member)
            else:
                proposals = retriever.retrieve(self._queries, n, allowed=self._allowed)
            self._longest[id(retriever)] = n, proposals
        return proposals

    def _ask_member(self, member: Retriever, places: list[int], n: int) -> list[Proposal]:
        proposals = self._ask(member, n)
        return [proposals[place].first(n) for place in places]

    def ranks(self, query: int, rows: Rows) -> dict[str, Rows]:
        """By retriever the place of each row in what it proposed for the query, from 1; 0 where it did not."""
        lists = {name: self._longest[id(retriever)][1][query] for name, retriever in self._named.items()}
        return {name: (ranks_in(one, rows) + 1) % (len(one) + 1) for name, one in lists.items()}
