"""Training lists: their order, their padding, samples of them, their deviation, and which items are chosen."""

import numpy as np
import pytest

from crossknn.indexing.score_matrix import Pairs, SparseScores
from crossknn.indexing.teaching.lists import ScoredLists, choose_items

INF = np.inf


def make_entries(entries: list[tuple[int, int, float]], n_queries: int = 10, n_items: int = 50) -> SparseScores:
    numbers, rows, scores = zip(*entries, strict=True) if entries else ((), (), ())
    pairs = Pairs(np.array(numbers, np.int32), np.array(rows, np.int32), n_queries, n_items)
    return SparseScores(pairs, np.array(scores, np.float32))


def random_lists(seed: int = 0, lengths: tuple[int, ...] = (12, 7, 5, 2)) -> ScoredLists:
    """Lists of these lengths, in which items are distinct."""
    rng, entries = np.random.default_rng(seed), []
    for number, length in enumerate(lengths):
        rows = rng.choice(50, length, replace=False)
        entries += [(number, int(row), float(score)) for row, score in zip(rows, rng.normal(size=length), strict=True)]
    return ScoredLists.of(make_entries(entries))


def test_lists_are_best_first_ties_by_row_and_padded():
    mixed = [(4, 9, 1.0), (7, 3, -2.0), (4, 2, 3.0), (7, 8, 0.5), (1, 5, 9.0), (4, 30, 1.0), (4, 1, 1.0)]
    lists = ScoredLists.of(make_entries(mixed))
    assert len(lists) == 2
    assert lists.queries.tolist() == [4, 7]
    assert lists.rows.tolist() == [[2, 1, 9, 30], [8, 3, 0, 0]]
    assert lists.scores.tolist() == [[3.0, 1.0, 1.0, 1.0], [0.5, -2.0, -INF, -INF]]
    assert (lists.queries.dtype, lists.rows.dtype, lists.scores.dtype) == (np.int32, np.int32, np.float32)


def test_short_lists_are_dropped():
    entries = make_entries([(0, 1, 0.0), (3, 1, 0.0), (3, 2, 0.0), (5, 1, 0.0), (5, 2, 0.0), (5, 3, 0.0)])
    by_minimum = {count: ScoredLists.of(entries, min_items=count).queries.tolist() for count in (1, 2, 3, 4)}
    assert by_minimum == {1: [0, 3, 5], 2: [3, 5], 3: [5], 4: []}
    assert len(ScoredLists.of(make_entries([]))) == 0


def test_take_keeps_the_lists_at_these_places():
    lists = random_lists()
    taken = lists.take(np.array([2, 0]))
    assert taken.queries.tolist() == [2, 0]
    np.testing.assert_array_equal(taken.rows, lists.rows[[2, 0]])
    np.testing.assert_array_equal(taken.scores, lists.scores[[2, 0]])


def listed(lists: ScoredLists, number: int) -> list[tuple[int, float]]:
    """(row, score) of a list, without padding, which must be at its end."""
    inside = np.isfinite(lists.scores[number])
    assert inside.tolist() == sorted(inside, reverse=True)
    return list(zip(lists.rows[number, inside].tolist(), lists.scores[number, inside].tolist(), strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_a_sample_has_the_best_items_and_others_still_best_first(seed):
    lists = random_lists()
    sample = lists.sample(5, best=2, rng=np.random.default_rng(seed))
    assert sample.rows.shape == sample.scores.shape == (4, 5)
    np.testing.assert_array_equal(sample.queries, lists.queries)
    assert [len(listed(sample, number)) for number in range(4)] == [5, 5, 5, 2]  # padding only behind short lists
    for number in range(4):
        places = [listed(lists, number).index(entry) for entry in listed(sample, number)]
        assert places[:2] == [0, 1]
        assert places == sorted(set(places))


def test_samples_differ_and_reach_every_item():
    lists = random_lists()
    samples = [lists.sample(5, best=2, rng=np.random.default_rng(seed)).rows[0].tolist() for seed in range(60)]
    assert {row for rows in samples for row in rows} == set(lists.rows[0].tolist())
    np.testing.assert_array_equal(lists.sample(5, best=2, rng=np.random.default_rng(7)).rows[0], samples[7])


def test_lists_that_are_short_enough_are_left_alone():
    lists = random_lists()
    assert lists.sample(12, best=2, rng=np.random.default_rng(0)) is lists


def test_the_deviation_is_within_lists():
    lists = ScoredLists.of(make_entries([(0, 1, 10.0), (0, 2, 12.0), (0, 3, 14.0), (5, 1, -1.0), (5, 2, 0.0)]))
    assert lists.deviation() == pytest.approx(np.sqrt((4 + 0 + 4 + 0.25 + 0.25) / (5 - 2)))  # a mean per list
    constant = ScoredLists.of(make_entries([(0, 1, 3.0), (0, 2, 3.0), (1, 1, 5.0), (1, 2, 5.0)]))
    assert constant.deviation() == 1.0  # scores are divided by it


@pytest.mark.parametrize("n_items", [3, 8, 10, 12, 20, 100, 5_000])
def test_chosen_items_are_distinct_and_hold_the_nearest_half(n_items):
    size, depth = 16, min(n_items, 60)
    rng = np.random.default_rng(n_items)
    nearest = np.stack([rng.permutation(n_items)[:depth] for _ in range(7)])
    pairs = choose_items(nearest, size, n_items=n_items, rng=rng)
    assert (pairs.n_queries, pairs.n_items) == (7, n_items)
    assert len(np.unique(pairs.keys())) == len(pairs)
    for number in range(7):
        chosen = set(pairs.rows[pairs.queries == number].tolist())
        assert set(nearest[number, :8].tolist()) <= chosen
        assert min(12, n_items) <= len(chosen) <= min(size, n_items)


def test_a_quarter_is_from_the_ranks_behind_and_a_quarter_from_anywhere():
    nearest = np.tile(np.arange(60), (200, 1))
    pairs = choose_items(nearest, 16, n_items=1_000_000, rng=np.random.default_rng(0))
    counts = [np.bincount(pairs.queries[mask], minlength=200) for mask in (pairs.rows < 60, pairs.rows >= 60)]
    assert set(counts[0]) == {12}
    assert set(counts[1]) == {4}
    farther = pairs.rows[(pairs.rows >= 8) & (pairs.rows < 60)]
    assert set(farther.tolist()) == set(range(8, 60))
    again = choose_items(nearest, 16, n_items=1_000_000, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(again.keys(), pairs.keys())


@pytest.mark.parametrize(("share", "mined"), [(0.0, 40), (0.25, 30), (1.0, 0)])
def test_the_random_share_of_a_list_can_be_chosen(share, mined):
    nearest = np.tile(np.arange(2_000), (5, 1))
    rng = np.random.default_rng(0)
    pairs = choose_items(nearest, 40, n_items=10**8, rng=rng, random_share=share)
    assert np.bincount(pairs.queries[pairs.rows < 2_000], minlength=5).tolist() == [mined] * 5
    assert len(pairs) == 200
