"""MTEB: a search model (its `SearchProtocol`) for the retrieval and reranking tasks of `mteb.evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from crossknn._imports import missing_extra
from crossknn.errors import InputError
from crossknn.integrations.conversion import check_scorer
from crossknn.integrations.conversion import Run, search_all
from crossknn.items.items import Items
from crossknn.search.searcher import Searcher
from crossknn.strategies.base import Strategy
from crossknn.strategies.exact import Exact
from crossknn.types import Encoder, Scorer

try:
    from mteb.models import ModelMeta
except ImportError as error:
    raise missing_extra("mteb", error, extra="mteb") from error

if TYPE_CHECKING:
    from datasets import Dataset


class CrossKnnSearch:
    """`mteb.evaluate(CrossKnnSearch(scorer, encoder=encoder), tasks)`.

    `budget` and `strategy` are those of `Searcher.search`. In a retrieval task a query gets at most as many items as it
    may have calls, whatever `top_k` the task asks for; in a reranking task all its candidates are scored. Results are
    kept by MTEB under `name` and a revision that changes with the models and with how they search.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        encoder: Encoder | None = None,
        budget: int | None = None,
        strategy: Strategy | None = None,
        name: str = "crossknn/search",
    ) -> None:
        self.scorer = check_scorer(scorer)
        self.encoder = encoder
        self.budget = budget
        self.strategy = strategy
        self.name = name
        self._searcher: Searcher | None = None

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """What MTEB knows of this model."""
        parts = [self.scorer.fingerprint, self.encoder and self.encoder.fingerprint, self.budget, self.strategy]
        revision = blake2b(repr(parts).encode(), digest_size=8).hexdigest()
        return ModelMeta.create_empty({"name": self.name, "revision": revision, "model_type": ["cross-encoder"]})

    def index(self, corpus: Dataset, **_: Any) -> None:
        """Take the corpus of a task: title and text of each item."""
        _check_texts(corpus, "items")
        fields = [name for name in ("title", "text") if name in corpus.features]
        items = Items.from_records(corpus, id="id", text=fields)
        self._searcher = Searcher(items, scorer=self.scorer, encoder=self.encoder)

    def search(
        self, queries: Dataset, *, top_k: int, top_ranked: Mapping[str, Sequence[str]] | None = None, **_: Any
    ) -> Run:
        """For each query id the scores of the best items by their ids; of its candidates, where there are any."""
        if self._searcher is None:
            raise InputError("index(corpus) comes before search(queries).")
        texts = _query_texts(queries)
        if top_ranked is None:
            return search_all(self._searcher, texts, top_k=top_k, budget=self.budget, strategy=self.strategy)
        candidates = {id_: top_ranked.get(id_, ()) for id_ in texts}
        return {id_: self._rerank(texts[id_], ids, top_k) for id_, ids in candidates.items()}

    def _rerank(self, query: str, ids: Sequence[str], k: int) -> dict[str, float]:
        assert self._searcher is not None
        self._searcher.items.rows_of(ids)  # an error where one of them is unknown
        return {hit.id: hit.score for hit in self._searcher.search(query, k=k, filter=ids, strategy=Exact())}


def _query_texts(queries: Dataset) -> dict[str, str]:
    """By id the text of each query, followed by its instruction where the task has them."""
    _check_texts(queries, "queries")
    return {str(one["id"]): " ".join(filter(None, [one["text"], one.get("instruction")])) for one in queries}


def _check_texts(dataset: Dataset, what: str) -> None:
    if getattr(dataset.features.get("text"), "dtype", None) not in ("string", "large_string"):
        raise InputError(f"crossknn searches texts. The {what} of this task have none, or conversations instead.")
