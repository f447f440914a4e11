"""Options of a search, checked, and their defaults, which Python, the command line and the service share."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from crossknn._checks import check_choice, check_fraction, check_number, check_positive, check_range, invalid
from crossknn.errors import InputError
from crossknn.search.fusion import RANK_BY, SCORE
from crossknn.strategies.base import Strategy
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.types import Filter

DEFAULT_K: Final = 10
DEFAULT_BUDGET: Final = Posterior.budget


@dataclass(frozen=True)
class SearchOptions:
    """The arguments of `Searcher.search_many` but the queries."""

    k: int | None = None
    budget: int | None = None
    strategy: Strategy | None = None
    filter: Filter | None = None
    deadline: float | None = None
    rank_by: str = SCORE
    stop_at: float | None = None
    min_score: float | None = None
    min_probability: float | None = None
    diversity: float = 0.0
    cancelled: threading.Event | None = None

    def __post_init__(self) -> None:
        check_choice("rank_by", self.rank_by, RANK_BY)
        check_range("diversity", self.diversity, 0, 1)
        if self.k is not None:
            check_positive("k", self.k)
        if self.deadline is not None:
            check_number("deadline", self.deadline)
        if self.min_score is not None:
            check_range("min_score", self.min_score)
        if self.min_probability is not None:
            check_fraction("min_probability", self.min_probability)
        if self.strategy is not None and not isinstance(self.strategy, Strategy):
            raise invalid("strategy", "a Strategy such as Axn(budget=100)", self.strategy)
        if self.strategy is not None and self.budget is not None:
            raise InputError("give either `budget` or `strategy`, which has a budget of its own.")


def default_strategy(budget: int | None, *, query_vectors: bool) -> Strategy:
    """The strategy of a search that names none: `Posterior`, or `Rerank` without query vectors."""
    calls = DEFAULT_BUDGET if budget is None else budget
    check_positive("budget", calls)
    return Posterior(calls) if query_vectors else Rerank(calls)


def choose_k(k: int | None, budget: int | None) -> int:
    """The number of hits: 10 by default, or a smaller budget; an error where it is more than the budget."""
    if k is None:
        return DEFAULT_K if budget is None else min(DEFAULT_K, budget)
    if budget is not None and k > budget:
        raise invalid("k", f"at most the budget ({budget})", k, "Only scored items are returned.")
    return k
