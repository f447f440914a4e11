"""Training loop shared by the factorizations: settings, mini-batches, held-out error, early stopping."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_choice, check_number, check_positive, check_range, invalid, is_finite
from crossknn.errors import InputError
from crossknn.indexing.score_matrix import Pairs, SparseScores
from crossknn.types import Progress, Scores, Vectors

if TYPE_CHECKING:
    import torch

PROGRESS_STEP = "factorizing"
MAX_DECAY_PER_STEP = 0.05  # of a vector; from 0.1 on the sums of LazyAdamW no longer converge
ERROR_BATCH = 8_192  # pairs estimated together
ERROR_SAMPLE = 200_000  # entries that the training error is measured on
VECTOR_BATCH = 4_096  # vectors read, encoded or copied together
FINITE_BATCH = 1 << 20  # numbers checked together


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of every training.

    Args:
        epochs: The maximal number of passes over the entries.
        batch: Entries per step of AdamW (the paper does not say).
        held_out: The share of entries held out to measure the error after each epoch.
        patience: Stop after this many epochs without a lower held-out error and restore the best epoch, which may
            be the start. None runs all epochs and keeps the last.
        seed: Of everything random. On a CPU the same seed gives the same bytes.
        device: Of torch; None is the CPU.
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    epochs: int = 10
    learning_rate: float = 0.001
    weight_decay: float = 0.01
    batch: int = 1024
    held_out: float = 0.05
    patience: int | None = 3
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        check_positive("epochs", self.epochs)
        check_positive("batch", self.batch)
        if self.patience is not None:
            check_positive("patience", self.patience)
        check_number("learning_rate", self.learning_rate)
        check_range("weight_decay", self.weight_decay, 0)
        if self.learning_rate * self.weight_decay > MAX_DECAY_PER_STEP:
            raise InputError(
                f"`learning_rate` × `weight_decay` must be at most {MAX_DECAY_PER_STEP}, "
                f"got {self.learning_rate!r} × {self.weight_decay!r}."
            )
        if not is_finite(self.held_out) or not 0 <= self.held_out < 1:
            raise invalid("held_out", "at least 0 and less than 1", self.held_out)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """The preset of this name, with these changes."""
        check_choice("preset", name, cls.PRESETS)
        return cls(**{**cls.PRESETS[name], **changes})

    def split(self, entries: SparseScores) -> tuple[SparseScores, SparseScores]:
        """(training entries, held-out entries)."""
        if not len(entries):
            raise InputError("`entries` must hold at least one score.")
        return entries.hold_out(self.held_out, seed=self.seed)


class FitReport(TypedDict):
    """Training statistics. Errors are mean squared errors; held-out ones are None if nothing was held out."""

    entries: int  # trained on
    held_out_entries: int
    epochs: int  # run
    best_epoch: int  # the one returned; 0 is the start
    stopped_early: bool
    seconds: float
    train_error_before: float
    train_error: float
    held_out_error_before: float | None
    held_out_error: float | None
    held_out_r2: float | None  # 1 − error / variance
    held_out_errors: list[float]  # before the first epoch and after each


class Checkpointed:
    """A model in training, with one checkpoint of its parameters."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self.parameters = list(parameters)
        self._saved: list[torch.Tensor] = []

    def is_finite(self) -> bool:
        """Whether all parameters are finite."""
        flat = (value.detach().flatten() for value in self.parameters)
        return all(bool(v[part].isfinite().all()) for v in flat for part in batches(len(v), FINITE_BATCH))

    def checkpoint(self) -> None:
        """Save the parameters in place of the previous checkpoint."""
        self._saved.clear()  # frees the memory for the next one
        self._saved += [value.detach().clone() for value in self.parameters]

    def restore(self) -> None:
        """Return to the checkpoint."""
        for value, saved in zip(self.parameters, self._saved, strict=True):
            value.detach().copy_(saved)


class Learner(Checkpointed, ABC):
    """A factorization in training."""

    steps: int  # per epoch, for progress

    @abstractmethod
    def run_epoch(self, tick: Callable[[], None]) -> None:
        """Pass over the training entries once, calling `tick` after each step."""

    @abstractmethod
    def estimate(self, pairs: Pairs) -> Scores:
        """(pairs,) `u·v` of some pairs."""


