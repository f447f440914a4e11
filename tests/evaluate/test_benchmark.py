"""Benchmarks on a world whose answers are known, and on real scores whose figures are."""

import json
import lzma

import numpy as np
import pytest

from crossknn.encoders.base import function_encoder
from crossknn.errors import InputError
from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.contenders import default_names, resolve_strategies
from crossknn.evaluate.matrices import PrecomputedRetriever, SharedRetriever
from crossknn.evaluate.tasks import read_matrix, read_set, score_task
from crossknn.items.items import Items
from crossknn.retrievers.bm25 import Bm25
from crossknn.scorers.base import function_scorer
from crossknn.testing import check_retriever, check_scorer
from tests.evaluate.folders import write_beir, write_scores
from tests.paths import ROOT

SCIFACT = ROOT.parent / "shared" / "scores" / "scifact"


def run(bench, names, *, budgets=(20,), ks=(1, 5), rounds=4):
    entries = resolve_strategies(names, bench.available, budgets=budgets, rounds=rounds, seed=bench.seed)
    return bench.run(entries, budgets=budgets, ks=ks)


def recalls(outcome):
    return {(one.strategy, one.budget, one.k): one.recall for one in outcome.results}


@pytest.fixture
def folder(tmp_path):
    write_scores(tmp_path / "tiny", train=15)
    return tmp_path / "tiny"


def test_what_can_find_everything_does(folder):
    """BM25 is the scores themselves, and fifteen train queries span all eight dimensions of the scores."""
    task = read_matrix(folder)
    bench = Bench(task, calls_per_item=8, anchors=len(task.train))
    outcome = run(bench, ["rerank:retriever=bm25", "rerank:retriever=dense", "axn:mix=0:first=random", "adacur"])
    found = recalls(outcome)
    assert found["rerank, bm25", 20, 1] == found["rerank, bm25", 20, 5] == 1
    assert found["adacur", 20, 5] > 0.95
    assert found["axn, λ 0, random first", 20, 5] > 0.95
    assert 0.1 < found["rerank, dense", 20, 5] < 1
    data = outcome.data
    assert data["offline calls, α and β"] == 15 * 60
    assert data["offline calls, fitted vectors"] == 8 * 60
    assert data["offline calls, CUR"] == 15 * 60
    assert (data["queries"], data["train queries"], data["train part"]) == (12, 15, "its own")
    assert {result.calls for result in outcome.results} == {20}
    assert outcome.quality == []
    assert all(set(result.seconds) == {"solve", "search"} for result in outcome.results)  # no scorer ran


def test_reliability_is_of_every_search_of_a_strategy_that_expects_a_recall(folder):
    bench = Bench(read_matrix(folder), calls_per_item=3)
    outcome = run(bench, ["rerank:retriever=bm25", "posterior"], budgets=(10, 20), ks=(1, 5, 15))
    queries = len(bench.task.queries)
    searches = {(one.strategy, one.k): sum(place.searches for place in one.bins) for one in outcome.reliability}
    assert {k for _, k in searches} == {1, 5, 15}
    assert all("posterior" in name for name, _ in searches)
    assert all(count == queries * (1 if k == 15 else 2) for (_, k), count in searches.items())
    for one in outcome.reliability:
        if one.k == 5:
            mean = sum(place.searches * place.measured for place in one.bins) / searches[one.strategy, 5]
            recall = [result.recall for result in outcome.results if (result.strategy, result.k) == (one.strategy, 5)]
            assert mean == pytest.approx(sum(recall) / 2)


def test_a_run_repeats_itself(folder):
    first, second = (
        recalls(run(bench, default_names(bench.available)))
        for bench in (Bench(read_matrix(folder), calls_per_item=3, anchors=15, seed=4) for _ in range(2))
    )
    assert first == second
    assert len(first) == 12 * 2


def test_a_budget_of_all_items_is_exact_and_a_k_beyond_them_is_of_all_there_are(folder):
    bench = Bench(read_matrix(folder, queries=3))
    found = recalls(run(bench, default_names(bench.available), budgets=(60, 90), ks=(1, 500)))
    assert set(found.values()) == {1}


def test_budgets_below_k_and_below_the_rounds(folder):
    bench = Bench(read_matrix(folder))
    outcome = run(bench, ["rerank:retriever=bm25", "axn:first=bm25"], budgets=(2, 20), ks=(5,), rounds=10)
    found = recalls(outcome)
    assert found["rerank, bm25", 2, 5] == pytest.approx(2 / 5)
    assert found["axn, bm25 first", 2, 5] <= 2 / 5
    assert [result.calls for result in outcome.results] == [2, 20, 2, 20]


def test_a_folder_without_train_scores_asks_the_second_half(tmp_path):
    world = write_scores(tmp_path / "tiny", queries=12)
    task = read_matrix(tmp_path / "tiny")
    assert (len(task.train), len(task.queries)) == (6, 6)
    assert "first half of the test queries" in task.facts["train part"]
    assert task.scores == pytest.approx(world.scores[6:], abs=0.02)


