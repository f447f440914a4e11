"""What `train_source` learns from: train queries of a BEIR folder, some of them held out, and the items around them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.evaluate.datasets import Dataset

HELD_OUT_SHARE = 5  # at most every so many-th query is held out


@dataclass(frozen=True)
class Query:
    """A text and the rows of its relevant items."""

    text: str
    rows: list[int]


@dataclass(frozen=True)
class SourceSet:
    """A pool of item texts, and queries about them; no train query has the text or an answer of a held-out one."""

    name: str
    items: list[str]
    train: list[Query]
    held_out: list[Query]
    skipped: Mapping[str, int]  # records that could not be used, by reason

    @property
    def queries(self) -> list[Query]:
        """All queries in the order of their numbers: those to train on first."""
        return [*self.train, *self.held_out]


def read_source(
    folder: Path, *, without: Sequence[str] = (), held_out: int, limit: int | None, pool: int | None, seed: int
) -> SourceSet:
    """Choose queries and items by the seed.

    without   beginnings of ids: such queries and items are left out
    held_out  queries to test on, or a fifth of all where there are fewer than five times as many
    limit     most queries to train on; None is all
    pool      random items beside the relevant ones; None is all
    """
    dataset = Dataset.from_beir(folder, splits=["train"], unusable="skip")
    allowed = dataset.items.mask(lambda id_: not id_.startswith(tuple(without)))
    rng = random.Random(seed)
    queries = list(_usable(dataset, allowed, tuple(without)))
    rng.shuffle(queries)
    tested = queries[: min(held_out, len(queries) // HELD_OUT_SHARE)]
    train = _apart(queries[len(tested) :], tested)[:limit]
    if not tested or not train:
        raise InputError(
            f"{folder}: wanted at least {HELD_OUT_SHARE} train queries that differ in text and relevant items, got "
            f"{len(queries)} that may be used. Check --without, and that the relevant items are in the corpus."
        )
    rows = _choose_rows(allowed, [*train, *tested], pool, rng)
    return SourceSet(
        dataset.name,
        dataset.items.texts_of(rows),
        _renumber(train, rows),
        _renumber(tested, rows),
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


def _apart(queries: list[Query], tested: list[Query]) -> list[Query]:
    """Those that share neither text nor a relevant item with a tested query."""
    texts = {query.text for query in tested}
    answers = {row for query in tested for row in query.rows}
    return [query for query in queries if query.text not in texts and answers.isdisjoint(query.rows)]


def _choose_rows(
    allowed: NDArray[np.bool_], queries: list[Query], pool: int | None, rng: random.Random
) -> NDArray[np.int64]:
    """The rows of the pool, rising: what is relevant to the queries, and others."""
    needed = np.zeros_like(allowed)
    needed[[row for query in queries for row in query.rows]] = True
    others = np.flatnonzero(allowed & ~needed).tolist()
    if pool is not None:
        others = rng.sample(others, min(pool, len(others)))
    needed[others] = True
    return np.flatnonzero(needed)


def _renumber(queries: list[Query], rows: NDArray[np.int64]) -> list[Query]:
    """The same queries, with the places of their items among `rows`."""
    return [Query(query.text, np.searchsorted(rows, query.rows).tolist()) for query in queries]
