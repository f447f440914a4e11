"""LangChain: a retriever that searches with a `Searcher`, and a document compressor that reranks with a `Scorer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self, cast

from crossknn._imports import missing_extra
from crossknn.integrations.conversion import check_scorer, document_of, make_items, provenance, rerank_texts, score_of
from crossknn.search.results import Hit
from crossknn.search.searcher import Searcher
from crossknn.strategies.base import Strategy
from crossknn.types import Encoder, Filter, Scorer

try:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun, Callbacks
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.retrievers import BaseRetriever
    from pydantic import AfterValidator, ConfigDict, Field, SkipValidation
except ImportError as error:
    raise missing_extra("langchain_core", error, extra="langchain") from error


class CrossKnnRetriever(BaseRetriever):
    """Returns the best items as `Document`s, with score, round and proposer in their metadata.

    `documents` are the items' documents by id, whose metadata is returned; `from_documents` sets it. The other settings
    are those of `Searcher.search`; `invoke` and `ainvoke` accept them as well.
    """

    model_config = ConfigDict(extra="forbid")

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
        """A retriever of these documents by their ids; if no document has an id, they are numbered from 0."""
        ids = [document.id for document in documents]
        texts = [document.page_content for document in documents]
        known = map(str, range(len(ids))) if set(ids) == {None} else cast("list[str]", ids)
        items = make_items(texts, known, [document.metadata for document in documents])
        searcher = Searcher(items, scorer=scorer, encoder=encoder)
        return cls(searcher=searcher, documents=dict(zip(items.ids, documents, strict=True)), **settings)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        return list(map(self._as_document, self.searcher.search(query, **{**self._options, **options})))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        return list(map(self._as_document, await self.searcher.asearch(query, **{**self._options, **options})))

    @property
    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("k", "budget", "strategy", "filter", "deadline")}

    def _as_document(self, hit: Hit) -> Document:
        metadata = {"score": score_of(hit), **provenance(hit)}
        if self.documents is None:
            return Document(hit.text, id=hit.id, metadata={**hit.fields, **metadata})
        document = document_of(hit, self.documents)
        return document.model_copy(update={"id": hit.id, "metadata": {**document.metadata, **metadata}})


class CrossKnnCompressor(BaseDocumentCompressor):
    """Reranks documents, one call each, and keeps the best `k` (None for all), highest score first.

    Returns copies with the score in their metadata.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    scorer: Annotated[Scorer, SkipValidation, AfterValidator(check_scorer)]
    k: int | None = Field(default=3, gt=0)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        best = rerank_texts(self.scorer, query, [document.page_content for document in documents], k=self.k)
        return [
            documents[place].model_copy(update={"metadata": {**documents[place].metadata, "score": score}})
            for place, score in best
        ]
