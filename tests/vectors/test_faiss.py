"""FAISS: recall, filters, saved indexes, and when exact search takes over."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b

import faiss
import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.vectors import faiss as faiss_search
from crossknn.vectors.base import recall_against_exact
from crossknn.vectors.exact import ExactSearch
from crossknn.vectors.faiss import FaissSearch

ROWS, DIM = 8_000, 20


@pytest.fixture(scope="module")
def vectors():
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(40, DIM))
    return (centers[rng.integers(0, 40, ROWS)] + rng.normal(size=(ROWS, DIM))).astype(np.float16)


@pytest.fixture(scope="module")
def queries():
    return np.random.default_rng(1).normal(size=(16, DIM)).astype(np.float32)


@pytest.fixture(scope="module")
def exact(vectors):
    """The exact search that both kinds of index below fall back to."""
    return RecordingSearch(vectors)


@pytest.fixture(scope="module")
def hnsw(exact):
    return FaissSearch(exact, kind="hnsw")


@pytest.fixture(scope="module")
def ivf(exact):
    """One that looks at a fifth of the items; with the usual effort it would look at all of so few."""
    return FaissSearch(exact, kind="ivf", storage="int8", effort=0.05)


@pytest.fixture
def _faiss_is_fastest(monkeypatch):
    """FAISS costs nothing, as if there were many items: it is used for every query."""
    monkeypatch.setattr(faiss_search, "SCAN_COST", dict.fromkeys(faiss_search.KINDS, 0.0))
    monkeypatch.setattr(faiss_search, "TAKE_COST", 0.0)


@pytest.fixture(params=["hnsw", "ivf"])
def search(request, _faiss_is_fastest):
    """A search that falls back to exact search only where FAISS found too few rows."""
    return request.getfixturevalue(request.param)


class RecordingSearch(ExactSearch):
    """Exact search that records the queries it gets."""

    def __init__(self, vectors):
        super().__init__(vectors)
        self.queries = []

    def search_with_candidates(self, queries, *args, **options):
        self.queries.extend(queries)
        return super().search_with_candidates(queries, *args, **options)


def rows_of(found):
    return [one.rows.tolist() for one in found]


def test_more_effort_finds_more(vectors, queries, search):
    exact, recall = ExactSearch(vectors), {}
    before = search.effort
    for times in (0.1, 1, 5):
        search.effort = times * before
        recall[times] = recall_against_exact(search, exact, queries, 20).mean()
    search.effort = before
    assert recall[0.1] < recall[1] <= recall[5]
    assert recall[1] > 0.9


@pytest.mark.usefixtures("_faiss_is_fastest")
def test_estimates_are_exact_whatever_the_storage(vectors, queries, ivf):
    exact = ExactSearch(vectors)
    products = exact.estimates(queries)
    for line, proposal in zip(products, ivf.search(queries, 20), strict=True):
        np.testing.assert_allclose(proposal.estimates, line[proposal.rows], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(ivf.estimates(queries), products)
    np.testing.assert_array_equal(ivf.take(np.array([5, 3])), exact.take(np.array([5, 3])))


def test_many_excluded_rows_near_the_top(exact, queries, search):
    """As in posterior search, which asks for the best that no retriever proposes."""
    hidden = [one.rows for one in exact.search(queries, 1_000)]
    expected = exact.search(queries, 10, exclude=hidden)
    exact.queries.clear()
    found = search.search(queries, 10, exclude=hidden)
    assert not exact.queries
    assert not any(np.isin(one.rows, rows).any() for one, rows in zip(found, hidden, strict=True))
    assert np.mean([np.isin(a.rows, b.rows).mean() for a, b in zip(expected, found, strict=True)]) > 0.8


def test_filters(vectors, queries, search):
    exact = ExactSearch(vectors)
    allowed = np.random.default_rng(2).random(ROWS) < 0.2
    found, expected = (one.search(queries, 20, allowed=allowed) for one in (search, exact))
    assert all(allowed[one.rows].all() and len(one) == 20 for one in found)
    assert np.mean([np.isin(a.rows, b.rows).mean() for a, b in zip(expected, found, strict=True)]) > 0.9
    few = np.zeros(ROWS, np.bool_)
    few[[7, 70, 700]] = True
    for proposal, right in zip(
        search.search(queries, 20, allowed=few), exact.search(queries, 20, allowed=few), strict=True
    ):
        assert proposal.rows.tolist() == right.rows.tolist()


def test_few_allowed_rows_are_scored_directly(exact, queries, hnsw):
    exact.queries.clear()
    allowed = np.arange(ROWS) % 100 == 0
    found = hnsw.search(queries, 5, allowed=allowed)
    assert not exact.queries
    assert rows_of(found) == rows_of(exact.search(queries, 5, allowed=allowed))


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_exact_search_takes_over_where_it_is_cheaper(kind, exact, vectors, queries, request):
    """For many queries at once, and for many candidates."""
    search = request.getfixturevalue(kind)
    exact.queries.clear()
    search.search(queries, 10)
    assert len(exact.queries) == len(queries)
    rows = np.arange(0, ROWS, 3)
    found, products = search.search_with_candidates(queries[:1], 10, [rows])
    assert len(exact.queries) == len(queries) + 1
    assert not np.isin(found[0].rows, rows).any()
    np.testing.assert_allclose(products[0], vectors[rows].astype(np.float32) @ queries[0], rtol=1e-4, atol=1e-4)


def test_exact_search_takes_over_where_faiss_finds_too_few(exact, queries, search):
    """Here because few of the vectors that so little effort reaches are allowed."""
    assert [len(one) for one in search.search(queries[:2], ROWS + 5)] == [ROWS, ROWS]
    assert not search.search(queries, 0)[0].rows.size
    allowed = np.arange(ROWS) % 20 == 0
    exact.queries.clear()
    before, search.effort = search.effort, 0.001
    found = search.search(queries, 300, allowed=allowed)
    search.effort = before
    assert exact.queries
    assert rows_of(found) == rows_of(exact.search(queries, 300, allowed=allowed))


@pytest.mark.parametrize("count", [1, 2, 7, 20])
def test_a_few_items_are_all_found(count, vectors, queries, search):
    few = FaissSearch(vectors[:count], kind=search.kind)
    expected = ExactSearch(vectors[:count]).search(queries, count)
    assert rows_of(few.search(queries, count)) == rows_of(expected)


@pytest.mark.usefixtures("_faiss_is_fastest")
def test_ties_go_to_the_lower_row():
    search = FaissSearch(np.ones((300, 4), np.float32), kind="flat")
    assert search.search(np.ones((1, 4)), 300)[0].rows.tolist() == list(range(300))


@pytest.mark.usefixtures("_faiss_is_fastest")
def test_built_indexes_are_saved_and_opened(vectors, queries, tmp_path):
    steps = []
    built = FaissSearch(vectors, kind="ivf", folder=tmp_path, progress=lambda *step: steps.append(step))
    assert steps == [("index vectors", ROWS, ROWS)]
    built.with_columns(np.ones((ROWS, 2), np.float32))
    assert len(list(tmp_path.glob("*.faiss"))) == len(list(tmp_path.iterdir())) == 2
    steps.clear()
    opened = FaissSearch(vectors, kind="ivf", folder=tmp_path, progress=lambda *step: steps.append(step))
    assert not steps  # nothing was built
    assert rows_of(opened.search(queries, 20)) == rows_of(built.search(queries, 20))
    changed = vectors.copy()
    changed[-1] += 1
    for others, settings in ((changed, {}), (vectors, {"seed": 1}), (vectors, {"storage": "int8"})):
        FaissSearch(others, kind="ivf", folder=tmp_path, **settings)
    assert len(list(tmp_path.iterdir())) == 5


@pytest.mark.parametrize("damage", [lambda data: data[:1_000], lambda data: data[:-99] + bytes(99)])
def test_a_damaged_file_is_built_again(vectors, queries, tmp_path, damage):
    built = FaissSearch(vectors[:500], kind="flat", folder=tmp_path)
    (path,) = tmp_path.iterdir()
    expected, content = rows_of(built.search(queries, 20)), path.read_bytes()
    other = path.with_name("other.faiss")
    other.write_bytes(damage(content))
    other.replace(path)
    opened = FaissSearch(vectors[:500], kind="flat", folder=tmp_path)
    assert rows_of(opened.search(queries, 20)) == expected
    assert path.read_bytes() == content


def test_a_file_that_faiss_cannot_read_is_named(vectors, tmp_path):
    FaissSearch(vectors[:500], kind="flat", folder=tmp_path)
    (path,) = tmp_path.iterdir()
    content = b"of another version of FAISS"
    new = path.with_name(f"{path.stem.rpartition('-')[0]}-{blake2b(content, digest_size=8).hexdigest()}.faiss")
    path.unlink()
    new.write_bytes(content)
    with pytest.raises(InputError, match=rf"{new.name}: FAISS cannot read this file. Delete it"):
        FaissSearch(vectors[:500], kind="flat", folder=tmp_path)


def test_threads_find_the_same(queries, search):
    with ThreadPoolExecutor(1, initializer=faiss.omp_set_num_threads, initargs=(1,)) as thread:
        alone = rows_of(thread.submit(search.search, queries, 20).result())
    with ThreadPoolExecutor(4, initializer=faiss.omp_set_num_threads, initargs=(3,)) as threads:
        for found in threads.map(lambda _: search.search(queries, 20), range(8)):
            assert rows_of(found) == alone


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "lsh"}, "`kind` must be one of .*, got 'lsh'"),
        ({"storage": "int4"}, "`storage` must be one of .*, got 'int4'"),
        ({"effort": 0}, "`effort` must be a positive number, got 0"),
        ({"seed": -1}, "`seed` must be a nonnegative integer, got -1"),
    ],
)
def test_unusable_settings_are_refused(vectors, settings, message):
    with pytest.raises(InputError, match=message):
        FaissSearch(vectors, **settings)


def test_unusable_vectors_and_requests_are_refused(vectors, hnsw):
    broken = vectors[:10].copy()
    broken[3, 3] = np.nan
    with pytest.raises(InputError, match="`vectors` must be finite"):
        FaissSearch(broken)
    with pytest.raises(InputError, match="at least one vector"):
        FaissSearch(vectors[:0])
    with pytest.raises(InputError, match="`queries` must be finite"):
        hnsw.search(np.full((1, DIM), np.inf), 3)
    with pytest.raises(InputError, match=r"must have shape \(queries, 20\), got \(1, 7\)"):
        hnsw.search(np.ones((1, 7)), 3)
    with pytest.raises(InputError, match=r"`exclude` must hold one array of rows per query \(1\), got 2"):
        hnsw.search(np.ones((1, DIM)), 3, exclude=[np.array([1]), np.array([2])])
    with pytest.raises(InputError, match=rf"`allowed` must hold one value per item \({ROWS}\), got 3"):
        hnsw.search(np.ones((1, DIM)), 3, allowed=np.ones(3, np.bool_))


@pytest.mark.parametrize(
    ("module", "code", "extra"),
    [
        ("faiss", "ck.FaissSearch(np.ones((2, 2), np.float32))", "faiss"),
        ("psycopg", "ck.vectors.PgTable('postgresql://nowhere', 'items')", "pgvector"),
    ],
)
def test_a_store_that_is_not_installed_says_which_extra_brings_it(module, code, extra):
    script = (
        f"import sys; sys.modules[{module!r}] = None\n"
        f"import crossknn as ck, numpy as np\n"
        f"try:\n    {code}\nexcept ck.errors.MissingExtra as error:\n    print(error)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip().endswith(f"pip install 'crossknn[{extra}]'")
