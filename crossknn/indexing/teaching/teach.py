"""Teaching of a dual encoder by the cross-encoder: mine lists, score them, train, mine again, and check the result."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import invalid
from crossknn._imports import import_extra
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.engines.local import LOCAL
from crossknn.errors import InputError
from crossknn.indexing.factorization.trainer import batches
from crossknn.indexing.pair_scoring import CHUNK, open_score_log, score_pairs_into
from crossknn.indexing.sampling import cut_queries
from crossknn.indexing.score_matrix import Pairs, SparseScores
from crossknn.indexing.teaching.adapter_student import AdapterStudent
from crossknn.indexing.teaching.lists import DEPTH, ScoredLists, choose_items
from crossknn.indexing.teaching.losses import ListLoss
from crossknn.indexing.teaching.settings import POOL_DEPTH, Teaching
from crossknn.indexing.teaching.student import ITEM, QUERY, EncoderStudent, Student
from crossknn.indexing.teaching.trainer import Trainer
from crossknn.items.items import Items
from crossknn.storage.atomic import disk_errors
from crossknn.storage.safetensors import read_checked, write_checked
from crossknn.types import Encoder, Engine, Progress, Scorer, Scores

logger = logging.getLogger(__name__)

STEP: Final = "teaching"
POOL_BEST: Final = 10  # items of a pool whose recall checks an encoder
MINED_PRODUCTS: Final = 1 << 26  # inner products held at once
MIN_STOPPING_LISTS, STOPPING_LISTS = 20, 64  # held-out lists whose loss ends a training early
START_SLOPE: Final = 8.0  # of standardized scores on inner products


class KnownList(NamedTuple):
    """A query with items that the cross-encoder has scored, as a search has them."""

    query: str
    rows: NDArray[np.int64]
    scores: Scores


@dataclass(frozen=True)
class TeachReport:
    """What a teaching did, and what it brought.

    Attributes:
        lists: Trained on.
        pseudo_queries: Lists whose query was cut from an item.
        calls: Scores that it used.
        known_scores: Those of them that the given lists had.
        steps: Of training, without those that an early stop skipped.
        pairs: Query–item pairs that passed through the encoder in training.
        training_seconds: Of these steps, over all runs.
        seconds: Of each part, in this run.
        held_out_lists: Not trained on.
        recall_before: Share of the best 10 of held-out pools that the encoder finds among its own nearest 50. A pool is
            the nearest 50 of the encoder before and after.
        recall: The same after the teaching.
        helped: Whether the taught encoder is used: it finds more than before, by more than one standard error.
    """

    lists: int
    pseudo_queries: int
    calls: int
    steps: int
    pairs: int
    training_seconds: float
    seconds: Mapping[str, float]
    held_out_lists: int
    recall_before: float | None
    recall: float | None
    helped: bool
    known_scores: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON-compatible values."""
        return asdict(self)

    def __str__(self) -> str:
        kept = "" if self.helped else ": the encoder stays as it was"
        recall = "nothing held out to check it"
        if self.recall is not None and self.recall_before is not None:
            recall = f"dense recall on held-out pools {self.recall_before:.1%} before, {self.recall:.1%} after{kept}"
        known = f" ({self.known_scores:,} known before)" if self.known_scores else ""
        return f"taught by {self.lists:,} lists, {self.calls:,} calls{known}, {self.steps:,} steps; {recall}"


class PooledRecall(NamedTuple):
    """Recall of two encoders on the same pools."""

    before: float
    after: float
    rose: bool  # by more than one standard error of the difference

    @classmethod
    def of(cls, shares: NDArray[np.float64]) -> Self:
        """From (queries, 2) the recall of each encoder for each query."""
        before, after = shares.mean(0).tolist()
        differences = shares[:, 1] - shares[:, 0]
        error = float(differences.std() / math.sqrt(len(shares)))
        return cls(before, after, after - before > error)


