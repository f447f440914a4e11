"""Comparing strategies: known answers, the equalities, honest costs, and what is refused."""

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.evaluate.comparison import Comparison, Contender, Line, compare, exact_truth, show_answer
from crossknn.scorers.timing import Speed
from crossknn.search.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.exact import Exact
from crossknn.strategies.rerank import Rerank
from tests.evaluate.conftest import CONTENDERS, Setup, made_by_hand, result


def test_the_truth_is_the_largest_scores_and_progress_counts_calls(setup):
    seen = []
    truth = exact_truth(setup.searcher, setup.queries, k=7, progress=lambda *step: seen.append(step))
    for scores, hits in zip(setup.world.scores, truth, strict=True):
        assert [hit.row for hit in hits] == np.argsort(-scores)[:7].tolist()
    assert seen == [("exact search", done, 240) for done in (60, 120, 180, 240)]
    assert setup.scorer.calls == 240


def test_recall_and_calls_are_those_counted_by_hand(setup):
    truth = exact_truth(setup.searcher, setup.queries, k=10)
    results = compare(setup.searcher, setup.queries, truth, CONTENDERS[:1], budgets=[12], ks=[10, 1])
    dense = np.argsort(-(setup.world.query_vectors @ setup.world.vectors.T), axis=1)[:, :12]
    true = np.argsort(-setup.world.scores, axis=1)
    for one in results:
        shares = [len({*best[: one.k]} & {*rows}) / one.k for best, rows in zip(true, dense, strict=True)]
        assert one.recall == pytest.approx(np.mean(shares))
        assert one.low <= one.recall <= one.high
        assert (one.strategy, one.baseline, one.budget, one.calls) == ("Rerank, dense", None, 12, 12)
    assert [one.k for one in results] == [10, 1]
    assert 0 < results[0].recall < 1


def test_a_budget_of_all_items_or_more_finds_everything(setup):
    truth = exact_truth(setup.searcher, setup.queries, k=100)
    results = compare(setup.searcher, setup.queries, truth, CONTENDERS, budgets=[60, 500], ks=[1, 100])
    assert {one.recall for one in results} == {1.0}
    assert {one.calls for one in results} == {60.0}
    assert {(one.low, one.high) for one in results} == {(1.0, 1.0)}


def test_axn_beats_its_baseline_where_scores_have_low_rank(setup):
    truth = exact_truth(setup.searcher, setup.queries, k=10)
    plain, adaptive = compare(setup.searcher, setup.queries, truth, CONTENDERS, budgets=[30], ks=[10])
    assert adaptive.recall == 1 > plain.recall
    assert (plain.strategy, adaptive.strategy, adaptive.baseline) == (
        "Rerank, dense",
        "Axn, dense first",
        plain.strategy,
    )


def test_one_result_per_contender_budget_and_k_and_progress_counts_searches(setup):
    truth, seen = exact_truth(setup.searcher, setup.queries, k=3), []
    results = compare(
        setup.searcher,
        setup.queries,
        truth,
        CONTENDERS,
        budgets=[9, 6],
        ks=[1, 3],
        progress=lambda *step: seen.append(step),
    )
    names = [contender.name for contender in CONTENDERS]
    expected = [(name, budget, k) for name in names for budget in (6, 9) for k in (1, 3)]
    assert [(one.strategy, one.budget, one.k) for one in results] == expected
    assert [done for _, done, _ in seen] == list(range(1, 17))
    assert {total for _, _, total in seen} == {16}
    assert seen[0][0] == "comparing: Rerank, dense"


class TimedSearcher(Searcher):
    """Its searches take these times in turn: in all, in the scorer and in solving."""

    times = cycle([(9.0, 9.0, 9.0), (0.5, 0.4, 0.0), (0.7, 0.4, 0.1), (0.5, 0.3, 0.1), (0.7, 0.5, 0.2)])

    def search(self, *query, **options):
        seconds, scorer, solve = next(self.times)
        found = super().search(*query, **options)
        return replace(found, seconds=seconds, score_seconds=scorer, solve_seconds=solve)


def test_times_are_measured_or_computed_from_the_speed_of_the_scorer(setup):
    """Without the first search, which warms up."""
    truth = exact_truth(setup.searcher, setup.queries, k=1)
    setup = Setup(searcher=TimedSearcher)
    settings = {"budgets": [10], "ks": [1]}
    (measured,) = compare(setup.searcher, setup.queries, truth, CONTENDERS[:1], **settings)
    assert measured.seconds == pytest.approx({"scorer": 0.4, "solve": 0.1, "search": 0.1})
    assert measured.total_seconds == pytest.approx(0.6)
    (computed,) = compare(setup.searcher, setup.queries, truth, CONTENDERS[:1], speed=Speed(0.5, 0.2), **settings)
    assert computed.seconds == pytest.approx({"scorer": 2.5, "solve": 0.1, "search": 0.1})
    assert computed.total_seconds == pytest.approx(2.7)


def test_the_parts_of_a_search_are_within_its_time_and_only_what_solves_has_solved(setup):
    plain, adaptive = (setup.searcher.search("query 0", strategy=one.make(20)) for one in CONTENDERS)
    assert plain.solve_seconds == 0 < adaptive.solve_seconds
    assert adaptive.score_seconds + adaptive.solve_seconds < adaptive.seconds
    truth = exact_truth(setup.searcher, setup.queries, k=1)
    for one in compare(setup.searcher, setup.queries, truth, CONTENDERS, budgets=[20], ks=[1]):
        assert list(one.seconds) == ["scorer", "solve", "search"]
        assert min(one.seconds["scorer"], one.seconds["search"]) > 0
        assert one.total_seconds == sum(one.seconds.values())
        assert replace(one, seconds={"scorer": 1.0, "search": 1.0}).total_seconds is None


