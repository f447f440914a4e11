"""The Haystack retriever and ranker, run by Haystack's own pipelines."""

import asyncio

import pytest

pytest.importorskip("haystack", reason="Haystack is not installed: pip install 'crossknn[haystack]'")

from haystack import Document, Pipeline

import crossknn as ck
from crossknn.integrations.haystack import CrossKnnRanker, CrossKnnRetriever, SavedIndex
from tests.integrations.world import (
    QUERY,
    TEXTS,
    best_ids,
    make_encoder,
    make_scorer,
    make_searcher,
    score_of,
)

DOCUMENTS = [Document(id=id_, content=text, meta={"page": page}) for page, (id_, text) in enumerate(TEXTS.items())]


def make_pipeline(retriever, ranker):
    pipeline = Pipeline()
    pipeline.add_component("retriever", retriever)
    pipeline.add_component("ranker", ranker)
    pipeline.connect("retriever.documents", "ranker.documents")
    return pipeline


def ids_of(output):
    return [document.id for document in output["documents"]]


def test_the_retriever_gives_the_hits_of_its_searcher():
    searcher = make_searcher()
    found = CrossKnnRetriever(searcher, top_k=3, budget=5).run(QUERY)["documents"]
    hits = searcher.search(QUERY, k=3, budget=5)
    assert [(one.id, one.score, one.content) for one in found] == [(h.id, h.score, TEXTS[h.id]) for h in hits]
    assert [one.meta for one in found] == [{"round": h.round, "proposed_by": h.proposed_by} for h in hits]


def test_they_run_in_a_pipeline_and_async_equals_sync():
    scorer = make_scorer()
    retriever = CrossKnnRetriever(make_searcher(), top_k=4, strategy=ck.Rerank(5))
    pipeline = make_pipeline(retriever, CrossKnnRanker(scorer, top_k=2))
    data = {"retriever": {"query": QUERY}, "ranker": {"query": QUERY}}
    output = pipeline.run(data)
    assert ids_of(output["ranker"]) == best_ids()[:2]
    assert asyncio.run(pipeline.run_async(data)) == output
    assert scorer.calls == [4, 4]


def test_documents_keep_their_ids_and_meta_and_filters_test_it():
    retriever = CrossKnnRetriever.from_documents(DOCUMENTS, scorer=make_scorer(), encoder=make_encoder(), top_k=6)
    best = retriever.run(QUERY)["documents"][0]
    assert (best.id, best.meta["page"]) == ("ice", 0)
    assert best.score == pytest.approx(score_of("ice"))
    assert DOCUMENTS[0].meta == {"page": 0}  # the given ones are not changed
    assert DOCUMENTS[0].score is None
    late = {"field": "meta.page", "operator": ">=", "value": 3}
    assert ids_of(retriever.run(QUERY, filters=late)) == best_ids(among=["bread", "flour", "sun"])
    assert ids_of(asyncio.run(retriever.run_async(QUERY, late, 1))) == ["flour"]
    assert ids_of(retriever.run(QUERY, filters={"field": "meta.page", "operator": ">", "value": 99})) == []


@pytest.mark.parametrize("own", [["sun", "ice"], lambda id_: id_ in ("sun", "ice")], ids=["ids", "function"])
def test_filters_narrow_the_retrievers_own_filter(own):
    retriever = CrossKnnRetriever.from_documents(DOCUMENTS, scorer=make_scorer(), filter=own)
    assert ids_of(retriever.run(QUERY)) == ["ice", "sun"]
    assert ids_of(retriever.run(QUERY, filters={"field": "meta.page", "operator": ">=", "value": 3})) == ["sun"]


def test_the_ranker_keeps_the_best_of_what_it_is_given():
    scorer = make_scorer()
    given = DOCUMENTS[::-1][:4]
    kept = CrossKnnRanker(scorer, top_k=2).run(QUERY, given)["documents"]
    assert [one.id for one in kept] == best_ids(among=[one.id for one in given])[:2]
    assert [one.score for one in kept] == pytest.approx([score_of(one.id) for one in kept])
    assert kept[0].meta == {"page": 2}
    assert ids_of(CrossKnnRanker(scorer, top_k=2).run(QUERY, given, top_k=1)) == [kept[0].id]
    assert len(CrossKnnRanker(scorer, top_k=None).run(QUERY, given)["documents"]) == 4
    assert CrossKnnRanker(scorer).run(QUERY, []) == {"documents": []}


