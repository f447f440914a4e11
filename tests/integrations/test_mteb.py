"""The MTEB search model, run by `mteb.evaluate` on small tasks that are made here."""

import pytest

pytest.importorskip("mteb", reason="MTEB is not installed: pip install 'crossknn[mteb]'")

import mteb
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import SearchProtocol

import crossknn as ck
from crossknn.integrations.mteb import CrossKnnSearch
from tests.integrations.world import QUERY, TEXTS, best_ids, make_encoder, make_scorer, score_of

CORPUS = Dataset.from_list([{"id": id_, "title": "", "text": text} for id_, text in TEXTS.items()])
QUERIES = Dataset.from_list([{"id": "q1", "text": QUERY}, {"id": "q2", "text": "warm bread"}])
JUDGED = {"q1": {"ice": 1, "lake": 1}, "q2": {"bread": 1}}
CANDIDATES = {"q1": ["sun", "snow", "lake"], "q2": ["flour", "bread"]}


def make_task(kind="Retrieval", candidates=None):
    class Tiny(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name=f"Tiny{kind}",
            description="Six texts about winter and bread.",
            dataset={"path": "made/here", "revision": "1"},
            type=kind,
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
        )

        def load_data(self, num_proc=None, **_):
            one = {"corpus": CORPUS, "queries": QUERIES, "relevant_docs": JUDGED, "top_ranked": candidates}
            self.dataset = {"default": {"test": one}}
            self.data_loaded = True

    return Tiny()


def evaluate(model, task, cache=None):
    results = mteb.evaluate(model, task, cache=cache, show_progress_bar=False)
    return results.task_results[0].scores["test"][0]


def test_it_is_a_search_model_of_mteb():
    assert isinstance(CrossKnnSearch(make_scorer()), SearchProtocol)


def test_mteb_evaluates_retrieval_within_the_budget():
    scorer = make_scorer()
    scores = evaluate(CrossKnnSearch(scorer, encoder=make_encoder(), budget=5), make_task())
    assert (scores["ndcg_at_10"], scores["recall_at_1"], scores["main_score"]) == (1.0, 0.75, 1.0)
    assert sum(scorer.calls) == 10


def test_mteb_evaluates_reranking_of_the_tasks_candidates():
    scorer = make_scorer()
    scores = evaluate(CrossKnnSearch(scorer), make_task("Reranking", CANDIDATES))
    assert scorer.calls == [3, 2]
    assert scores["recall_at_10"] == 0.75  # one of the relevant items is no candidate


def test_scores_come_back_by_id():
    model = CrossKnnSearch(make_scorer(), strategy=ck.Exact())
    model.index(CORPUS)
    run = model.search(QUERIES, top_k=3)
    assert run["q1"] == pytest.approx({id_: score_of(id_) for id_ in best_ids()[:3]})
    again = model.search(QUERIES, top_k=2, top_ranked=CANDIDATES)
    assert list(again["q1"]) == best_ids(among=CANDIDATES["q1"])[:2]
    assert model.search(QUERIES, top_k=2, top_ranked={"q1": ["sun"]}) == {"q1": {"sun": pytest.approx(0.025)}, "q2": {}}


def test_titles_and_instructions_are_part_of_the_text():
    records = [{"id": "a", "title": "winter", "text": "x"}, {"id": "b", "title": "", "text": "oven y"}]
    corpus = Dataset.from_list(records)
    queries = Dataset.from_list([{"id": "q", "text": "find", "instruction": "winter oven"}])
    model = CrossKnnSearch(make_scorer(), strategy=ck.Exact())
    model.index(corpus)
    assert model.search(queries, top_k=2)["q"] == pytest.approx({"a": 1.008, "b": 1.006})


def test_the_revision_changes_with_the_models_and_the_search():
    scorer, encoder = make_scorer(), make_encoder()
    models = [
        CrossKnnSearch(scorer),
        CrossKnnSearch(scorer, encoder=encoder),
        CrossKnnSearch(scorer, budget=5),
        CrossKnnSearch(scorer, strategy=ck.Axn(5, rounds=2)),
        CrossKnnSearch(ck.function_scorer(lambda pairs: [0.0 for _ in pairs], fingerprint="zero")),
    ]
    assert len({model.mteb_model_meta.revision for model in models}) == 5
    assert CrossKnnSearch(scorer).mteb_model_meta.revision == models[0].mteb_model_meta.revision
    assert CrossKnnSearch(scorer, name="me/mine").mteb_model_meta.name == "me/mine"


def test_results_that_mteb_keeps_are_those_of_the_same_search(tmp_path):
    scorer, cache = make_scorer(), mteb.ResultCache(tmp_path)
    for budget, calls in ((5, 10), (5, 10), (4, 18)):
        evaluate(CrossKnnSearch(scorer, encoder=make_encoder(), budget=budget), make_task(), cache)
        assert sum(scorer.calls) == calls


def test_what_cannot_be_used_is_said_before_a_call_is_made():
    scorer = make_scorer()
    model = CrossKnnSearch(scorer)
    with pytest.raises(ck.InputError, match="scorer must be a Scorer such as CrossEncoder"):
        CrossKnnSearch("a name")
    with pytest.raises(ck.InputError, match=r"index\(corpus\) comes before search\(queries\)"):
        model.search(QUERIES, top_k=3)
    with pytest.raises(ck.InputError, match=r"crossknn searches texts. The items of this task have none"):
        model.index(Dataset.from_list([{"id": "a", "image": "pixels"}]))
    model.index(CORPUS)
    with pytest.raises(ck.InputError, match="The queries of this task have none, or conversations instead"):
        model.search(Dataset.from_list([{"id": "q", "text": ["hello", "again"]}]), top_k=3)
    with pytest.raises(ck.InputError, match="None of the 6 items has the id 'nowhere'"):
        model.search(QUERIES, top_k=3, top_ranked={"q1": ["nowhere"], "q2": []})
    assert scorer.calls == []