def test_queries_are_searched_one_at_a_time_after_one_search_to_warm_up(setup):
    truth = exact_truth(setup.searcher, setup.queries, k=1)
    setup.scorer.batches.clear()
    compare(setup.searcher, setup.queries, truth, CONTENDERS[:1], budgets=[20, 10], ks=[1])
    assert setup.scorer.batches == [10] + [10] * 4 + [20] * 4


@pytest.mark.parametrize(
    ("contenders", "message"),
    [
        ([], "must not be empty"),
        ([CONTENDERS[0], CONTENDERS[0]], "distinct names, got 'Rerank, dense' twice"),
        (CONTENDERS[::-1], "the baseline of 'Axn, dense first' must be an earlier contender"),
        (
            [*CONTENDERS, Contender("more", Axn, baseline="Axn, dense first")],
            "without a baseline itself, got 'Axn, dense first'",
        ),
        ([Contender("exact", lambda _: Exact())], r"\(10\), got Exact\(\)"),
        ([Contender("other", lambda _: Rerank(budget=3))], r"\(10\), got Rerank\(budget=3\)"),
        ([Contender("none", lambda _: None)], r"\(10\), got None"),
    ],
)
def test_contenders_are_checked_before_any_call(setup, contenders, message):
    truth = exact_truth(setup.searcher, setup.queries, k=1)
    before = setup.scorer.calls
    with pytest.raises(InputError, match=message):
        compare(setup.searcher, setup.queries, truth, contenders, budgets=[10], ks=[1])
    assert setup.scorer.calls == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budgets": []}, "`budgets` must be a nonempty list of distinct integers"),
        ({"budgets": [5, 5]}, "`budgets` must be a nonempty list of distinct integers"),
        ({"budgets": [2.5]}, "`budgets` must be a positive integer, got 2.5"),
        ({"ks": [0]}, "`ks` must be a positive integer, got 0"),
        ({"ks": [6]}, r"must hold the 6 best items of every query, got 5"),
        ({"queries": []}, "`queries` must be a nonempty list"),
        ({"queries": ["query 1", "query 0", "query 2", "query 3"]}, "`truth` must be the exact hits of these queries"),
    ],
)
def test_settings_are_checked_before_any_search(setup, change, message):
    truth = exact_truth(setup.searcher, setup.queries, k=5)
    settings = {"queries": setup.queries, "contenders": CONTENDERS, "budgets": [10], "ks": [1], **change}
    before = setup.scorer.calls
    with pytest.raises(InputError, match=message):
        compare(setup.searcher, settings.pop("queries"), truth, settings.pop("contenders"), **settings)
    assert setup.scorer.calls == before


def test_a_contender_needs_a_name_and_a_function():
    with pytest.raises(InputError, match=r"`name` must be a nonempty string"):
        Contender(" ", Rerank)
    with pytest.raises(InputError, match=r"`make` must be a function"):
        Contender("Rerank", Rerank(budget=10))


def test_a_result_as_json_has_exactly_these_fields():
    one = result("Axn", 50, 10, 0.5, baseline="Rerank")
    assert one.to_json() == {
        "strategy": "Axn",
        "baseline": "Rerank",
        "budget": 50,
        "k": 10,
        "recall": 0.5,
        "low": 0.46,
        "high": 0.53,
        "calls": 50,
        "seconds": {"scorer": 0.02, "solve": 0.001, "search": 0.003},
        "rounds": None,
    }


def test_a_comparison_groups_each_baseline_with_what_is_measured_against_it(comparison):
    assert comparison.groups == [("Rerank, BM25", ["Axn, BM25 first"]), ("Rerank, dense", ["Axn, dense first"])]
    assert (comparison.budgets, comparison.ks) == ([50, 100, 1000], [1, 10, 100])
    assert comparison.result("Rerank, BM25", 100, 10).recall == pytest.approx(0.7)
    assert comparison.result("Rerank, BM25", 100, 11) is None
    several = [result("Rerank", 9, 1, 0.5), *(result(name, 9, 1, 0.5, baseline="Rerank") for name in "ba")]
    assert made_by_hand(results=several).groups == [("Rerank", ["b", "a"])]


def test_a_comparison_is_checked_when_made():
    one = result("Rerank", 50, 1, 0.5)
    for bad in ([], [one, one]):
        with pytest.raises(InputError, match="results, one for each strategy, budget and k"):
            made_by_hand(results=bad)
    with pytest.raises(InputError, match=r"'Axn' has the baseline 'Rerank, BM25', which has no results."):
        Comparison("title", {}, 10, [result("Axn", 50, 1, 0.5, baseline="Rerank, BM25")])


def test_an_answer_shows_the_best_lines_of_each_search_and_which_are_true(setup):
    truth = exact_truth(setup.searcher, setup.queries, k=10)[0]
    found = setup.searcher.search(setup.queries[0], k=5, strategy=Rerank(budget=8, retriever="dense"))
    answer = show_answer(setup.searcher.items, truth, {"Rerank": found}, lines=3, relevant="item 1")
    assert (answer.query, answer.relevant, list(answer.columns)) == ("query 0", "item 1", ["Exact search", "Rerank"])
    best = [hit.row for hit in truth][:3]
    assert answer.columns["Exact search"] == [Line(f"item {hit.row}", hit.score, True) for hit in truth[:3]]
    assert answer.columns["Rerank"] == [Line(f"item {hit.row}", hit.score, hit.row in best) for hit in found[:3]]
