"""Studies against values that are computed directly, on a folder of scores so small that all of them are known."""

import json
from dataclasses import replace

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.evaluate import studies
from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.comparison import Contender, Quality, compare
from crossknn.evaluate.contenders import resolve_strategies
from crossknn.evaluate.ground_truth import truth_hits
from crossknn.evaluate.studies import (
    MIXES,
    STUDY_NAMES,
    Trial,
    parse_studies,
    plan_calls,
    run_studies,
    study_distributions,
    study_mix,
    study_quality,
    study_rounds,
    study_sampling,
    why_not,
)
from crossknn.evaluate.tasks import read_matrix
from crossknn.scorers.timing import Speed
from crossknn.strategies.axn import Axn
from crossknn.strategies.cur import AdaCur
from crossknn.strategies.rerank import Rerank
from tests.evaluate.conftest import made_by_hand
from tests.evaluate.folders import write_scores

BUDGET, KS, ROUNDS = 12, [1, 5], 4


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scores") / "tiny"
    write_scores(folder, train=15)
    return read_matrix(folder)


@pytest.fixture(scope="module")
def bench(task):
    return Bench(task, calls_per_item=4, anchors=len(task.train))


@pytest.fixture
def trial(bench):
    return Trial(bench, budget=BUDGET, ks=KS, rounds=ROUNDS)


def found(bench, searcher, strategy):
    """What `compare` says of the strategy: for each k the share and its interval."""
    task = bench.task
    truth = truth_hits(task.items, task.queries, task.scores, max(KS))
    contender = Contender("it", lambda budget: strategy)
    results = compare(searcher, task.queries, truth, [contender], budgets=[strategy.budget], ks=KS)
    return {result.k: pytest.approx((result.recall, result.low, result.high)) for result in results}


def measured(curves, strategy):
    """What curves say of a strategy: for each value and k the share and its interval."""
    return {
        (point.at, curve.k): (point.recall, point.low, point.high)
        for curve in curves
        if curve.strategy == strategy
        for point in curve.points
    }


def expected(bench, vectors, strategies):
    return {
        (value, k): share
        for value, strategy in strategies.items()
        for k, share in found(bench, bench.searcher(vectors), strategy).items()
    }


def test_rounds_are_those_of_each_strategy_and_reranking_is_a_level(trial, bench):
    study = study_rounds(trial)
    values = (1, 2, 5, 10)  # a budget of 12 has no 20 rounds
    axn = {rounds: Axn(BUDGET, rounds, first="fused") for rounds in values}
    assert study.budget == BUDGET
    assert measured(study.curves, "axn") == expected(bench, "encoder", axn)
    assert measured(study.curves, "axn, fitted") == expected(bench, "fitted", axn)
    adacur = {rounds: AdaCur(BUDGET, rounds, first="fused") for rounds in values}
    assert measured(study.curves, "adacur") == expected(bench, "cur", adacur)
    rerank = dict.fromkeys(values, Rerank(BUDGET, "fused"))
    assert measured(study.levels, "rerank, fused") == expected(bench, "encoder", rerank)
    for k in KS:
        assert measured(study.curves, "axn")[1, k] == measured(study.levels, "rerank, fused")[1, k]
    assert len({share for (_, k), (share, *_) in measured(study.curves, "adacur").items() if k == 5}) > 1


def test_rounds_without_fitted_vectors_and_cur(task):
    study = study_rounds(Trial(Bench(task), budget=3, ks=[1]))
    assert {curve.strategy for curve in study.curves} == {"axn", "posterior"}
    assert [point.at for point in study.curves[0].points] == [1, 2]


def test_mix_is_axn_with_each_mix(trial, bench):
    study = study_mix(trial)
    axn = {mix: Axn(BUDGET, ROUNDS, mix, "fused") for mix in MIXES}
    assert measured(study.curves, "axn") == expected(bench, "encoder", axn)
    assert measured(study.levels, "rerank, fused").keys() == {(mix, k) for mix in MIXES for k in KS}
    assert len({share for (_, k), (share, *_) in measured(study.curves, "axn").items() if k == 5}) > 1


