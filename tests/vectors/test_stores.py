"""Every vector store: the same contract, and whole searches that find about what they find with exact search."""

from functools import partial
from itertools import count

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.items.items import Items
from crossknn.strategies.axn import Axn
from crossknn.strategies.exact import Exact
from crossknn.strategies.posterior.strategy import Posterior
from crossknn.testing import check_store, check_vector_search
from crossknn.types import AugmentableSearch, VectorSearch
from crossknn.vectors import faiss
from crossknn.vectors.base import recall_against_exact
from crossknn.vectors.exact import ExactSearch
from crossknn.vectors.faiss import FaissSearch
from crossknn.vectors.postgres_table import PgTable
from tests.indexing.test_index import ALS, Setup
from tests.stores.world import FILTERS, ITEMS, VECTORS

FAISS = [f"faiss {kind} {storage}" for kind in faiss.KINDS for storage in faiss.CODES]
POSTGRES = ["pgvector float32", "pgvector float16", "pgvector hnsw"]
EXACT = {"exact", "faiss flat float32", "pgvector float32"}  # find what exact search finds
NUMBERS = count()


@pytest.fixture(params=["exact", *FAISS, *POSTGRES])
def name(request):
    return request.param


@pytest.fixture
def store(name, request, monkeypatch):
    """A function of an array that gives a search of it, which does not look at all rows just because there are few."""
    if name in FAISS:
        monkeypatch.setattr(faiss, "SCAN_COST", dict.fromkeys(faiss.KINDS, 0.0))  # FAISS is used for every query,
        monkeypatch.setattr(faiss, "TAKE_COST", 0.0)  # as if there were many items
        _, kind, storage = name.split()
        effort = 0.05 if kind == "ivf" else 1.0  # else all lists of so few items would be scanned
        return partial(FaissSearch, kind=kind, storage=storage, effort=effort)
    return partial(keep, request.getfixturevalue("postgres").url, name) if name in POSTGRES else ExactSearch


def keep(url, name, vectors, items=None):
    """Put vectors into a new table, and open it."""
    hnsw, storage = name.endswith("hnsw"), name.split()[1]
    items = items or Items([f"text {row}" for row in range(len(vectors))])
    table = PgTable.create(
        url,
        f"t{next(NUMBERS)}",
        items,
        vectors,
        metadata=items.fields_of(range(len(items))),
        storage=None if hnsw else storage,
    )
    if hnsw:
        table.add_hnsw()
    return table.open(ef_search=200 if hnsw else None)


def test_the_contract_of_stores(store):
    """Items stand beside a search in memory; PostgreSQL has them, and their metadata."""
    search = store(VECTORS, ITEMS) if isinstance(store, partial) and store.func is keep else store(VECTORS)
    if isinstance(search, FaissSearch):
        search.effort = 20.0  # FAISS scans everything
    check_store(
        search, ITEMS, VECTORS.astype(np.float16) if "pgvector float16" in str(store) else VECTORS, filters=FILTERS
    )


def clustered(items, dim, seed=0):
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(0).normal(size=(20, dim))
    vectors = centers[rng.integers(0, 20, items)] + rng.normal(size=(items, dim))
    return vectors.astype(np.float16).astype(np.float32)


def test_contract(store):
    vectors, columns = clustered(600, 12), clustered(600, 3, seed=1)
    search = store(vectors)
    assert isinstance(search, VectorSearch)
    assert isinstance(search, AugmentableSearch)
    if isinstance(search, FaissSearch):
        search.effort = 20.0  # FAISS scans everything
    check_vector_search(search, vectors)
    check_vector_search(search.with_columns(columns[:, :1], columns[:, 1:]), np.concatenate([vectors, columns], axis=1))


def test_recall_of_the_vectors_is_measured(name, store):
    vectors, queries = clustered(5_000, 24), clustered(20, 24, seed=1)
    recall = recall_against_exact(store(vectors), ExactSearch(vectors), queries, 50)
    assert recall.shape == (20,)
    assert recall.mean() == 1 if name in EXACT else 0.9 < recall.mean() <= 1


@pytest.fixture(scope="module")
def setup():
    return Setup(items=1_000, queries=40)


@pytest.fixture(scope="module")
def index(setup):
    """Vectors learned from scores, and a prior with further columns."""
    return setup.build(ALS, prior=True)


@pytest.mark.parametrize("strategy", [Axn(60, 6), Posterior(60, 6)], ids=repr)
def test_whole_searches_find_about_what_they_find_with_exact_search(name, store, setup, index, strategy):
    exact, other = setup.searcher(index), setup.searcher(index, store=store)
    truth = ids_of(exact.search_many(setup.new_queries, k=20, strategy=Exact()))
    expected, found = (ids_of(one.search_many(setup.new_queries, k=20, strategy=strategy)) for one in (exact, other))
    if name in EXACT:
        assert found == expected
    recall, usual = (
        np.mean([len(set(a) & set(b)) / 20 for a, b in zip(some, truth, strict=True)]) for some in (found, expected)
    )
    assert recall >= usual - 0.05


def ids_of(hits):
    return [one.ids for one in hits]


def test_a_store_must_make_a_search(setup):
    with pytest.raises(InputError, match=r"must make a VectorSearch from an array, it made ndarray"):
        setup.searcher(setup.items, vectors=np.ones((len(setup.items), 6), np.float32), store=np.asarray)
