"""BEIR: a search model for its `EvaluateRetrieval`. It needs nothing of BEIR to be imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crossknn.integrations.conversion import check_scorer
from crossknn.integrations.conversion import Run, search_all
from crossknn.items.items import Items
from crossknn.search.searcher import Searcher
from crossknn.strategies.base import Strategy
from crossknn.types import Encoder, Scorer


class CrossKnnSearch:
    """`EvaluateRetrieval(CrossKnnSearch(scorer, encoder=encoder)).retrieve(corpus, queries)`.

    `budget` and `strategy` are those of `Searcher.search`. A query gets at most as many items as it may have calls,
    whatever `top_k` BEIR asks for.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        encoder: Encoder | None = None,
        budget: int | None = None,
        strategy: Strategy | None = None,
    ) -> None:
        self.scorer = check_scorer(scorer)
        self.encoder = encoder
        self.budget = budget
        self.strategy = strategy

    def search(
        self,
        corpus: Mapping[str, Mapping[str, str]],
        queries: Mapping[str, str],
        top_k: int,
        score_function: str | None = None,  # BEIR gives it; a cross-encoder has a score of its own
        **_: Any,
    ) -> Run:
        """For each query id the scores of the best items by their ids. The item is its title and text, as in BEIR."""
        items = Items.from_records({"_id": id_, **record} for id_, record in corpus.items())
        searcher = Searcher(items, scorer=self.scorer, encoder=self.encoder)
        return search_all(searcher, queries, top_k=top_k, budget=self.budget, strategy=self.strategy)