@dataclass(frozen=True)
class Taught:
    """The result of a teaching.

    Attributes:
        encoder: The taught encoder, opened from its folder, or with an adapter; the given one if teaching did not help.
        entries: All scores, of `queries` × items.
        held_out: Numbers of the queries that were not trained on.
    """

    encoder: Encoder
    report: TeachReport
    queries: list[str]
    entries: SparseScores
    held_out: NDArray[np.int64]

    def some_entries(self, count: int) -> tuple[list[str], SparseScores, NDArray[np.int64]]:
        """At most `count` queries that have scores: held-out ones, then real ones, then others.

        Also their entries and the held-out queries, numbered anew.
        """
        scored = np.unique(self.entries.pairs.queries)
        held_out = np.intersect1d(self.held_out, scored)[:count]
        others = np.setdiff1d(scored, self.held_out)[: count - len(held_out)]
        numbers = np.sort(np.concatenate([held_out, others]))
        chosen = self.entries.take(np.isin(self.entries.pairs.queries, numbers))
        renumbered = np.searchsorted(numbers, chosen.pairs.queries).astype(np.int32)
        kept = Pairs(renumbered, chosen.pairs.rows, len(numbers), chosen.pairs.n_items)
        texts = [self.queries[number] for number in numbers]
        return texts, SparseScores(kept, chosen.scores), np.searchsorted(numbers, held_out)


def teach(
    items: Items,
    folder: str | Path | None = None,
    *,
    scorer: Scorer,
    encoder: Encoder,
    item_vectors: NDArray[Any] | None = None,
    queries: Sequence[str] = (),
    searches: Sequence[KnownList] = (),
    settings: Teaching | None = None,
    work_dir: str | Path | None = None,
    chunk: int = CHUNK,
    engine: Engine = LOCAL,
    on_calls: Callable[[int], None] = lambda _: None,
    progress: Progress | None = None,
) -> Taught:
    """Teach a copy of the encoder, and save it to `folder`, by default one in the work folder, if that helped.

    An adapter is taught over `item_vectors`, those of the encoder it adapts, and is saved by an index only.

    `searches` are lists that are scored already. Their queries come before the train queries, and their lists get mined
    and random items as all others do: what a search chose to score alone would be a biased sample.

    With a `work_dir`, an interrupted teaching resumes from its last checkpoint, at most a minute back.
    """
    settings = settings or Teaching()
    run = _Run(items, scorer, encoder, item_vectors, queries, searches, settings, chunk, engine, on_calls, progress)
    if folder is None and work_dir is None:
        raise InputError("`folder` or `work_dir` must say where the taught encoder is saved.")
    with _state_folder(None if work_dir is None else Path(work_dir), run.key) as state:
        target = state / "encoder" if folder is None else Path(folder)
        return run.teach(target, state, None if work_dir is None else Path(work_dir))


@contextmanager
def _state_folder(work_dir: Path | None, key: str) -> Iterator[Path]:
    """A folder for checkpoints and lists: kept in the work folder, or temporary."""
    if work_dir is None:
        with TemporaryDirectory() as temporary:
            yield Path(temporary)
        return
    folder = work_dir / f"teaching-{key}"
    with disk_errors(folder, "the teaching cannot be kept"):
        folder.mkdir(parents=True, exist_ok=True)
    yield folder


