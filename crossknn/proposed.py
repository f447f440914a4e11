"""What retrievers propose for the queries of one search, remembered until its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from crossknn.ranking import places_in
from crossknn.types import Mask, Proposal, Retriever, Rows


class Proposed:
    """Asks retrievers by name, as `Space.propose` promises; one that was asked for more rows is not asked again."""

    def __init__(self, queries: Sequence[str], find: Callable[[str | None], Retriever], allowed: Mask | None) -> None:
        self._queries = queries
        self._find = find
        self._allowed = allowed
        self._longest: dict[str, tuple[int, list[Proposal]]] = {}  # rows asked for, and the proposals

    def __call__(self, name: str | None, n: int) -> tuple[str, list[Proposal]]:
        """The retriever's name and at most `n` rows for every query; None is the default retriever."""
        retriever = self._find(name)
        asked, proposals = self._longest.get(retriever.name, (-1, []))
        if asked < n:
            proposals = retriever.retrieve(self._queries, n, allowed=self._allowed)
            self._longest[retriever.name] = n, proposals
        return retriever.name, [proposal.first(n) for proposal in proposals]

    def ranks(self, query: int, rows: Rows) -> dict[str, Rows]:
        """By retriever the place of each row in what it proposed for the query, from 1; 0 where it did not."""
        lists = {name: proposals[query] for name, (_, proposals) in self._longest.items()}
        return {name: (places_in(one, rows) + 1) % (len(one) + 1) for name, one in lists.items()}