def test_one_query_alone_leaves_nothing_to_learn_from(tmp_path):
    write_scores(tmp_path / "tiny", queries=1)
    bench = Bench(read_matrix(tmp_path / "tiny"), calls_per_item=8, anchors=0)
    assert (bench.available.fitted, bench.available.cur) == (False, False)
    assert recalls(run(bench, ["rerank:retriever=bm25", "axn"]))["rerank, bm25", 20, 5] == 1


def test_bm25_reads_texts_where_there_are_some(tmp_path):
    write_scores(tmp_path / "tiny", train=5, ranked="texts")
    task = read_matrix(tmp_path / "tiny", queries=4)
    assert task.retriever_names == ("random", "dense", "bm25", "fused")
    (ranked,) = task.retrievers
    texts = json.loads(lzma.decompress((tmp_path / "tiny" / "texts.json.xz").read_bytes()))
    wanted = Bm25().fit(Items(texts["items"])).retrieve([texts["test"][3]["text"]], 9)
    assert ranked.fit(task.items).retrieve(["test 3"], 9)[0].rows.tolist() == wanted[0].rows.tolist()


def test_without_texts_and_bm25_scores_there_is_only_dense(tmp_path):
    write_scores(tmp_path / "tiny", ranked="nothing")
    bench = Bench(read_matrix(tmp_path / "tiny"))
    assert default_names(bench.available)[0] == "rerank:retriever=dense"
    assert ("axn", 20, 5) in recalls(run(bench, default_names(bench.available)))


def test_quality_is_that_of_the_judgments_in_the_folder(tmp_path):
    """Worked out by hand: the exact order has the one relevant item of its queries at places 1, 2, 3 and 11."""
    world = write_scores(tmp_path / "tiny", queries=8)
    order = np.argsort(-world.scores.astype(np.float16).astype(np.float32), axis=1, kind="stable")
    rows = [[0]] * 4 + [[int(order[4 + query, place])] for query, place in enumerate((0, 1, 2, 10))]
    (tmp_path / "tiny" / "test_relevant_rows.json").write_text(json.dumps(rows))
    task = read_matrix(tmp_path / "tiny")
    assert task.judged.texts == task.judged.ids == tuple(task.queries) == ("test 0", "test 1", "test 2", "test 3")
    assert task.judged.relevant == [[str(row)] for (row,) in rows[4:]]
    quality = run(Bench(task), ["rerank:retriever=bm25", "rerank:retriever=random"], budgets=(3,)).quality
    first_stages, quality = quality[:3], quality[3:]
    assert [(one.strategy, one.budget) for one in first_stages] == [("bm25", 0), ("dense", 0), ("fused", 0)]
    assert [(one.strategy, one.budget) for one in quality][::2] == [("rerank, bm25", 3), ("exact", None)]
    wanted = {"nDCG@10": (1 + 1 / np.log2(3) + 1 / 2) / 4, "MRR@10": (1 + 1 / 2 + 1 / 3) / 4, "accuracy": 1 / 4}
    assert quality[2].values == pytest.approx(wanted)
    assert quality[0].values == quality[2].values  # BM25 is the scores themselves
    assert first_stages[0].values == quality[2].values
    assert first_stages[0].per_query == quality[2].per_query
    assert [one.first_stage for one in quality] == ["bm25", "random", None]
    assert quality[1].values["nDCG@10"] < wanted["nDCG@10"]
    assert read_matrix(tmp_path / "tiny", queries=2).judged.relevant == [[str(row)] for (row,) in rows[4:6]]


def test_judgments_come_from_texts_too_and_a_folder_may_have_none(tmp_path):
    write_scores(tmp_path / "texts", train=5, ranked="texts")
    assert read_matrix(tmp_path / "texts").judged.relevant == [[str(row)] for row in range(12)]
    write_scores(tmp_path / "none", train=5)
    assert read_matrix(tmp_path / "none").judged is None


@pytest.mark.skipif(not SCIFACT.is_dir(), reason="needs the score matrices of scifact in ../shared/scores")
def test_exact_search_has_the_quality_worked_out_from_the_files():
    bench = Bench(read_matrix(SCIFACT))
    exact = run(bench, ["rerank:retriever=bm25"], budgets=(10,), ks=(1,)).quality[-1]
    assert exact.values == pytest.approx({"nDCG@10": 0.7450, "MRR@10": 0.7109, "accuracy": 0.6133}, abs=1e-4)


@pytest.mark.skipif(not SCIFACT.is_dir(), reason="needs the score matrices of scifact in ../shared/scores")
def test_real_scores_give_the_figures_of_the_benchmark():
    records = json.loads((ROOT / "benchmarks" / "results" / "paper_search.json").read_text())["sets"][0]["records"]
    wanted = {record["strategy"]: record["recall"] for record in records if record["budget"] == 100}
    names = {
        "rerank:retriever=fused": "Rerank fused",
        "axn:first=dense": "Axn dense λ=0.5 αβ=train",
        "axn:mix=0.8:first=bm25": "Axn bm25 λ=0.8 αβ=train",
    }
    outcome = run(Bench(read_matrix(SCIFACT)), list(names), budgets=(100,), ks=(1, 10), rounds=10)
    found = iter(outcome.results)
    for name in names.values():
        assert [100 * next(found).recall for _ in range(2)] == pytest.approx([*wanted[name].values()][:2], abs=1)


