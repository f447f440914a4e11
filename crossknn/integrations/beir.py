"""BEIR: a search model for its `EvaluateRetrieval`. Importing it does not need BEIR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crossknn.integrations.conversion import BenchmarkSearch, Run
from crossknn.items.items import Items
from crossknn.search.searcher import Searcher


class CrossKnnSearch(BenchmarkSearch):
    """`EvaluateRetrieval(CrossKnnSearch(scorer, encoder=encoder)).retrieve(corpus, queries)`.

    `budget` and `strategy` are those of `Searcher.search`. A query gets at most as many items as it has calls, even
    where BEIR's `top_k` is larger.
    """

    def search(
        self,
        corpus: Mapping[str, Mapping[str, str]],
        queries: Mapping[str, str],
        top_k: int,
        score_function: str | None = None,  # passed by BEIR; a cross-encoder has its own score
        **_: Any,
    ) -> Run:
        """For each query id the scores of the best items by item id. An item's text is its title and text."""
        items = Items.from_records(({"_id": id_, **record} for id_, record in corpus.items()), fields=())
        return self._search_all(Searcher(items, scorer=self.scorer, encoder=self.encoder), queries, top_k)
