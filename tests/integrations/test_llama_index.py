"""The LlamaIndex retriever and node postprocessor, run by LlamaIndex itself."""

import asyncio

import pytest

pytest.importorskip("llama_index.core", reason="LlamaIndex is not installed: pip install 'crossknn[llama-index]'")

from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
from pydantic import ValidationError

import crossknn as ck
from crossknn.integrations.llama_index import CrossKnnPostprocessor, CrossKnnRetriever
from tests.integrations.world import (
    QUERY,
    TEXTS,
    best_ids,
    fields_of,
    make_encoder,
    make_scorer,
    make_searcher,
    score_of,
)


def make_nodes(**options):
    return [TextNode(id_=id_, text=text, **options) for id_, text in TEXTS.items()]


def ids_of(nodes):
    return [node.node_id for node in nodes]


def test_the_retriever_returns_the_hits_of_its_searcher():
    searcher = make_searcher()
    found = CrossKnnRetriever(searcher, k=3, budget=5).retrieve(QUERY)
    hits = searcher.search(QUERY, k=3, budget=5)
    assert [(one.node_id, one.score, one.text) for one in found] == [(h.id, h.score, TEXTS[h.id]) for h in hits]
    expected = [{**fields_of(h.id), "round": h.round, "proposed_by": h.proposed_by} for h in hits]
    assert [one.metadata for one in found] == expected


def test_round_and_proposer_are_hidden_from_models():
    node = CrossKnnRetriever(make_searcher(), k=1).retrieve(QUERY)[0].node
    assert node.get_content(MetadataMode.EMBED) == TEXTS["ice"]
    assert node.get_content(MetadataMode.LLM) == f"words: 10\nseason: winter\n\n{TEXTS['ice']}"


def test_async_equals_sync():
    retriever = CrossKnnRetriever(make_searcher(), k=4, strategy=ck.Rerank(5))
    assert asyncio.run(retriever.aretrieve(QUERY)) == retriever.retrieve(QueryBundle(QUERY))


def test_nodes_keep_their_ids_and_metadata():
    nodes = make_nodes(metadata={"page": "7"}, excluded_embed_metadata_keys=["page"])
    retriever = CrossKnnRetriever.from_nodes(nodes, scorer=make_scorer(), encoder=make_encoder(), k=2)
    best = retriever.retrieve(QUERY)[0]
    assert (best.node_id, best.metadata["page"]) == ("ice", "7")
    assert best.score == pytest.approx(score_of("ice"))
    assert nodes[0].metadata == {"page": "7"}  # the originals are not changed


def test_nodes_are_searched_by_their_text_for_embedding():
    nodes = [
        TextNode(id_="a", text="something", metadata={"about": "winter"}),
        TextNode(id_="b", text="long other text"),
    ]
    retriever = CrossKnnRetriever.from_nodes(nodes, scorer=make_scorer(), k=1)
    assert ids_of(retriever.retrieve("winter")) == ["a"]
    postprocessor = CrossKnnPostprocessor(scorer=make_scorer(), k=1)
    given = [NodeWithScore(node=node, score=0.0) for node in nodes]
    assert ids_of(postprocessor.postprocess_nodes(given, query_str="winter")) == ["a"]


def test_the_filter_restricts_the_hits():
    retriever = CrossKnnRetriever(make_searcher(), k=2, filter={"snow", "bread", "sun"})
    assert ids_of(retriever.retrieve(QUERY)) == best_ids(among=["snow", "bread", "sun"])[:2]
    by_field = CrossKnnRetriever(make_searcher(), k=5, filter={"season": "winter"})
    assert ids_of(by_field.retrieve(QUERY)) == best_ids(among=["ice", "snow"])
    nodes = [*make_nodes(metadata={"page": 7, "odd": {}}), TextNode(id_="other", text="cold winter")]
    of_nodes = CrossKnnRetriever.from_nodes(nodes, scorer=make_scorer(), k=2, filter={"page": {"lt": 8}})
    assert ids_of(of_nodes.retrieve(QUERY)) == best_ids()[:2]


def test_invalid_arguments_are_rejected_before_any_call():
    searcher = make_searcher()
    with pytest.raises(ck.InputError, match="`k` must be a positive integer, got 0"):
        CrossKnnRetriever(searcher, k=0)
    with pytest.raises(ck.InputError, match="budget"):
        CrossKnnRetriever(searcher, k=9, budget=5).retrieve(QUERY)
    with pytest.raises(ValidationError, match="`scorer` must be a Scorer"):
        CrossKnnPostprocessor(scorer="a name")
    with pytest.raises(ck.InputError, match="query_str"):
        CrossKnnPostprocessor(scorer=searcher.scorer).postprocess_nodes([])
    assert searcher.scorer.calls == []


def test_the_postprocessor_keeps_the_best_nodes():
    scorer = make_scorer()
    postprocessor = CrossKnnPostprocessor(scorer=scorer, k=2)
    given = [NodeWithScore(node=node, score=-1.0) for node in make_nodes()[::-1][:4]]
    kept = postprocessor.postprocess_nodes(given, query_str=QUERY)
    assert ids_of(kept) == best_ids(among=ids_of(given))[:2]
    assert [one.score for one in kept] == pytest.approx([score_of(one.node_id) for one in kept])
    assert [one.score for one in given] == [-1.0] * 4
    assert asyncio.run(postprocessor.apostprocess_nodes(given, query_str=QUERY)) == kept
    assert scorer.calls == [4, 4]


def test_the_postprocessor_is_serialized_without_its_scorer():
    data = CrossKnnPostprocessor(scorer=make_scorer(), k=2).to_dict()
    assert data == {"k": 2, "class_name": "CrossKnnPostprocessor"}
    assert CrossKnnPostprocessor.from_dict(data, scorer=make_scorer()).k == 2


def test_retriever_and_postprocessor_run_in_a_query_engine():
    engine = RetrieverQueryEngine(
        CrossKnnRetriever(make_searcher(), k=4),
        node_postprocessors=[CrossKnnPostprocessor(scorer=make_scorer(), k=1)],
        response_synthesizer=get_response_synthesizer(llm=MockLLM()),
    )
    assert ids_of(engine.query(QUERY).source_nodes) == ["ice"]
    assert ids_of(asyncio.run(engine.aquery(QUERY)).source_nodes) == ["ice"]
