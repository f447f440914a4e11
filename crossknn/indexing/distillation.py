"""Knowledge distillation of the dual encoder (DE_dstl): fine-tuning on the cross-encoder's score distributions."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import numpy as np

from crossknn._checks import check_number, check_positive, invalid
from crossknn._imports import import_extra
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import InputError
from crossknn.indexing.builder import Build
from crossknn.indexing.factorization.trainer import Training, batches, run_epochs, shuffled_batches
from crossknn.indexing.factorization.transductive import Transductive
from crossknn.indexing.sampling import PerQuery, Sampling
from crossknn.indexing.score_matrix import SparseScores, group_positions
from crossknn.indexing.student import ITEM, QUERY, Student
from crossknn.items.items import Items
from crossknn.strategies.normalization import Normalization
from crossknn.types import Progress, Scorer

if TYPE_CHECKING:
    from torch import Tensor

PROGRESS_STEP = "distilling"
TEMPERATURE_QUERIES = 100  # that the temperature is measured on, as many as for the paper's α and β
PAPER_SAMPLING = PerQuery(items=100, retriever="dense")


@dataclass(frozen=True, kw_only=True)
class Distillation(Training):
    """DE_dstl: fine-tune all parameters of a dual encoder by soft cross-entropy over each query's scored items.

    The target is the softmax of the query's raw scores, the prediction the softmax of the dual encoder's inner
    products divided by `temperature`. Queries with fewer than two scored items are left out. The other settings are
    those of `Training`.

    Dropout is off (the paper does not say), so that the same seed gives the same weights on a CPU. A GPU computes in
    bfloat16 by autocast; weights stay float32. Memory besides activations: five times the model's weights (gradients,
    two moments, checkpoint), and the tokens of up to 200,000 texts. Nothing is saved on the way: an interrupted fit
    starts over.

    Args:
        batch: Queries per step of AdamW, over which the paper accumulates gradients.
        held_out: The share of queries held out to measure the error after each epoch.
        items_per_query: Of more scored items, this many are drawn at random, again in each epoch.
        texts_at_once: Texts whose activations are in memory together; affects time, not the result. None is 32 on a
            CPU and 512 on a GPU, where smaller parts take several times as long.
        temperature: None measures it, so that inner products and scores initially vary equally within queries. The
            paper has none (1), which does not suit unit vectors: their inner products vary too little.
        time_limit: Seconds after which no further step is made; the unfinished epoch counts like a whole one. The
            paper's is 24 hours. None is unlimited.
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"learning_rate": 1e-5, "batch": 4, "epochs": 10},  # 100 items per query
        "paper-large": {"learning_rate": 1e-5, "batch": 4, "epochs": 4},  # 1000 items per query
    }

    learning_rate: float = 1e-5
    batch: int = 4
    items_per_query: int = 1000
    texts_at_once: int | None = None
    temperature: float | None = None
    time_limit: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("items_per_query", self.items_per_query)
        if self.items_per_query < 2:
            raise invalid("items_per_query", "at least 2", self.items_per_query)
        if self.texts_at_once is not None:
            check_positive("texts_at_once", self.texts_at_once)
        for name, value in (("temperature", self.temperature), ("time_limit", self.time_limit)):
            if value is not None:
                check_number(name, value)

    def fit(
        self,
        entries: SparseScores,
        encoder: SentenceEncoder,
        queries: Sequence[str],
        items: Items | Sequence[str],
        folder: str | Path,
        *,
        progress: Progress | None = None,
    ) -> Distilled:
        """Fine-tune a copy of the encoder's model and save it to `folder`, which must not exist yet.

        `queries` are all train queries and `items` all items that `entries` refer to. The encoder's prompts and
        `max_tokens` become the new model's own; `normalize=False` must be given again to open it.
        """
        start = time.perf_counter()
        items = items if isinstance(items, Items) else Items(items)
        _check_texts(queries, items, entries)
        fitted, held_out = (
            [part.take(positions) for positions in group_positions(part.pairs.queries)]
            for part in self.split(_drop_single_items(entries))
        )
        target = _check_new_folder(Path(folder))
        student = Student(encoder, device=self.device, texts_at_once=self.texts_at_once)
        first = fitted[0].pairs
        student.check_vectors(queries[first.queries[0]], items.text(int(first.rows[0])))
        report = _Trainer(student, queries, items, self, start, progress).train(fitted, held_out)
        student.save(target)
        return Distilled(SentenceEncoder(target, device=self.device or "cpu", normalize=encoder.normalize), report)

    def split(self, entries: SparseScores) -> tuple[SparseScores, SparseScores]:
        """(training entries, held-out entries), split by query."""
        _, firsts = np.unique(entries.pairs.queries, return_index=True)
        _, held_out = super().split(entries.take(firsts))
        is_held_out = np.isin(entries.pairs.queries, held_out.pairs.queries)
        return entries.take(~is_held_out), entries.take(is_held_out)


