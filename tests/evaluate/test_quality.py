"""What three cross-encoders are worth on one judged set: one that knows the answers, one that knows none, and BM25."""

import json

import numpy as np
import pytest

from crossknn.encoders.base import function_encoder
from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.contenders import resolve_strategies
from crossknn.evaluate.quality import best_first_stage, verdict
from crossknn.evaluate.report.page import render_page
from crossknn.evaluate.tasks import read_set, score_task
from crossknn.scorers.base import function_scorer

QUERIES, ITEMS = 24, 40
WORDS = [f"w{number}" for number in range(60)]


def write_judged(folder):
    """Item n is relevant to query n; BM25 finds it first for every other query, and n + 1 before it for the others."""
    (folder / "qrels").mkdir(parents=True)
    items = [[WORDS[n], WORDS[n + 1], "common"] for n in range(ITEMS)]
    queries = [f"{WORDS[n]} {WORDS[n + 1]}" if n % 2 else f"{WORDS[n + 2]} {WORDS[n + 1]}" for n in range(QUERIES)]
    lines = [json.dumps({"_id": f"d{n}", "title": "", "text": " ".join(words)}) for n, words in enumerate(items)]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    lines = [json.dumps({"_id": f"q{n}", "text": text}) for n, text in enumerate(queries)]
    (folder / "queries.jsonl").write_text("\n".join(lines))
    judgments = [f"q{n}\td{n}\t1" for n in range(QUERIES)]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judgments]))
    return {text: items[n] for n, text in enumerate(queries)}


def compare(tmp_path, score):
    """The comparison with a cross-encoder that scores the words of an item, given the query and the relevant item."""
    relevant = write_judged(tmp_path / "set")

    def score_all(pairs):
        return [
            score(set(query.split()), relevant.get(query, query.split()), set(item.split())) for query, item in pairs
        ]

    task = read_set(
        tmp_path / "set",
        scorer=function_scorer(score_all, fingerprint="words"),
        encoder=function_encoder(lambda texts: np.array([[len(text), 1] for text in texts]), fingerprint="lengths"),
        work_dir=tmp_path / "work",
    )
    bench = Bench(score_task(task))
    named = resolve_strategies(["rerank:retriever=bm25"], bench.available, budgets=[5, 10])
    return bench.run(named, budgets=[5, 10], ks=[1])


def test_a_good_cross_encoder(tmp_path):
    found = compare(tmp_path, lambda query, relevant, item: len(item & set(relevant)))
    assert best_first_stage(found.quality).strategy == "bm25"
    assert verdict(found.quality) is None
    assert found.findings[1].startswith("This cross-encoder ranks these data better than bm25 alone")
    assert (found.advice.strategy, found.advice.calls) == ("rerank, bm25", 5)
    assert 'class="better"' in render_page(found)


def test_a_bad_cross_encoder(tmp_path):
    found = compare(tmp_path, lambda query, relevant, item: -len(item & set(relevant)))
    assert found.findings[0].startswith("This cross-encoder ranks these data worse than bm25 alone")
    assert (found.advice.strategy, found.advice.calls) == ("bm25", 0)
    page = render_page(found)
    assert page.index("worse than bm25 alone") < page.index("<main>")
    assert 'class="better"' not in page
    json.dumps(found.to_json())


def test_a_cross_encoder_that_ranks_as_bm25_does(tmp_path):
    found = compare(tmp_path, lambda query, relevant, item: len(query & item))
    assert verdict(found.quality) is None
    assert found.findings[1].startswith("No difference shown between this cross-encoder and bm25 alone")
    assert found.advice.strategy is None
    assert "no gain is shown" in str(found.advice)
    assert 'class="better"' not in render_page(found)


@pytest.mark.parametrize("budget", [5, 10])
def test_first_stages_are_judged_as_reranking_is(tmp_path, budget):
    found = compare(tmp_path, lambda query, relevant, item: len(item & set(relevant)))
    levels = {(one.strategy, one.budget): one for one in found.quality}
    assert {name for name, calls in levels if calls == 0} == {"bm25", "tfidf", "dense", "fused"}
    reranked = levels["rerank, bm25", budget]
    assert reranked.first_stage == "bm25"
    assert len(reranked.per_query["nDCG@10"]) == QUERIES
    assert reranked.values["nDCG@10"] == pytest.approx(np.mean(reranked.per_query["nDCG@10"]))