def test_sampling_has_equal_calls_and_fits_as_the_bench_does(trial, bench):
    study, items, queries = study_sampling(trial), len(bench.task.items), len(bench.task.train)
    by = {way: [one for one in study.indexes if one.sampling == way] for way in ("per item", "per query")}
    assert [one.calls for one in by["per item"]] == [2 * items, 4 * items, 8 * items]
    for one, other in zip(by["per item"], by["per query"], strict=True):
        assert abs(one.calls - other.calls) <= queries / 2
        assert other.calls % queries == 0  # each train query has as many items
        assert one.calls_per_item == one.calls / items
    axn = Axn(BUDGET, ROUNDS, first="fused")
    per_item = measured(study.calls.curves, "axn, per item")
    assert {at: shares for at, shares in per_item.items() if at[0] == 4} == expected(bench, "fitted", {4: axn})
    assert set(per_item) == {(calls, k) for calls in (2, 4, 8) for k in KS}
    assert {at for at, _ in measured(study.calls.curves, "axn, per query")} == {
        one.calls_per_item for one in by["per query"]
    }
    level = measured(study.calls.levels, "axn")
    assert {k: share for (_, k), share in level.items()} == found(bench, bench.searcher("encoder"), axn)
    assert study.seconds is None
    assert all(set(one.seconds) == {"factorize", "sample pairs", "normalize"} for one in study.indexes)


def test_sampling_against_time_where_the_scorer_s_speed_is_known(task):
    bench = Bench(replace(task, speed=Speed(per_round=1.0, per_call=0.5)), calls_per_item=2)
    study = study_sampling(Trial(bench, budget=BUDGET, ks=KS, rounds=ROUNDS))
    assert [one.seconds["score"] for one in study.indexes] == [0.5 * one.calls for one in study.indexes]
    shares = {
        way: [point.recall for curve in sweep.curves if curve.strategy == way for point in curve.points]
        for sweep in (study.calls, study.seconds)
        for way in ("axn, per item", "axn, per query")
    }
    assert all(len(values) == 2 * 2 for values in shares.values())
    times = [point.at for curve in study.seconds.curves if curve.k == 5 for point in curve.points]
    assert times == [
        sum(one.seconds.values()) for way in ("per item", "per query") for one in study.indexes if one.sampling == way
    ]
    for curve, other in zip(study.calls.curves, study.seconds.curves, strict=True):
        assert [point.recall for point in curve.points] == [point.recall for point in other.points]


@pytest.mark.parametrize(
    ("calls_per_item", "planned"), [(1, [2]), (2, [2, 4]), (3, [2, 4]), (4, [2, 4, 8]), (50, [2, 4, 8])]
)
def test_offline_calls_double_up_to_twice_those_allowed_and_to_the_train_queries(task, calls_per_item, planned):
    assert plan_calls(Bench(task, calls_per_item=calls_per_item)) == planned


def test_distributions_are_those_of_all_pairs_where_these_are_few(bench):
    study = study_distributions(bench)
    task, scale = bench.task, bench.task.scale.normalization
    similarities = task.encoder.encode_queries(task.queries) @ task.encoder.encode_items(list(task.items.texts)).T
    scaled = scale.beta * (task.scores - scale.alpha)
    values = [task.scores, similarities, scaled, similarities]
    assert [one.of for one in study.histograms] == ["scores", "similarities", "scaled scores", "similarities"]
    assert study.pairs == task.scores.size
    assert (study.alpha, study.beta) == (scale.alpha, scale.beta)
    for one, all_ in zip(study.histograms, values, strict=True):
        assert np.sum(np.array(one.density) * np.diff(one.edges)) == pytest.approx(1)
        assert one.density == pytest.approx(np.histogram(all_, one.edges, density=True)[0], rel=1e-3, abs=0.02)
    assert study.histograms[2].edges == study.histograms[3].edges


def test_distributions_are_bounded_and_repeat_themselves(bench, monkeypatch):
    monkeypatch.setattr(studies, "MAX_PAIRS", 100)
    first, second = study_distributions(bench), study_distributions(bench)
    assert first == second
    assert first.pairs == 8 * len(bench.task.queries)  # 100 pairs hold 8 items for each of 12 queries


def test_without_train_queries_there_are_no_alpha_and_beta(tmp_path):
    write_scores(tmp_path / "one", queries=1)
    study = study_distributions(Bench(read_matrix(tmp_path / "one")))
    assert (study.alpha, study.beta) == (None, None)
    assert [one.of for one in study.histograms] == ["scores", "similarities"]


