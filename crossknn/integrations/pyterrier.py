"""PyTerrier: a retriever that searches with a `Searcher`, and a reranker of results with a `Scorer`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from crossknn._checks import check_positive
from crossknn._imports import missing_extra
from crossknn.integrations.conversion import check_scorer
from crossknn.scorers.base import score_pairs
from crossknn.search.results import Hits
from crossknn.search.searcher import Searcher
from crossknn.strategies.base import Strategy
from crossknn.types import Filter, Scorer

try:
    import pandas as pd
    import pyterrier as pt
except ImportError as error:
    raise missing_extra("pyterrier", error, extra="pyterrier") from error

ADDED_COLUMNS = ("docno", "score", "rank", "text")  # columns that a search adds


@dataclass(eq=False, repr=False)
class CrossKnnRetriever(pt.Transformer):
    """Adds the best `k` items of every query to its columns: docno, score, rank (from 0), text and the items' fields.

    `k`, `budget`, `strategy` and `filter` are those of `Searcher.search_many`; `batch_size` queries are searched
    together, with one scorer call per round.
    """

    searcher: Searcher
    _: KW_ONLY
    k: int = 10
    budget: int | None = None
    strategy: Strategy | None = None
    filter: Filter | None = None
    batch_size: int = 64

    def __post_init__(self) -> None:
        check_positive("k", self.k)
        check_positive("batch_size", self.batch_size)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        starts = range(0, len(inp), self.batch_size)
        found = [self._search(inp.iloc[start : start + self.batch_size]) for start in starts]
        return pd.concat(found, ignore_index=True) if found else self._frame(inp, [])

    def _search(self, queries: pd.DataFrame) -> pd.DataFrame:
        hits = self.searcher.search_many(
            queries["query"].tolist(), k=self.k, budget=self.budget, strategy=self.strategy, filter=self.filter
        )
        return self._frame(queries, hits)

    def _frame(self, queries: pd.DataFrame, found: list[Hits]) -> pd.DataFrame:
        """A row for each hit, with the columns of its query."""
        places = [place for place, hits in enumerate(found) for _ in hits]
        kept = [name for name in queries.columns if name not in ADDED_COLUMNS]
        hits = [(rank, hit) for hits in found for rank, hit in enumerate(hits)]
        columns: dict[str, Any] = {
            "docno": pd.Series([hit.id for _, hit in hits], dtype=str),
            "score": pd.Series([hit.score for _, hit in hits], dtype=float),
            "rank": pd.Series([rank for rank, _ in hits], dtype=int),
            "text": pd.Series([hit.text for _, hit in hits], dtype=str),
        }
        for name in self.searcher.items.fields:
            if name not in columns and name not in kept:
                columns[name] = pd.Series([hit.fields[name] for _, hit in hits], dtype=object)
        return queries.iloc[places][kept].reset_index(drop=True).assign(**columns)


class CrossKnnReranker(pt.Transformer):
    """Replaces scores and ranks of results by those of the cross-encoder, one call per result.

    PyTerrier can add missing texts: `retriever >> pt.text.get_text(index) >> reranker`.
    """

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = check_scorer(scorer)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.result_frame(inp, extra_columns=["query", "text"], context=self)
        scores = score_pairs(self.scorer, inp["query"].tolist(), inp["text"].tolist())
        ranked = pt.model.add_ranks(inp.assign(score=scores.astype(float)))
        return ranked.sort_values(["qid", "rank"], kind="stable", ignore_index=True)
