"""Haystack: a retriever component that searches with a `Searcher`, and a ranker that reranks with a `Scorer`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import cache
from threading import Lock
from typing import Any, Final, Self, TypeVar

from crossknn._checks import check_positive
from crossknn._imports import missing_extra
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import InputError
from crossknn.indexing.index import Index
from crossknn.integrations.conversion import check_scorer, document_of, make_items, provenance, rerank_texts, score_of
from crossknn.scorers.cross_encoder import CrossEncoder
from crossknn.search.results import Hit
from crossknn.search.searcher import Searcher
from crossknn.strategies.base import Strategy
from crossknn.strategies.registry import strategy_from_dict, strategy_to_dict
from crossknn.types import Encoder, Filter, Scorer

try:
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.utils.filters import document_matches_filter
except ImportError as error:
    raise missing_extra("haystack", error, extra="haystack") from error

T = TypeVar("T")
LOGIC: Final = {"AND": "and", "OR": "or"}
OPERATORS: Final = {  # of Haystack: ours, and whether the opposite is meant
    "==": ("eq", False),
    "!=": ("eq", True),
    ">": ("gt", False),
    ">=": ("ge", False),
    "<": ("lt", False),
    "<=": ("le", False),
    "in": ("in", False),
    "not in": ("in", True),
}


@dataclass(frozen=True)
class SavedIndex:
    """The folder of an index and the names of its models: a searcher that a pipeline file can describe."""

    index: str
    scorer: str
    encoder: str | None = None

    def open(self) -> Searcher:
        """Load the index and its models."""
        encoder = None if self.encoder is None else SentenceEncoder(self.encoder)
        return Searcher(Index.load(self.index), scorer=CrossEncoder(self.scorer), encoder=encoder)


def _once(load: Callable[[], T]) -> Callable[[], T]:
    """`load`, which only the first thread that needs its value calls."""
    lock, loaded = Lock(), cache(load)

    def get() -> T:
        with lock:
            return loaded()

    return get


@component
@dataclass(eq=False, repr=False)
class CrossKnnRetriever:
    """Returns the best items as `Document`s with scores; round and proposer are in their meta.

    Args:
        searcher: A `Searcher`, or a `SavedIndex`, which is loaded when the pipeline warms up and can be serialized.
        documents: The items' documents by id, copies of which are returned and whose meta `filters` test;
            `from_documents` sets it. Without them documents are made of the items, and their meta are the fields.
        top_k: Number of documents. It and all further settings are those of `Searcher.search`.
    """

    searcher: Searcher | SavedIndex
    _: KW_ONLY
    documents: Mapping[str, Document] | None = None
    top_k: int = 10
    budget: int | None = None
    strategy: Strategy | None = None
    filter: Filter | None = None
    deadline: float | None = None

    def __post_init__(self) -> None:
        check_positive("top_k", self.top_k)
        source = self.searcher
        self._searcher = _once(lambda: source.open() if isinstance(source, SavedIndex) else source)

    @classmethod
    def from_documents(
        cls, documents: Sequence[Document], *, scorer: Scorer, encoder: Encoder | None = None, **settings: Any
    ) -> Self:
        """A retriever of these documents."""
        ids, metadata = [document.id for document in documents], [document.meta for document in documents]
        items = make_items(map(_content_of, documents), ids, metadata)
        searcher = Searcher(items, scorer=scorer, encoder=encoder)
        return cls(searcher, documents=dict(zip(items.ids, documents, strict=True)), **settings)

    def warm_up(self) -> None:
        """Load a saved index and its models; called by the pipeline."""
        self._searcher()

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """The best documents for a query. `filters` are Haystack's, on the documents' meta."""
        hits = self._searcher().search(query, **self._options(filters, top_k))
        return {"documents": [self._as_document(hit) for hit in hits]}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """`run` without blocking the event loop."""
        searcher = await asyncio.to_thread(self._searcher)
        hits = await searcher.asearch(query, **self._options(filters, top_k))
        return {"documents": [self._as_document(hit) for hit in hits]}

    def to_dict(self) -> dict[str, Any]:
        """Serialize the component; needs a `SavedIndex`."""
        if not isinstance(self.searcher, SavedIndex) or self.documents is not None:
            raise InputError(
                "a searcher and documents in memory cannot be serialized. "
                "Save the index and use CrossKnnRetriever(SavedIndex(folder, scorer=…, encoder=…))."
            )
        own = self.filter
        if callable(own):
            raise InputError("a `filter` that is a function cannot be serialized. Use a list of ids.")
        return default_to_dict(
            self,
            searcher=asdict(self.searcher),
            top_k=self.top_k,
            budget=self.budget,
            strategy=None if self.strategy is None else strategy_to_dict(self.strategy),
            filter=dict(own) if isinstance(own, Mapping) else None if own is None else sorted(own),
            deadline=self.deadline,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The component that `to_dict` serialized."""
        settings = dict(data["init_parameters"])
        settings["searcher"] = SavedIndex(**settings["searcher"])
        if settings.get("strategy") is not None:
            settings["strategy"] = strategy_from_dict(settings["strategy"])
        return default_from_dict(cls, {**data, "init_parameters": settings})

    def _options(self, filters: dict[str, Any] | None, top_k: int | None) -> dict[str, Any]:
        return {
            "k": self.top_k if top_k is None else top_k,
            "budget": self.budget,
            "strategy": self.strategy,
            "filter": self._combine(filters) if filters else self.filter,
            "deadline": self.deadline,
        }

    def _combine(self, filters: dict[str, Any]) -> dict[str, Any]:
        """Haystack's filters, on documents if there are any, else on the items' fields, and the component's own."""
        if self.documents is None:
            combined = [_as_condition(filters)]
        else:
            found = [id_ for id_, document in self.documents.items() if document_matches_filter(filters, document)]
            combined = [{"_id": found}]
        if isinstance(self.filter, Mapping):
            combined.append(dict(self.filter))
        elif self.filter is not None:
            ids = self._searcher().items.ids
            combined.append({"_id": list(filter(self.filter, ids) if callable(self.filter) else self.filter)})
        return {"and": combined}

    def _as_document(self, hit: Hit) -> Document:
        if self.documents is None:
            return Document(id=hit.id, content=hit.text, score=score_of(hit), meta={**hit.fields, **provenance(hit)})
        document = document_of(hit, self.documents)
        return replace(document, score=score_of(hit), meta={**document.meta, **provenance(hit)})