def train(
    learner: Learner, fitted: SparseScores, held_out: SparseScores, settings: Training, progress: Progress | None
) -> FitReport:
    """Train with early stopping and leave the best epoch in `learner`."""
    start = time.perf_counter()
    sample = _sample_entries(fitted, seed=settings.seed)
    error_before = mean_squared_error(sample, learner.estimate)
    total, done = settings.epochs * learner.steps, 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(PROGRESS_STEP, done, total)

    def measure() -> list[float]:
        return [mean_squared_error(held_out, learner.estimate)] if len(held_out) else []

    def run_epoch(epoch: int) -> list[float]:
        learner.run_epoch(tick)
        found = measure()
        if not learner.is_finite() or not all(map(math.isfinite, found)):
            raise InputError(
                f"The fit diverged in epoch {epoch}: NaN or infinity in the parameters. Lower `learning_rate` or raise "
                "`ridge`, and check that the scores are normalized to the scale of the vectors' inner products."
            )
        return found

    errors = measure()
    epochs, best = run_epochs(learner, settings, errors, run_epoch)
    if progress is not None and epochs < settings.epochs:
        progress(PROGRESS_STEP, total, total)
    return FitReport(
        entries=len(fitted),
        held_out_entries=len(held_out),
        epochs=epochs,
        best_epoch=best,
        stopped_early=epochs < settings.epochs,
        seconds=time.perf_counter() - start,
        train_error_before=error_before,
        train_error=mean_squared_error(sample, learner.estimate),
        held_out_error_before=errors[0] if errors else None,
        held_out_error=errors[best] if errors else None,
        held_out_r2=r_squared(errors[best], held_out.scores) if errors else None,
        held_out_errors=errors,
    )


def run_epochs(
    model: Checkpointed,
    settings: Training,
    errors: list[float],
    run_epoch: Callable[[int], list[float]],
    is_out_of_time: Callable[[], bool] = lambda: False,
) -> tuple[int, int]:
    """(epochs run, the best), which is left in `model`: the last one without held-out `errors` or `patience`.

    `run_epoch(number)` returns the held-out error after it, if any; it is appended to `errors`.
    """
    early_stopping = bool(errors) and settings.patience is not None
    patience = settings.patience or settings.epochs
    best = epoch = 0
    while epoch < settings.epochs and epoch - best < patience and not is_out_of_time():
        if early_stopping and best == epoch:
            model.checkpoint()
        epoch += 1
        errors += run_epoch(epoch)
        if not early_stopping or errors[epoch] < errors[best]:
            best = epoch
    if best < epoch:
        model.restore()
    return epoch, best


def mean_squared_error(entries: SparseScores, estimate: Callable[[Pairs], Scores]) -> float:
    """Of the estimates over all entries, in batches."""
    total = 0.0
    for batch in batches(len(entries), ERROR_BATCH):
        part = entries.take(batch)
        total += float(np.square(estimate(part.pairs).astype(np.float64) - part.scores).sum())
    return total / len(entries)


def r_squared(error: float, scores: Scores) -> float | None:
    """R² of a mean squared error; None if the scores are constant."""
    variance = float(scores.var(dtype=np.float64))
    return 1 - error / variance if variance > 0 else None


def batches(count: int, size: int = VECTOR_BATCH) -> Iterator[slice]:
    """0…count−1 as consecutive slices of at most `size`."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def shuffled_batches(count: int, size: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """0…count−1 in random order, `size` at a time."""
    order = rng.permutation(count)
    for batch in batches(count, size):
        yield order[batch]


def read_vectors(vectors: NDArray[Any], which: NDArray[Any] | slice) -> Vectors:
    """Some vectors as float32; only these are read from a memory map."""
    part: Vectors = np.ascontiguousarray(vectors[which], np.float32)
    return part


def check_vectors(name: str, vectors: NDArray[Any], count: int, dim: int | None = None) -> int:
    """The dimension of (count, dim) finite vectors; an error if the shape, dtype or values are wrong."""
    if vectors.ndim != 2 or len(vectors) != count or not vectors.shape[1] or (dim and vectors.shape[1] != dim):
        raise InputError(f"`{name}` must have shape ({count}, {dim or 'dim'}), got {vectors.shape}.")
    if not np.issubdtype(vectors.dtype, np.floating):
        raise InputError(f"`{name}` must be floating-point, got {vectors.dtype}.")
    for rows in batches(count):
        if not math.isfinite(vectors[rows].sum(dtype=np.float64)):
            raise InputError(f"`{name}` must be finite, got NaN or infinity in rows {rows.start} to {rows.stop - 1}.")
    return int(vectors.shape[1])


def _sample_entries(entries: SparseScores, *, seed: int) -> SparseScores:
    """At most `ERROR_SAMPLE` of the entries."""
    if len(entries) <= ERROR_SAMPLE:
        return entries
    chosen = np.random.default_rng((seed, 2)).choice(len(entries), ERROR_SAMPLE, replace=False)
    return entries.take(np.sort(chosen))
