"""Retrievers without a model: random rows, and the user's own candidate lists."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self

import numpy as np

from crossknn._checks import check_choice, check_seed
from crossknn.errors import InputError
from crossknn.retrievers.base import BaseRetriever
from crossknn.types import EMPTY_PROPOSAL, Mask, Proposal, Rows

if TYPE_CHECKING:
    from crossknn.items.items import Items


class Random(BaseRetriever):
    """Uniformly random rows without replacement, as a baseline; every estimate is 0.

    A query's rows depend on the seed, the query's text and the allowed rows, never on the other queries.
    """

    def __init__(self, seed: int = 0, *, name: str = "random") -> None:
        super().__init__(name)
        check_seed(seed)
        self.seed = seed

    def fit(self, items: Items) -> Self:
        self.n_items = len(items)
        return self

    def _retrieve(self, queries: Sequence[str], n: int, allowed: Mask | None) -> list[Proposal]:
        candidates = None if allowed is None else np.flatnonzero(allowed)
        count = self._fitted_items if candidates is None else len(candidates)
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
    """The first `n` elements of a uniformly random permutation of `range(count)`, in O(n).

    A sparse Fisher–Yates shuffle, which stores only the places that moved. Each place takes one draw, so that a shorter
    list is the beginning of a longer one.
    """
    moved: dict[int, int] = {}
    drawn = np.empty(n, np.int64)
    for place, fraction in enumerate(generator.random(n).tolist()):
        other = place + int(fraction * (count - place))
        drawn[place] = moved.get(other, other)
        moved[other] = moved.get(place, place)
    return drawn


ID_TYPES: Final = (str, int, np.integer)
Candidate = str | int | tuple[str | int, float]
Candidates = Sequence[Candidate]


class Given(BaseRetriever):
    """The user's own candidates.

    Args:
        candidates: By the query's text a list of ids, which keep their order and get the estimate 1/rank; or a list
            of (id, estimate) pairs, which are ordered by estimate, ties as listed.
        missing: Whether a query without a list has no candidates ("empty") or is an error ("error").
    """

    def __init__(
        self, candidates: Mapping[str, Candidates], *, name: str = "given", missing: Literal["empty", "error"] = "empty"
    ) -> None:
        super().__init__(name)
        check_choice("missing", missing, ("empty", "error"))
        if not isinstance(candidates, Mapping):
            found = type(candidates).__name__
            raise InputError(f"`candidates` must map each query's text to a list of ids, got {found}.")
        self.missing = missing
        self._lists = {query: read_list(query, listed) for query, listed in candidates.items()}
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

        `queries` maps the file's query ids to texts.
        """
        return cls(_read_trec(Path(path), queries), name=name, missing=missing)

    def fit(self, items: Items) -> Self:
        proposals = {}
        for query, listed in self._lists.items():
            ids = [id_ for id_, _ in listed]
            rows = items.rows_of(ids, missing="skip")
            if len(rows) != len(ids):
                unknown = next(id_ for id_ in ids if id_ not in items)
                raise InputError(f"Query {query!r}: the candidate {unknown!r} is not among the items.")
            estimates = np.array([estimate for _, estimate in listed], np.float32)
            proposals[query] = Proposal(np.asarray(rows, np.int64), estimates)
        self._proposals = proposals
        self.n_items = len(items)
        return self

    def _retrieve(self, queries: Sequence[str], n: int, allowed: Mask | None) -> list[Proposal]:
        return [self._propose(query, n, allowed) for query in queries]

    def _propose(self, query: str, n: int, allowed: Mask | None) -> Proposal:
        found = self._proposals.get(query)
        if found is None and self.missing == "error":
            raise InputError(f'There are no candidates for the query {query!r}. To allow this, use missing="empty".')
        if found is None:
            return EMPTY_PROPOSAL
        if allowed is not None:
            kept = allowed[found.rows]
            found = Proposal(found.rows[kept], found.estimates[kept])
        return found.first(n)


def read_list(query: str, listed: Candidates) -> list[tuple[str, float]]:
    """(id, estimate) pairs, best first."""
    if isinstance(listed, str | bytes | Mapping | set | frozenset):
        raise InputError(f"Query {query!r}: the candidates must be a list of ids, got {listed!r:.200}.")
    pairs = [_read_candidate(query, place, candidate) for place, candidate in enumerate(listed, start=1)]
    if len({isinstance(candidate, ID_TYPES) for candidate in listed}) > 1:
        raise InputError(f"Query {query!r}: the candidates must be all ids or all (id, estimate) pairs, not both.")
    seen: set[str] = set()
    for id_, _ in pairs:
        if id_ in seen:
            raise InputError(f"Query {query!r}: the id {id_!r} is listed twice.")
        seen.add(id_)
    return sorted(pairs, key=lambda pair: -pair[1])  # stable: equal estimates keep the list's order


def _read_candidate(query: str, place: int, candidate: Candidate) -> tuple[str, float]:
    if isinstance(candidate, ID_TYPES):
        return str(candidate), 1 / place
    try:
        id_, value = candidate
        estimate = float(np.float32(value))
    except (TypeError, ValueError):
        id_, estimate = None, math.nan
    if not isinstance(id_, ID_TYPES) or not math.isfinite(estimate):
        raise InputError(
            f"Query {query!r}: candidate {place} must be an id or an (id, finite estimate) pair, got {candidate!r}."
        )
    return str(id_), estimate


def _read_trec(path: Path, queries: Mapping[str, str]) -> dict[str, list[tuple[str, float]]]:
    if len(set(queries.values())) != len(queries):
        raise InputError("`queries` must have different texts: candidates are looked up by text.")
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
                raise InputError(f"{path}:{number}: the query id {query_id!r} is not in `queries`.")
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
        raise InputError(f"{place}: a line must have six fields (qid Q0 id rank score tag), got {len(fields)}.")
    try:
        score = float(fields[4])
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{place}: the score must be a finite number, got {fields[4]!r}.")
    return fields[0], fields[2], score
