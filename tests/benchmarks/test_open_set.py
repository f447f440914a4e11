"""The open set: made from docstrings alone, the same every time, and no query is the text of an item."""

import pytest

from benchmarks.open_set import choose_queries, read_module, read_package, write_set
from crossknn.evaluate.datasets import Dataset

MODULE = '''
def solve(a):
    """Solve a `system` of equations, :func:`~np.dot` first. It is fast.

    More about it.

    See Also
    --------
    numpy.inv, eig : others
    :func:`factor`
        the factors
    missing : is not there

    Notes
    -----
    inv : no reference
    """

def inv(a):
    """Invert a matrix that is square."""

def _hidden():
    """Hidden from everyone who only reads."""

class factor:
    """Factors of a matrix, whatever it is."""
'''


def test_what_a_docstring_says():
    solve, inv, factor = read_module("numpy.linalg._impl", MODULE)
    assert (solve.id, solve.name) == ("numpy.linalg._impl.solve", "solve")
    assert solve.text == "Solve a system of equations, np.dot first. It is fast."
    assert solve.query == "Solve a system of equations, np.dot first"
    assert solve.related == ["numpy.inv", "eig", "factor", "missing"]
    assert (inv.related, factor.name) == ([], "factor")


def test_a_query_is_held_out_with_what_it_refers_to():
    (test,) = [split for split in choose_queries(list(read_module("numpy.linalg._impl", MODULE))).values() if split]
    ((one, relevant),) = test.items()
    assert one.id.endswith(".solve")
    assert relevant == ["numpy.linalg._impl.factor", "numpy.linalg._impl.inv"]


@pytest.fixture(scope="module")
def documented():
    return [*read_package("numpy"), *read_package("scipy")]


def test_the_set_is_read_as_any_other_and_is_the_same_every_time(documented, tmp_path):
    facts = write_set(tmp_path / "one", documented, 1_500)
    assert write_set(tmp_path / "two", documented[::-1], 1_500)["digest"] == facts["digest"]
    data = Dataset.from_beir(tmp_path / "one")
    assert len(data.items) == facts["items"] <= 1_500
    assert {name: len(data.split(name)) for name in ("test", "dev", "train") if name in data.splits} == {
        name: count for name, count in facts["queries"].items() if count
    }
    assert len(data.split("test")) == 300
    queries = {text for split in data.splits.values() for text in split.texts}
    assert len(queries) == sum(map(len, data.splits.values()))
    assert queries.isdisjoint(text.rstrip(".") for text in data.items.texts)
    held_out = {id_ for split in data.splits.values() for id_ in split.ids}
    assert held_out.isdisjoint(data.items.ids)
