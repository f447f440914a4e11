"""Contract checks for every protocol, for users' own tests, and a scorer that looks scores up in a matrix.

Each `check_*` raises `AssertionError` with a sentence that names the violated requirement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crossknn.errors import InputError
from crossknn.scorers.base import has_ascore
from crossknn.types import (
    AugmentableSearch,
    CandidateSearch,
    Encoder,
    Engine,
    Job,
    Mask,
    Proposal,
    Retriever,
    Rows,
    Scorer,
    Scores,
    Store,
    Vectors,
    VectorSearch,
)

if TYPE_CHECKING:
    from crossknn.items.items import Items

__all__ = [
    "MatrixScorer",
    "check_encoder",
    "check_engine",
    "check_retriever",
    "check_scorer",
    "check_store",
    "check_vector_search",
]


class MatrixScorer:
    """A scorer that looks scores up in a matrix, (queries, items), and records its calls.

    Args:
        queries: The texts of the rows. Default: "query 0", "query 1", …
        items: The texts of the columns. Default: "item 0", "item 1", …
        fingerprint: That of the scorer whose scores these are. Default: a hash of matrix and texts.

    Attributes:
        pairs: Every pair scored so far, in order, as row and column of the matrix.
        batches: The number of pairs of each call of `score`.
    """

    def __init__(
        self,
        matrix: ArrayLike,
        *,
        queries: Sequence[str] | None = None,
        items: Sequence[str] | None = None,
        fingerprint: str | None = None,
        record: bool = True,
    ) -> None:
        self.matrix = np.asarray(matrix, dtype=np.float32)  # (queries, items)
        if self.matrix.ndim != 2:
            raise InputError(f"`matrix` must have two dimensions, got {self.matrix.ndim}.")
        self.queries = _names("query", queries, self.matrix.shape[0])
        self.items = _names("item", items, self.matrix.shape[1])
        self._query_rows = {text: row for row, text in enumerate(self.queries)}
        self._item_rows = {text: row for row, text in enumerate(self.items)}
        self._fingerprint, self._record = fingerprint, record
        self.pairs: list[tuple[int, int]] = []
        self.batches: list[int] = []

    @property
    def fingerprint(self) -> str:
        if self._fingerprint is not None:
            return self._fingerprint
        texts = "\0".join([*self.queries, *self.items]).encode()
        return f"matrix:{blake2b(self.matrix.tobytes() + texts, digest_size=16).hexdigest()}"

    @property
    def calls(self) -> int:
        """The number of pairs scored so far."""
        return len(self.pairs)

    def score(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        rows_of, columns_of = self._query_rows, self._item_rows
        try:
            pairs = [(rows_of[query], columns_of[item]) for query, item in zip(queries, items, strict=True)]
        except KeyError as error:
            raise InputError(f"The matrix has no scores for the text {error.args[0]!r}.") from None
        if self._record:
            self.pairs += pairs
            self.batches.append(len(pairs))
        if not pairs:
            return np.empty(0, np.float32)
        rows, columns = np.array(pairs).T
        scores: Scores = self.matrix[rows, columns]
        return scores


def _names(kind: str, given: Sequence[str] | None, count: int) -> list[str]:
    names = [f"{kind} {row}" for row in range(count)] if given is None else list(given)
    if len(names) != count or len(set(names)) != count:
        raise InputError(f"The {kind} texts must be {count} distinct strings, one per row or column of the matrix.")
    return names


def check_scorer(scorer: Scorer, queries: Sequence[str], items: Sequence[str], *, tolerance: float = 1e-4) -> None:
    """Check the contract of a scorer on every pair of these queries and items (at least two of each)."""
    _check(len(queries) >= 2 and len(items) >= 2, "check_scorer needs at least two queries and two items")
    _check(isinstance(scorer.fingerprint, str) and bool(scorer.fingerprint), "fingerprint must be a nonempty string")
    _check(scorer.fingerprint == scorer.fingerprint, "fingerprint must not change between reads")
    left = [query for query in queries for _ in items]
    right = [item for _ in queries for item in items]
    scores = scorer.score(left, right)
    _check(isinstance(scores, np.ndarray) and scores.dtype == np.float32, "scores must be a float32 numpy array")
    _check(scores.shape == (len(left),), f"scores must have shape ({len(left)},), got {scores.shape}")
    _check(bool(np.isfinite(scores).all()), "scores must be finite")
    _check(len(np.unique(scores)) > 1, "different pairs must have different scores: every pair got the same score")
    _check(scorer.score([], []).shape == (0,), "no pairs must give no scores")
    reverse = scorer.score(left[::-1], right[::-1])[::-1]
    _check_close(reverse, scores, tolerance, "order must be kept: the reversed pairs got other scores")
    single = np.concatenate([scorer.score([q], [i]) for q, i in zip(left, right, strict=True)])
    _check_close(single, scores, tolerance, "a pair's score must not depend on the other pairs")
    twice = scorer.score([left[0], left[0]], [right[0], right[0]])
    _check_close(twice, scores[[0, 0]], tolerance, "a repeated pair must get the same score twice")
    if has_ascore(scorer):
        awaited = asyncio.run(_await_twice(scorer, left, right))
        _check_close(awaited, np.concatenate([scores, scores]), tolerance, "`ascore` must return what `score` does")


async def _await_twice(scorer: Any, queries: Sequence[str], items: Sequence[str]) -> Scores:
    """The scores of two calls at the same time."""
    return np.concatenate(await asyncio.gather(*(scorer.ascore(queries, items) for _ in range(2))))


def check_encoder(encoder: Encoder, texts: Sequence[str], *, tolerance: float = 1e-4) -> None:
    """Check the contract of an encoder on these texts (at least two different ones)."""
    _check(len(set(texts)) >= 2, "check_encoder needs at least two different texts")
    _check(isinstance(encoder.fingerprint, str) and bool(encoder.fingerprint), "fingerprint must be a nonempty string")
    dims = set()
    for encode in (encoder.encode_queries, encoder.encode_items):
        vectors = encode(texts)
        _check(isinstance(vectors, np.ndarray) and vectors.dtype == np.float32, "vectors must be a float32 numpy array")
        _check(vectors.ndim == 2 and len(vectors) == len(texts), f"vectors must have shape ({len(texts)}, dim)")
        _check(bool(np.isfinite(vectors).all()), "vectors must be finite")
        _check_close(encode(texts[::-1])[::-1], vectors, tolerance, "order must be kept")
        _check_close(encode(texts[:1]), vectors[:1], tolerance, "a text's vector must not depend on the other texts")
        dims.add(vectors.shape[1])
        dims.add(encode([]).shape[1])
    _check(len(dims) == 1, f"queries and items must have the same dimension, also for no texts, got {dims}")


def check_retriever(retriever: Retriever, queries: Sequence[str], n_items: int) -> None:
    """Check the contract of a fitted retriever over `n_items` items."""
    _check(isinstance(retriever.name, str) and bool(retriever.name), "name must be a nonempty string")
    _check(retriever.retrieve([], 3) == [], "no queries must give no proposals")
    for n in (1, min(3, n_items), n_items, n_items + 5):
        proposals = retriever.retrieve(queries, n)
        _check_proposals(proposals, len(queries), n, np.ones(n_items, np.bool_))
        single = [retriever.retrieve([query], n)[0] for query in queries]
        _check(_same_rows(single, proposals), "a query's rows must not depend on the other queries")
        longest = [p.first(n) for p in retriever.retrieve(queries, n_items)]
        _check(_same_rows(longest, proposals), "the best n rows must be the first n of a longer list")
    allowed = np.arange(n_items) % 2 == 1
    _check_proposals(retriever.retrieve(queries, n_items, allowed=allowed), len(queries), n_items, allowed)
    nothing = retriever.retrieve(queries, n_items, allowed=np.zeros(n_items, np.bool_))
    _check(all(len(p) == 0 for p in nothing), "nothing may be proposed where nothing is allowed")


def check_vector_search(search: VectorSearch, vectors: NDArray[Any], *, tolerance: float = 1e-3) -> None:
    """Check the contract of an exact search over `vectors` (items, dim)."""
    vectors = np.asarray(vectors, np.float32)
    n_items = len(vectors)
    _check(len(search) == n_items and search.dim == vectors.shape[1], "len() and dim must be those of the vectors")
    _check_close(search.take(np.array([n_items - 1, 0])), vectors[[n_items - 1, 0]], tolerance, "take must keep order")
    queries = vectors[: min(4, n_items)]
    truth = queries @ vectors.T
    _check_close(search.estimates(queries), truth, tolerance, "estimates must be the inner products")
    everything = np.ones(n_items, np.bool_)
    for n in (1, n_items, n_items + 3):
        proposals = search.search(queries, n)
        _check_proposals(proposals, len(queries), n, everything)
        for proposal, products in zip(proposals, truth, strict=True):
            _check(len(proposal) == min(n, n_items), "n rows must be found, or all if there are fewer")
            best = np.sort(products)[::-1][: len(proposal)]
            _check_close(proposal.estimates, best, tolerance, "the rows of largest inner product must come first")
            _check_close(products[proposal.rows], proposal.estimates, tolerance, "estimates must match their rows")
    allowed = np.arange(n_items) % 2 == 0
    exclude: list[Rows] = [np.array([0, n_items - 1], np.int64) for _ in queries]
    left = allowed.copy()
    left[[0, n_items - 1]] = False
    for proposal in search.search(queries, n_items, exclude=exclude, allowed=allowed):
        _check(
            sorted(proposal.rows) == list(np.flatnonzero(left)),
            "all rows allowed and not excluded must be found, and no others",
        )
    if isinstance(search, CandidateSearch):
        _check_candidates(search, queries, truth, allowed, exclude, tolerance)
    _check(search.search(np.empty((0, search.dim), np.float32), 3) == [], "no queries must give no proposals")


def _check_candidates(
    search: CandidateSearch, queries: Vectors, truth: Scores, allowed: Mask, exclude: list[Rows], tolerance: float
) -> None:
    n_items = truth.shape[1]
    candidates: list[Rows] = [np.arange(number, n_items, 3) for number in range(len(queries))]
    found, products = search.search_with_candidates(queries, n_items, candidates, exclude=exclude, allowed=allowed)
    for proposal, rows, own, expected in zip(found, candidates, products, truth, strict=True):
        _check_close(own, expected[rows], tolerance, "products must be those of the candidates, in their order")
        left = np.setdiff1d(np.flatnonzero(allowed), np.concatenate([rows, exclude[0]]))
        _check(sorted(proposal.rows) == list(left), "candidates must not be found, and all other rows must")


def check_store(
    store: VectorSearch,
    items: Items,
    vectors: NDArray[Any],
    *,
    filters: Sequence[Mapping[str, Any]] = (),
    tolerance: float = 1e-3,
) -> None:
    """Check the contract of a store that holds these items with `vectors` (items, dim) and searches them exactly.

    The store may have them in another order. It may also be a `VectorSearch` without items, such as `FaissSearch`: then
    `items` are those that are kept beside it.

    Args:
        filters: Conditions on the items' fields, which every search of the store must obey.
    """
    own = store.items if isinstance(store, Store) else items
    _check(sorted(own.ids) == sorted(items.ids), "the store must have the items, and no others")
    order = items.rows_of(own.ids)
    vectors = np.asarray(vectors, np.float32)[order]
    check_vector_search(store, vectors, tolerance=tolerance)
    rows = np.array([len(own) - 1, 0, len(own) // 2, 0])
    _check(own.texts_of(rows) == items.texts_of(order[rows]), "texts must be those of their rows, in the order given")
    for got, given in zip(own.fields_of(rows), items.fields_of(order[rows]), strict=True):
        _check(got == given, f"fields must be those of their rows: {got} instead of {given}")
    truth = vectors @ vectors[0]
    for condition in filters:
        allowed = own.mask(condition)
        _check(np.array_equal(allowed, items.mask(condition)[order]), f"{condition} must hold for the same items")
        best = int(np.argmax(np.where(allowed, truth, -np.inf)))
        for hidden in ([], [best]):
            left = np.setdiff1d(np.flatnonzero(allowed), hidden)
            for n in (min(3, len(own)), len(own)):
                excluded = [np.array(hidden, np.int64)]
                found = store.search(vectors[:1], n, exclude=excluded, allowed=allowed)[0]
                expected = np.sort(truth[left])[::-1][:n]
                _check(bool(np.isin(found.rows, left).all()), f"only rows that meet {condition} may be found")
                _check_close(found.estimates, expected, tolerance, f"the best rows that meet {condition} must be found")
    if isinstance(store, AugmentableSearch):
        columns = np.linspace(-1, 1, 2 * len(own), dtype=np.float32).reshape(-1, 2)
        _check_columns(store.with_columns(columns), np.concatenate([vectors, columns], axis=1), tolerance)


def _check_columns(augmented: VectorSearch, vectors: Vectors, tolerance: float) -> None:
    """A store that cannot hold columns may miss rows, so that all are asked for."""
    _check(augmented.dim == vectors.shape[1], "with_columns must add dimensions")
    _check_close(augmented.take(np.array([2, 1])), vectors[[2, 1]], tolerance, "columns must come behind the vectors")
    found = augmented.search(vectors[:2], len(vectors))
    for proposal, products in zip(found, vectors[:2] @ vectors.T, strict=True):
        _check(len(proposal) == len(vectors), "with columns all rows must be found")
        _check_close(products[proposal.rows], proposal.estimates, tolerance, "columns must count in inner products")


def check_engine(engine: Engine, scorer: Scorer, queries: Sequence[str], items: Sequence[str]) -> None:
    """Check the contract of an engine, with jobs that score every item for one of these queries (at least two)."""
    _check(len(queries) >= 2, "check_engine needs at least two queries")
    engine.check(scorer)
    _check(list(engine.run(_score, scorer, [])) == [], "no jobs must give no results")
    jobs: list[Job] = [(7 * number, (query, list(items))) for number, query in enumerate(queries)]
    found = list(engine.run(_score, scorer, jobs))
    _check(sorted(number for number, _ in found) == [number for number, _ in jobs], "every job must be done once")
    for number, scores in found:
        expected = _score(scorer, *dict(jobs)[number])
        _check(bool(np.array_equal(scores, expected)), "a job's result must be the same as in this process")
    _check_lazy_jobs(engine, scorer, jobs[0][1])
    error = None
    try:
        list(engine.run(_fail, scorer, jobs))
    except Exception as raised:
        error = raised
    _check(type(error) is ArithmeticError and str(error) == scorer.fingerprint, "an error must be raised unchanged")


def _check_lazy_jobs(engine: Engine, scorer: Scorer, arguments: tuple[Any, ...]) -> None:
    """Endless jobs are consumed as needed, until the generator is closed."""
    consumed = 0

    def endless() -> Iterator[Job]:
        nonlocal consumed
        for number in count():
            consumed += 1
            yield number, arguments

    results = engine.run(_score, scorer, endless())
    _check(len(list(islice(results, 3))) == 3, "results must come while there are jobs left")
    results.close()
    before = consumed
    _check(before < 10_000, "jobs must be consumed lazily")
    _check(list(results) == [] and consumed == before, "a closed engine must stop")


def _score(scorer: Scorer, query: str, items: list[str]) -> Scores:
    return scorer.score([query] * len(items), items)


def _fail(scorer: Scorer, *_: object) -> None:
    raise ArithmeticError(scorer.fingerprint)


def _check_proposals(proposals: list[Proposal], queries: int, n: int, allowed: NDArray[np.bool_]) -> None:
    _check(len(proposals) == queries, f"there must be one proposal per query ({queries}), got {len(proposals)}")
    for proposal in proposals:
        rows, estimates = proposal.rows, proposal.estimates
        _check(rows.dtype == np.int64 and estimates.dtype == np.float32, "rows must be int64 and estimates float32")
        _check(
            rows.shape == estimates.shape and rows.ndim == 1,
            "rows and estimates must be one-dimensional and equally long",
        )
        _check(len(rows) <= n, f"at most {n} rows, got {len(rows)}")
        _check(len(set(rows.tolist())) == len(rows), "rows must be distinct")
        _check(not len(rows) or (rows.min() >= 0 and rows.max() < len(allowed)), "rows must be rows of the items")
        _check(bool(allowed[rows].all()), "only allowed rows may be proposed")
        _check(bool((np.diff(estimates) <= 0).all()), "rows must come best first")
        _check(bool(np.isfinite(estimates).all()), "estimates must be finite")


def _same_rows(left: list[Proposal], right: list[Proposal]) -> bool:
    return all(np.array_equal(a.rows, b.rows) for a, b in zip(left, right, strict=True))


def _check(holds: bool, requirement: str) -> None:
    if not holds:
        raise AssertionError(requirement)


def _check_close(got: NDArray[Any], expected: NDArray[Any], tolerance: float, requirement: str) -> None:
    close = got.shape == expected.shape and bool(np.allclose(got, expected, rtol=tolerance, atol=tolerance))
    _check(close, requirement)
