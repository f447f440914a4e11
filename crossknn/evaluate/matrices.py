"""Score matrices: folders of exact scores with encoder vectors, and a scorer and retrievers that look scores up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from crossknn.errors import InputError
from crossknn.evaluate.datasets import Dataset
from crossknn.items.items import Items
from crossknn.retrievers.base import check_fitted, check_request
from crossknn.testing import MatrixScorer
from crossknn.types import Mask, Proposal, Retriever, Rows, Scores, Vectors
from crossknn.vectors.ranking import top_rows


@dataclass(frozen=True)
class ScoredQueries:
    """Queries with their scores for all items, float32; what the folder does not have is None."""

    texts: Sequence[str]  # names such as "test 0" if the folder has none
    scores: Scores  # (queries, items)
    vectors: Vectors  # (queries, dim), from a dual encoder
    bm25: Scores | None = None  # (queries, items)
    relevant: list[Rows] | None = field(default=None, repr=False)  # the rows of each query's relevant items

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, places: slice | list[int]) -> ScoredQueries:
        chosen = np.arange(len(self))[places]
        texts, bm25 = [self.texts[at] for at in chosen], None if self.bm25 is None else self.bm25[places]
        relevant = None if self.relevant is None else [self.relevant[at] for at in chosen]
        return ScoredQueries(texts, self.scores[places], self.vectors[places], bm25, relevant)


@dataclass(frozen=True)
class ScoreFolder:
    """The content of a folder of scores; `dataset` is None if it has no texts."""

    name: str
    item_vectors: Vectors  # (items, dim) float32
    train: ScoredQueries
    test: ScoredQueries
    dataset: Dataset | None


def read_scores(folder: str | Path) -> ScoreFolder:
    """Read a folder; without train scores, the first half of its queries is train and the second half test."""
    folder = Path(folder)
    vectors = _load(folder / "item_embeddings.f16.npy").astype(np.float32)
    dataset = Dataset.from_scores(folder) if (folder / "texts.json.xz").exists() else None
    test = _read_queries(folder, "test", vectors)
    if (folder / "train_scores.f16.npy").exists():
        train = _read_queries(folder, "train", vectors)
    else:
        train, test = test[: len(test) // 2], test[len(test) // 2 :]
    if dataset is not None:
        if len(dataset.items) != len(vectors):
            raise InputError(f"{folder}: has {len(vectors)} item vectors, but the texts of {len(dataset.items)} items.")
        train, test = (_add_texts(folder, part, dataset, name) for name, part in (("train", train), ("test", test)))
    return ScoreFolder(folder.resolve().name, vectors, train, test, dataset)


def _read_queries(folder: Path, name: str, item_vectors: Vectors) -> ScoredQueries:
    path, bm25 = folder / f"{name}_scores.f16.npy", folder / f"{name}_bm25.f16.npy"
    scores = _load(path).astype(np.float32)
    part = ScoredQueries(
        [f"{name} {place}" for place in range(len(scores))],
        scores,
        _load(folder / f"{name}_query_embeddings.f16.npy").astype(np.float32),
        _load(bm25).astype(np.float32) if bm25.exists() else None,
        _read_relevant(folder / f"{name}_relevant_rows.json", len(item_vectors)),
    )
    _check_shapes(path, part, item_vectors)
    top = folder / f"{name}_top1000.npz"
    if top.exists():  # float32, so that ties break as the model breaks them
        best = _load(top)
        np.put_along_axis(scores, best["rows"].astype(np.int64), best["scores"].astype(np.float32), axis=1)
    return part


def _add_texts(folder: Path, part: ScoredQueries, dataset: Dataset, name: str) -> ScoredQueries:
    split = dataset.split(name)
    if len(split) != len(part):
        raise InputError(f"{folder}: has the scores of {len(part)} {name} queries, but the texts of {len(split)}.")
    return replace(part, texts=split.texts, relevant=[dataset.items.rows_of(ids) for ids in split.relevant])


def _read_relevant(path: Path, items: int) -> list[Rows] | None:
    """The rows of each query's relevant items, at least one per query; None without such a file."""
    if not path.exists():
        return None
    try:
        lists = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path}: is not JSON ({error}).") from error
    if not isinstance(lists, list):
        raise InputError(f"{path}: must be a list of rows for every query, got {type(lists).__name__}.")
    for query, rows in enumerate(lists):
        if not isinstance(rows, list) or not rows or not all(type(row) is int and 0 <= row < items for row in rows):
            raise InputError(f"{path}: query {query} must have a list of rows from 0 to {items - 1}, got {rows!r}.")
    return [np.array(rows, np.int64) for rows in lists]


