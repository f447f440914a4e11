"""What the factorisers share: checked settings, batches of entries, held-out error, early stopping, a NaN check."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, TypedDict

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive
from crossknn.errors import InputError
from crossknn.indexing.score_matrix import Pairs, SparseScores
from crossknn.types import Progress, Scores, Vectors

STEP = "factorising"  # what progress is reported as
MOST_DECAY = 0.05  # in one step; more makes no sense, and LateAdamW's sums no longer converge from 0.1 on
ERROR_PAIRS = 8_192  # whose estimates are made at once
ERROR_SAMPLE = 200_000  # entries that the error on what was fitted is measured on
BLOCK_ROWS = 4_096  # vectors read, encoded or copied at once


@dataclass(frozen=True, kw_only=True)
class Training:
    """How entries are fitted, whatever is fitted to them.

    epochs         at most so many passes over the entries
    learning_rate  of AdamW
    weight_decay   of AdamW
    batch          entries per step of AdamW (the paper does not say)
    held_out       share of the entries that is not fitted but checks the fit after each epoch
    patience       stop after so many epochs without a lower error on what was held out, and go back to the best
                   epoch, which may be the start. None never stops or goes back: the last epoch is kept
    seed           of everything random. On a CPU, the same seed gives the same bytes
    device         of torch; None is the CPU
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
        check_number("learning_rate", self.learning_rate, positive=True)
        check_number("weight_decay", self.weight_decay)
        if self.learning_rate * self.weight_decay > MOST_DECAY:
            raise InputError(
                f"learning_rate × weight_decay must be at most {MOST_DECAY}: so much of a vector decays in a step. "
                f"Got {self.learning_rate!r} × {self.weight_decay!r} instead."
            )
        if not 0 <= self.held_out < 1:
            raise InputError(f"held_out must be at least 0 and below 1. Got {self.held_out!r} instead.")

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """The settings of that name, with these changes."""
        if name not in cls.PRESETS:
            raise InputError(f"preset must be one of {', '.join(cls.PRESETS)}. Got {name!r} instead.")
        return cls(**{**cls.PRESETS[name], **changes})

    def split(self, entries: SparseScores) -> tuple[SparseScores, SparseScores]:
        """(entries to fit, entries held out)."""
        if not len(entries):
            raise InputError("entries must hold at least one score. Got none.")
        return entries.hold_out(self.held_out, seed=self.seed)


class Report(TypedDict):
    """How a fit went. Errors are mean squared errors; those of what was held out are None where nothing was."""

    entries: int  # that were fitted
    held_out_entries: int
    epochs: int  # that were run
    best_epoch: int  # whose result is returned; 0 is the start
    stopped_early: bool
    seconds: float
    train_error_before: float
    train_error: float
    held_out_error_before: float | None
    held_out_error: float | None
    held_out_r2: float | None  # 1 − error / variance
    held_out_errors: list[float]  # before the first epoch and after each


class Learner(Protocol):
    """Something that fits entries epoch by epoch and can go back to an earlier state."""

    steps: int  # of an epoch, for progress

    def run_epoch(self, tick: Callable[[], None]) -> None:
        """One pass over the entries to fit; calls `tick` after each step."""

    def estimate(self, pairs: Pairs) -> Scores:
        """(pairs,) `u·v` of a few pairs, as learned so far."""

    def is_finite(self) -> bool:
        """Whether no NaN and no infinity was learned."""

    def keep(self) -> None:
        """Remember the present state, and forget the one that was kept before."""

    def go_back(self) -> None:
        """Return to the state that was kept."""


