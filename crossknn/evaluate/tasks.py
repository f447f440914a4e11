"""What a benchmark searches: a folder of exact scores, or texts with a cross-encoder that scores them exactly first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.errors import InputError
from crossknn.evaluate.datasets import Dataset
from crossknn.evaluate.known import FittedOnce, KnownRanking, KnownScores
from crossknn.evaluate.matrices import ScoreFolder, read_scores
from crossknn.evaluate.splits import Split
from crossknn.evaluate.timing import Speed, measure_speed
from crossknn.evaluate.truth import exact_scores
from crossknn.indexing.building import NORMALIZATION_QUERIES
from crossknn.items import Items
from crossknn.normalization import Normalization
from crossknn.retrievers.bm25 import Bm25
from crossknn.types import Encoder, Progress, Retriever, Scorer, Scores

SPEED_PAIRS: Final = 300  # different ones that the scorer's speed is measured on


class Scale(NamedTuple):
    """α and β, and the calls that they were estimated from."""

    normalization: Normalization
    calls: int


@dataclass(frozen=True)
class Task:
    """Items, queries with all their scores, and what an index of the items is built from.

    queries     what is asked, and `scores` (queries, items) what exact search knows about it
    scorer      looks up the scores of `queries`; `builder` scores train queries
    train       train queries; none of them is asked, and there may be none
    retrievers  beside those of the searcher; `known` names all that can be used
    judged      the queries' relevance judgments, where there are any
    scale       α and β for the encoder's vectors, where they are known already, and what they cost
    speed       of the cross-encoder; None where nobody has it
    facts       what else to know about the data
    work_dir    keeps scores and vectors of texts; a folder of scores needs none
    """

    name: str
    items: Items
    queries: Sequence[str]
    scores: Scores
    scorer: Scorer
    builder: Scorer
    encoder: Encoder
    train: Sequence[str]
    retrievers: Sequence[Retriever]
    known: tuple[str, ...]
    judged: Split | None = None
    scale: Scale | None = None
    speed: Speed | None = None
    facts: Mapping[str, str | int | float] = field(default_factory=dict)
    work_dir: Path | None = None

    @property
    def can_learn(self) -> bool:
        """Whether an index can be built: there are train queries, or texts that some can be cut from."""
        return bool(self.train) or self.work_dir is not None


def read_matrix(folder: str | Path, *, queries: int | None = None) -> Task:
    """The task of a folder of exact scores, with its first test queries, or all.

    Items and queries are known by their places ("item 0", "test 0", "train 0"): the folder may have no texts, or the
    same text twice with two scores. BM25 ranks by the folder's texts, else by its own BM25 scores. α and β come from
    all scores of 100 train queries.
    """
    found = read_scores(folder)
    test = found.test if queries is None else found.test[:queries]
    if not len(test):
        raise InputError(f"{folder}: wanted at least one test query, got none.")
    names = {"train": _names("train", len(found.train)), "test": _names("test", len(test))}
    items = Items(_names("item", len(found.item_vectors)))
    lines = {**_lines(names["train"], found.train.scores), **_lines(names["test"], test.scores)}
    scorer = KnownScores(lines, items.texts, fingerprint=f"scores of {found.name}")
    retrievers = _bm25_of(found, names["test"])
    own_train = (Path(folder) / "train_scores.f16.npy").exists()
    return Task(
        name=found.name,
        items=items,
        queries=names["test"],
        scores=test.scores,
        scorer=scorer,
        builder=scorer,
        encoder=PrecomputedEncoder(
            queries=(
                [*names["train"], *names["test"]],
                np.concatenate([found.train.vectors, test.vectors]),
            ),
            items=(items.texts, found.item_vectors),
            fingerprint=found.name,
        ),
        train=names["train"],
        retrievers=retrievers,
        known=("random", "dense", *(("bm25", "fused") if retrievers else ())),
        scale=_scale_of(found),
        facts={"train part": "its own" if own_train else "the first half of the test queries, which are not asked"},
    )


def read_set(
    folder: str | Path,
    *,
    scorer: Scorer,
    encoder: Encoder,
    split: str = "test",
    train_split: str | None = None,
    queries: int | None = None,
    work_dir: str | Path,
    progress: Progress | None = None,
) -> Task:
    """The task of a BEIR folder before its queries are scored: `score_task` does that.

    `train_split` is by default "train" where the folder has it. A train query with the text of one that is asked is
    left out.
    """
    dataset = Dataset.from_beir(folder, progress=progress)
    judged = dataset.split(split)
    judged = judged if queries is None else judged.first(queries)
    learned = train_split or ("train" if "train" in dataset.splits and split != "train" else None)
    if learned == split:
        raise InputError(f"the train split must be another than the one that is asked. Got {split!r} for both.")
    asked = set(judged.texts)
    texts = dataset.split(learned).texts if learned else ()
    return Task(
        name=dataset.name,
        items=dataset.items,
        queries=judged.texts,
        scores=np.empty((0, len(dataset.items)), np.float32),
        scorer=scorer,
        builder=scorer,
        encoder=encoder,
        train=[text for text in dict.fromkeys(texts) if text not in asked],
        retrievers=[FittedOnce(Bm25())],
        known=("random", "tfidf", "dense", "bm25", "fused"),
        judged=judged,
        facts={"split": split, "train part": learned or "queries cut from the items"},
        work_dir=Path(work_dir),
    )


def score_task(task: Task, *, progress: Progress | None = None) -> Task:
    """The task with all scores of its queries: queries × items calls, or what the work folder has of them.

    Searches then look scores up, and the scorer's time is computed from its speed, measured here on 300 pairs; where
    there are fewer, nobody knows it.
    """
    if task.work_dir is None:
        raise InputError("exact scores need a work folder to be kept in. Got none.")
    scores = exact_scores(task.items, task.queries, task.builder, task.work_dir / "exact", progress=progress)
    known = KnownScores(_lines(task.queries, scores), task.items.texts, fingerprint=task.builder.fingerprint)
    return replace(task, scores=scores, scorer=known, speed=_measure_speed(task))


def _measure_speed(task: Task) -> Speed | None:
    places = np.arange(SPEED_PAIRS)
    numbers = (places // len(task.items)).tolist()
    if numbers[-1] >= len(task.queries):  # a pair that comes again may be faster
        return None
    asked = [task.queries[number] for number in numbers]
    return measure_speed(task.builder, asked, task.items.texts_of(places % len(task.items)))


def _scale_of(found: ScoreFolder) -> Scale | None:
    if not len(found.train):
        return None
    some = found.train[:NORMALIZATION_QUERIES]
    return Scale(Normalization.fit(some.scores, some.vectors @ found.item_vectors.T), some.scores.size)


def _bm25_of(found: ScoreFolder, names: Sequence[str]) -> list[Retriever]:
    if found.dataset is not None:
        texts = dict(zip(names, found.dataset.split("test").texts, strict=False))  # where fewer are asked
        return [FittedOnce.on(found.dataset.items, Bm25(), texts=texts)]
    if found.test.bm25 is not None:
        return [KnownRanking(_lines(names, found.test.bm25[: len(names)]), name="bm25")]
    return []


def _names(kind: str, count: int) -> list[str]:
    return [f"{kind} {place}" for place in range(count)]


def _lines(names: Sequence[str], scores: Scores) -> dict[str, Scores]:
    return dict(zip(names, scores, strict=True))
