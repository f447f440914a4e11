"""The BEIR search model, run by BEIR's own evaluation."""

import pytest

import crossknn as ck
from crossknn.integrations.beir import CrossKnnSearch
from tests.integrations.world import QUERY, TEXTS, best_ids, make_encoder, make_scorer, score_of

CORPUS = {id_: {"title": text.split()[0], "text": text.partition(" ")[2]} for id_, text in TEXTS.items()}
QUERIES = {"q1": QUERY, "q2": "warm bread"}


def test_titles_and_texts_are_searched_and_scores_come_back_by_id():
    scorer = make_scorer()
    run = CrossKnnSearch(scorer, encoder=make_encoder(), strategy=ck.Exact()).search(CORPUS, QUERIES, 3)
    assert list(run) == ["q1", "q2"]
    assert run["q1"] == pytest.approx({id_: score_of(id_) for id_ in best_ids()[:3]})
    assert scorer.calls == [12]


def test_no_more_calls_than_the_budget_whatever_beir_asks_for():
    scorer = make_scorer()
    run = CrossKnnSearch(scorer, encoder=make_encoder(), budget=4).search(CORPUS, QUERIES, 1001, "cos_sim")
    assert [len(found) for found in run.values()] == [4, 4]
    assert sum(scorer.calls) == 8


def test_beir_evaluates_it():
    evaluation = pytest.importorskip("beir.retrieval.evaluation", reason="BEIR is not installed: pip install beir")
    search = CrossKnnSearch(make_scorer(), encoder=make_encoder(), budget=5)
    model = evaluation.EvaluateRetrieval(search, k_values=[1, 3])
    results = model.retrieve(CORPUS, QUERIES)
    ndcg, _, recall, _ = model.evaluate({"q1": {"ice": 1, "lake": 1}, "q2": {"bread": 1}}, results, model.k_values)
    assert (ndcg["NDCG@3"], recall["Recall@3"], recall["Recall@1"]) == (1.0, 1.0, 0.75)


def test_what_cannot_be_used_is_said_before_a_call_is_made():
    scorer = make_scorer()
    with pytest.raises(ck.InputError, match="scorer must be a Scorer such as CrossEncoder"):
        CrossKnnSearch("a name")
    with pytest.raises(ck.InputError, match="a query must be a "):
        CrossKnnSearch(scorer).search(CORPUS, {"q1": ""}, 3)
    with pytest.raises(ck.InputError, match="k must be a whole number of at least 1"):
        CrossKnnSearch(scorer).search(CORPUS, QUERIES, 0)
    assert scorer.calls == []
