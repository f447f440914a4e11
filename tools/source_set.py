"""Training data of `train_source`: train and held-out queries of a BEIR folder, and a pool of items."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.evaluate.datasets import Dataset

HELD_OUT_SHARE = 5  # at most one query in this many is held out


@dataclass(frozen=True)
class Query:
    """A text and the rows of its relevant items."""

    text: str
    rows: list[int]


@dataclass(frozen=True)
class SourceSet:
    """Item texts and queries; no train query shares its text or a relevant item with a held-out one."""

    name: str
    items: list[str]
    train: list[Query]
    held_out: list[Query]
    skipped: Mapping[str, int]  # records that could not be used, by reason

    @property
    def queries(self) -> list[Query]:
        """All queries by number: train queries first."""
        return [*self.train, *self.held_out]


def read_source(
    folder: Path, *, without: Sequence[str] = (), held_out: int, limit: int | None, pool: int | None, seed: int
) -> SourceSet:
    """Choose queries and items at random, by the seed.

    Args:
        folder: A BEIR folder with train queries.
        without: Prefixes of the ids of queries and items to leave out.
        held_out: Number of test queries; at most a fifth of all queries.
        limit: Maximum number of train queries; None for all.
        pool: Number of random items besides the relevant ones; None for all.
        seed: Random seed.
    """
    dataset = Dataset.from_beir(folder, splits=["train"], unusable="skip")
    allowed = dataset.items.mask(lambda id_: not id_.startswith(tuple(without)))
    rng = random.Random(seed)
    queries = list(_usable(dataset, allowed, tuple(without)))
    rng.shuffle(queries)
    test = queries[: min(held_out, len(queries) // HELD_OUT_SHARE)]
    train = _disjoint(queries[len(test) :], test)[:limit]
    if not test or not train:
        raise InputError(
            f"{folder}: at least {HELD_OUT_SHARE} train queries with different texts and items are needed, got "
            f"{len(queries)}. Check --without, and that the relevant items are in the corpus."
        )
    rows = _choose_rows(allowed, [*train, *test], pool, rng)
    return SourceSet(
        dataset.name,
        dataset.items.texts_of(rows),
        _renumber(train, rows),
        _renumber(test, rows),
        dataset.skipped,
    )


def _usable(dataset: Dataset, allowed: NDArray[np.bool_], without: tuple[str, ...]) -> Iterator[Query]:
    """The train queries that still have a relevant item."""
    split = dataset.split("train")
    found = iter(dataset.items.rows_of(id_ for ids in split.relevant for id_ in ids).tolist())
    for id_, text, ids in zip(split.ids, split.texts, split.relevant, strict=True):
        rows = [row for _, row in zip(ids, found, strict=False) if allowed[row]]
        if rows and not id_.startswith(without):
            yield Query(text, rows)


def _disjoint(queries: list[Query], test: list[Query]) -> list[Query]:
    """The queries that share neither text nor a relevant item with a test query."""
    texts = {query.text for query in test}
    answers = {row for query in test for row in query.rows}
    return [query for query in queries if query.text not in texts and answers.isdisjoint(query.rows)]


def _choose_rows(
    allowed: NDArray[np.bool_], queries: list[Query], pool: int | None, rng: random.Random
) -> NDArray[np.int64]:
    """The sorted rows of the pool: all that are relevant to the queries, and random others."""
    needed = np.zeros_like(allowed)
    needed[[row for query in queries for row in query.rows]] = True
    others = np.flatnonzero(allowed & ~needed).tolist()
    if pool is not None:
        others = rng.sample(others, min(pool, len(others)))
    needed[others] = True
    return np.flatnonzero(needed)


def _renumber(queries: list[Query], rows: NDArray[np.int64]) -> list[Query]:
    """The same queries, with their items numbered by position in `rows`."""
    return [Query(query.text, np.searchsorted(rows, query.rows).tolist()) for query in queries]
