"""Any function over pairs is a scorer, and what it returns is checked."""

import asyncio
from itertools import count

import numpy as np
import pytest

from crossknn.errors import InputError, ScorerError
from crossknn.models.fingerprints import UNNAMED
from crossknn.scorers.base import function_scorer, score_pairs
from crossknn.testing import check_scorer


def shared_letters(pairs: list[tuple[str, str]]) -> list[float]:
    return [len(set(query) & set(item)) - len(item) / 100 for query, item in pairs]


def test_contract() -> None:
    check_scorer(function_scorer(shared_letters), ["river", "", "ice"], ["frozen river", "dog", ""])


def test_no_pairs_do_not_reach_the_function() -> None:
    assert function_scorer(lambda pairs: 1 / 0).score([], []).dtype == np.float32


def test_fingerprints() -> None:
    first, second = function_scorer(shared_letters), function_scorer(shared_letters)
    assert first.fingerprint.startswith(UNNAMED)
    assert first.fingerprint == first.fingerprint != second.fingerprint
    assert function_scorer(shared_letters, fingerprint="letters-v1").fingerprint == "letters-v1"
    for bad in ("", UNNAMED + "x"):
        with pytest.raises(InputError, match="`fingerprint` must be"):
            function_scorer(shared_letters, fingerprint=bad)
    with pytest.raises(InputError, match="`fn` must be a function"):
        function_scorer("letters")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0, float("nan")], "nan for query 'b' and item 'y'"),
        ([float("inf"), 0.0], "inf for query 'a' and item 'x'"),
        ([1.0], "1 scores for 2 pairs; the first without one is query 'b' and item 'y'"),
        ([1.0, 2.0, 3.0], "3 scores for 2 pairs"),
        ([[1.0, 2.0], [3.0, 4.0]], r"shape \(2, 2\)"),
        (["high", "low"], "one number per pair, got an array of <U4"),
        (["1.5", "2"], "one number per pair"),
        ([1.0, "2"], "one number per pair"),
        ([b"1", b"2"], "one number per pair"),
        ([True, False], "got True among them"),
        ([1.0, np.True_], "got .*True.* among them"),
        (np.array([True, False]), "an array of bool"),
        ([1.0, 2j], "an array of complex128"),
        (np.array([1, 2], np.complex64), "an array of complex64"),
        (np.array(["2020-01-01", "2020-01-02"], "datetime64[D]"), "an array of datetime64"),
        ([None, 1.0], "an object of type NoneType"),
        ([[1.0], [2.0, 3.0]], "one number per pair, got an object of type list: ValueError"),
        ([1e300, 1.0], r"1e\+300 for query 'a' and item 'x'"),
        ([10**400, 1], "an object of type int"),
        (1.5, "an array or a list of numbers, got an object of type float"),
        ("12", "an object of type str"),
        ({"a": 1.0, "b": 2.0}, "an object of type dict"),
        ({1.0, 2.0}, "an object of type set"),
        (count(), "an object of type count"),
        (iter([1.0, 2.0]), "an object of type list_iterator"),
        (range(10**12), "1000000000000 scores for 2 pairs"),
        (np.zeros((2, 0)), r"shape \(2, 0\)"),
        (None, "an object of type NoneType"),
    ],
)
def test_bad_scores_name_the_pair(returned: object, message: str) -> None:
    with pytest.raises(ScorerError, match=message):
        function_scorer(lambda pairs: returned).score(["a", "b"], ["x", "y"])


def test_the_functions_own_error_is_passed_on() -> None:
    def fail(pairs: list[tuple[str, str]]) -> list[float]:
        raise ConnectionError("the model server is down")

    with pytest.raises(ConnectionError, match="server is down"):
        function_scorer(fail).score(["a"], ["x"])


def test_queries_and_items_must_have_the_same_length() -> None:
    with pytest.raises(InputError, match="same length"):
        function_scorer(shared_letters).score(["a", "b"], ["x"])


def test_tensors_are_converted() -> None:
    torch = pytest.importorskip("torch")
    scorer = function_scorer(lambda pairs: torch.ones(len(pairs), 1, dtype=torch.bfloat16, requires_grad=True))
    assert scorer.score(["a", "b"], ["x", "y"]).tolist() == [1.0, 1.0]
    for bad in (torch.tensor([True, False]), torch.tensor([1j, 2j])):
        with pytest.raises(ScorerError, match="an array of"):
            function_scorer(lambda pairs, bad=bad: bad).score(["a", "b"], ["x", "y"])


class Own:
    """A scorer that checks nothing itself."""

    fingerprint = "own"

    def __init__(self, returned: object) -> None:
        self.returned = returned

    def score(self, queries: list[str], items: list[str]) -> object:
        return self.returned


@pytest.mark.parametrize("returned", [["1", "2"], [True, False], [1j, 2j], count(), [1.0], [1.0, float("nan")]])
def test_scores_of_any_scorer_are_checked(returned: object) -> None:
    with pytest.raises(ScorerError, match="scorer"):
        score_pairs(Own(returned), ["a", "b"], ["x", "y"])


@pytest.mark.parametrize("returned", [[1, 2], (1.0, 2), np.array([[1], [2]]), range(1, 3), np.array([1, 2], np.uint8)])
def test_numbers_of_every_kind_are_scores(returned: object) -> None:
    scores = score_pairs(Own(returned), ["a", "b"], ["x", "y"])
    assert (scores.dtype, scores.tolist()) == (np.float32, [1.0, 2.0])


def count_letters(pairs):
    return [float(len(item)) for _, item in pairs]


async def count_letters_later(pairs):
    await asyncio.sleep(0)
    return count_letters(pairs)


@pytest.mark.parametrize("fn", [count_letters, count_letters_later])
def test_texts_are_ranked_best_first_and_ties_in_the_given_order(fn):
    scorer = function_scorer(fn)
    texts = ["bb", "a", "cccc", "dd"]
    expected = [(2, 4.0, "cccc"), (0, 2.0, "bb"), (3, 2.0, "dd"), (1, 1.0, "a")]
    assert [(one.index, one.score, one.text) for one in scorer.rank("q", texts)] == expected
    assert [one.index for one in scorer.rank("q", texts, k=2)] == [2, 0]
    assert scorer.rank("q", []) == []
    with pytest.raises(InputError, match="`k` must be"):
        scorer.rank("q", texts, k=0)


def test_an_asynchronous_function_may_be_called_from_an_event_loop():
    async def search():
        return function_scorer(count_letters_later).score(["q"], ["abc"])

    assert asyncio.run(search()).tolist() == [3.0]
