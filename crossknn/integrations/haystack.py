"""Haystack: a retriever component that searches with a `Searcher`, and a ranker that reranks with a `Scorer`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from threading import Lock
from typing import Any, Final, Self

from crossknn._checks import check_positive
from crossknn._imports import missing_extra
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import InputError
from crossknn.indexing.index import Index
from crossknn.integrations.conversion import document_of, how_found
from crossknn.integrations.conversion import best_texts, check_scorer
from crossknn.items.items import Items
from crossknn.scorers.cross_encoder import CrossEncoder
from crossknn.search.results import Hit, Hits
from crossknn.search.searcher import Filter, Searcher
from crossknn.strategies.base import Strategy
from crossknn.strategies.registry import STRATEGIES
from crossknn.types import Encoder, Scorer

try:
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.utils.filters import document_matches_filter
except ImportError as error:
    raise missing_extra("haystack", error, extra="haystack") from error

KINDS: Final = {STRATEGIES[name].__name__: STRATEGIES[name] for name in sorted(STRATEGIES)}  # as files name them


@dataclass(frozen=True)
class SavedIndex:
    """An index folder and the names of its models: what a pipeline file can hold of a searcher."""

    index: str
    scorer: str
    encoder: str | None = None

    def open(self) -> Searcher:
        """A searcher of the index, with its models loaded."""
        encoder = None if self.encoder is None else SentenceEncoder(self.encoder)
        return Searcher(Index.load(self.index), scorer=CrossEncoder(self.scorer), encoder=encoder)


@component
class CrossKnnRetriever:
    """The best items of a searcher as `Document`s with their scores; round and proposer are in their meta.

    searcher   what is searched: a `Searcher`; or a `SavedIndex`, which is opened when the pipeline warms up and which
               `Pipeline.dumps` can write down
    documents  by id the documents that the items stand for, copies of which come back and whose meta `filters` test;
               `from_documents` sets it
    top_k      k of `Searcher.search`
    budget, strategy, filter, deadline
               as in `Searcher.search`
    """

    def __init__(
        self,
        searcher: Searcher | SavedIndex,
        *,
        documents: Mapping[str, Document] | None = None,
        top_k: int = 10,
        budget: int | None = None,
        strategy: Strategy | None = None,
        filter: Filter | None = None,
        deadline: float | None = None,
    ) -> None:
        check_positive("top_k", top_k)
        self.searcher = searcher
        self.documents = documents
        self.top_k = top_k
        self.budget = budget
        self.strategy = strategy
        self.filter = filter
        self.deadline = deadline
        self._opened = None if isinstance(searcher, SavedIndex) else searcher
        self._opening = Lock()

    @classmethod
    def from_documents(
        cls, documents: Sequence[Document], *, scorer: Scorer, encoder: Encoder | None = None, **settings: Any
    ) -> Self:
        """A retriever of these documents."""
        items = Items(map(_content_of, documents), ids=[document.id for document in documents])
        searcher = Searcher(items, scorer=scorer, encoder=encoder)
        return cls(searcher, documents=dict(zip(items.ids, documents, strict=True)), **settings)

    def warm_up(self) -> None:
        """Open a saved index and load its models; called by the pipeline, and by the first run."""
        self._ready()

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """The best documents for a query. `filters` are Haystack's, on the documents' meta."""
        searcher = self._ready()
        return self._output(searcher, searcher.search(query, **self._options(filters, top_k)))

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """`run` without blocking the event loop."""
        searcher = await asyncio.to_thread(self._ready)
        return self._output(searcher, await searcher.asearch(query, **self._options(filters, top_k)))

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` makes the same component of; possible with a `SavedIndex` alone."""
        if not isinstance(self.searcher, SavedIndex) or self.documents is not None:
            raise InputError(
                "a searcher and documents in memory cannot be written down. "
                "Save the index and use CrossKnnRetriever(SavedIndex(folder, scorer=…, encoder=…))."
            )
        return default_to_dict(
            self,
            searcher=asdict(self.searcher),
            top_k=self.top_k,
            budget=self.budget,
            strategy=_strategy_as_dict(self.strategy),
            filter=_filter_as_list(self.filter),
            deadline=self.deadline,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The component that `to_dict` described."""
        settings = dict(data["init_parameters"])
        settings["searcher"] = SavedIndex(**settings["searcher"])
        settings["strategy"] = _strategy_from_dict(settings.get("strategy"))
        return default_from_dict(cls, {**data, "init_parameters": settings})

    def _ready(self) -> Searcher:
        with self._opening:
            if self._opened is None:
                assert isinstance(self.searcher, SavedIndex)
                self._opened = self.searcher.open()
            return self._opened

    def _options(self, filters: dict[str, Any] | None, top_k: int | None) -> dict[str, Any]:
        return {
            "k": self.top_k if top_k is None else top_k,
            "budget": self.budget,
            "strategy": self.strategy,
            "filter": self.filter if not filters else self._matching(filters),
            "deadline": self.deadline,
        }

    def _matching(self, filters: dict[str, Any]) -> set[str]:
        """The ids of the documents that Haystack's filters and the component's own let through."""
        if self.documents is None:
            raise InputError("filters test the meta of documents: make the retriever with documents={id: document, …}.")
        matching = {id_ for id_, one in self.documents.items() if document_matches_filter(filters, one)}
        if self.filter is None:
            return matching
        return set(filter(self.filter, matching)) if callable(self.filter) else matching.intersection(self.filter)

    def _output(self, searcher: Searcher, hits: Hits) -> dict[str, list[Document]]:
        return {"documents": [self._as_document(searcher, hit) for hit in hits]}

    def _as_document(self, searcher: Searcher, hit: Hit) -> Document:
        if self.documents is None:
            return Document(id=hit.id, content=searcher.items.text(hit.row), score=hit.score, meta=how_found(hit))
        document = document_of(hit, self.documents)
        return replace(document, score=hit.score, meta={**document.meta, **how_found(hit)})


@component
class CrossKnnRanker:
    """Scores the documents it is given, one call each, and keeps the best `top_k`, highest score first; None keeps all.

    `scorer` is any `Scorer`; or the name of a `CrossEncoder`, which is loaded when the pipeline warms up and which
    `Pipeline.dumps` can write down.
    """

    def __init__(self, scorer: Scorer | str, *, top_k: int | None = 10) -> None:
        if top_k is not None:
            check_positive("top_k", top_k)
        self.scorer = scorer
        self.top_k = top_k
        self._loaded = None if isinstance(scorer, str) else check_scorer(scorer)
        self._loading = Lock()

    def warm_up(self) -> None:
        """Load the scorer; called by the pipeline, and by the first run."""
        self._ready()

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, list[Document]]:
        """The documents with their scores, best first."""
        k = self.top_k if top_k is None else top_k
        if k is not None:
            check_positive("top_k", k)
        best = best_texts(self._ready(), query, [_content_of(document) for document in documents], k=k)
        return {"documents": [replace(documents[place], score=score) for place, score in best]}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """`run` without blocking the event loop."""
        return await asyncio.to_thread(self.run, query, documents, top_k)

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` makes the same component of; possible where the scorer was given by name."""
        if not isinstance(self.scorer, str):
            raise InputError(
                "a scorer in memory cannot be written down. Give the name or folder of a CrossEncoder instead: "
                'CrossKnnRanker("cross-encoder/ms-marco-MiniLM-L6-v2").'
            )
        return default_to_dict(self, scorer=self.scorer, top_k=self.top_k)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The component that `to_dict` described."""
        return default_from_dict(cls, data)

    def _ready(self) -> Scorer:
        with self._loading:
            if self._loaded is None:
                assert isinstance(self.scorer, str)
                self._loaded = CrossEncoder(self.scorer)
            return self._loaded


def _content_of(document: Document) -> str:
    if document.content is None:
        raise InputError(f"only documents with a text can be scored. Document {document.id!r} has no content.")
    return document.content


def _strategy_as_dict(strategy: Strategy | None) -> dict[str, Any] | None:
    if strategy is None:
        return None
    if type(strategy) not in KINDS.values():
        raise InputError(f"only crossknn's own strategies can be written down. Got {strategy!r}.")
    return {"name": type(strategy).__name__, **asdict(strategy)}  # type: ignore[call-overload]


def _strategy_from_dict(data: dict[str, Any] | None) -> Strategy | None:
    if data is None:
        return None
    settings = dict(data)
    name = settings.pop("name", None)
    if name not in KINDS:
        raise InputError(f"strategy must have a name, one of {', '.join(KINDS)}. Got {name!r} instead.")
    strategy: Strategy = KINDS[name](**settings)
    return strategy


def _filter_as_list(filter: Filter | None) -> list[str] | None:
    if filter is None:
        return None
    if callable(filter):
        raise InputError("a filter that is a function cannot be written down. Give a list of ids instead.")
    return sorted(filter)