def distill(
    items: Items,
    folder: str | Path,
    *,
    scorer: Scorer,
    encoder: SentenceEncoder,
    queries: Sequence[str] | None = None,
    sampling: Sampling | Sequence[Sampling] = PAPER_SAMPLING,
    settings: Distillation | None = None,
    work_dir: str | Path | None = None,
    seed: int = 0,
    device: str | None = None,
    progress: Progress | None = None,
) -> Distilled:
    """Score pairs as `Index.build` does, and fine-tune a copy of the encoder on them.

    Settings with the names of `Index.build`'s mean the same; with the same `work_dir` both share scores. Build an
    index with the encoder that is returned. The new model is saved to `folder`, which must not exist yet.
    """
    settings = settings or Distillation(seed=seed, device=device)
    target = _check_new_folder(Path(folder))  # before anything is scored
    build = Build(
        items,
        scorer=scorer,
        encoder=encoder,
        queries=queries,
        sampling=sampling,
        factors=Transductive(),
        work_dir=work_dir,
        seed=seed,
        device=device,
        progress=progress,
    )
    return settings.fit(build.score(), encoder, build.train_queries, items, target, progress=progress)


class DistillReport(TypedDict):
    """Training statistics. Errors are mean cross-entropies per query, with at most `items_per_query` items each.

    Held-out ones are None if nothing was held out.
    """

    queries: int  # trained on
    held_out_queries: int
    epochs: int  # begun
    best_epoch: int  # the one saved; 0 is the start
    stopped_early: bool  # by the held-out error
    out_of_time: bool
    seconds: float
    temperature: float
    train_errors: list[float]  # of each epoch, during training
    held_out_error_before: float | None
    held_out_error: float | None
    held_out_errors: list[float]  # before the first epoch and after each
    held_out_entropy: float | None  # of the targets, the lower bound of the error


@dataclass(frozen=True)
class Distilled:
    """The fine-tuned dual encoder, opened from its folder, and its training statistics."""

    encoder: SentenceEncoder
    report: DistillReport


