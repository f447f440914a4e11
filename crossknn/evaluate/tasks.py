"""What a benchmark searches: a folder of exact scores, or texts with a cross-encoder that scores them exactly first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.engines.local import LOCAL
from crossknn.errors import InputError
from crossknn.evaluate.datasets import Dataset
from crossknn.evaluate.ground_truth import exact_scores
from crossknn.evaluate.known import FittedOnce, KnownRanking, KnownScores
from crossknn.evaluate.matrices import Scored, ScoreFolder, read_scores
from crossknn.evaluate.splits import Split
from crossknn.indexing.builder import NORMALIZATION_QUERIES
from crossknn.items.items import Items
from crossknn.retrievers.bm25 import Bm25
from crossknn.scorers.cached import Cached
from crossknn.scorers.emb_cross_encoder import EmbCrossEncoder
from crossknn.scorers.timing import Speed, measure_speed
from crossknn.strategies.normalization import Normalization
from crossknn.types import Encoder, Engine, Progress, Retriever, Scorer, Scores, Vectors

SPEED_PAIRS: Final = 300  # different ones that the scorer's speed is measured on
MOST_DEV: Final = 100  # dev queries of a folder of scores
HELD_OUT: Final = "the last train queries, which nothing is learned from"


class Scale(NamedTuple):
    """α and β, and the calls that they were estimated from."""

    normalization: Normalization
    calls: int


class Dev(NamedTuple):
    """Queries that settings are chosen on, and all their scores; nothing is learned from them, and none is asked."""

    queries: Sequence[str]
    scores: Scores  # (queries, items)


@dataclass(frozen=True)
class Task:
    """Items, queries with all their scores, and what an index of the items is built from.

    queries     what is asked, and `scores` (queries, items) what exact search knows about it
    scorer      looks up the scores of `queries` and of `dev`; `builder` scores train queries
    train       train queries; none of them is asked, and there may be none
    dev         what settings are tuned on, where they are
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
    dev: Dev | None = None
    facts: Mapping[str, str | int | float] = field(default_factory=dict)
    work_dir: Path | None = None

    @property
    def can_learn(self) -> bool:
        """Whether an index can be built: there are train queries, or texts that some can be cut from."""
        return bool(self.train) or self.work_dir is not None


def read_matrix(folder: str | Path, *, queries: int | None = None, tune: bool = False) -> Task:
    """The task of a folder of exact scores, with its first test queries, or all.

    Items and queries are known by their places ("item 0", "test 0", "train 0"): the folder may have no texts, or the
    same text twice with two scores. BM25 ranks by the folder's texts, else by its own BM25 scores. α and β come from
    all scores of 100 train queries, judgments from the folder's relevant items, where it says which. To `tune`, the
    last fifth of the train queries, at most 100, are dev queries instead.
    """
    found = read_scores(folder)
    if not len(found.test):
        raise InputError(f"{folder}: wanted at least one test query, got none.")
    parts = _cut(found, queries=queries, tune=tune)
    train, dev, test = parts["train"], parts["dev"], parts["test"]
    items = Items(_names("item", len(found.item_vectors)))
    fingerprint = f"scores of {found.name}"
    retrievers = _bm25_of(found, train, [dev, test])
    own_train = (Path(folder) / "train_scores.f16.npy").exists()
    facts = {"train part": "its own" if own_train else "the first half of the test queries, which are not asked"}
    return Task(
        name=found.name,
        items=items,
        queries=test.names,
        scores=test.known.scores,
        scorer=KnownScores({**dev.lines, **test.lines}, items.texts, fingerprint=fingerprint),
        builder=KnownScores(train.lines, items.texts, fingerprint=fingerprint),
        encoder=PrecomputedEncoder(
            queries=(
                [name for part in parts.values() for name in part.names],
                np.concatenate([part.known.vectors for part in parts.values()]),
            ),
            items=(items.texts, found.item_vectors),
            fingerprint=found.name,
        ),
        train=train.names,
        retrievers=retrievers,
        known=("random", "dense", *(("bm25", "fused") if retrievers else ())),
        judged=_judged_of(test, items),
        scale=_scale_of(train.known, found.item_vectors),
        dev=Dev(dev.names, dev.known.scores) if tune else None,
        facts={**facts, **({"dev queries": len(dev.names), "dev part": HELD_OUT} if tune else {})},
    )


