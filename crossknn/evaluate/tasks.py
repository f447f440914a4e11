"""Benchmark tasks: a folder of exact scores, or a dataset whose test queries are scored exactly first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.engines.local import LOCAL
from crossknn.errors import InputError
from crossknn.evaluate.datasets import Dataset
from crossknn.evaluate.ground_truth import exact_scores
from crossknn.evaluate.matrices import (
    PrecomputedRetriever,
    ScoredQueries,
    ScoreFolder,
    SharedRetriever,
    precomputed_scorer,
    read_scores,
)
from crossknn.evaluate.splits import Split
from crossknn.indexing.builder import NORMALIZATION_QUERIES
from crossknn.items.items import Items
from crossknn.retrievers.bm25 import Bm25
from crossknn.scorers.cached import Cached
from crossknn.scorers.emb_cross_encoder import EmbCrossEncoder
from crossknn.scorers.timing import Speed, measure_speed
from crossknn.strategies.normalization import Normalization
from crossknn.types import Encoder, Engine, Progress, Retriever, Rows, Scorer, Scores, Vectors

SPEED_PAIRS: Final = 300  # distinct pairs that the scorer's speed is measured on
MAX_DEV_QUERIES: Final = 100  # of a folder of scores
EXACT_FOLDER: Final = "exact"  # in the work folder of a dataset
HELD_OUT: Final = "the last train queries, which nothing is learned from"


class Scale(NamedTuple):
    """α and β, and the number of calls that they were estimated from."""

    normalization: Normalization
    calls: int


class DevQueries(NamedTuple):
    """Queries that settings are tuned on, with all their scores; they are neither train nor test queries."""

    queries: Sequence[str]
    scores: Scores  # (queries, items)


@dataclass(frozen=True)
class Task:
    """What a benchmark searches; what is not known or not used is None."""

    name: str
    items: Items
    queries: Sequence[str]  # the test queries
    scores: Scores  # (queries, items), their exact scores
    scorer: Scorer  # looks up the scores of test and dev queries
    train_scorer: Scorer  # scores train queries
    encoder: Encoder
    train: Sequence[str]  # disjoint from the test queries; there may be none
    retrievers: Sequence[Retriever]  # in addition to those of the searcher
    retriever_names: tuple[str, ...]  # of all that are available
    judged: Split | None = None  # the test queries with their relevance judgments
    scale: Scale | None = None  # for the encoder's vectors
    speed: Speed | None = None  # of the cross-encoder
    dev: DevQueries | None = None  # what settings are tuned on
    facts: Mapping[str, str | int | float] = field(default_factory=dict)  # further ones about the data
    work_dir: Path | None = None  # keeps scores and vectors of a dataset

    @property
    def can_learn(self) -> bool:
        """Whether an index can be built: from train queries, or from pseudo-queries cut from texts."""
        return bool(self.train) or self.work_dir is not None


def read_matrix(folder: str | Path, *, queries: int | None = None, tune: bool = False) -> Task:
    """The task of a folder of exact scores.

    Items and queries are named by their places ("item 0", "test 0", "train 0"), because a folder may have no texts, or
    equal texts with different scores. BM25 ranks by the folder's texts, else by its own BM25 scores. α and β come from
    all scores of 100 train queries, and judgments from the folder's relevant items. Only the first `queries` test
    queries are used. To `tune`, the last fifth of the train queries, at most 100, become dev queries.
    """
    found = read_scores(folder)
    if not len(found.test):
        raise InputError(f"{folder}: has no test queries.")
    parts = _partition(found, queries=queries, tune=tune)
    names = {kind: [f"{kind} {place}" for place in range(len(part))] for kind, part in parts.items()}
    train, dev, test = parts["train"], parts["dev"], parts["test"]
    items = Items(f"item {place}" for place in range(len(found.item_vectors)))
    tested = np.concatenate([dev.scores, test.scores]) if tune else test.scores
    look_up = partial(precomputed_scorer, items=items.texts, fingerprint=f"scores of {found.name}")
    retrievers = _make_bm25(found, parts, names)
    own_train = (Path(folder) / "train_scores.f16.npy").exists()
    facts: dict[str, str | int] = {
        "train part": "its own" if own_train else "the first half of the test queries, which are not asked"
    }
    if tune:
        facts |= {"dev queries": len(dev), "dev part": HELD_OUT}
    return Task(
        name=found.name,
        items=items,
        queries=names["test"],
        scores=test.scores,
        scorer=look_up(tested, queries=[*names["dev"], *names["test"]]),
        train_scorer=look_up(train.scores, queries=names["train"]),
        encoder=PrecomputedEncoder(
            queries=([*chain(*names.values())], np.concatenate([part.vectors for part in parts.values()])),
            items=(items.texts, found.item_vectors),
            fingerprint=found.name,
        ),
        train=names["train"],
        retrievers=retrievers,
        retriever_names=("random", "dense", *(("bm25", "fused") if retrievers else ())),
        judged=_judgments_of(names["test"], test.relevant, items),
        scale=_estimate_scale(train, found.item_vectors),
        dev=DevQueries(names["dev"], dev.scores) if tune else None,
        facts=facts,
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
    """The task of a dataset, before `score_task` scores its queries.

    `source` and `seed` are what `Dataset.open` takes. Test queries are the first `queries` of `split`, and train
    queries the first `train_queries` of `train_split`, by default "train" if it exists, without those that have the
    text of a test query. With `dev_queries`, at most as many are for tuning, and nothing is learned from them: of
    `dev_split`, by default "dev" if it exists, else the last train queries, at most a fifth of them.
    """
    dataset = Dataset.open(source, seed=seed, **marks_of(scorer), progress=progress)
    judged = dataset.split(split) if queries is None else dataset.split(split).first(queries)
    if train_split == split:
        raise InputError(f"`train_split` and `split` must differ, got {split!r} for both.")
    learned = train_split or ("train" if "train" in dataset.splits and split != "train" else None)
    tested = set(judged.texts)
    candidates = dict.fromkeys(dataset.split(learned).texts if learned else ())
    train = [text for text in candidates if text not in tested][:train_queries]
    facts: dict[str, str | int] = {"split": split, "train part": learned or "queries cut from the items"}
    dev: dict[str, None] = {}
    if dev_queries is not None:
        part, texts = _choose_dev(dataset, dev_split, (split, learned), train, tested, dev_queries)
        dev = dict.fromkeys(texts)
        facts |= {"dev queries": len(dev), "dev part": part}
    unscored = np.empty((0, len(dataset.items)), np.float32)
    return Task(
        name=dataset.name,
        items=dataset.items,
        queries=judged.texts,
        scores=unscored,
        scorer=scorer,
        train_scorer=scorer,
        encoder=encoder,
        train=[text for text in train if text not in dev],
        retrievers=[SharedRetriever(Bm25())],
        retriever_names=("random", "tfidf", "dense", "bm25", "fused"),
        judged=judged,
        dev=DevQueries(list(dev), unscored) if dev else None,
        facts=facts,
        work_dir=Path(work_dir),
    )


def score_task(task: Task, *, engine: Engine = LOCAL, progress: Progress | None = None) -> Task:
    """The task with all scores of its test and dev queries: queries × items calls, unless the work folder has them.

    Searches look these scores up afterwards. The scorer's time is computed from its speed: the task's, else measured
    here on 300 pairs; with fewer pairs it is unknown. The `engine` makes the calls.
    """
    if task.work_dir is None:
        raise InputError("exact scores need a work folder, which only tasks of `read_set` have.")
    folder = task.work_dir / EXACT_FOLDER
    scores = exact_scores(task.items, task.queries, task.train_scorer, folder, engine=engine, progress=progress)
    queries, known, dev = [*task.queries], scores, task.dev
    if dev is not None:

        def report(step: str, done: int, total: int) -> None:
            if progress is not None:
                progress(f"{step} of dev queries", done, total)

        dev_scores = exact_scores(task.items, dev.queries, task.train_scorer, folder, engine=engine, progress=report)
        dev = dev._replace(scores=dev_scores)
        queries, known = [*queries, *dev.queries], np.concatenate([scores, dev_scores])
    scorer = precomputed_scorer(
        known, queries=queries, items=task.items.texts, fingerprint=task.train_scorer.fingerprint
    )
    return replace(task, scores=scores, scorer=scorer, dev=dev, speed=task.speed or measure_scorer(task))


def count_held_out(train: int, limit: int) -> int:
    """How many of the last train queries become dev queries: a fifth, but at least one and at most `limit`."""
    if train < 2:
        raise InputError(
            f"tuning needs a dev split, or at least 2 train queries, of which some are held out, got {train} train "
            "queries. Do not tune, or give all settings by name."
        )
    return max(1, min(limit, train // 5))


def marks_of(scorer: Scorer) -> dict[str, Any]:
    """The tokens that an [emb]-CE expects around a mention and after a title, as arguments of `Dataset.open`."""
    if not isinstance(scorer, EmbCrossEncoder):
        return {}
    marks = {"marks": scorer.pooling.mention_tokens, "title_mark": scorer.pooling.title_token}
    return {name: value for name, value in marks.items() if value is not None}


def _choose_dev(
    dataset: Dataset, given: str | None, taken: Sequence[str | None], train: list[str], tested: set[str], limit: int
) -> tuple[str, list[str]]:
    """What the dev queries are part of, and at most `limit` texts; none of them is a test query."""
    if given is not None and given in taken:
        raise InputError(f"`dev_split` must be neither the test nor the train split, got {given!r}.")
    part = given or ("dev" if "dev" in dataset.splits and "dev" not in taken else None)
    if part is None:
        return HELD_OUT, train[-count_held_out(len(train), limit) :]
    found = [text for text in dict.fromkeys(dataset.split(part).texts) if text not in tested]
    if not found:
        raise InputError(f"{dataset.name}: all queries of the split {part!r} are test queries.")
    return f"the split {part}", found[:limit]


def measure_scorer(task: Task) -> Speed | None:
    """The speed of the task's scorer on 300 pairs, without its cache; None if there are fewer."""
    places = np.arange(SPEED_PAIRS)
    numbers = (places // len(task.items)).tolist()
    if numbers[-1] >= len(task.queries):  # a repeated pair may be faster
        return None
    queries = [task.queries[number] for number in numbers]
    scorer = task.train_scorer
    scorer = scorer.scorer if isinstance(scorer, Cached) else scorer  # the cache may have all pairs
    return measure_speed(scorer, queries, task.items.texts_of(places % len(task.items)))


def _partition(found: ScoreFolder, *, queries: int | None, tune: bool) -> dict[str, ScoredQueries]:
    """Train, dev and test queries; no dev query has the text of another query."""
    train, test = found.train, found.test[:queries]
    learned = len(train) - (count_held_out(len(train), MAX_DEV_QUERIES) if tune else 0)
    seen = {*train.texts[:learned], *test.texts}
    new = [place for place in range(learned, len(train)) if train.texts[place] not in seen]
    if tune and not new:
        raise InputError(f"{found.name}: tuning needs train queries whose text no other query has.")
    return {"train": train[:learned], "dev": train[new], "test": test}


def _judgments_of(names: Sequence[str], relevant: list[Rows] | None, items: Items) -> Split | None:
    """The judgments of these queries; None if the folder has none."""
    if relevant is None:
        return None
    return Split(tuple(names), tuple(names), tuple(dict.fromkeys(items.ids_of(rows), 1) for rows in relevant))


def _estimate_scale(train: ScoredQueries, item_vectors: Vectors) -> Scale | None:
    if not len(train):
        return None
    sample = train[:NORMALIZATION_QUERIES]
    return Scale(Normalization.fit(sample.scores, sample.vectors @ item_vectors.T), sample.scores.size)


def _make_bm25(
    found: ScoreFolder, parts: Mapping[str, ScoredQueries], names: Mapping[str, Sequence[str]]
) -> list[Retriever]:
    if found.dataset is not None:
        texts = dict(zip(chain(*names.values()), chain(*(part.texts for part in parts.values())), strict=True))
        return [SharedRetriever(Bm25(), texts=texts).fit(found.dataset.items)]
    if found.test.bm25 is None:
        return []
    scores: dict[str, Scores] = {}
    for kind, part in parts.items():
        if part.bm25 is not None:
            scores |= zip(names[kind], part.bm25, strict=True)
        elif kind == "dev" and len(part):
            raise InputError(f"{found.name}: tuning needs BM25 scores of its train queries, too: train_bm25.f16.npy.")
    return [PrecomputedRetriever(scores, name="bm25")]