@dataclass(eq=False)
class _Run:
    """One teaching."""

    items: Items
    scorer: Scorer
    encoder: Encoder
    item_vectors: NDArray[Any] | None
    train_queries: Sequence[str]
    searches: Sequence[KnownList]
    settings: Teaching
    chunk: int
    engine: Engine
    on_calls: Callable[[int], None]
    progress: Progress | None

    def __post_init__(self) -> None:
        self._torch = import_extra("torch", extra="models")
        self.seconds: dict[str, float] = {}
        self._known_scores = 0  # of the given lists
        if not self.settings.items_per_list and not self.searches:
            raise InputError("`items_per_list` must be at least 4 where no list is scored yet, got 0.")

    @property
    def key(self) -> str:
        """A hash of everything that determines the result."""
        settings = {**asdict(self.settings), "time_limit": None}
        parts = [self.items.fingerprint, self.scorer.fingerprint, self.encoder.fingerprint, json.dumps(settings)]
        digest = blake2b(json.dumps(parts).encode(), digest_size=6)
        for query in self.queries:
            digest.update(query.encode("utf-8", "surrogatepass") + b"\0")
        for search in self.searches:
            digest.update(search.rows.tobytes() + search.scores.tobytes())
        return digest.hexdigest()

    @cached_property
    def queries(self) -> list[str]:
        """Queries of searches, then train queries, each in random order, then pseudo-queries, as many as lists."""
        rng = np.random.default_rng((self.settings.seed, 3))
        searched = dict.fromkeys(search.query for search in self.searches)
        others = [query for query in dict.fromkeys(self.train_queries) if query not in searched]
        ordered = [texts[at] for texts in (list(searched), others) for at in rng.permutation(len(texts))]
        real = ordered[: self.settings.lists]
        missing = self.settings.lists - len(real)
        cut = cut_queries(self.items, missing, seed=self.settings.seed) if missing else []
        return list(dict.fromkeys([*real, *cut]))

    @property
    def _pool_depth(self) -> int:
        """Fewer where there are few items, so that a pool is never all of them."""
        return max(1, min(POOL_DEPTH, len(self.items) // 4))

    @property
    def real_queries(self) -> int:
        real = {search.query for search in self.searches} | set(self.train_queries)
        return min(len(real), self.settings.lists)

    def teach(self, folder: Path, state: Path, work_dir: Path | None) -> Taught:
        """Run all rounds, and check what came of it."""
        self._work_dir, settings = work_dir, self.settings
        with self._timing("load"):
            student = self._make_student()
        with self._timing("read"):
            self._inputs = (student.read(QUERY, self.queries), student.read(ITEM, self.items.texts))
        held_out = self._hold_out()
        fitted = np.setdiff1d(np.arange(len(self.queries)), held_out)
        steps = max(1, math.ceil(settings.epochs * len(fitted) / settings.batch))
        with self._timing("mine"):
            near_before = self._nearest(student, held_out, self._pool_depth)
        checkpoint = state / "checkpoint.safetensors"
        self._drop_damaged(state, checkpoint)
        known = self._known()
        self._known_scores = 0 if known is None else len(known)
        entries = self._mine(student, known, state / "lists-1.safetensors")
        lists = ScoredLists.of(entries).split(held_out)
        loss = self._loss(student, lists[0])
        trainer = Trainer(student, loss, self._inputs, settings, total_steps=steps, checkpoint=checkpoint)
        resumed = trainer.load()
        for number in range(1, settings.rounds + 1):
            until = round(steps * number / settings.rounds)
            if trainer.is_out_of_time():
                break
            if number > 1:
                entries = self._mine(student, entries, state / f"lists-{number}.safetensors")
                lists = ScoredLists.of(entries).split(held_out)
            with self._timing("train"):
                report = partial(self._report, steps=steps)
                trainer.run(lists[0], until, report, held_out=self._stopping_lists(lists[1]))
            if work_dir is not None and not (resumed and trainer.progress.step > until):
                trainer.save()
        self._report(steps, steps=steps)
        return self._finish(student, trainer, folder, held_out, near_before, entries)

    def _make_student(self) -> Student:
        settings = self.settings
        if settings.student == "encoder":
            if not isinstance(self.encoder, SentenceEncoder):
                raise invalid("encoder", "a SentenceEncoder", self.encoder, 'Teach an adapter: student="adapter".')
            return EncoderStudent(self.encoder, device=settings.device)
        if self.item_vectors is None:
            raise InputError("`item_vectors` must be given to teach an adapter: those of the encoder it adapts.")
        for_items = settings.student == "adapter"
        return AdapterStudent(
            self.encoder, self.item_vectors, for_items=for_items, device=settings.device, seed=settings.seed
        )

    def _stopping_lists(self, held_out: ScoredLists) -> ScoredLists | None:
        """A sample of the held-out lists, of the size of training lists; None where they are too few to stop by."""
        settings = self.settings
        if settings.patience is None or len(held_out) < MIN_STOPPING_LISTS:
            return None
        rng = np.random.default_rng((settings.seed, 6))
        some = held_out.take(np.arange(min(STOPPING_LISTS, len(held_out))))
        return some.sample(settings.items_per_step, best=settings.best_items, rng=rng)

    def _finish(
        self,
        student: Student,
        trainer: Trainer,
        folder: Path,
        held_out: NDArray[np.int64],
        near_before: NDArray[np.int64],
        entries: SparseScores,
    ) -> Taught:
        with self._timing("check"):
            near = self._nearest(student, held_out, self._pool_depth)
            recall, entries = self._pooled_recall(held_out, near_before, near, entries)
        helped, encoder = recall is None or recall.rose, self.encoder
        if helped:
            with self._timing("save"):
                encoder = student.finish(folder)
        report = TeachReport(
            lists=len(self.queries) - len(held_out),
            pseudo_queries=len(self.queries) - self.real_queries,
            calls=len(entries),
            steps=trainer.progress.step - trainer.progress.skipped,
            pairs=trainer.progress.pairs,
            training_seconds=trainer.progress.seconds,
            seconds=self.seconds,
            held_out_lists=len(held_out),
            recall_before=None if recall is None else recall.before,
            recall=None if recall is None else recall.after,
            helped=helped,
            known_scores=self._known_scores,
        )
        return Taught(encoder, report, self.queries, entries, held_out)

    def _hold_out(self) -> NDArray[np.int64]:
        """Numbers of the held-out queries: real ones where there are enough."""
        rng = np.random.default_rng((self.settings.seed, 4))
        count = self.settings.held_out(len(self.queries))
        real = self.real_queries
        source = real if real >= 4 * count else len(self.queries)
        return np.sort(rng.permutation(source)[:count])

    def _known(self) -> SparseScores | None:
        """The scores of searches; of a pair that was scored twice, the first."""
        numbers = {query: number for number, query in enumerate(self.queries)}
        chosen = [(numbers[search.query], search) for search in self.searches if search.query in numbers]
        if not chosen:
            return None
        queries = np.concatenate([np.full(len(search.rows), number, np.int32) for number, search in chosen])
        rows = np.concatenate([search.rows for _, search in chosen]).astype(np.int32)
        pairs = Pairs(queries, rows, len(self.queries), len(self.items))
        _, first = np.unique(pairs.keys(), return_index=True)
        scores = np.concatenate([search.scores for _, search in chosen]).astype(np.float32)
        return SparseScores(pairs.take(first), scores[first])

    def _loss(self, student: Student, lists: ScoredLists) -> ListLoss:
        settings = self.settings
        return ListLoss(
            student.device,
            deviation=lists.deviation(),
            slope=START_SLOPE,
            temperature=settings.temperature,
            squared_error=settings.squared_error,
            evidence=settings.evidence,
        )

    def _mine(self, student: Student, known: SparseScores | None, path: Path) -> SparseScores:
        """The known scores and those of new items, mined with the student as it is; kept in a file."""
        settings = self.settings
        if not settings.items_per_list and known is not None:
            return known
        if path.exists() and (stored := read_checked(path)) is not None:
            pairs = Pairs(stored["queries"], stored["rows"], len(self.queries), len(self.items))
            return SparseScores(pairs, stored["scores"])
        with self._timing("mine"):
            nearest = self._nearest(student, np.arange(len(self.queries)), DEPTH, known)
        rng = np.random.default_rng((settings.seed, 5, 0 if known is None else len(known)))
        share, n_items = settings.random_share, len(self.items)
        pairs = choose_items(nearest, settings.items_per_list, n_items=n_items, rng=rng, random_share=share)
        entries = self._score(pairs) if known is None else self._score_missing(pairs, known)
        arrays = {"queries": entries.pairs.queries, "rows": entries.pairs.rows, "scores": entries.scores}
        write_checked(path, arrays)
        return entries

    def _drop_damaged(self, state: Path, checkpoint: Path) -> None:
        """Delete lists that are damaged; without those of a later round, the training begins again, too."""
        for number in range(1, self.settings.rounds + 1):
            path = state / f"lists-{number}.safetensors"
            if path.exists() and read_checked(path) is None:
                logger.warning("%s: damaged; the items of these lists are chosen again", path)
                path.unlink()
                if number > 1:  # which were mined between the steps that the checkpoint has behind it
                    checkpoint.unlink(missing_ok=True)

    def _score_missing(self, pairs: Pairs, known: SparseScores) -> SparseScores:
        """The known scores, and those of the other pairs."""
        return _merge(known, self._score(pairs.take(~np.isin(pairs.keys(), known.pairs.keys()))))

    def _score(self, pairs: Pairs) -> SparseScores:
        with self._timing("score"):
            return score_pairs_into(
                open_score_log(self._work_dir, self.scorer),
                pairs,
                self.queries,
                self.items,
                self.scorer,
                chunk=self.chunk,
                engine=self.engine,
                on_calls=self.on_calls,
                progress=self.progress,
            )

    def _nearest(
        self, student: Student, queries: NDArray[np.int64], depth: int, known: SparseScores | None = None
    ) -> NDArray[np.int64]:
        """(queries, depth) the nearest items of each query that have no known score, nearest first."""
        torch = self._torch
        query_inputs, item_inputs = self._inputs
        if not len(queries):
            return np.empty((0, 0), np.int64)
        items, vectors = student.encode_all(item_inputs), student.encode_all(query_inputs, queries)
        depth = min(depth, len(items))
        found = np.empty((len(queries), depth), np.int64)
        for part in batches(len(queries), max(1, MINED_PRODUCTS // len(items))):
            products = vectors[part] @ items.T
            if known is not None:
                places, rows = _places_of(known, queries[part], len(self.queries))
                products[torch.from_numpy(places), torch.from_numpy(rows)] = -torch.inf
            found[part] = products.topk(depth, dim=1).indices.cpu().numpy()
        return found

    def _pooled_recall(
        self,
        queries: NDArray[np.int64],
        before: NDArray[np.int64],
        after: NDArray[np.int64],
        entries: SparseScores,
    ) -> tuple[PooledRecall | None, SparseScores]:
        """Of the best of each query's pool, the share that the nearest items of each encoder hold; and all scores."""
        if not len(queries):
            return None, entries
        near = np.concatenate([before, after], 1)
        keys = np.unique(np.repeat(queries, near.shape[1]) * len(self.items) + near.ravel())
        numbers, rows = np.divmod(keys, len(self.items))
        pool = Pairs(numbers.astype(np.int32), rows.astype(np.int32), len(self.queries), len(self.items))
        entries = self._score_missing(pool, entries)
        best = ScoredLists.of(entries.take(np.isin(entries.pairs.keys(), keys)), min_items=1)
        shares = [
            [np.isin(pool_rows, near).mean() for near in both]
            for pool_rows, *both in zip(best.rows[:, :POOL_BEST], before, after, strict=True)
        ]
        return PooledRecall.of(np.array(shares)), entries

    def _report(self, step: int, *, steps: int) -> None:
        if self.progress is not None:
            self.progress(STEP, step, steps)

    @contextmanager
    def _timing(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def _places_of(
    known: SparseScores, queries: NDArray[np.int64], n_queries: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(places in `queries`, rows) of the known scores of these queries."""
    place = np.full(n_queries, -1)
    place[queries] = np.arange(len(queries))
    places = place[known.pairs.queries]
    return places[places >= 0], known.pairs.rows[places >= 0].astype(np.int64)


def _merge(first: SparseScores, second: SparseScores) -> SparseScores:
    """The entries of both; of a pair in both, the first score."""
    keys = np.concatenate([first.pairs.keys(), second.pairs.keys()])
    _, places = np.unique(keys, return_index=True)
    joined = Pairs(
        np.concatenate([first.pairs.queries, second.pairs.queries]),
        np.concatenate([first.pairs.rows, second.pairs.rows]),
        first.pairs.n_queries,
        first.pairs.n_items,
    )
    return SparseScores(joined.take(places), np.concatenate([first.scores, second.scores])[places])
