"""Any function over pairs is a scorer, and what it returns is checked."""

import asyncio

import numpy as np
import pytest

from crossknn.errors import InputError, ScorerError
from crossknn.models.fingerprints import UNNAMED
from crossknn.scorers.base import function_scorer
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
        (["high", "low"], "one number per pair"),
        (None, "shape|number"),
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
