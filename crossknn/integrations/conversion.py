"""Shared by all integrations: hits as documents, reranking of texts, and runs for benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar

import numpy as np

from crossknn._checks import invalid
from crossknn.errors import InputError
from crossknn.items.items import Items
from crossknn.scorers.base import score_pairs
from crossknn.search.results import Hit
from crossknn.search.searcher import Searcher
from crossknn.strategies.base import Strategy
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.types import Encoder, Scorer

Document = TypeVar("Document")
Run = dict[str, dict[str, float]]
"""For each query id the scores of the items found, by item id."""

QUERIES_PER_SEARCH = 64
ID, TEXT = "crossknn id", "crossknn text"  # beside metadata, which may have an "id" and a "text" of its own


def document_of(hit: Hit, documents: Mapping[str, Document]) -> Document:
    """The document of a hit."""
    if hit.id not in documents:
        raise InputError(f"`documents` must have a document for every item, but {hit.id!r} has none.")
    return documents[hit.id]


def make_items(texts: Iterable[str], ids: Iterable[str], metadata: Iterable[Mapping[str, Any]]) -> Items:
    """Items whose fields are the metadata of documents, as far as their types can be filtered by."""
    records = ({**one, ID: id_, TEXT: text} for text, id_, one in zip(texts, ids, metadata, strict=True))
    return Items.from_records(records, id=ID, text=TEXT)


def provenance(hit: Hit) -> dict[str, Any]:
    """Metadata that says how a hit was found: its round and the retriever or strategy that proposed it."""
    return {"round": hit.round, "proposed_by": hit.proposed_by}


def score_of(hit: Hit) -> float | None:
    """The score of a hit; None where a deadline came before it was scored."""
    return hit.score if hit.scored else None


def check_scorer(scorer: Scorer) -> Scorer:
    """The scorer, if it has a method `score`."""
    if not callable(getattr(scorer, "score", None)):
        raise invalid("scorer", "a Scorer such as CrossEncoder(…)", scorer)
    return scorer


def rerank_texts(scorer: Scorer, query: str, texts: Sequence[str], *, k: int | None) -> list[tuple[int, float]]:
    """Position and score of the `k` best texts (None for all), highest score first, ties in the given order."""
    if not isinstance(query, str) or not query.strip():
        raise invalid("query", "a nonempty string", query)
    scores = score_pairs(scorer, [query] * len(texts), texts)
    return [(place, float(scores[place])) for place in np.argsort(-scores, kind="stable")[:k].tolist()]


@dataclass(eq=False, repr=False)
class BenchmarkSearch:
    """A search model for benchmarks: cross-encoder, encoder, and `budget` or `strategy` as in `Searcher.search`."""

    scorer: Scorer
    _: KW_ONLY
    encoder: Encoder | None = None
    budget: int | None = None
    strategy: Strategy | None = None

    def __post_init__(self) -> None:
        check_scorer(self.scorer)

    def _search_all(self, searcher: Searcher, queries: Mapping[str, str], top_k: int) -> Run:
        """The best items of each query, at most as many as its calls: only scored items have a score."""
        calls = self.strategy.budget if self.strategy is not None else self.budget or Posterior.budget
        k = top_k if calls is None else min(top_k, calls)
        ids, run = list(queries), Run()
        for start in range(0, len(ids), QUERIES_PER_SEARCH):
            part = ids[start : start + QUERIES_PER_SEARCH]
            texts = [queries[id_] for id_ in part]
            found = searcher.search_many(texts, k=k, budget=self.budget, strategy=self.strategy)
            run.update({id_: {hit.id: hit.score for hit in hits} for id_, hits in zip(part, found, strict=True)})
        return run