def _check_shapes(path: Path, part: ScoredQueries, item_vectors: Vectors) -> None:
    queries, (items, dim) = len(part), item_vectors.shape
    shapes: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
        ("scores", part.scores.shape, (queries, items)),
        ("query vectors", part.vectors.shape, (queries, dim)),
    ]
    if part.bm25 is not None:
        shapes.append(("BM25 scores", part.bm25.shape, (queries, items)))
    if part.relevant is not None:
        shapes.append(("relevant rows", (len(part.relevant),), (queries,)))
    for name, found, expected in shapes:
        if found != expected:
            raise InputError(f"{path}: {name} must have shape {expected}, got {found}.")


def _load(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        raise InputError(f"{path}: this array of a folder of scores does not exist.") from error
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: is not an array ({error}).") from error


def precomputed_scorer(
    scores: Scores, *, queries: Iterable[str], items: Iterable[str], fingerprint: str
) -> MatrixScorer:
    """The scorer of `fingerprint` that looks up its scores (queries, items); equal texts have equal scores."""
    rows = {text: row for row, text in enumerate(queries)}
    columns = {text: column for column, text in enumerate(items)}
    if (len(rows), len(columns)) != scores.shape:
        scores = scores[np.ix_(list(rows.values()), list(columns.values()))]
    return MatrixScorer(scores, queries=list(rows), items=list(columns), fingerprint=fingerprint, record=False)


class PrecomputedRetriever:
    """A retriever that ranks by known scores: one per item, for each query's text."""

    def __init__(self, scores: Mapping[str, Scores], *, name: str) -> None:
        self.name = name
        self.n_items: int | None = None
        self._scores = scores

    def fit(self, items: Items) -> Self:
        for query, scores in self._scores.items():
            if len(scores) != len(items):
                raise InputError(f"{self.name}: {query!r} must have {len(items)} scores, got {len(scores)}.")
        self.n_items = len(items)
        return self

    def retrieve(self, queries: Sequence[str], n: int, *, allowed: Mask | None = None) -> list[Proposal]:
        check_request(check_fitted(self.n_items, self.name), queries, n, allowed)
        for query in queries:
            if query not in self._scores:
                raise InputError(f"{self.name}: there are no scores for the query {query!r}.")
        return [top_rows(self._scores[query], n, allowed) for query in queries]


class SharedRetriever:
    """A retriever that several searchers share, so that only the first of them fits it.

    `texts` has the text of each query, if searchers know queries by other names than the retriever.
    """

    def __init__(self, retriever: Retriever, *, texts: Mapping[str, str] | None = None) -> None:
        self.name = retriever.name
        self.n_items: int | None = None
        self._retriever = retriever
        self._texts = texts

    def fit(self, items: Items) -> Self:
        if self.n_items is None:
            self._retriever.fit(items)
            self.n_items = len(items)
        return self

    def retrieve(self, queries: Sequence[str], n: int, *, allowed: Mask | None = None) -> list[Proposal]:
        texts = list(queries) if self._texts is None else [self._texts[query] for query in queries]
        return self._retriever.retrieve(texts, n, allowed=allowed)
