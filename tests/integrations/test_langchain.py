"""The LangChain retriever and compressor, run by LangChain itself."""

import asyncio

import pytest

pytest.importorskip("langchain_core", reason="LangChain is not installed: pip install 'crossknn[langchain]'")

from langchain_core.documents import Document
from langchain_core.load import dumpd
from langchain_core.runnables import RunnableLambda
from pydantic import ValidationError

import crossknn as ck
from crossknn.integrations.langchain import CrossKnnCompressor, CrossKnnRetriever
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

DOCUMENTS = [Document(text, id=id_, metadata={"page": page}) for page, (id_, text) in enumerate(TEXTS.items())]


def test_the_retriever_returns_the_hits_of_its_searcher():
    searcher = make_searcher()
    found = CrossKnnRetriever(searcher=searcher, k=3, budget=5).invoke(QUERY)
    hits = searcher.search(QUERY, k=3, budget=5)
    assert [one.id for one in found] == hits.ids
    assert [one.page_content for one in found] == [TEXTS[id_] for id_ in hits.ids]
    assert [one.metadata for one in found] == [
        {**fields_of(hit.id), "score": hit.score, "round": hit.round, "proposed_by": hit.proposed_by} for hit in hits
    ]


def test_async_equals_sync():
    retriever = CrossKnnRetriever(searcher=make_searcher(), k=4, strategy=ck.Rerank(5))
    assert asyncio.run(retriever.ainvoke(QUERY)) == retriever.invoke(QUERY)
    assert retriever.batch([QUERY, "warm bread"]) == [retriever.invoke(QUERY), retriever.invoke("warm bread")]


def test_documents_keep_their_ids_and_metadata():
    retriever = CrossKnnRetriever.from_documents(DOCUMENTS, scorer=make_scorer(), encoder=make_encoder(), k=2)
    best = retriever.invoke(QUERY)[0]
    assert (best.id, best.metadata["page"]) == ("ice", 0)
    assert best.metadata["score"] == pytest.approx(score_of("ice"))
    assert DOCUMENTS[0].metadata == {"page": 0}  # the originals are not changed


def test_documents_without_ids_are_numbered_unless_some_have_ids():
    retriever = CrossKnnRetriever.from_documents([Document(text) for text in TEXTS.values()], scorer=make_scorer(), k=1)
    assert retriever.invoke(QUERY)[0].id == "0"
    with pytest.raises(ck.InputError, match="item 1"):
        CrossKnnRetriever.from_documents([DOCUMENTS[0], Document("no id")], scorer=make_scorer())


def test_filter_and_k_can_be_set_per_call():
    retriever = CrossKnnRetriever(searcher=make_searcher(), k=2, filter={"snow", "bread", "sun"})
    assert [one.id for one in retriever.invoke(QUERY)] == best_ids(among=["snow", "bread", "sun"])[:2]
    assert [one.id for one in retriever.invoke(QUERY, k=1, filter=lambda id_: id_ == "sun")] == ["sun"]
    by_field = retriever.invoke(QUERY, k=5, filter={"season": "winter", "words": {"gt": 5}})
    assert [one.id for one in by_field] == ["ice"]
    of_documents = CrossKnnRetriever.from_documents(DOCUMENTS, scorer=make_scorer(), k=6, filter={"page": {"ge": 4}})
    assert [one.id for one in of_documents.invoke(QUERY)] == best_ids(among=["flour", "sun"])


def test_invalid_arguments_are_rejected_before_any_call():
    searcher = make_searcher()
    with pytest.raises(ValidationError, match="greater than 0"):
        CrossKnnRetriever(searcher=searcher, k=0)
    with pytest.raises(ValidationError, match="budgets"):
        CrossKnnRetriever(searcher=searcher, budgets=5)
    with pytest.raises(ValidationError, match="top_n"):
        CrossKnnCompressor(scorer=searcher.scorer, top_n=5)
    with pytest.raises(ValidationError, match="`scorer` must be a Scorer"):
        CrossKnnCompressor(scorer="a name")
    with pytest.raises(ck.InputError, match="budget"):
        CrossKnnRetriever(searcher=searcher, k=9, budget=5).invoke(QUERY)
    with pytest.raises(ck.InputError, match="`query` must be a nonempty string"):
        CrossKnnCompressor(scorer=searcher.scorer).compress_documents(DOCUMENTS, " ")
    with pytest.raises(ck.InputError, match="'ice' has none"):
        CrossKnnRetriever(searcher=make_searcher(), documents={}, k=1).invoke(QUERY)
    assert searcher.scorer.calls == []


def test_the_compressor_keeps_the_best_documents():
    scorer = make_scorer()
    compressor = CrossKnnCompressor(scorer=scorer, k=2)
    given = DOCUMENTS[::-1][:4]
    kept = compressor.compress_documents(given, QUERY)
    assert [one.id for one in kept] == best_ids(among=[one.id for one in given])[:2]
    assert [one.metadata["score"] for one in kept] == pytest.approx([score_of(one.id) for one in kept])
    assert kept[0].metadata["page"] == 2
    assert all("score" not in one.metadata for one in DOCUMENTS)
    assert asyncio.run(compressor.acompress_documents(given, QUERY)) == kept
    assert scorer.calls == [4, 4]
    assert compressor.compress_documents([], QUERY) == []
    assert len(CrossKnnCompressor(scorer=scorer, k=None).compress_documents(given, QUERY)) == 4


def test_retriever_and_compressor_run_in_a_chain():
    retriever = CrossKnnRetriever(searcher=make_searcher(), k=4)
    compressor = CrossKnnCompressor(scorer=make_scorer(), k=1)
    chain = retriever | RunnableLambda(lambda documents: compressor.compress_documents(documents, QUERY)[0].id)
    assert chain.invoke(QUERY) == "ice"


def test_documents_found_can_be_serialized():
    retriever = CrossKnnRetriever(searcher=make_searcher(), k=2)
    for document in retriever.invoke(QUERY):
        assert Document.model_validate_json(document.model_dump_json()) == document
    assert dumpd(retriever)["type"] == "not_implemented"  # models cannot be serialized
