"""Folders of exact cross-encoder scores with encoder vectors, to measure strategies without a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.evaluate.datasets import Dataset
from crossknn.types import Rows, Scores, Vectors


@dataclass(frozen=True)
class ScoredQueries:
    """Queries with their scores for all items.

    Attributes:
        scores: (queries, items) float32.
        vectors: (queries, dim) float32, from a dual encoder.
        bm25: (queries, items) float32, if the folder has them.
        relevant: The rows of each query's relevant items, if the folder has them.
    """

    scores: Scores
    vectors: Vectors
    bm25: Scores | None = None
    relevant: list[Rows] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, part: slice) -> ScoredQueries:
        bm25 = None if self.bm25 is None else self.bm25[part]
        return ScoredQueries(self.scores[part], self.vectors[part], bm25, self.relevant and self.relevant[part])

    def take(self, places: Sequence[int]) -> ScoredQueries:
        """The queries at these places, in their order."""
        chosen = list(places)
        bm25 = None if self.bm25 is None else self.bm25[chosen]
        relevant = None if self.relevant is None else [self.relevant[place] for place in chosen]
        return ScoredQueries(self.scores[chosen], self.vectors[chosen], bm25, relevant)


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
        train, test = (_add_relevant(folder, part, dataset, name) for name, part in (("train", train), ("test", test)))
    return ScoreFolder(folder.resolve().name, vectors, train, test, dataset)


def _read_queries(folder: Path, name: str, item_vectors: Vectors) -> ScoredQueries:
    scores = _load(folder / f"{name}_scores.f16.npy").astype(np.float32)
    vectors = _load(folder / f"{name}_query_embeddings.f16.npy").astype(np.float32)
    bm25 = folder / f"{name}_bm25.f16.npy"
    relevant = _read_relevant(folder / f"{name}_relevant_rows.json", len(item_vectors))
    part = ScoredQueries(scores, vectors, _load(bm25).astype(np.float32) if bm25.exists() else None, relevant)
    _check_shapes(folder / f"{name}_scores.f16.npy", part, item_vectors)
    top = folder / f"{name}_top1000.npz"
    if top.exists():  # float32, so that ties break as the model breaks them
        best = _load(top)
        np.put_along_axis(scores, best["rows"].astype(np.int64), best["scores"].astype(np.float32), axis=1)
    return part


def _add_relevant(folder: Path, part: ScoredQueries, dataset: Dataset, name: str) -> ScoredQueries:
    split = dataset.split(name)
    if len(split) != len(part):
        raise InputError(f"{folder}: has the scores of {len(part)} {name} queries, but the texts of {len(split)}.")
    return replace(part, relevant=[dataset.items.rows_of(ids) for ids in split.relevant])


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


def _check_shapes(path: Path, part: ScoredQueries, item_vectors: NDArray[Any]) -> None:
    queries, (items, dim) = len(part.scores), item_vectors.shape
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "scores": (part.scores.shape, (queries, items)),
        "query vectors": (part.vectors.shape, (queries, dim)),
    }
    if part.bm25 is not None:
        shapes["BM25 scores"] = part.bm25.shape, (queries, items)
    if part.relevant is not None:
        shapes["relevant rows"] = (len(part.relevant),), (queries,)
    for name, (found, expected) in shapes.items():
        if found != expected:
            raise InputError(f"{path}: {name} must have shape {expected}, got {found}.")


def _load(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        raise InputError(f"{path}: this array of a folder of scores does not exist.") from error
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: is not an array ({error}).") from error
