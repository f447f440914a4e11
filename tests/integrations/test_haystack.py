"""The Haystack retriever and ranker, run by Haystack's own pipelines."""

import asyncio
from dataclasses import dataclass

import pytest

pytest.importorskip("haystack", reason="Haystack is not installed: pip install 'crossknn[haystack]'")

from haystack import Document, Pipeline

import crossknn as ck
from crossknn.integrations.haystack import CrossKnnRanker, CrossKnnRetriever, SavedIndex
from crossknn.strategies.registry import STRATEGIES
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

DOCUMENTS = [Document(id=id_, content=text, meta={"page": page}) for page, (id_, text) in enumerate(TEXTS.items())]


def make_pipeline(retriever, ranker):
    pipeline = Pipeline()
    pipeline.add_component("retriever", retriever)
    pipeline.add_component("ranker", ranker)
    pipeline.connect("retriever.documents", "ranker.documents")
    return pipeline


def ids_of(output):
    return [document.id for document in output["documents"]]


def test_the_retriever_returns_the_hits_of_its_searcher():
    searcher = make_searcher()
    found = CrossKnnRetriever(searcher, top_k=3, budget=5).run(QUERY)["documents"]
    hits = searcher.search(QUERY, k=3, budget=5)
    assert [(one.id, one.score, one.content) for one in found] == [(h.id, h.score, TEXTS[h.id]) for h in hits]
    expected = [{**fields_of(h.id), "round": h.round, "proposed_by": h.proposed_by} for h in hits]
    assert [one.meta for one in found] == expected


def compare(field, operator, value):
    return {"field": field, "operator": operator, "value": value}


