"""Retrieve and rerank: the baseline of every report."""

from dataclasses import dataclass
from typing import ClassVar

from crossknn._checks import check_positive
from crossknn.strategies.base import RETRIEVERS, Flow, Grid, Round, SearchContext, Settings


@dataclass(frozen=True, repr=False)
class Rerank(Settings):
    """The paper's RnR(X): the top `budget` rows of one retriever, scored in one round.

    Args:
        budget: Calls per query.
        retriever: X, the name of one of the searcher's retrievers; None is the searcher's default.
    """

    variants = ("retriever=dense", "retriever=bm25", "retriever=fused")

    budget: int = 100
    retriever: str | None = None

    search_space: ClassVar[Grid] = {"retriever": RETRIEVERS}

    def __post_init__(self) -> None:
        check_positive("budget", self.budget)

    def flow(self, context: SearchContext) -> Flow:
        name, proposals = context.propose(self.retriever, min(self.budget, context.reachable))
        yield Round(proposals, name)
        return None
