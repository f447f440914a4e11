"""For users' own tests: contract checks for every protocol, and a scorer that answers from a matrix.

Each `check_*` raises `AssertionError` with a sentence that says which promise was broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import count, islice
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crossknn.errors import InputError
from crossknn.types import (
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
    Vectors,
    VectorSearch,
)

__all__ = ["MatrixScorer", "check_encoder", "check_engine", "check_retriever", "check_scorer", "check_vector_search"]


class MatrixScorer:
    """A scorer that answers from a matrix of known scores and counts what it was asked.

    `queries` and `items` are the texts of the rows and columns; without them the texts are
    "query 0", "query 1", … and "item 0", "item 1", … `fingerprint` is that of the scorer whose scores these are;
    without `record` nothing is counted.
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
            raise InputError(f"matrix must have two dimensions. Got {self.matrix.ndim} instead.")
        self.queries = _names("query", queries, self.matrix.shape[0])
        self.items = _names("item", items, self.matrix.shape[1])
        self._query_rows = {text: row for row, text in enumerate(self.queries)}
        self._item_rows = {text: row for row, text in enumerate(self.items)}
        self._fingerprint, self._record = fingerprint, record
        self.asked: list[tuple[int, int]] = []  # every pair scored so far, in order
        self.batches: list[int] = []  # how many pairs each call of `score` brought

    @property
    def fingerprint(self) -> str:
        if self._fingerprint is not None:
            return self._fingerprint
        texts = "\0".join([*self.queries, *self.items]).encode()
        return f"matrix:{blake2b(self.matrix.tobytes() + texts, digest_size=16).hexdigest()}"

    @property
    def calls(self) -> int:
        """How many pairs were scored so far."""
        return len(self.asked)

    def score(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        known = self._query_rows, self._item_rows
        try:
            pairs = [(known[0][query], known[1][item]) for query, item in zip(queries, items, strict=True)]
        except KeyError as error:
            raise InputError(f"the matrix has no scores of the text {error.args[0]!r}.") from None
        if self._record:
            self.asked += pairs
            self.batches.append(len(pairs))
        if not pairs:
            return np.empty(0, np.float32)
        rows, columns = np.array(pairs).T
        scores: Scores = self.matrix[rows, columns]
        return scores


def _names(kind: str, given: Sequence[str] | None, count: int) -> list[str]:
    names = [f"{kind} {row}" for row in range(count)] if given is None else list(given)
    if len(names) != count or len(set(names)) != count:
        raise InputError(f"{kind} texts must be {count} distinct strings, one per row or column of the matrix.")
    return names


def check_scorer(scorer: Scorer, queries: Sequence[str], items: Sequence[str], *, tolerance: float = 1e-4) -> None:
    """Hold `scorer` to its contract on every pair of these queries and items (at least two of each)."""
    _want(len(queries) >= 2 and len(items) >= 2, "check_scorer needs at least two queries and two items")
    _want(isinstance(scorer.fingerprint, str) and bool(scorer.fingerprint), "fingerprint must be a non-empty string")
    _want(scorer.fingerprint == scorer.fingerprint, "fingerprint must not change between reads")
    left = [query for query in queries for _ in items]
    right = [item for _ in queries for item in items]
    scores = scorer.score(left, right)
    _want(isinstance(scores, np.ndarray) and scores.dtype == np.float32, "scores must be a float32 numpy array")
    _want(scores.shape == (len(left),), f"scores must have shape ({len(left)},), got {scores.shape}")
    _want(bool(np.isfinite(scores).all()), "scores must be finite")
    _want(len(np.unique(scores)) > 1, "scores must tell pairs apart: every pair got the same score")
    _want(scorer.score([], []).shape == (0,), "no pairs must give no scores")
    reverse = scorer.score(left[::-1], right[::-1])[::-1]
    _want_close(reverse, scores, tolerance, "order must be kept: the reversed pairs got other scores")
    single = np.concatenate([scorer.score([q], [i]) for q, i in zip(left, right, strict=True)])
    _want_close(single, scores, tolerance, "a pair's score must not depend on the pairs beside it")
    twice = scorer.score([left[0], left[0]], [right[0], right[0]])
    _want_close(twice, scores[[0, 0]], tolerance, "a repeated pair must be scored twice, alike")


def check_encoder(encoder: Encoder, texts: Sequence[str], *, tolerance: float = 1e-4) -> None:
    """Hold `encoder` to its contract on these texts (at least two different ones)."""
    _want(len(set(texts)) >= 2, "check_encoder needs at least two different texts")
    _want(isinstance(encoder.fingerprint, str) and bool(encoder.fingerprint), "fingerprint must be a non-empty string")
    dims = set()
    for encode in (encoder.encode_queries, encoder.encode_items):
        vectors = encode(texts)
        _want(isinstance(vectors, np.ndarray) and vectors.dtype == np.float32, "vectors must be a float32 numpy array")
        _want(vectors.ndim == 2 and len(vectors) == len(texts), f"vectors must have shape ({len(texts)}, dim)")
        _want(bool(np.isfinite(vectors).all()), "vectors must be finite")
        _want_close(encode(texts[::-1])[::-1], vectors, tolerance, "order must be kept")
        _want_close(encode(texts[:1]), vectors[:1], tolerance, "a text's vector must not depend on the texts beside it")
        dims.add(vectors.shape[1])
        dims.add(encode([]).shape[1])
    _want(len(dims) == 1, f"queries and items must have the same dimension, also when there are none. Got {dims}")


def check_retriever(retriever: Retriever, queries: Sequence[str], n_items: int) -> None:
    """Hold a fitted `retriever` over `n_items` items to its contract."""
    _want(isinstance(retriever.name, str) and bool(retriever.name), "name must be a non-empty string")
    _want(retriever.retrieve([], 3) == [], "no queries must give no proposals")
    for n in (1, min(3, n_items), n_items, n_items + 5):
        proposals = retriever.retrieve(queries, n)
        _check_proposals(proposals, len(queries), n, np.ones(n_items, np.bool_))
        single = [retriever.retrieve([query], n)[0] for query in queries]
        _want(_same_rows(single, proposals), "a query's rows must not depend on the queries beside it")
        longest = [p.first(n) for p in retriever.retrieve(queries, n_items)]
        _want(_same_rows(longest, proposals), "the best n rows must be the first n of a longer list")
    allowed = np.arange(n_items) % 2 == 1
    _check_proposals(retriever.retrieve(queries, n_items, allowed=allowed), len(queries), n_items, allowed)
    nothing = retriever.retrieve(queries, n_items, allowed=np.zeros(n_items, np.bool_))
    _want(all(len(p) == 0 for p in nothing), "nothing may be proposed where nothing is allowed")


def check_vector_search(search: VectorSearch, vectors: NDArray[Any], *, tolerance: float = 1e-3) -> None:
    """Hold an exact `search` over `vectors` (items, dim) to its contract."""
    vectors = np.asarray(vectors, np.float32)
    n_items = len(vectors)
    _want(len(search) == n_items and search.dim == vectors.shape[1], "len() and dim must be those of the vectors")
    _want_close(search.take(np.array([n_items - 1, 0])), vectors[[n_items - 1, 0]], tolerance, "take must keep order")
    queries = vectors[: min(4, n_items)]
    truth = queries @ vectors.T
    _want_close(search.estimates(queries), truth, tolerance, "estimates must be the inner products")
    everything = np.ones(n_items, np.bool_)
    for n in (1, n_items, n_items + 3):
        proposals = search.search(queries, n)
        _check_proposals(proposals, len(queries), n, everything)
        for proposal, wanted in zip(proposals, truth, strict=True):
            _want(len(proposal) == min(n, n_items), "as many rows as asked for, where there are that many")
            best = np.sort(wanted)[::-1][: len(proposal)]
            _want_close(proposal.estimates, best, tolerance, "the rows of largest inner product must come first")
            _want_close(wanted[proposal.rows], proposal.estimates, tolerance, "estimates must belong to their rows")
    allowed = np.arange(n_items) % 2 == 0
    exclude: list[Rows] = [np.array([0, n_items - 1], np.int64) for _ in queries]
    left = allowed.copy()
    left[[0, n_items - 1]] = False
    for proposal in search.search(queries, n_items, exclude=exclude, allowed=allowed):
        _want(sorted(proposal.rows) == list(np.flatnonzero(left)), "all rows allowed and not excluded, and no others")
    if isinstance(search, CandidateSearch):
        _check_apart(search, queries, truth, allowed, exclude, tolerance)
    _want(search.search(np.empty((0, search.dim), np.float32), 3) == [], "no queries must give no proposals")


def _check_apart(
    search: CandidateSearch, queries: Vectors, truth: Scores, allowed: Mask, exclude: list[Rows], tolerance: float
) -> None:
    """What is apart has its products, allowed or not, and is not found."""
    n_items = truth.shape[1]
    apart: list[Rows] = [np.arange(number, n_items, 3) for number in range(len(queries))]
    found, products = search.search_with_candidates(queries, n_items, apart, exclude=exclude, allowed=allowed)
    for proposal, rows, mine, wanted in zip(found, apart, products, truth, strict=True):
        _want_close(mine, wanted[rows], tolerance, "products must be those of the rows that are apart, in their order")
        left = np.setdiff1d(np.flatnonzero(allowed), np.concatenate([rows, exclude[0]]))
        _want(sorted(proposal.rows) == list(left), "rows that are apart must not be found, and all others must")


def check_engine(engine: Engine, scorer: Scorer, queries: Sequence[str], items: Sequence[str]) -> None:
    """Hold `engine` to its contract, with jobs that score every item for one of these queries (at least two)."""
    _want(len(queries) >= 2, "check_engine needs at least two queries")
    engine.check(scorer)
    _want(list(engine.run(_score, scorer, [])) == [], "no jobs must give no results")
    jobs: list[Job] = [(7 * number, (query, list(items))) for number, query in enumerate(queries)]
    found = list(engine.run(_score, scorer, jobs))
    _want(sorted(number for number, _ in found) == [number for number, _ in jobs], "every job must be done once")
    for number, scores in found:
        wanted = _score(scorer, *dict(jobs)[number])
        _want(bool(np.array_equal(scores, wanted)), "a result must be that of its job, and the same as in this process")
    _check_taking(engine, scorer, jobs[0][1])
    error = None
    try:
        list(engine.run(_fail, scorer, jobs))
    except Exception as raised:
        error = raised
    _want(type(error) is ArithmeticError and str(error) == scorer.fingerprint, "an error must be raised as it is")


def _check_taking(engine: Engine, scorer: Scorer, arguments: tuple[Any, ...]) -> None:
    """Of jobs without end only some are taken, and there may be an end at any time."""
    taken = 0

    def endless() -> Iterator[Job]:
        nonlocal taken
        for number in count():
            taken += 1
            yield number, arguments

    results = engine.run(_score, scorer, endless())
    _want(len(list(islice(results, 3))) == 3, "results must come while there are jobs left")
    results.close()
    before = taken
    _want(before < 10_000, "jobs must be taken as there is room for them")
    _want(list(results) == [] and taken == before, "a closed engine must not go on")


def _score(scorer: Scorer, query: str, items: list[str]) -> Scores:
    return scorer.score([query] * len(items), items)


def _fail(scorer: Scorer, *_: object) -> None:
    raise ArithmeticError(scorer.fingerprint)


def _check_proposals(proposals: list[Proposal], queries: int, n: int, allowed: NDArray[np.bool_]) -> None:
    _want(len(proposals) == queries, f"one proposal per query: wanted {queries}, got {len(proposals)}")
    for proposal in proposals:
        rows, estimates = proposal.rows, proposal.estimates
        _want(rows.dtype == np.int64 and estimates.dtype == np.float32, "rows must be int64 and estimates float32")
        _want(rows.shape == estimates.shape and rows.ndim == 1, "rows and estimates must be flat and pair up")
        _want(len(rows) <= n, f"at most {n} rows, got {len(rows)}")
        _want(len(set(rows.tolist())) == len(rows), "rows must be distinct")
        _want(not len(rows) or (rows.min() >= 0 and rows.max() < len(allowed)), "rows must be rows of the items")
        _want(bool(allowed[rows].all()), "only allowed rows may be proposed")
        _want(bool((np.diff(estimates) <= 0).all()), "rows must come best first")
        _want(bool(np.isfinite(estimates).all()), "estimates must be finite")


def _same_rows(left: list[Proposal], right: list[Proposal]) -> bool:
    return all(np.array_equal(a.rows, b.rows) for a, b in zip(left, right, strict=True))


def _want(held: bool, promise: str) -> None:
    if not held:
        raise AssertionError(promise)


def _want_close(got: NDArray[Any], wanted: NDArray[Any], tolerance: float, promise: str) -> None:
    _want(got.shape == wanted.shape and bool(np.allclose(got, wanted, rtol=tolerance, atol=tolerance)), promise)
