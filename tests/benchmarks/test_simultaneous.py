"""Many comparisons at once: chance differences are not shown, clear ones are, and c grows with their number."""

import numpy as np

from benchmarks.simultaneous import compare_all, critical_value
from crossknn.evaluate.measures import paired_difference


def noise(pairs, queries=100, seed=0):
    return np.random.default_rng(seed).normal(size=(pairs, queries))


def test_of_many_differences_by_chance_none_is_shown():
    values = noise(120)
    pairs = {place: (line, np.zeros(100)) for place, line in enumerate(values)}
    found, critical = compare_all(pairs)
    alone = [paired_difference(*pair) for pair in pairs.values()]
    assert any(one.shown for one in alone)  # single intervals exclude zero in some
    assert not any(one["shown"] for one in found.values())
    assert critical > 3


def test_a_clear_difference_is_shown_among_many():
    values = noise(40)
    pairs = {place: (line + (2.0 if place == 7 else 0.0), np.zeros(100)) for place, line in enumerate(values)}
    found, _ = compare_all(pairs)
    assert {place: one["shown"] for place, one in found.items() if one["shown"]} == {7: 1}
    assert compare_all({7: pairs[7][::-1]})[0][7]["shown"] == -1


def test_one_comparison_has_the_usual_critical_value():
    assert 1.7 < critical_value(noise(1, 400), seed=0, level=0.95) < 2.2


def test_a_difference_on_few_queries_is_never_shown():
    ours = np.zeros(100)
    ours[:9] = 1
    assert compare_all({"": (ours, np.zeros(100))})[0][""]["shown"] == 0
    ours[9:15] = 1
    assert compare_all({"": (ours, np.zeros(100))})[0][""]["shown"] == 1


def test_equal_values_do_not_differ():
    found, critical = compare_all({"": (np.ones(30), np.ones(30))})
    assert found[""] == {"mean": 0.0, "low": 0.0, "high": 0.0, "shown": 0}
    assert critical == 0
