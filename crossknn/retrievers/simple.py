"""Retrievers that learn nothing: random rows, and the user's own candidate lists."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from crossknn.errors import InputError
from crossknn.retrievers.base import check_fitted, check_name, check_request
from crossknn.types import EMPTY_PROPOSAL, Mask, Proposal, Rows

if TYPE_CHECKING:
    from crossknn.items.items import Items


class Random:
    """Uniformly random rows without replacement; the baseline that knows nothing.

    A query's rows depend on the seed, the query's text and which rows are allowed, never on the
    other queries. Every estimate is 0: there is no opinion behind the order.
    """

    def __init__(self, seed: int = 0, *, name: str = "random") -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise InputError(f"seed must be an integer of at least 0. Got {seed!r} instead.")
        self.seed = seed
        self.name = check_name(name)
        self.n_items: int | None = None

    def fit(self, items: Items) -> Self:
        self.n_items = len(items)
        return self

    def retrieve(self, queries: Sequence[str], n: int, *, allowed: Mask | None = None) -> list[Proposal]:
        n_items = check_fitted(self.n_items, self.name)
        check_request(n_items, queries, n, allowed)
        candidates = None if allowed is None else np.flatnonzero(allowed)
        count = n_items if candidates is None else len(candidates)
        proposals = []
        for query in queries:
            drawn = _draw_distinct(self._generator(query), count, min(n, count))
            rows = drawn if candidates is None else candidates[drawn]
            proposals.append(Proposal(rows, np.zeros(len(rows), np.float32)))
        return proposals

    def _generator(self, query: str) -> np.random.Generator:
        digest = blake2b(query.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        return np.random.default_rng([self.seed, int.from_bytes(digest, "little")])


def _draw_distinct(generator: np.random.Generator, count: int, n: int) -> Rows:
    """The first `n` places of a uniformly random order of `range(count)`, in O(n).

    The Fisher–Yates shuffle, remembering only the places that moved. Each place costs one draw, so
    that a shorter list is the beginning of a longer one.
    """
    moved: dict[int, int] = {}
    drawn = np.empty(n, np.int64)
    for place, share in enumerate(generator.random(n).tolist()):
        other = place + int(share * (count - place))
        drawn[place] = moved.get(other, other)
        moved[other] = moved.get(place, place)
    return drawn


Candidate = str | int | tuple[str | int, float]
Candidates = Sequence[Candidate]


class Given:
    """The user's own candidates: for each query's text a list of ids, or of (id, estimate) pairs.

    Plain ids keep their order and get the estimate 1/rank. Pairs are ordered by estimate, equal ones
    as listed. A query without a list proposes nothing, or is an error with `missing="error"`.
    """

    def __init__(
        self,
        candidates: Mapping[str, Candidates],
        *,
        name: str = "given",
        missing: Literal["empty", "error"] = "empty",
    ) -> None:
        if missing not in ("empty", "error"):
            raise InputError(f'missing must be "empty" or "error". Got {missing!r} instead.')
        if not isinstance(candidates, Mapping):
            raise InputError(
                f"candidates must map each query's text to a list of ids. Got {type(candidates).__name__} instead."
            )
        self.name = check_name(name)
        self.missing = missing
        self.n_items: int | None = None
        self._lists = {query: _read_list(query, listed) for query, listed in candidates.items()}
        self._proposals: dict[str, Proposal] = {}

    @classmethod
    def from_trec(
        cls,
        path: str | Path,
        *,
        queries: Mapping[str, str],
        name: str = "given",
        missing: Literal["empty", "error"] = "empty",
    ) -> Self:
        """Candidates from a TREC run file (`qid Q0 id rank score tag`), ordered by score.

        `queries` maps the query ids of the file to the queries' texts; each of the file's must be in it.
        """
        return cls(_read_trec(Path(path), queries), name=name, missing=missing)

    def fit(self, items: Items) -> Self:
        proposals = {}
        for query, listed in self._lists.items():
            ids = [id_ for id_, _ in listed]
            rows = items.rows_of(ids, missing="skip")
            if len(rows) != len(ids):
                unknown = next(id_ for id_ in ids if id_ not in items)
                raise InputError(f"the list of query {query!r} holds the id {unknown!r}, which is not among the items.")
            estimates = np.array([estimate for _, estimate in listed], np.float32)
            proposals[query] = Proposal(np.asarray(rows, np.int64), estimates)
        self._proposals = proposals
        self.n_items = len(items)
        return self

    def retrieve(self, queries: Sequence[str], n: int, *, allowed: Mask | None = None) -> list[Proposal]:
        check_request(check_fitted(self.n_items, self.name), queries, n, allowed)
        return [self._propose(query, n, allowed) for query in queries]

    def _propose(self, query: str, n: int, allowed: Mask | None) -> Proposal:
        found = self._proposals.get(query)
        if found is None and self.missing == "error":
            raise InputError(
                f'no candidates were given for the query {query!r}. missing="empty" would propose nothing.'
            )
        if found is None:
            return EMPTY_PROPOSAL
        if allowed is not None:
            kept = allowed[found.rows]
            found = Proposal(found.rows[kept], found.estimates[kept])
        return found.first(n)


def _read_list(query: str, listed: Candidates) -> list[tuple[str, float]]:
    """(id, estimate) pairs, best first."""
    if isinstance(listed, str):
        raise InputError(f"query {query!r}: the candidates must be a list of ids. Got the string {listed!r} instead.")
    pairs = [_read_candidate(query, place, candidate) for place, candidate in enumerate(listed, start=1)]
    if len({isinstance(candidate, str | int) for candidate in listed}) > 1:
        raise InputError(f"query {query!r}: the candidates must be all ids or all (id, estimate) pairs, not both.")
    seen: set[str] = set()
    for id_, _ in pairs:
        if id_ in seen:
            raise InputError(f"query {query!r}: the id {id_!r} is listed twice.")
        seen.add(id_)
    return sorted(pairs, key=lambda pair: -pair[1])  # stable: equal estimates keep the list's order


def _read_candidate(query: str, place: int, candidate: Candidate) -> tuple[str, float]:
    if isinstance(candidate, str | int):
        return str(candidate), 1 / place
    try:
        id_, value = candidate
        estimate = float(np.float32(value))
    except (TypeError, ValueError):
        id_, estimate = None, math.nan
    if not isinstance(id_, str | int) or not math.isfinite(estimate):
        raise InputError(
            f"query {query!r}: candidate {place} must be an id or an (id, finite estimate) pair. Got {candidate!r}."
        )
    return str(id_), estimate


def _read_trec(path: Path, queries: Mapping[str, str]) -> dict[str, list[tuple[str, float]]]:
    if len(set(queries.values())) != len(queries):
        raise InputError("queries must have different texts: candidates are looked up by text.")
    if not path.is_file():
        raise InputError(f"{path}: no such file.")
    lists: dict[str, list[tuple[str, float]]] = {}
    first_seen: dict[tuple[str, str], int] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            query_id, item_id, score = _read_trec_line(line, f"{path}:{number}")
            if query_id not in queries:
                raise InputError(f"{path}:{number}: the query id {query_id!r} is not among the queries given.")
            earlier = first_seen.setdefault((query_id, item_id), number)
            if earlier != number:
                raise InputError(
                    f"{path}:{number}: {item_id!r} is listed twice for {query_id!r}, first in line {earlier}."
                )
            lists.setdefault(queries[query_id], []).append((item_id, score))
    return lists


def _read_trec_line(line: str, place: str) -> tuple[str, str, float]:
    fields = line.split()
    if len(fields) != 6:
        raise InputError(f"{place}: wanted six fields, `qid Q0 id rank score tag`. Got {len(fields)} instead.")
    try:
        score = float(fields[4])
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{place}: the score must be a finite number. Got {fields[4]!r} instead.")
    return fields[0], fields[2], score