def _as_condition(filters: Any) -> dict[str, Any]:
    """Haystack's filters as conditions on fields. Null differs from every value, as in Haystack."""
    try:
        if "field" not in filters:
            parts = [_as_condition(one) for one in filters["conditions"]]
            return {"not": {"and": parts}} if filters["operator"] == "NOT" else {LOGIC[filters["operator"]]: parts}
        name = filters["field"].removeprefix("meta.")
        operator, inverse = OPERATORS[filters["operator"]]
        condition = {"_id" if name == "id" else name: {operator: filters["value"]}}
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"`filters` must be those of Haystack, got {filters!r:.200}.") from error
    return {"not": condition} if inverse else condition


@component
class CrossKnnRanker:
    """Reranks documents, one call each, and keeps the best `top_k` (None for all), highest score first.

    Args:
        scorer: Any `Scorer`, or the name of a `CrossEncoder`, which is loaded when the pipeline warms up and can be
            serialized.
        top_k: Number of documents to keep.
    """

    def __init__(self, scorer: Scorer | str, *, top_k: int | None = 10) -> None:
        if top_k is not None:
            check_positive("top_k", top_k)
        if not isinstance(scorer, str):
            check_scorer(scorer)
        self.scorer = scorer
        self.top_k = top_k
        self._scorer: Callable[[], Scorer] = _once(lambda: CrossEncoder(scorer) if isinstance(scorer, str) else scorer)

    def warm_up(self) -> None:
        """Load the scorer; called by the pipeline."""
        self._scorer()

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, list[Document]]:
        """The documents with their scores, best first."""
        k = self.top_k if top_k is None else top_k
        if k is not None:
            check_positive("top_k", k)
        best = rerank_texts(self._scorer(), query, [_content_of(document) for document in documents], k=k)
        return {"documents": [replace(documents[place], score=score) for place, score in best]}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """`run` without blocking the event loop."""
        return await asyncio.to_thread(self.run, query, documents, top_k)

    def to_dict(self) -> dict[str, Any]:
        """Serialize the component; needs a scorer that was given by name."""
        if not isinstance(self.scorer, str):
            raise InputError(
                "a scorer in memory cannot be serialized. Use the name or folder of a CrossEncoder: "
                'CrossKnnRanker("cross-encoder/ms-marco-MiniLM-L6-v2").'
            )
        return default_to_dict(self, scorer=self.scorer, top_k=self.top_k)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The component that `to_dict` serialized."""
        return default_from_dict(cls, data)


def _content_of(document: Document) -> str:
    if document.content is None:
        raise InputError(f"only documents with a text can be scored, but document {document.id!r} has no content.")
    return document.content
