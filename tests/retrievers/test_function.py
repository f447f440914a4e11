"""Retrievers made of a function, and the caller's retrievers as the first stage of every strategy."""

import numpy as np
import pytest

from crossknn.errors import InputError, RetrieverError
from crossknn.items.items import Items
from crossknn.retrievers.bm25 import Bm25
from crossknn.retrievers.function import function_retriever
from crossknn.retrievers.simple import Given
from crossknn.search.searcher import Searcher
from crossknn.strategies.axn import Axn
from crossknn.strategies.cur import AdaCur
from crossknn.strategies.gar import Gar
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.strategies.rerank import Rerank
from crossknn.testing import check_retriever
from tests.search.test_searcher import Setup

QUERIES = ["apple", "pear", ""]
ITEMS = Items([f"text {row}" for row in range(20)], ids=[f"id-{row}" for row in range(20)])


def count_up(queries, n):
    """The items in an order of their own for each query."""
    return [[f"id-{(row + 3 * len(query)) % 20}" for row in range(min(n, 20))] for query in queries]


class Counted:
    def __init__(self, function):
        self.function, self.calls = function, []

    def __call__(self, queries, n):
        self.calls.append((len(queries), n))
        return self.function(queries, n)


@pytest.mark.parametrize(
    "function",
    [
        count_up,
        lambda queries, n: [[(id_, -place) for place, id_ in enumerate(ids)] for ids in count_up(queries, n)],
        lambda queries, n: np.array(count_up(queries, n)).reshape(len(queries), -1),
        lambda queries, n: [[] if query == "pear" else ["id-4"] for query in queries],
    ],
    ids=["ids", "pairs", "array", "few"],
)
def test_a_function_passes_the_contract(function):
    check_retriever(function_retriever(function).fit(ITEMS), QUERIES, len(ITEMS))


def test_integer_ids_and_lists_that_are_too_long():
    items = Items(["a", "b", "c"], ids=[10, 20, 30])
    retriever = function_retriever(lambda queries, n: [np.array([30, 10, 20])] * len(queries), name="mine").fit(items)
    (found,) = retriever.retrieve(["a"], 2)
    assert retriever.name == "mine"
    assert found.rows.tolist() == [2, 0]
    assert found.estimates.tolist() == [1.0, 0.5]


def test_scores_order_the_rows():
    retriever = function_retriever(lambda queries, n: [[("id-3", 0.5), ("id-1", 2.0)]]).fit(ITEMS)
    (found,) = retriever.retrieve(["a"], 5)
    assert (found.rows.tolist(), found.estimates.tolist()) == ([1, 3], [2.0, 0.5])


def test_one_call_for_many_queries_and_more_where_a_filter_leaves_too_few():
    function = Counted(count_up)
    retriever = function_retriever(function).fit(ITEMS)
    retriever.retrieve(QUERIES, 4)
    assert function.calls == [(3, 4)]
    allowed = np.arange(20) == 19
    assert [found.rows.tolist() for found in retriever.retrieve(QUERIES, 1, allowed=allowed)] == [[19]] * 3
    assert [n for _, n in function.calls[1:]] == [1, 4, 16, 20]
    function.calls.clear()
    assert [len(found) for found in retriever.retrieve(QUERIES, 3, allowed=allowed & False)] == [0, 0, 0]
    assert retriever.retrieve([], 3) == []
    assert function.calls == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([["id-1"]], "got 1 for 2 queries"),
        (None, "got an object of type NoneType"),
        ("id-1", "got an object of type str"),
        ([["id-1"], ["nowhere"]], "returned the id 'nowhere' for the query 'b', and there is no such item"),
        ([["id-1"], ["id-2", "id-2"]], "Query 'b': the id 'id-2' is listed twice"),
        ([["id-1"], "id-2"], "Query 'b': the candidates must be a list of ids"),
        ([["id-1"], {"id-2": 1.0}], "Query 'b': the candidates must be a list of ids"),
        ([["id-1"], 3], "the function of the retriever 'mine': "),
        ([["id-1"], [("id-2", float("nan"))]], r"candidate 1 must be an id or an \(id, finite estimate\) pair"),
        ([["id-1"], [2.5]], "candidate 1 must be an id"),
    ],
    ids=str,
)
def test_what_a_function_must_not_return(answer, message):
    retriever = function_retriever(lambda queries, n: answer, name="mine").fit(ITEMS)
    with pytest.raises(RetrieverError, match=message):
        retriever.retrieve(["a", "b"], 3)


def test_an_error_of_the_function_is_its_own():
    def broken(queries, n):
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError, match="no answer"):
        function_retriever(broken).fit(ITEMS).retrieve(["a"], 3)


def test_what_is_no_retriever_is_refused():
    with pytest.raises(InputError, match="`function` must be a function"):
        function_retriever("bm25")
    with pytest.raises(InputError, match=r"Wrap a function: function_retriever"):
        Setup(retrievers=[count_up])
    with pytest.raises(InputError, match="`retrievers` must be a list of retrievers"):
        Setup(retrievers=["bm25"])


FIRST_STAGES = [
    Rerank(budget=20),
    Axn(budget=20, rounds=2),
    AdaCur(budget=20, rounds=2),
    Gar(budget=20, rounds=2),
    Posterior(budget=20, rounds=2),
]


def wanted_ids(queries, n):
    return [[f"id-{row}" for row in range(119, 119 - n, -1)] for _ in queries]


@pytest.mark.parametrize("strategy", FIRST_STAGES, ids=repr)
def test_a_given_retriever_is_the_first_stage_of_strategies_that_name_none(strategy):
    setup = Setup(retrievers=[function_retriever(wanted_ids, name="mine")])
    found = setup.searcher.search(setup.queries[0], k=5, strategy=strategy)
    first = [hit for hit in found.trace if hit.round == 1]
    assert {hit.proposed_by for hit in first} == {"mine"}
    assert [hit.row for hit in first] == list(range(119, 119 - len(first), -1))


def test_a_strategys_own_first_stage_comes_before_it():
    setup = Setup(retrievers=[function_retriever(wanted_ids, name="mine")])
    found = setup.searcher.search(setup.queries[0], k=5, strategy=Axn(budget=20, rounds=2, first="dense"))
    assert {hit.proposed_by for hit in found.trace if hit.round == 1} == {"dense"}


def test_several_given_retrievers_are_fused():
    other = Given({"query 0": ["id-119", "id-7"]}, name="other")
    setup = Setup(retrievers=[function_retriever(wanted_ids, name="mine"), other])
    found = setup.searcher.search(setup.queries[0], k=3, strategy=Rerank(budget=3))
    assert [hit.row for hit in found.trace] == [119, 7, 118]  # the last two tie
    assert {hit.proposed_by for hit in found.trace} == {"mine+other"}


@pytest.mark.parametrize("name", ["dense", "bm25"])
def test_a_replaced_member_stays_a_member_of_the_fusion(name):
    setup = Setup(retrievers=[Bm25(name=name)])
    assert setup.searcher.search(setup.queries[0], k=3, strategy=Rerank(budget=9))[0].proposed_by == "fused"
    alone = Searcher(setup.items, scorer=setup.scorer, retrievers=[Bm25(name="mine")])
    assert alone.search(setup.queries[0], k=3, budget=9)[0].proposed_by == "mine"
