import time

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.items.items import Items
from crossknn.retrievers.simple import Given, Random, _draw_distinct

ITEMS = Items(["red", "green", "blue"], ids=["r", "g", "b"])


class ManyItems:
    """Stands in for items of which only the number matters."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count


def test_random_rows_differ_by_query_and_seed():
    rows = [Random(seed).fit(ManyItems(1000)).retrieve([q], 20)[0].rows.tolist() for seed in (0, 1) for q in "ab"]
    assert len({tuple(row) for row in rows}) == 4


def test_random_orders_are_uniform():
    orders = np.zeros((3, 3))
    generator = np.random.default_rng(0)
    for _ in range(3000):
        orders[np.arange(3), _draw_distinct(generator, 3, 3)] += 1
    assert (abs(orders - 1000) < 120).all()  # about 4.6 standard deviations


def test_random_is_quick_over_many_items():
    retriever = Random().fit(ManyItems(5_000_000))
    start = time.perf_counter()
    proposals = retriever.retrieve([f"query {i}" for i in range(200)], 100)
    assert time.perf_counter() - start < 2
    assert all(len(set(p.rows.tolist())) == 100 for p in proposals)


def test_random_seed_is_checked():
    with pytest.raises(InputError, match="`seed` must be a nonnegative integer, got -1"):
        Random(-1)


def test_given_ids_keep_their_order():
    (found,) = Given({"q": ["b", "r"]}).fit(ITEMS).retrieve(["q"], 5)
    assert found.rows.tolist() == [2, 0]
    assert found.estimates.tolist() == [1, 0.5]


def test_given_pairs_are_ordered_by_estimate_then_as_listed():
    (found,) = Given({"q": [("b", 1), ("r", 3), ("g", 1)]}).fit(ITEMS).retrieve(["q"], 5)
    assert found.rows.tolist() == [0, 2, 1]
    assert found.estimates.tolist() == [3, 1, 1]


def test_given_takes_integer_ids():
    (found,) = Given({"q": [1, 0]}).fit(Items(["a", "b"])).retrieve(["q"], 5)
    assert found.rows.tolist() == [1, 0]


def test_given_without_a_list():
    candidates = {"q": ["b"]}
    assert len(Given(candidates).fit(ITEMS).retrieve(["other"], 5)[0]) == 0
    with pytest.raises(InputError, match="no candidates for the query 'other'"):
        Given(candidates, missing="error").fit(ITEMS).retrieve(["other"], 5)


def test_given_applies_the_filter_before_the_count():
    (found,) = Given({"q": ["b", "r"]}).fit(ITEMS).retrieve(["q"], 1, allowed=np.array([True, True, False]))
    assert found.rows.tolist() == [0]


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ({"q": ["b", "b"]}, "'q': the id 'b' is listed twice"),
        ({"q": [("b", 1), ("b", 2)]}, "'q': the id 'b' is listed twice"),
        ({"q": "b"}, "must be a list of ids, got 'b'"),
        ({"q": ["b", ("r", 1)]}, "all ids or all"),
        ({"q": [("b", float("nan"))]}, "candidate 1 must be an id or an"),
        ({"q": [("b",)]}, "candidate 1 must be an id or an"),
        ({"q": [(None, 1)]}, "candidate 1 must be an id or an"),
        (["b"], "must map each query's text to a list of ids, got list"),
    ],
)
def test_given_refuses_bad_lists(candidates, message):
    with pytest.raises(InputError, match=message):
        Given(candidates)


def test_given_refuses_unknown_ids_at_fit():
    with pytest.raises(InputError, match="'q': the candidate 'x' is not among the items"):
        Given({"q": ["b", "x"]}).fit(ITEMS)


def test_given_refuses_an_unknown_missing():
    with pytest.raises(InputError, match="`missing` must be one of 'empty', 'error'"):
        Given({}, missing="ignore")


def test_trec_run(tmp_path):
    run = tmp_path / "run.trec"
    run.write_text("1 Q0 r 1 0.5 me\n1 Q0 b 2 0.9 me\n\n2\tQ0\tg\t1\t3\tme\n")
    retriever = Given.from_trec(run, queries={"1": "first", "2": "second"}).fit(ITEMS)
    first, second = retriever.retrieve(["first", "second"], 5)
    assert first.rows.tolist() == [2, 0]  # by score, not by the rank in the file
    np.testing.assert_allclose(first.estimates, [0.9, 0.5])
    assert second.rows.tolist() == [1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 Q0 r 1 0.5", "run.trec:2: a line must have six fields .*, got 5"),
        ("1 Q0 r 1 high me", "run.trec:2: the score must be a finite number, got 'high'"),
        ("1 Q0 r 1 nan me", "run.trec:2: the score must be a finite number, got 'nan'"),
        ("9 Q0 r 1 0.5 me", "run.trec:2: the query id '9' is not in `queries`"),
        ("1 Q0 b 1 0.5 me", "run.trec:2: 'b' is listed twice for '1', first in line 1"),
    ],
)
def test_trec_errors_name_the_line(tmp_path, line, message):
    run = tmp_path / "run.trec"
    run.write_text(f"1 Q0 b 1 0.5 me\n{line}\n")
    with pytest.raises(InputError, match=message):
        Given.from_trec(run, queries={"1": "first"})


def test_trec_file_must_exist_and_texts_differ(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        Given.from_trec(tmp_path / "none", queries={})
    with pytest.raises(InputError, match="different texts"):
        Given.from_trec(tmp_path / "none", queries={"1": "same", "2": "same"})
