"""The advice of a report follows its rules, and where the data do not allow any it says why."""

import pytest

from crossknn.evaluate.report.advice import advise
from crossknn.evaluate.studies import Curve, Point, Studies, Sweep
from tests.evaluate.conftest import judged, made_by_hand, result, values


def compared(recalls, **changes):
    """Reranking and an adaptive strategy, by budget: (recall of the first, of the second, its spread)."""
    results = []
    for budget, (plain, adaptive, spread) in recalls.items():
        results.append(result("Rerank", budget, 10, plain, rounds=1.0))
        ours = {"per_query": values(adaptive, spread=spread), "rounds": 10.0}
        results.append(result("Axn", budget, 10, adaptive, baseline="Rerank", **ours))
    return made_by_hand(results=results, **changes)


def chosen(advice):
    return advice.strategy, advice.calls, advice.rounds


def test_without_judgments_the_fewest_calls_that_surely_find_most_are_advised():
    rising = {50: (0.6, 0.7, 0), 100: (0.8, 0.95, 0), 500: (0.9, 0.99, 0)}
    advice = advise(compared(rising))
    assert chosen(advice) == ("Axn", 100, 10)
    assert "+15.0 points" in str(advice)
    assert "40 queries" in str(advice)
    low = advise(compared({50: (0.6, 0.7, 0), 100: (0.7, 0.8, 0)}))
    assert chosen(low) == ("Axn", 100, 10)
    assert "for certain: these are the most" in str(low)


@pytest.mark.parametrize(("adaptive", "spread"), [(0.97, 0.4), (0.9, 0)])
def test_reranking_is_advised_where_adaptive_search_is_not_shown_to_find_more(adaptive, spread):
    advice = advise(compared({100: (0.95, adaptive, spread)}))
    assert chosen(advice) == ("Rerank", 100, 1)
    assert ("is not shown to find more" if spread else "is shown to find less") in str(advice)


def qualities(first, *by_budget, spread=0.0):
    levels = [judged("bm25", 0, first)]
    levels += [judged("Axn", budget, mean, spread=spread) for budget, mean in by_budget]
    return [*levels, judged("exact", None, by_budget[-1][1], spread=spread)]


RISING = {50: (0.6, 0.7, 0), 100: (0.8, 0.9, 0), 500: (0.9, 0.99, 0)}


def test_with_judgments_more_calls_must_be_worth_it():
    level = qualities(0.4, (50, 0.6), (100, 0.695), (500, 0.7))
    assert chosen(advise(compared(RISING, quality=level))) == ("Axn", 100, 10)
    steep = qualities(0.4, (50, 0.5), (100, 0.6), (500, 0.7))
    assert chosen(advise(compared(RISING, quality=steep))) == ("Axn", 500, 10)


def test_a_bad_cross_encoder_and_one_without_a_shown_gain():
    bad = advise(compared(RISING, quality=qualities(0.8, (50, 0.5), (500, 0.4))))
    assert chosen(bad) == ("bm25", 0, None)
    assert "without the cross-encoder" in str(bad)
    unsure = advise(compared(RISING, quality=qualities(0.5, (50, 0.52), (100, 0.53), (500, 0.53), spread=0.4)))
    assert chosen(unsure) == (None, None, None)
    assert "no gain is shown" in str(unsure)
    assert str(unsure).startswith("No advice for these data.")


def test_too_few_or_unknown_queries_allow_no_advice():
    few = made_by_hand(results=[result("Rerank", 100, 10, 0.9, per_query=values(0.9, queries=12))])
    assert "12 queries are too few" in str(advise(few))
    assert advise(few).to_json()["strategy"] is None
    unknown = made_by_hand(results=[result("Rerank", 100, 10, 0.9, per_query=())])
    assert "values of each query are unknown" in str(advise(unknown))


def test_rounds_are_the_fewest_that_lose_at_most_a_point():
    points = [Point(at, mean, 0, 1, values(mean)) for at, mean in ((1, 0.6), (2, 0.895), (5, 0.9), (10, 0.9))]
    sweep = Sweep(100, [Curve("Axn", 10, points)], [])
    advice = advise(compared({100: (0.8, 0.95, 0)}, studies=Studies(rounds=sweep)))
    assert chosen(advice) == ("Axn", 100, 2)
    assert "More rounds find at most 1 point more" in str(advice)
    elsewhere = Studies(rounds=Sweep(100, [Curve("other", 10, points)], []))
    assert chosen(advise(compared({100: (0.8, 0.95, 0)}, studies=elsewhere))) == ("Axn", 100, 10)