def test_quality_stands_beside_what_was_found():
    values = {"nDCG@10": 0.5, "accuracy": 0.25}
    judged = [Quality("Rerank, BM25", 100, values), Quality("exact", None, {"nDCG@10": 0.75, "accuracy": 0.5})]
    study = study_quality(made_by_hand(quality=judged))
    assert study.levels[0].values == pytest.approx(
        {"true top 1": 0.8, "true top 10": 0.7, "true top 100": 0.5, **values}
    )
    assert study.levels[1].values == {
        **dict.fromkeys(("true top 1", "true top 10", "true top 100"), 1.0),
        **judged[1].values,
    }


def compared(bench):
    entries = resolve_strategies(["rerank", "axn"], bench.available, budgets=[5, 12, 30], rounds=ROUNDS)
    return bench.run(entries, budgets=[5, 12, 30], ks=KS)


def test_all_studies_of_a_bench_at_its_middle_budget(task):
    told = []
    bench = Bench(task, calls_per_item=2, anchors=len(task.train))
    comparison = compared(bench)
    made = run_studies(bench, comparison, rounds=ROUNDS, progress=lambda *news: told.append(news))
    assert (made.rounds.budget, made.mix.budget, made.sampling.calls.budget) == (12, 12, 12)
    assert made.left_out == {"quality": "there are no relevance judgments"}
    table = {(one.k, one.strategy): one.recall for one in comparison.results if one.budget == 12}
    for k in KS:
        assert measured(made.mix.curves, "axn")[0.5, k][0] == pytest.approx(table[k, "axn"])
        assert measured(made.mix.levels, "rerank, fused")[0, k][0] == pytest.approx(table[k, "rerank, fused"])
    times = {(one.strategy, one.budget): one.seconds for one in made.latency.times}
    assert times == {(one.strategy, one.budget): one.seconds for one in comparison.results}
    assert all(set(seconds) == {"solve", "search"} for seconds in times.values())
    assert times["rerank, fused", 12]["solve"] == 0 < times["axn", 12]["solve"]
    written = json.loads(json.dumps(replace(comparison, studies=made).to_json(), allow_nan=False))["studies"]
    assert set(written) == {"rounds", "mix", "sampling", "latency", "distributions", "left_out"}
    assert written["mix"]["curves"][0]["points"][3]["at"] == 0.5
    ends = {step: (done, total) for step, done, total in told}
    searches = {"study rounds": 5 * 4 + 1, "study mix": 7 + 1, "study sampling": 2 * 2 + 1}
    assert {step: ends[step] for step in searches} == {step: (12 * n, 12 * n) for step, n in searches.items()}
    assert ends["score per item, 2 calls each"] == (120, 120)
    assert ends["score per query, 8 calls each"] == (120, 120)


def test_only_what_is_asked_for_and_the_same_again(task):
    bench = Bench(task, calls_per_item=2, seed=3)
    comparison = compared(bench)
    made = run_studies(bench, comparison, ["mix"], rounds=ROUNDS)
    assert (made.rounds, made.sampling, made.latency, made.distributions, made.quality) == (None,) * 5
    assert set(made.to_json()) == {"mix"}
    again = Bench(task, calls_per_item=2, seed=3)
    both = [run_studies(one, comparison, ["sampling", "rounds"], rounds=ROUNDS).to_json() for one in (bench, again)]
    assert both[0]["rounds"] == both[1]["rounds"]
    assert both[0]["sampling"]["calls"] == both[1]["sampling"]["calls"]


def test_what_the_data_cannot_give_is_said(tmp_path, task):
    write_scores(tmp_path / "one", queries=1)
    alone = Bench(read_matrix(tmp_path / "one"), calls_per_item=8)
    assert "no train queries" in why_not("sampling", alone, 9)
    assert "--index-calls-per-item" in why_not("sampling", Bench(task), 9)
    write_scores(tmp_path / "two", queries=3)
    few = Bench(read_matrix(tmp_path / "two"), calls_per_item=8)
    assert "one train query" in why_not("sampling", few, 9)
    assert [name for name in STUDY_NAMES if why_not(name, Bench(task, calls_per_item=1), 2)] == ["quality"]
    assert [name for name in STUDY_NAMES if why_not(name, Bench(task, calls_per_item=1), 1)] == [
        "rounds",
        "mix",
        "quality",
    ]


def test_studies_are_read_from_names():
    assert parse_studies("mix, rounds") == ["mix", "rounds"]
    assert parse_studies("none") == []
    for text in ("", "mix,", "mixx", "none,mix"):
        with pytest.raises(InputError, match="comma-separated names among rounds, mix"):
            parse_studies(text)
