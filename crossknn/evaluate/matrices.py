"""Folders of exact cross-encoder scores with vectors beside them, to measure strategies without a model."""

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
class Scored:
    """Queries of which every score is known.

    scores    (queries, items) float32
    vectors   (queries, dim) float32, a dual encoder's
    bm25      (queries, items) float32, where the folder has them
    relevant  the rows of each query's relevant items, where the folder says
    """

    scores: Scores
    vectors: Vectors
    bm25: Scores | None = None
    relevant: list[Rows] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, part: slice) -> Scored:
        bm25 = None if self.bm25 is None else self.bm25[part]
        return Scored(self.scores[part], self.vectors[part], bm25, self.relevant and self.relevant[part])

    def take(self, places: Sequence[int]) -> Scored:
        """The queries at these places, in their order."""
        chosen = list(places)
        bm25 = None if self.bm25 is None else self.bm25[chosen]
        relevant = None if self.relevant is None else [self.relevant[place] for place in chosen]
        return Scored(self.scores[chosen], self.vectors[chosen], bm25, relevant)


@dataclass(frozen=True)
class ScoreFolder:
    """All that such a folder holds; `dataset` is None where it has no texts."""

    name: str
    item_vectors: Vectors  # (items, dim) float32
    train: Scored
    test: Scored
    dataset: Dataset | None


def read_scores(folder: str | Path) -> ScoreFolder:
    """The folder's arrays; without train scores its first half of queries is train and its second half test."""
    folder = Path(folder)
    vectors = _load(folder / "item_embeddings.f16.npy").astype(np.float32)
    dataset = Dataset.from_scores(folder) if (folder / "texts.json.xz").exists() else None
    test = _read_part(folder, "test", vectors)
    if (folder / "train_scores.f16.npy").exists():
        train = _read_part(folder, "train", vectors)
    else:
        train, test = test[: len(test) // 2], test[len(test) // 2 :]
    if dataset is not None:
        _check_dataset(folder, dataset, {"train": train, "test": test}, len(vectors))
        train, test = (_add_relevant(part, dataset, name) for name, part in (("train", train), ("test", test)))
    return ScoreFolder(folder.resolve().name, vectors, train, test, dataset)


def _read_part(folder: Path, name: str, item_vectors: Vectors) -> Scored:
    scores = _load(folder / f"{name}_scores.f16.npy").astype(np.float32)
    vectors = _load(folder / f"{name}_query_embeddings.f16.npy").astype(np.float32)
    bm25 = folder / f"{name}_bm25.f16.npy"
    relevant = _read_relevant(folder / f"{name}_relevant_rows.json", len(item_vectors))
    part = Scored(scores, vectors, _load(bm25).astype(np.float32) if bm25.exists() else None, relevant)
    _check_shapes(folder / f"{name}_scores.f16.npy", part, item_vectors)
    top = folder / f"{name}_top1000.npz"
    if top.exists():  # float32, so that ties break as the model breaks them
        best = _load(top)
        np.put_along_axis(scores, best["rows"].astype(np.int64), best["scores"].astype(np.float32), axis=1)
    return part


def _add_relevant(part: Scored, dataset: Dataset, name: str) -> Scored:
    return replace(part, relevant=[dataset.items.rows_of(ids) for ids in dataset.split(name).relevant])


def _read_relevant(path: Path, items: int) -> list[Rows] | None:
    """The rows of each query's relevant items, where there is such a file; every query must have one."""
    if not path.exists():
        return None
    try:
        lists = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path}: wanted a list of rows for every query, got no JSON ({error}).") from error
    if not isinstance(lists, list):
        raise InputError(f"{path}: wanted a list of rows for every query, got {type(lists).__name__}.")
    for query, rows in enumerate(lists):
        if not isinstance(rows, list) or not rows or not all(type(row) is int and 0 <= row < items for row in rows):
            raise InputError(
                f"{path}: query {query}: wanted the rows of its relevant items, at least one, each from 0 to "
                f"{items - 1}. Got {rows!r}."
            )
    return [np.array(rows, np.int64) for rows in lists]


def _check_shapes(path: Path, part: Scored, item_vectors: NDArray[Any]) -> None:
    queries, (items, dim) = len(part.scores), item_vectors.shape
    found: dict[str, tuple[int, ...]] = {"scores": part.scores.shape, "query vectors": part.vectors.shape}
    wanted: dict[str, tuple[int, ...]] = {"scores": (queries, items), "query vectors": (queries, dim)}
    if part.bm25 is not None:
        found["BM25 scores"], wanted["BM25 scores"] = part.bm25.shape, (queries, items)
    if part.relevant is not None:
        found["relevant rows"], wanted["relevant rows"] = (len(part.relevant),), (queries,)
    for what, shape in found.items():
        if shape != wanted[what]:
            raise InputError(f"{path}: wanted {what} of shape {wanted[what]} beside it, got {shape}.")


def _check_dataset(folder: Path, dataset: Dataset, parts: dict[str, Scored], items: int) -> None:
    if len(dataset.items) != items:
        raise InputError(f"{folder}: wanted the texts of {items} items, got those of {len(dataset.items)}.")
    for name, part in parts.items():
        if len(dataset.split(name)) != len(part):
            raise InputError(
                f"{folder}: wanted the texts of {len(part)} {name} queries, got those of {len(dataset.split(name))}."
            )


def _load(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        raise InputError(f"{path}: wanted an array of a folder of scores, got nothing: it does not exist.") from error
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: wanted an array, got a file that is none ({error}).") from error
