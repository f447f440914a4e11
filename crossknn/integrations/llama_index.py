"""LlamaIndex: a retriever that searches with a `Searcher`, and a node postprocessor that reranks with a `Scorer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from crossknn._checks import check_positive
from crossknn._imports import missing_extra
from crossknn.errors import InputError
from crossknn.integrations.conversion import check_scorer, document_of, make_items, provenance, rerank_texts, score_of
from crossknn.search.results import Hit
from crossknn.search.searcher import Searcher
from crossknn.strategies.base import Strategy
from crossknn.types import Encoder, Filter, Scorer

try:
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, TextNode
    from pydantic import AfterValidator, Field, SkipValidation
except ImportError as error:
    raise missing_extra("llama_index.core", error, extra="llama-index") from error


class CrossKnnRetriever(BaseRetriever):
    """Returns the best items as nodes with scores; round and proposer are metadata hidden from LLMs and encoders.

    `nodes` are the items' nodes by id, copies of which are returned; `from_nodes` sets it. Without them the fields of
    items are metadata that LLMs see, and encoders do not: items were scored without. The other settings are those of
    `Searcher.search`, and LlamaIndex's own `callback_manager`.
    """

    def __init__(
        self,
        searcher: Searcher,
        *,
        nodes: Mapping[str, BaseNode] | None = None,
        k: int = 10,
        budget: int | None = None,
        strategy: Strategy | None = None,
        filter: Filter | None = None,
        deadline: float | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        check_positive("k", k)
        super().__init__(callback_manager=callback_manager)
        self.searcher = searcher
        self.nodes = nodes
        self._options: dict[str, Any] = {"k": k, "budget": budget, "strategy": strategy}
        self._options |= {"filter": filter, "deadline": deadline}

    @classmethod
    def from_nodes(
        cls, nodes: Sequence[BaseNode], *, scorer: Scorer, encoder: Encoder | None = None, **settings: Any
    ) -> Self:
        """A retriever of these nodes by their ids and texts for embedding (`MetadataMode.EMBED`)."""
        ids, metadata = [node.node_id for node in nodes], [node.metadata for node in nodes]
        items = make_items(map(_text_of, nodes), ids, metadata)
        searcher = Searcher(items, scorer=scorer, encoder=encoder)
        return cls(searcher, nodes=dict(zip(items.ids, nodes, strict=True)), **settings)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return list(map(self._as_node, self.searcher.search(query_bundle.query_str, **self._options)))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return list(map(self._as_node, await self.searcher.asearch(query_bundle.query_str, **self._options)))

    def _as_node(self, hit: Hit) -> NodeWithScore:
        metadata = provenance(hit)
        if self.nodes is None:
            fields = dict(hit.fields)
            node: BaseNode = TextNode(
                id_=hit.id, text=hit.text, metadata=fields, excluded_embed_metadata_keys=list(fields)
            )
        else:
            node = document_of(hit, self.nodes)
        update = {
            "metadata": {**node.metadata, **metadata},
            "excluded_embed_metadata_keys": [*node.excluded_embed_metadata_keys, *metadata],
            "excluded_llm_metadata_keys": [*node.excluded_llm_metadata_keys, *metadata],
        }
        return NodeWithScore(node=node.model_copy(update=update), score=score_of(hit))


class CrossKnnPostprocessor(BaseNodePostprocessor):
    """Reranks nodes by their texts for embedding, one call each, and keeps the best `k` (None for all).

    `to_dict` leaves the scorer out: read it back with `from_dict(data, scorer=…)`.
    """

    scorer: Annotated[Scorer, SkipValidation, AfterValidator(check_scorer)] = Field(exclude=True)
    k: int | None = Field(default=3, gt=0)

    @classmethod
    def class_name(cls) -> str:
        return "CrossKnnPostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise InputError("nodes are reranked for a query: give `query_str` or `query_bundle`.")
        best = rerank_texts(self.scorer, query_bundle.query_str, [_text_of(node.node) for node in nodes], k=self.k)
        return [NodeWithScore(node=nodes[place].node, score=score) for place, score in best]


def _text_of(node: BaseNode) -> str:
    return node.get_content(metadata_mode=MetadataMode.EMBED)