def read_set(
    source: str | Path,
    *,
    scorer: Scorer,
    encoder: Encoder,
    split: str = "test",
    train_split: str | None = None,
    train_queries: int | None = None,
    queries: int | None = None,
    dev_split: str | None = None,
    dev_queries: int | None = None,
    seed: int = 0,
    work_dir: str | Path,
    progress: Progress | None = None,
) -> Task:
    """The task of a set of texts before its queries are scored: `score_task` does that.

    `source` is what `Dataset.open` takes. `train_split` is by default "train" where the set has it, of which the first
    `train_queries` are taken, or all. A train query with the text of one that is asked is left out.

    With `dev_queries` there are at most so many to tune on: the first of `dev_split`, by default "dev" where the set
    has it, else the last of the train queries, at most a fifth of them. None of them is learned from.
    """
    dataset = Dataset.open(source, seed=seed, **marks_of(scorer), progress=progress)
    judged = dataset.split(split)
    judged = judged if queries is None else judged.first(queries)
    learned = _name_train_split(dataset, train_split, asked=split)
    asked = set(judged.texts)
    found = dict.fromkeys(dataset.split(learned).texts if learned else ())
    train = [text for text in found if text not in asked][:train_queries]
    facts: dict[str, str | int] = {"split": split, "train part": learned or "queries cut from the items"}
    dev: dict[str, None] = {}
    if dev_queries is not None:
        part = _name_dev_split(dataset, dev_split, taken=[split, learned])
        dev = dict.fromkeys(_choose_dev(dataset, part, train, asked, dev_queries))
        facts |= {"dev queries": len(dev), "dev part": HELD_OUT if part is None else f"the split {part}"}
    unscored = np.empty((0, len(dataset.items)), np.float32)
    return Task(
        name=dataset.name,
        items=dataset.items,
        queries=judged.texts,
        scores=unscored,
        scorer=scorer,
        builder=scorer,
        encoder=encoder,
        train=[text for text in train if text not in dev],
        retrievers=[FittedOnce(Bm25())],
        known=("random", "tfidf", "dense", "bm25", "fused"),
        judged=judged,
        dev=Dev(list(dev), unscored) if dev else None,
        facts=facts,
        work_dir=Path(work_dir),
    )


