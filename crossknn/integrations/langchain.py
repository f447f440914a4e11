"""LangChain: a retriever that searches with a `Searcher`, and a document compressor that reranks with a `Scorer`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

from crossknn._imports import missing_extra
from crossknn.integrations.conversion import document_of, how_found
from crossknn.integrations.conversion import best_texts, check_scorer
from crossknn.items.items import Items
from crossknn.search.results import Hit, Hits
from crossknn.search.searcher import Filter, Searcher
from crossknn.strategies.base import Strategy
from crossknn.types import Encoder, Scorer

try:
    from langchain_core.callbacks import (
        AsyncCallbackManagerForRetrieverRun,
        CallbackManagerForRetrieverRun,
        Callbacks,
    )
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.retrievers import BaseRetriever
    from pydantic import ConfigDict, Field, SkipValidation, field_validator
except ImportError as error:
    raise missing_extra("langchain_core", error, extra="langchain") from error


class CrossKnnRetriever(BaseRetriever):
    """The best items of a searcher as `Document`s, with their score, round and proposer in the metadata.

    searcher   what is searched
    documents  by id the documents that the items stand for, whose metadata come back; `from_documents` sets it
    k, budget, strategy, filter, deadline
               as in `Searcher.search`; each can be given to `invoke` and `ainvoke`, too
    """

    searcher: Searcher
    documents: SkipValidation[Mapping[str, Document]] | None = None
    k: int = Field(default=10, gt=0)
    budget: int | None = Field(default=None, gt=0)
    strategy: SkipValidation[Strategy] | None = None
    filter: SkipValidation[Filter] | None = None
    deadline: float | None = Field(default=None, gt=0)

    @classmethod
    def from_documents(
        cls, documents: Sequence[Document], *, scorer: Scorer, encoder: Encoder | None = None, **settings: Any
    ) -> Self:
        """A retriever of these documents. Their ids are kept; where no document has one, they are numbered from 0."""
        ids = [document.id for document in documents]
        texts = [document.page_content for document in documents]
        items = Items(texts, ids=None if set(ids) == {None} else cast("list[str]", ids))
        searcher = Searcher(items, scorer=scorer, encoder=encoder)
        return cls(searcher=searcher, documents=dict(zip(items.ids, documents, strict=True)), **settings)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        return self._as_documents(self.searcher.search(query, **{**self._options, **options}))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        return self._as_documents(await self.searcher.asearch(query, **{**self._options, **options}))

    @property
    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("k", "budget", "strategy", "filter", "deadline")}

    def _as_documents(self, hits: Hits) -> list[Document]:
        return [self._as_document(hit) for hit in hits]

    def _as_document(self, hit: Hit) -> Document:
        found = {"score": hit.score, **how_found(hit)}
        if self.documents is None:
            return Document(self.searcher.items.text(hit.row), id=hit.id, metadata=found)
        document = document_of(hit, self.documents)
        return document.model_copy(update={"id": hit.id, "metadata": {**document.metadata, **found}})


class CrossKnnCompressor(BaseDocumentCompressor):
    """Scores the documents it is given, one call each, and keeps the best `k`, highest score first; None keeps all.

    The score is put into the metadata of a copy; the documents themselves are not changed.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    scorer: SkipValidation[Scorer]
    k: int | None = Field(default=3, gt=0)

    @field_validator("scorer")
    @classmethod
    def _can_score(cls, scorer: Scorer) -> Scorer:
        return check_scorer(scorer)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        best = best_texts(self.scorer, query, [document.page_content for document in documents], k=self.k)
        return [_with_score(documents[place], score) for place, score in best]

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        return await asyncio.to_thread(self.compress_documents, documents, query, callbacks)


def _with_score(document: Document, score: float) -> Document:
    return document.model_copy(update={"metadata": {**document.metadata, "score": score}})