class _Trainer:
    """The epochs of one distillation."""

    def __init__(
        self,
        student: Student,
        queries: Sequence[str],
        items: Items,
        settings: Distillation,
        start: float,
        progress: Progress | None,
    ) -> None:
        self._torch = import_extra("torch", extra="models")
        self._student, self._queries, self._items = student, queries, items
        self._settings, self._start, self._progress = settings, start, progress
        self._rng = np.random.default_rng((settings.seed, 1))
        self._optimizer = self._torch.optim.AdamW(
            student.parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        self._temperature = settings.temperature or 1.0
        self._done = 0  # lists trained on, over all epochs

    def train(self, fitted: list[SparseScores], held_out: list[SparseScores]) -> DistillReport:
        """Train with early stopping and a time limit, and leave the best weights in the student."""
        settings, total = self._settings, self._settings.epochs * len(fitted)
        if settings.temperature is None:
            self._temperature = self._measure_temperature(fitted)
        checks = self._draw(held_out)
        errors, train_errors = self._mean_error(checks, epoch=0), list[float]()

        def run_epoch(epoch: int) -> list[float]:
            train_errors.append(self._run_epoch(fitted, epoch, total))
            return self._mean_error(checks, epoch=epoch)

        epochs, best = run_epochs(self._student, settings, errors, run_epoch, self._is_out_of_time)
        if self._progress is not None and self._done < total:
            self._progress(PROGRESS_STEP, total, total)
        out_of_time = self._done < total and self._is_out_of_time()
        return DistillReport(
            queries=len(fitted),
            held_out_queries=len(held_out),
            epochs=epochs,
            best_epoch=best,
            stopped_early=self._done < total and not out_of_time,
            out_of_time=out_of_time,
            seconds=time.perf_counter() - self._start,
            temperature=self._temperature,
            train_errors=train_errors,
            held_out_error_before=errors[0] if errors else None,
            held_out_error=errors[best] if errors else None,
            held_out_errors=errors,
            held_out_entropy=float(np.mean([self._entropy(one) for one in checks])) if checks else None,
        )

    def _run_epoch(self, fitted: list[SparseScores], epoch: int, total: int) -> float:
        """The mean error during the epoch, which ends early when time is up."""
        errors: list[float] = []
        for chosen in shuffled_batches(len(fitted), self._settings.batch, self._rng):
            lists = self._draw(fitted[number] for number in chosen)
            found = self._errors(lists)
            errors += found.tolist()
            _check_finite(errors, epoch)
            self._optimizer.zero_grad()
            self._torch.autograd.backward(found.mean())
            self._optimizer.step()
            self._done += len(chosen)
            if self._progress is not None:
                self._progress(PROGRESS_STEP, self._done, total)
            if self._is_out_of_time():
                break
        self._mean_error(lists[:1], epoch=epoch)  # the last step may have diverged, too
        return float(np.mean(errors))

    def _draw(self, lists: Iterable[SparseScores]) -> list[SparseScores]:
        """The lists, with a random sample of those longer than `items_per_query`."""
        size = self._settings.items_per_query
        return [
            one if len(one) <= size else one.take(np.sort(self._rng.choice(len(one), size, replace=False)))
            for one in lists
        ]

    def _errors(self, lists: Sequence[SparseScores]) -> Tensor:
        """(lists,) soft cross-entropy between the softmax of a list's scores and that of its inner products."""
        cross_entropy = self._torch.nn.functional.cross_entropy
        scores = [self._torch.from_numpy(one.scores).to(self._student.device) for one in lists]
        products = self._products(lists)
        errors = [cross_entropy(p / self._temperature, s.softmax(0)) for p, s in zip(products, scores, strict=True)]
        return self._torch.stack(errors)  # type: ignore[no-any-return]

    def _entropy(self, one: SparseScores) -> float:
        """Of the softmax of a list's scores: their cross-entropy with themselves."""
        scores = self._torch.from_numpy(one.scores).double()
        return float(self._torch.nn.functional.cross_entropy(scores, scores.softmax(0)))

    def _products(self, lists: Sequence[SparseScores]) -> list[Tensor]:
        """The inner products of each list's query with its items; an item in several lists is encoded once."""
        rows, positions = np.unique(np.concatenate([one.pairs.rows for one in lists]), return_inverse=True)
        items = self._student.encode(ITEM, self._items.texts_of(rows))
        queries = self._student.encode(QUERY, [self._queries[one.pairs.queries[0]] for one in lists])
        each = items[self._torch.from_numpy(positions).to(items.device)]
        parts = self._torch.split(each, [len(one) for one in lists])
        return [part @ query for part, query in zip(parts, queries, strict=True)]

    def _mean_error(self, lists: list[SparseScores], *, epoch: int) -> list[float]:
        """The mean error on these lists; empty if there are none."""
        errors: list[float] = []
        with self._torch.no_grad():
            for batch in batches(len(lists), self._settings.batch):
                errors += self._errors(lists[batch]).tolist()
        _check_finite(errors, epoch)
        return [float(np.mean(errors))] if errors else []

    def _measure_temperature(self, fitted: list[SparseScores]) -> float:
        """The paper's β, which scales scores to inner products, for deviations from the mean of each list."""
        scores, products = [], []
        with self._torch.no_grad():
            for number in self._rng.permutation(len(fitted))[:TEMPERATURE_QUERIES]:
                [one] = self._draw([fitted[number]])
                [found] = self._products([one])
                scores.append(one.scores - one.scores.mean())
                products.append((found - found.mean()).cpu().numpy())
        return Normalization.fit(np.concatenate(scores), np.concatenate(products)).beta

    def _is_out_of_time(self) -> bool:
        return time.perf_counter() - self._start > (self._settings.time_limit or math.inf)


def _check_texts(queries: Sequence[str], items: Items, entries: SparseScores) -> None:
    if isinstance(queries, str) or not all(isinstance(query, str) for query in queries):
        raise invalid("queries", "a list of strings", queries)
    pairs = entries.pairs
    for name, found, expected in (("queries", len(queries), pairs.n_queries), ("items", len(items), pairs.n_items)):
        if found != expected:
            raise InputError(f"`{name}` must be the {expected} that `entries` refer to, got {found}.")


def _drop_single_items(entries: SparseScores) -> SparseScores:
    """The entries of queries that have at least two."""
    counts = np.bincount(entries.pairs.queries, minlength=entries.pairs.n_queries)
    kept = entries.take(counts[entries.pairs.queries] >= 2)
    if not len(kept):
        raise InputError(f"`entries` must hold two scored items of some query, got {len(entries)} entries.")
    return kept


def _check_new_folder(folder: Path) -> Path:
    """The folder, which must not exist; its parents are created."""
    if folder.exists():
        raise InputError(f"{folder} exists already. Give a new folder for the fine-tuned model.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror or error}).") from error
    return folder


def _check_finite(errors: list[float], epoch: int) -> None:
    if not math.isfinite(sum(errors)):
        raise InputError(
            f"The fit diverged in epoch {epoch}: NaN or infinity in the error. Lower `learning_rate`, or raise "
            "`temperature` if it is far below 0.01."
        )