def count_words(pairs):
    return [len(set(query.split()) & set(item.split())) + 0.01 * (len(item) % 7) for query, item in pairs]


def encode_words(texts):
    return np.array([[text.count(letter) for letter in "aeioustn"] for text in texts], np.float32)


@pytest.fixture
def read(tmp_path):
    def read_task(splits=("train", "test"), **options):
        if not (tmp_path / "set").exists():
            write_beir(tmp_path / "set", items=60, splits=splits)
        calls.clear()

        def score(pairs):
            calls.extend(pairs)
            return count_words(pairs)

        scorer = function_scorer(score, fingerprint="words")
        encoder = function_encoder(encode_words, fingerprint="letters")
        return read_set(tmp_path / "set", scorer=scorer, encoder=encoder, work_dir=tmp_path / "work", **options)

    calls: list[tuple[str, str]] = []
    read_task.calls = calls
    return read_task


def test_a_set_is_scored_once_and_measured_by_its_judgments(read):
    task = score_task(read())
    assert len(read.calls) == 6 * 60 + 300  # every pair, and those that the speed is measured on
    bench = Bench(task, calls_per_item=3, anchors=3)
    outcome = run(bench, default_names(bench.available))
    assert len(outcome.results) == 12 * 2
    first_stages = [one.strategy for one in outcome.quality if one.budget == 0]
    assert first_stages == ["bm25", "tfidf", "dense", "fused"]
    strategies = {one.strategy for one in outcome.quality if one.budget != 0}
    assert strategies == {*(r.strategy for r in outcome.results), "exact"}
    exact = outcome.quality[-1]
    assert (exact.strategy, exact.budget) == ("exact", None)
    assert exact.values == {"nDCG@10": pytest.approx(1), "MRR@10": pytest.approx(1), "accuracy": 1}
    assert outcome.to_json()["quality"][0].keys() == {"strategy", "budget", "nDCG@10", "MRR@10", "accuracy"}
    assert outcome.results[0].seconds.keys() == {"scorer", "solve", "search"}
    again = score_task(read())
    assert len(read.calls) == 300
    assert recalls(run(Bench(again, calls_per_item=3, anchors=3), default_names(bench.available))) == recalls(outcome)
    assert len(read.calls) == 300  # the index had all its scores, too


def test_a_set_without_train_queries_cuts_some_from_its_items(read):
    task = score_task(read(splits=("test",), queries=2))
    assert (len(task.train), task.facts["train part"]) == (0, "queries cut from the items")
    assert len(task.queries) == 2
    assert task.speed is None  # 120 pairs are too few to measure it
    outcome = run(Bench(task, calls_per_item=2), ["rerank", "axn"])
    assert [r.strategy for r in outcome.results[::2]] == ["rerank, fused", "axn", "axn, fitted"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_split": "dev"}, "no split 'dev', only 'test', 'train'"),
        ({"split": "dev"}, "no split 'dev'"),
        ({"train_split": "test"}, "must differ, got 'test' for both"),
    ],
)
def test_a_split_that_is_not_there_or_is_asked_itself(read, options, message):
    with pytest.raises(InputError) as error:
        read(**options)
    assert message in str(error.value)


def test_precomputed_scores_and_rankings_keep_their_contracts(folder):
    task = read_matrix(folder)
    check_scorer(task.scorer, task.queries[:3], list(task.items.texts)[:4])
    lines = dict(zip(task.queries, task.scores, strict=True))
    check_retriever(PrecomputedRetriever(lines, name="known").fit(task.items), task.queries[:3], len(task.items))
    items = Items(["ice and snow", "rivers of water", "a quick brown fox"])
    check_retriever(SharedRetriever(Bm25()).fit(items), ["ice", "brown water"], len(items))
    with pytest.raises(InputError, match="no scores for the text 'elsewhere'"):
        task.scorer.score(["elsewhere"], ["item 0"])
    with pytest.raises(InputError, match="'test 0' must have 3 scores, got 60"):
        PrecomputedRetriever(lines, name="known").fit(items)


def test_wrong_numbers_and_vectors_that_are_not_there_are_refused(folder):
    bench = Bench(read_matrix(folder))
    with pytest.raises(InputError, match="`anchors` must be a positive integer"):
        bench.searcher("cur")
    with pytest.raises(InputError, match="`queries` must be a positive integer"):
        bench.searcher("fitted")
    with pytest.raises(InputError, match=r"`calls_per_item` must be a nonnegative integer, got -1"):
        Bench(read_matrix(folder), calls_per_item=-1)