def train(
    learner: Learner, fitted: SparseScores, held_out: SparseScores, settings: Training, progress: Progress | None
) -> Report:
    """Run the epochs, stop early, leave the best epoch in `learner`, and say how it went."""
    start = time.perf_counter()
    sample = _sample(fitted, seed=settings.seed)
    before = mean_squared_error(sample, learner.estimate)
    errors = [mean_squared_error(held_out, learner.estimate)] if len(held_out) else []
    watched = bool(errors) and settings.patience is not None
    tick = _ticker(progress, settings.epochs * learner.steps)
    best, stopped, epoch = 0, False, 0
    if watched:
        learner.keep()
    while epoch < settings.epochs and not stopped:
        epoch += 1
        learner.run_epoch(tick)
        if len(held_out):
            errors.append(mean_squared_error(held_out, learner.estimate))
        _check_finite(learner, errors[-1:], epoch)
        if watched and errors[epoch] < errors[best]:
            best = epoch
            learner.keep()
        stopped = watched and epoch - best >= (settings.patience or 0) and epoch < settings.epochs
    if watched and best < epoch:
        learner.go_back()
    if progress is not None and stopped:
        progress(STEP, settings.epochs * learner.steps, settings.epochs * learner.steps)
    kept = best if watched else epoch
    return Report(
        entries=len(fitted),
        held_out_entries=len(held_out),
        epochs=epoch,
        best_epoch=kept,
        stopped_early=stopped,
        seconds=time.perf_counter() - start,
        train_error_before=before,
        train_error=mean_squared_error(sample, learner.estimate),
        held_out_error_before=errors[0] if errors else None,
        held_out_error=errors[kept] if errors else None,
        held_out_r2=explained(errors[kept], held_out.scores) if errors else None,
        held_out_errors=errors,
    )


def mean_squared_error(entries: SparseScores, estimate: Callable[[Pairs], Scores]) -> float:
    """Of the estimates, over all entries, some at a time."""
    total = 0.0
    for start in range(0, len(entries), ERROR_PAIRS):
        part = entries.take(slice(start, start + ERROR_PAIRS))
        total += float(np.square(estimate(part.pairs).astype(np.float64) - part.scores).sum())
    return total / len(entries)


def explained(error: float, scores: Scores) -> float | None:
    """R²: how much of the scores' variance an error of this size leaves explained; None where they do not vary."""
    variance = float(scores.var(dtype=np.float64))
    return 1 - error / variance if variance > 0 else None


def shuffled_batches(count: int, size: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """All of 0…count−1 in a random order, `size` at a time."""
    order = rng.permutation(count)
    for start in range(0, count, size):
        yield order[start : start + size]


def read_vectors(vectors: NDArray[Any], which: NDArray[Any] | slice) -> Vectors:
    """Some of the vectors as float32; those of a memory map are read only here."""
    part: Vectors = np.ascontiguousarray(vectors[which], np.float32)
    return part


def blocks(count: int, size: int = BLOCK_ROWS) -> Iterator[slice]:
    """0…count−1 as slices of at most `size`."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def check_vectors(name: str, vectors: NDArray[Any], count: int, dim: int | None = None) -> int:
    """The dimension of (count, dim) finite vectors, or an error that says what they are instead."""
    wanted = f"({count}, {dim or 'dim'})"
    if vectors.ndim != 2 or len(vectors) != count or not vectors.shape[1] or (dim and vectors.shape[1] != dim):
        raise InputError(f"{name} must have shape {wanted}. Got {vectors.shape} instead.")
    if not np.issubdtype(vectors.dtype, np.floating):
        raise InputError(f"{name} must be floating-point. Got {vectors.dtype} instead.")
    for block in blocks(count):
        if not math.isfinite(vectors[block].sum(dtype=np.float64)):
            raise InputError(f"{name} must be finite. Got NaN or infinity in rows {block.start} to {block.stop - 1}.")
    return int(vectors.shape[1])


def check_number(name: str, value: float, *, positive: bool = False) -> None:
    """A finite number that is not negative, and not zero where it must be positive."""
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        raise InputError(
            f"{name} must be {'positive' if positive else 'at least 0'} and finite. Got {value!r} instead."
        )


def _check_finite(learner: Learner, errors: list[float], epoch: int) -> None:
    if not learner.is_finite() or not all(map(math.isfinite, errors)):
        raise InputError(
            f"the fit broke down in epoch {epoch}: NaN or infinity in what was learned. Lower learning_rate (or raise "
            "ridge), and check that the scores were normalised to the scale of the vectors' inner products."
        )


def _sample(entries: SparseScores, *, seed: int) -> SparseScores:
    """The entries, or enough of them to measure an error."""
    if len(entries) <= ERROR_SAMPLE:
        return entries
    chosen = np.random.default_rng((seed, 2)).choice(len(entries), ERROR_SAMPLE, replace=False)
    return entries.take(np.sort(chosen))


def _ticker(progress: Progress | None, total: int) -> Callable[[], None]:
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(STEP, done, total)

    return tick