def count_held_out(train: int, most: int) -> int:
    """How many of the last train queries are dev queries instead: a fifth, but at least one and at most `most`."""
    if train < 2:
        raise InputError(
            "tuning needs queries that nothing is learned from: a dev split, or at least 2 train queries, of which "
            f"some are held out. Got {train} train queries instead. Leave tuning out, or set what you want by name."
        )
    return max(1, min(most, train // 5))


def score_task(task: Task, *, engine: Engine = LOCAL, progress: Progress | None = None) -> Task:
    """The task with all scores of its queries: queries × items calls, or what the work folder has of them.

    The `engine` says where these calls are made.

    Searches then look scores up, and the scorer's time is computed from its speed, measured here on 300 pairs; where
    there are fewer, nobody knows it.
    """
    if task.work_dir is None:
        raise InputError("exact scores need a work folder to be kept in. Got none.")
    folder = task.work_dir / "exact"
    scores = exact_scores(task.items, task.queries, task.builder, folder, engine=engine, progress=progress)
    lines, dev = _lines(task.queries, scores), task.dev
    if dev is not None:
        report = None if progress is None else partial(_report_dev, progress)
        found = exact_scores(task.items, dev.queries, task.builder, folder, engine=engine, progress=report)
        dev = Dev(dev.queries, found)
        lines |= _lines(dev.queries, dev.scores)
    known = KnownScores(lines, task.items.texts, fingerprint=task.builder.fingerprint)
    return replace(task, scores=scores, scorer=known, dev=dev, speed=_measure_speed(task))


def _report_dev(progress: Progress, step: str, done: int, total: int) -> None:
    progress(f"{step} of dev queries", done, total)


def _name_train_split(dataset: Dataset, given: str | None, *, asked: str) -> str | None:
    """The split that is learned from; None where queries are cut from the items."""
    if given == asked:
        raise InputError(f"the train split must be another than the one that is asked. Got {asked!r} for both.")
    return given or ("train" if "train" in dataset.splits and asked != "train" else None)


def _name_dev_split(dataset: Dataset, given: str | None, *, taken: Sequence[str | None]) -> str | None:
    """The split that dev queries are from; None where train queries are held out."""
    if given in taken and given is not None:
        raise InputError(
            f"the dev split must be another than those that are asked and learned from. Got {given!r}. "
            "Without one, train queries are held out."
        )
    return given or ("dev" if "dev" in dataset.splits and "dev" not in taken else None)


def _choose_dev(dataset: Dataset, part: str | None, train: list[str], asked: set[str], most: int) -> list[str]:
    """At most so many texts of the split, or of the last train queries; none of them is asked."""
    if part is None:
        return train[-count_held_out(len(train), most) :]
    found = [text for text in dict.fromkeys(dataset.split(part).texts) if text not in asked]
    if not found:
        raise InputError(f"{dataset.name}: wanted dev queries that are not asked, got none in the split {part!r}.")
    return found[:most]


def marks_of(scorer: Scorer) -> dict[str, Any]:
    """What an [emb]-CE reads around a mention and after a title, as texts of ZeShEL must have it."""
    if not isinstance(scorer, EmbCrossEncoder):
        return {}
    marks = {"marks": scorer.pooling.mention_tokens, "title_mark": scorer.pooling.title_token}
    return {name: value for name, value in marks.items() if value is not None}


def _measure_speed(task: Task) -> Speed | None:
    places = np.arange(SPEED_PAIRS)
    numbers = (places // len(task.items)).tolist()
    if numbers[-1] >= len(task.queries):  # a pair that comes again may be faster
        return None
    asked = [task.queries[number] for number in numbers]
    scorer = task.builder.scorer if isinstance(task.builder, Cached) else task.builder  # a cache has them all by now
    return measure_speed(scorer, asked, task.items.texts_of(places % len(task.items)))


class _Part(NamedTuple):
    """Some queries of a folder of scores: what they are called here, what is known of them, and what they read."""

    names: list[str]
    known: Scored
    texts: Sequence[str]

    @property
    def lines(self) -> dict[str, Scores]:
        return _lines(self.names, self.known.scores)


def _cut(found: ScoreFolder, *, queries: int | None, tune: bool) -> dict[str, _Part]:
    """The queries to learn from, to tune on and to ask; none to tune on has the text of another."""
    learned = len(found.train) - (count_held_out(len(found.train), MOST_DEV) if tune else 0)
    train, test = (_texts_of(found, name, part) for name, part in (("train", found.train), ("test", found.test)))
    seen = {*train[:learned], *test[:queries]}
    new = [place for place in range(learned, len(train)) if train[place] not in seen]
    if tune and not new:
        raise InputError(f"{found.name}: tuning needs train queries of which no other has the text. Got none.")
    return {
        "train": _Part(_names("train", learned), found.train[:learned], train[:learned]),
        "dev": _Part(_names("dev", len(new)), found.train.take(new), [train[place] for place in new]),
        "test": _Part(_names("test", len(test[:queries])), found.test[:queries], test[:queries]),
    }


def _texts_of(found: ScoreFolder, name: str, part: Scored) -> Sequence[str]:
    """What the queries read, or names in place of it."""
    return _names(name, len(part)) if found.dataset is None else found.dataset.split(name).texts


def _judged_of(part: _Part, items: Items) -> Split | None:
    """The judgments of these queries; None where the folder has none."""
    if part.known.relevant is None:
        return None
    judgments = tuple(dict.fromkeys(items.ids_of(rows), 1) for rows in part.known.relevant)
    return Split(tuple(part.names), tuple(part.names), judgments)


def _scale_of(train: Scored, item_vectors: Vectors) -> Scale | None:
    if not len(train):
        return None
    some = train[:NORMALIZATION_QUERIES]
    return Scale(Normalization.fit(some.scores, some.vectors @ item_vectors.T), some.scores.size)


def _bm25_of(found: ScoreFolder, train: _Part, parts: Sequence[_Part]) -> list[Retriever]:
    if found.dataset is not None:
        texts = {name: text for part in (train, *parts) for name, text in zip(part.names, part.texts, strict=True)}
        return [FittedOnce.on(found.dataset.items, Bm25(), texts=texts)]
    if found.test.bm25 is None:
        return []
    lines = {} if train.known.bm25 is None else _lines(train.names, train.known.bm25)
    for part in parts:
        if part.known.bm25 is not None:
            lines |= _lines(part.names, part.known.bm25)
        elif part.names:
            raise InputError(f"{found.name}: tuning needs BM25 scores of its train queries, too: train_bm25.f16.npy.")
    return [KnownRanking(lines, name="bm25")]


def _names(kind: str, count: int) -> list[str]:
    return [f"{kind} {place}" for place in range(count)]


def _lines(names: Sequence[str], scores: Scores) -> dict[str, Scores]:
    return dict(zip(names, scores, strict=True))
