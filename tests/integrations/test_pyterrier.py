"""The PyTerrier transformers, run and composed by PyTerrier itself; nothing of this starts Java."""

import pytest

pytest.importorskip("pyterrier", reason="PyTerrier is not installed: pip install 'crossknn[pyterrier]'")

import pandas as pd
import pyterrier as pt

import crossknn as ck
from crossknn.integrations.pyterrier import CrossKnnReranker, CrossKnnRetriever
from tests.integrations.world import QUERY, TEXTS, best_ids, fields_of, make_scorer, make_searcher, score_of

QUERIES = pd.DataFrame([["q1", QUERY], ["q2", "warm bread"], ["q3", "summer sun"]], columns=["qid", "query"])
COLUMNS = ["qid", "query", "docno", "score", "rank", "text"]
FOUND = [*COLUMNS, "words", "season"]


@pytest.fixture(autouse=True)
def _no_java():
    yield
    assert not pt.java.started()


def docnos(results, qid="q1"):
    mine = results[results["qid"] == qid].sort_values("rank")
    return mine["docno"].tolist()


def test_the_retriever_returns_the_hits_of_its_searcher():
    searcher = make_searcher()
    results = CrossKnnRetriever(searcher, k=3, budget=5)(QUERIES)
    assert list(results.columns) == FOUND
    for qid, query in QUERIES.itertuples(index=False):
        hits = searcher.search(query, k=3, budget=5)
        mine = results[results["qid"] == qid]
        assert mine["docno"].tolist() == hits.ids
        assert mine["score"].tolist() == [hit.score for hit in hits]
        assert mine["rank"].tolist() == [0, 1, 2]
        assert mine["text"].tolist() == [TEXTS[id_] for id_ in hits.ids]
        assert mine["season"].tolist() == [fields_of(id_)["season"] for id_ in hits.ids]


def test_batches_do_not_change_results_and_share_scorer_calls():
    searcher = make_searcher()
    retriever = CrossKnnRetriever(searcher, k=3, strategy=ck.Rerank(4))
    together = retriever(QUERIES)
    assert searcher.scorer.calls == [12]
    retriever.batch_size = 2
    pd.testing.assert_frame_equal(retriever(QUERIES), together)


def test_columns_of_the_queries_are_kept_and_no_query_gives_an_empty_frame():
    retriever = CrossKnnRetriever(make_searcher(), k=2)
    results = retriever(QUERIES.assign(query_0="before"))
    assert set(results["query_0"]) == {"before"}
    nothing = retriever(QUERIES.iloc[:0])
    assert (len(nothing), list(nothing.columns)) == (0, FOUND)
    kept = retriever(QUERIES.assign(season="of the query"))
    assert set(kept["season"]) == {"of the query"}
    assert docnos(CrossKnnRetriever(make_searcher(), filter={"words": [4, 5]})(QUERIES)) == best_ids(
        among=["snow", "lake", "flour"]
    )
    assert docnos(retriever.search(QUERY), "1") == best_ids()[:2]


def test_the_reranker_replaces_scores_and_ranks():
    scorer = make_scorer()
    rows = [["q1", QUERY, id_, 0.0, 0, text] for id_, text in reversed(TEXTS.items())]
    first = pt.Transformer.from_df(pd.DataFrame(rows, columns=COLUMNS))
    results = (first >> CrossKnnReranker(scorer))(QUERIES.iloc[:1])
    assert docnos(results) == results["docno"].tolist() == best_ids()
    assert results["score"].tolist() == pytest.approx([score_of(id_) for id_ in best_ids()])
    assert scorer.calls == [6]
    assert len(CrossKnnReranker(scorer)(first(QUERIES.iloc[:0]))) == 0


def test_transformers_compose_with_operators():
    cold = CrossKnnRetriever(make_searcher(), k=3, filter={"ice", "snow", "lake"})
    warm = CrossKnnRetriever(make_searcher(), k=3, filter={"bread", "flour", "sun"})
    assert docnos((cold >> CrossKnnReranker(make_scorer()))(QUERIES)) == docnos(cold(QUERIES))
    assert docnos((cold % 2)(QUERIES)) == docnos(cold(QUERIES))[:2]
    assert set(docnos(((cold | warm) >> CrossKnnReranker(make_scorer()))(QUERIES))) == set(TEXTS)
    doubled = (cold + cold)(QUERIES)
    assert docnos(doubled) == docnos(cold(QUERIES))
    assert doubled["score"].max() == pytest.approx(2 * cold(QUERIES)["score"].max())


def test_pyterrier_experiments_measure_the_retriever():
    qrels = pd.DataFrame([["q1", "ice", 1], ["q2", "bread", 1], ["q3", "sun", 1]], columns=["qid", "docno", "label"])
    table = pt.Experiment([CrossKnnRetriever(make_searcher(), k=3)], QUERIES, qrels, ["P_1", "recip_rank"])
    assert table.loc[0, ["P_1", "recip_rank"]].tolist() == [1.0, 1.0]


def test_pyterrier_can_inspect_the_transformers():
    retriever, reranker = CrossKnnRetriever(make_searcher()), CrossKnnReranker(make_scorer())
    assert pt.inspect.transformer_outputs(retriever, ["qid", "query"]) == FOUND
    assert set(pt.inspect.transformer_outputs(retriever >> reranker, ["qid", "query"])) == set(FOUND)


def test_invalid_arguments_are_rejected_before_any_call():
    searcher = make_searcher()
    with pytest.raises(ck.InputError, match="`k` must be a positive integer, got 0"):
        CrossKnnRetriever(searcher, k=0)
    with pytest.raises(ck.InputError, match="`batch_size` must be"):
        CrossKnnRetriever(searcher, batch_size=0)
    with pytest.raises(pt.validate.InputValidationError, match=r"missing_columns=\['query'\]"):
        CrossKnnRetriever(searcher)(QUERIES[["qid"]])
    with pytest.raises(pt.validate.InputValidationError, match=r"missing_columns=\['text'\]"):
        CrossKnnReranker(searcher.scorer)(pd.DataFrame(columns=["qid", "query", "docno", "score", "rank"]))
    with pytest.raises(ck.InputError, match="`scorer` must be a Scorer"):
        CrossKnnReranker("a name")
    assert searcher.scorer.calls == []
