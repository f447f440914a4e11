"""The base class of vector searches, and users' own searches, which need not derive from it."""

import numpy as np
import pytest
import torch

from crossknn.errors import InputError
from crossknn.testing import check_vector_search
from crossknn.types import CandidateSearch, Proposal, VectorSearch
from crossknn.vectors.base import AugmentedSearch, recall_against_exact, search_with_candidates
from crossknn.vectors.device import HostSearchAdapter, as_device_search
from crossknn.vectors.exact import ExactSearch
from crossknn.vectors.ranking import top_rows
from crossknn.vectors.sharded import ShardedSearch

RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(60, 6)).astype(np.float32)
QUERIES = RNG.normal(size=(3, 6)).astype(np.float32)
CANDIDATES = [np.array([5, 50, 7]), np.empty(0, np.int64), np.array([59])]
EXCLUDE = [np.array([1, 2]), np.array([3]), np.empty(0, np.int64)]


class OwnSearch:
    """A user's search: only what `VectorSearch` requires."""

    def __init__(self, vectors):
        self.vectors, self.dim = vectors, vectors.shape[1]

    def __len__(self):
        return len(self.vectors)

    def take(self, rows):
        return self.vectors[rows]

    def estimates(self, queries):
        return np.asarray(queries, np.float32) @ self.vectors.T

    def search(self, queries, n, *, exclude=None, allowed=None) -> list[Proposal]:
        scores = self.estimates(queries)
        for row, hidden in zip(scores, exclude or (), strict=False):
            row[hidden] = -np.inf
        return [top_rows(row, n, allowed) for row in scores]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.rows.tolist() == other.rows.tolist()
        np.testing.assert_allclose(one.estimates, other.estimates, rtol=1e-5)


def test_a_search_of_your_own_works_wherever_one_is_taken():
    own, exact = OwnSearch(VECTORS), ExactSearch(VECTORS)
    assert isinstance(own, VectorSearch)
    assert not isinstance(own, CandidateSearch)
    check_vector_search(own, VECTORS)
    check_vector_search(ShardedSearch([OwnSearch(VECTORS[:20]), OwnSearch(VECTORS[20:])]), VECTORS)
    check_vector_search(AugmentedSearch(OwnSearch(VECTORS[:, :4]), VECTORS[:, 4:]), VECTORS)
    found, products = search_with_candidates(own, QUERIES, 10, CANDIDATES, exclude=EXCLUDE, allowed=None)
    expected = exact.search_with_candidates(QUERIES, 10, CANDIDATES, exclude=EXCLUDE)
    assert_same(found, expected[0])
    for one, other in zip(products, expected[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_any_search_works_on_tensors():
    own, exact = as_device_search(OwnSearch(VECTORS)), as_device_search(ExactSearch(VECTORS))
    assert isinstance(own, HostSearchAdapter)
    assert isinstance(exact, ExactSearch)
    rows = torch.tensor([[5, 50, 7], [60, 60, 60], [59, 60, 60]])  # 60 is padding
    exclude = torch.tensor([[1, 2], [3, 60], [60, 60]])
    one, other = (
        search.with_candidates(rows).search(torch.from_numpy(QUERIES), 10, exclude=exclude, allowed=None)
        for search in (own, exact)
    )
    assert one.rows.tolist() == other.rows.tolist()
    torch.testing.assert_close(one.best, other.best)
    torch.testing.assert_close(one.products[rows < 60], other.products[rows < 60])
    torch.testing.assert_close(own.take_tensor(rows[0]), exact.take_tensor(rows[0]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"queries": QUERIES[:, :5]}, r"`queries` must have shape \(queries, 6\), got \(3, 5\)"),
        ({"queries": QUERIES[0]}, r"`queries` must have shape"),
        ({"queries": np.full((3, 6), np.inf)}, "`queries` must be finite"),
        ({"candidates": CANDIDATES[:2]}, r"`candidates` must hold one array of rows per query \(3\), got 2"),
        ({"exclude": EXCLUDE[:1]}, r"`exclude` must hold one array of rows per query \(3\), got 1"),
        ({"allowed": np.ones(59, np.bool_)}, r"`allowed` must hold one value per item \(60\), got 59"),
    ],
)
def test_arguments_are_checked(arguments, message):
    search = AugmentedSearch(ExactSearch(VECTORS[:, :4]), VECTORS[:, 4:])
    options = {"queries": QUERIES, "candidates": None, **arguments}
    with pytest.raises(InputError, match=message):
        search.search_with_candidates(options.pop("queries"), 3, options.pop("candidates"), **options)


def test_recall():
    exact = ExactSearch(np.eye(4, dtype=np.float32))
    query = np.array([[4, 3, 2, 1]], np.float32)
    damaged = ExactSearch(np.diag([1, 0, 1, 1]).astype(np.float32))  # finds rows 0 and 2, not 0 and 1
    assert recall_against_exact(damaged, exact, query, 2).tolist() == [0.5]
    assert recall_against_exact(exact, exact, query, 2).tolist() == [1.0]
    with pytest.raises(InputError, match="`n` must be a positive integer"):
        recall_against_exact(exact, exact, query, 0)
