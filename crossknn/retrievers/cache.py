"""Cache of the proposals of retrievers for the queries of one search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from crossknn.retrievers.bm25 import Bm25
from crossknn.retrievers.fused import Fused
from crossknn.types import Mask, Proposal, Retriever, Rows
from crossknn.vectors.ranking import ranks_in, reciprocal_rank_fusion

RANK_CONSTANT = 60  # of reciprocal rank fusion


class CandidateCache:
    """Proposals by retriever name; a retriever runs again only where more rows are requested than before.

    The members of a `Fused` share the cache with the retrievers that are called by name. `find` returns the fitted
    retriever of a name; that of None is the default retriever. With `side_by_side` BM25 has a thread of its own, which
    pays where the others leave the CPU idle.
    """

    def __init__(
        self,
        queries: Sequence[str],
        find: Callable[[str | None], Retriever],
        allowed: Mask | None,
        *,
        side_by_side: bool = False,
    ) -> None:
        self._queries = queries
        self._find = find
        self._allowed = allowed
        self._threaded = side_by_side
        self._named: dict[str, Retriever] = {}  # retrievers that were called by name
        self._longest: dict[int, tuple[int, list[Proposal]]] = {}  # by retriever: requested rows, and proposals

    def __call__(self, name: str | None, n: int) -> tuple[str, list[Proposal]]:
        """The retriever's name and at most `n` rows for every query."""
        retriever = self._find(name)
        self._named[retriever.name] = retriever
        return retriever.name, [proposal.first(n) for proposal in self._retrieve(retriever, n)]

    def retrieve_ahead(self, names: Sequence[str], n: int) -> None:
        """Let these retrievers work side by side, where that pays, and keep what they find for the calls to come."""
        self._side_by_side([self._find(name) for name in names], n)

    def _side_by_side(self, retrievers: Sequence[Retriever], n: int) -> None:
        """BM25 on the host, which is ours and minds no thread, beside the others, which stay in the caller's."""
        missing = [one for one in retrievers if self._longest.get(id(one), (-1, []))[0] < n]
        lexical = [one for one in missing if type(one) is Bm25 and one.on_host]
        if not self._threaded or not lexical or len(lexical) == len(missing):
            return
        with ThreadPoolExecutor(len(lexical)) as pool:
            found = [pool.submit(one.retrieve, self._queries, n, allowed=self._allowed) for one in lexical]
            for one in missing:
                if one not in lexical:
                    self._retrieve(one, n)
            for one, future in zip(lexical, found, strict=True):
                self._longest[id(one)] = n, future.result()

    def _retrieve(self, retriever: Retriever, n: int) -> list[Proposal]:
        """At least `n` rows for every query, where the retriever has them."""
        requested, proposals = self._longest.get(id(retriever), (-1, []))
        if requested < n:
            if type(retriever) is Fused:  # a subclass may override `retrieve`
                self._side_by_side(retriever.retrievers, retriever.depth if n else 0)
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
