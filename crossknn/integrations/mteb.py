"""MTEB: a search model (its `SearchProtocol`) for the retrieval and reranking tasks of `mteb.evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from crossknn._imports import missing_extra
from crossknn.errors import InputError
from crossknn.integrations.conversion import BenchmarkSearch, Run
from crossknn.items.items import Items
from crossknn.search.searcher import Searcher
from crossknn.strategies.exact import Exact

try:
    from mteb.models import ModelMeta
except ImportError as error:
    raise missing_extra("mteb", error, extra="mteb") from error

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(eq=False, repr=False)
class CrossKnnSearch(BenchmarkSearch):
    """`mteb.evaluate(CrossKnnSearch(scorer, encoder=encoder), tasks)`.

    `budget` and `strategy` are those of `Searcher.search`. In a retrieval task a query gets at most as many items as it
    has calls, even where the task's `top_k` is larger; in a reranking task all its candidates are scored. MTEB caches
    results under `name` and a revision that changes with the models, the budget and the strategy.
    """

    name: str = field(default="crossknn/search", kw_only=True)
    _searcher: Searcher | None = field(default=None, init=False)

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """The model's name and revision for MTEB."""
        parts = [self.scorer.fingerprint, self.encoder and self.encoder.fingerprint, self.budget, self.strategy]
        revision = blake2b(repr(parts).encode(), digest_size=8).hexdigest()
        return ModelMeta.create_empty({"name": self.name, "revision": revision, "model_type": ["cross-encoder"]})

    def index(self, corpus: Dataset, **_: Any) -> None:
        """Set the corpus of a task; an item's text is its title and text."""
        _check_texts(corpus, "items")
        fields = [name for name in ("title", "text") if name in corpus.features]
        items = Items.from_records(corpus, id="id", text=fields, fields=())
        self._searcher = Searcher(items, scorer=self.scorer, encoder=self.encoder)

    def search(
        self, queries: Dataset, *, top_k: int, top_ranked: Mapping[str, Sequence[str]] | None = None, **_: Any
    ) -> Run:
        """For each query id the scores of the best items (of its candidates, if the task has some) by item id."""
        if self._searcher is None:
            raise InputError("call index(corpus) before search(queries).")
        texts = _query_texts(queries)
        if top_ranked is None:
            return self._search_all(self._searcher, texts, top_k)
        return {id_: _rerank(self._searcher, text, top_ranked.get(id_, ()), top_k) for id_, text in texts.items()}


def _rerank(searcher: Searcher, query: str, ids: Sequence[str], k: int) -> dict[str, float]:
    searcher.items.rows_of(ids)  # raises an error for unknown ids
    return {hit.id: hit.score for hit in searcher.search(query, k=k, filter=ids, strategy=Exact())}


def _query_texts(queries: Dataset) -> dict[str, str]:
    """The text of each query by id, followed by its instruction if the task has instructions."""
    _check_texts(queries, "queries")
    return {str(one["id"]): " ".join(filter(None, [one["text"], one.get("instruction")])) for one in queries}


def _check_texts(dataset: Dataset, kind: str) -> None:
    if getattr(dataset.features.get("text"), "dtype", None) not in ("string", "large_string"):
        raise InputError(f"crossknn searches texts, but the {kind} of this task have no text, or conversations.")