FILTERS = [
    compare("meta.words", "==", 5),
    compare("words", "!=", 5),
    compare("meta.words", ">=", 6),
    compare("meta.words", "<", 6),
    compare("meta.season", "in", ["winter", "spring"]),
    compare("meta.season", "not in", ["winter"]),
    compare("meta.season", "!=", "winter"),
    compare("id", "==", "sun"),
    {"operator": "AND", "conditions": [compare("meta.words", ">", 4), compare("meta.words", "<=", 6)]},
    {"operator": "OR", "conditions": [compare("meta.words", "==", 10), compare("meta.season", "==", "summer")]},
    {"operator": "NOT", "conditions": [compare("meta.words", ">", 4), compare("meta.words", "<=", 6)]},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_filters_on_fields_find_what_haystack_finds_on_meta(filters):
    documents = [Document(id=id_, content=text, meta=fields_of(id_)) for id_, text in TEXTS.items()]
    expected = CrossKnnRetriever.from_documents(documents, scorer=make_scorer(), top_k=6).run(QUERY, filters=filters)
    found = CrossKnnRetriever(make_searcher(), top_k=6).run(QUERY, filters=filters)
    assert ids_of(found) == ids_of(expected)
    assert ids_of(found)
    cold = CrossKnnRetriever(make_searcher(), top_k=6, filter={"season": "winter"}).run(QUERY, filters=filters)
    assert ids_of(cold) == [id_ for id_ in ids_of(expected) if fields_of(id_)["season"] == "winter"]


def test_components_run_in_a_pipeline_and_async_equals_sync():
    scorer = make_scorer()
    retriever = CrossKnnRetriever(make_searcher(), top_k=4, strategy=ck.Rerank(5))
    pipeline = make_pipeline(retriever, CrossKnnRanker(scorer, top_k=2))
    data = {"retriever": {"query": QUERY}, "ranker": {"query": QUERY}}
    output = pipeline.run(data)
    assert ids_of(output["ranker"]) == best_ids()[:2]
    assert asyncio.run(pipeline.run_async(data)) == output
    assert scorer.calls == [4, 4]


def test_documents_keep_their_ids_and_meta_and_filters_apply_to_it():
    retriever = CrossKnnRetriever.from_documents(DOCUMENTS, scorer=make_scorer(), encoder=make_encoder(), top_k=6)
    best = retriever.run(QUERY)["documents"][0]
    assert (best.id, best.meta["page"]) == ("ice", 0)
    assert best.score == pytest.approx(score_of("ice"))
    assert DOCUMENTS[0].meta == {"page": 0}  # the originals are not changed
    assert DOCUMENTS[0].score is None
    late = {"field": "meta.page", "operator": ">=", "value": 3}
    assert ids_of(retriever.run(QUERY, filters=late)) == best_ids(among=["bread", "flour", "sun"])
    assert ids_of(asyncio.run(retriever.run_async(QUERY, late, 1))) == ["flour"]
    assert ids_of(retriever.run(QUERY, filters={"field": "meta.page", "operator": ">", "value": 99})) == []


@pytest.mark.parametrize("own", [["sun", "ice"], lambda id_: id_ in ("sun", "ice")], ids=["ids", "function"])
def test_filters_are_combined_with_the_retrievers_own_filter(own):
    retriever = CrossKnnRetriever.from_documents(DOCUMENTS, scorer=make_scorer(), filter=own)
    assert ids_of(retriever.run(QUERY)) == ["ice", "sun"]
    assert ids_of(retriever.run(QUERY, filters={"field": "meta.page", "operator": ">=", "value": 3})) == ["sun"]


def test_the_ranker_keeps_the_best_documents():
    scorer = make_scorer()
    given = DOCUMENTS[::-1][:4]
    kept = CrossKnnRanker(scorer, top_k=2).run(QUERY, given)["documents"]
    assert [one.id for one in kept] == best_ids(among=[one.id for one in given])[:2]
    assert [one.score for one in kept] == pytest.approx([score_of(one.id) for one in kept])
    assert kept[0].meta == {"page": 2}
    assert ids_of(CrossKnnRanker(scorer, top_k=2).run(QUERY, given, top_k=1)) == [kept[0].id]
    assert len(CrossKnnRanker(scorer, top_k=None).run(QUERY, given)["documents"]) == 4
    assert CrossKnnRanker(scorer).run(QUERY, []) == {"documents": []}


def test_invalid_arguments_are_rejected_before_any_call():
    searcher = make_searcher()
    ranker = CrossKnnRanker(searcher.scorer)
    with pytest.raises(ck.InputError, match="`top_k` must be a positive integer, got 0"):
        CrossKnnRetriever(searcher, top_k=0)
    with pytest.raises(ck.InputError, match="`top_k` must be a positive integer, got -1"):
        ranker.run(QUERY, DOCUMENTS, top_k=-1)
    with pytest.raises(ck.InputError, match="budget"):
        CrossKnnRetriever(searcher, top_k=9, budget=5).run(QUERY)
    with pytest.raises(ck.InputError, match="names the field 'page', which the items do not have"):
        CrossKnnRetriever(searcher).run(QUERY, filters={"field": "meta.page", "operator": "==", "value": 1})
    for filters in (
        {"field": "meta.words", "operator": "like", "value": 1},
        {"operator": "XOR", "conditions": []},
        [1],
    ):
        with pytest.raises(ck.InputError, match="`filters` must be those of Haystack"):
            CrossKnnRetriever(searcher).run(QUERY, filters=filters)
    with pytest.raises(ck.InputError, match="document 'picture' has no content"):
        ranker.run(QUERY, [*DOCUMENTS, Document(id="picture")])
    with pytest.raises(ck.InputError, match="`scorer` must be a Scorer"):
        CrossKnnRanker(7)
    assert searcher.scorer.calls == []


def test_objects_in_memory_cannot_be_serialized():
    with pytest.raises(ck.InputError, match="in memory cannot be serialized"):
        CrossKnnRetriever(make_searcher()).to_dict()
    with pytest.raises(ck.InputError, match="in memory cannot be serialized"):
        CrossKnnRanker(make_scorer()).to_dict()
    saved = SavedIndex("folder", scorer="a", encoder="b")
    with pytest.raises(ck.InputError, match="function cannot be serialized"):
        CrossKnnRetriever(saved, filter=lambda id_: True).to_dict()
    data = CrossKnnRetriever(saved).to_dict()
    data["init_parameters"]["strategy"] = {"name": "nonsense"}
    with pytest.raises(ck.InputError, match="got 'nonsense'"):
        CrossKnnRetriever.from_dict(data)


@dataclass(frozen=True)
class Registered(ck.Rerank):
    """A strategy that the component knows only from the registry."""

    depth: int = 3


def test_a_registered_strategy_is_serialized(monkeypatch):
    monkeypatch.setitem(STRATEGIES, "registered", Registered)
    saved = SavedIndex("folder", scorer="a")
    data = CrossKnnRetriever(saved, strategy=Registered(7, depth=5)).to_dict()
    assert data["init_parameters"]["strategy"] == {"name": "registered", "budget": 7, "retriever": None, "depth": 5}
    assert CrossKnnRetriever.from_dict(data).strategy == Registered(7, depth=5)


@pytest.mark.parametrize("strategy", [None, ck.Exact(), ck.Axn(budget=5, rounds=2, mix=0.8)], ids=repr)
def test_settings_survive_serialization(strategy):
    saved = SavedIndex("folder", scorer="a", encoder="b")
    retriever = CrossKnnRetriever(saved, top_k=3, strategy=strategy, filter={"b", "a"}, deadline=2.0)
    again = CrossKnnRetriever.from_dict(retriever.to_dict())
    assert (again.searcher, again.top_k, again.strategy) == (saved, 3, strategy)
    assert (again.filter, again.deadline) == (["a", "b"], 2.0)
    by_field = CrossKnnRetriever(saved, filter={"page": {"lt": 3}})
    assert CrossKnnRetriever.from_dict(by_field.to_dict()).filter == {"page": {"lt": 3}}


def test_a_pipeline_with_a_saved_index_is_serialized(tmp_path, bert_folder, encoder_folder):
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
    expected = ck.Searcher(index, scorer=scorer, encoder=encoder).search(QUERY, k=2, strategy=ck.Rerank(4))
    assert ids_of(output["ranker"]) == expected.ids