def test_what_cannot_be_used_is_said_before_a_call_is_made():
    searcher = make_searcher()
    ranker = CrossKnnRanker(searcher.scorer)
    with pytest.raises(ck.InputError, match=r"top_k must be a whole number of at least 1. Got 0 instead."):
        CrossKnnRetriever(searcher, top_k=0)
    with pytest.raises(ck.InputError, match=r"top_k must be a whole number of at least 1. Got -1 instead."):
        ranker.run(QUERY, DOCUMENTS, top_k=-1)
    with pytest.raises(ck.InputError, match="must be at most the budget"):
        CrossKnnRetriever(searcher, top_k=9, budget=5).run(QUERY)
    with pytest.raises(ck.InputError, match="filters test the meta of documents: make the retriever with documents="):
        CrossKnnRetriever(searcher).run(QUERY, filters={"field": "meta.page", "operator": "==", "value": 1})
    with pytest.raises(ck.InputError, match="Document 'picture' has no content"):
        ranker.run(QUERY, [*DOCUMENTS, Document(id="picture")])
    with pytest.raises(ck.InputError, match="scorer must be a Scorer such as CrossEncoder"):
        CrossKnnRanker(7)
    assert searcher.scorer.calls == []


def test_what_is_in_memory_cannot_be_written_down():
    with pytest.raises(ck.InputError, match="a searcher and documents in memory cannot be written down"):
        CrossKnnRetriever(make_searcher()).to_dict()
    with pytest.raises(ck.InputError, match="a scorer in memory cannot be written down"):
        CrossKnnRanker(make_scorer()).to_dict()
    saved = SavedIndex("folder", scorer="a", encoder="b")
    with pytest.raises(ck.InputError, match="a filter that is a function cannot be written down"):
        CrossKnnRetriever(saved, filter=lambda id_: True).to_dict()
    data = CrossKnnRetriever(saved).to_dict()
    data["init_parameters"]["strategy"] = {"name": "Nonsense"}
    with pytest.raises(ck.InputError, match=r"strategy must have a name, one of AdaCur, .*Got 'Nonsense' instead"):
        CrossKnnRetriever.from_dict(data)


@pytest.mark.parametrize("strategy", [None, ck.Exact(), ck.Axn(budget=5, rounds=2, mix=0.8)], ids=repr)
def test_settings_are_read_as_they_were_written(strategy):
    saved = SavedIndex("folder", scorer="a", encoder="b")
    retriever = CrossKnnRetriever(saved, top_k=3, strategy=strategy, filter={"b", "a"}, deadline=2.0)
    again = CrossKnnRetriever.from_dict(retriever.to_dict())
    assert (again.searcher, again.top_k, again.strategy) == (saved, 3, strategy)
    assert (again.filter, again.deadline) == (["a", "b"], 2.0)


def test_a_pipeline_of_a_saved_index_is_written_and_read(tmp_path, bert_folder, encoder_folder):
    scorer, encoder = ck.CrossEncoder(bert_folder), ck.SentenceEncoder(encoder_folder)
    queries = ["snow in winter", "warm bread", "cold water"]
    index = ck.Index.build(ck.Items.from_dict(TEXTS), scorer=scorer, encoder=encoder, queries=queries)
    index.save(tmp_path / "corpus.ck")
    saved = SavedIndex(str(tmp_path / "corpus.ck"), scorer=str(bert_folder), encoder=str(encoder_folder))
    ranker = CrossKnnRanker(str(bert_folder), top_k=2)
    pipeline = make_pipeline(CrossKnnRetriever(saved, top_k=3, strategy=ck.Rerank(4)), ranker)
    data = {"retriever": {"query": QUERY}, "ranker": {"query": QUERY}}

    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["crossknn.*"])

    output = again.run(data)
    assert output == pipeline.run(data)
    wanted = ck.Searcher(index, scorer=scorer, encoder=encoder).search(QUERY, k=2, strategy=ck.Rerank(4))
    assert ids_of(output["ranker"]) == wanted.ids
