"""Training loop of a teaching: steps over lists, learning-rate schedule, held-out loss, checkpoints on disk."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.indexing.teaching.lists import ScoredLists
from crossknn.indexing.teaching.losses import ListLoss
from crossknn.indexing.teaching.student import Student
from crossknn.models.batching import batches_in_order
from crossknn.storage.safetensors import read_checked, write_checked

if TYPE_CHECKING:
    from torch import Tensor

    from crossknn.indexing.teaching.settings import Teaching

logger = logging.getLogger(__name__)

STEP_TOKENS: Final = {"cpu": 16_384, "cuda": 393_216}  # whose activations are in memory together
CHECK_STEPS: Final = 20  # between looks at the clock and the loss, which wait for the device
CHECKPOINT_SECONDS: Final = 45.0
WARM_UP: Final = 0.06  # share of all steps
MAX_NORM: Final = 1.0  # of the gradient
WEIGHT_DECAY: Final = 0.01
HELD_OUT_CHECKS: Final = 20  # of the loss of held-out lists, in a training without an early stop
BEST: Final = "best."  # of the names of arrays in a checkpoint


@dataclass
class Progress:
    """Where a training stands; saved with each checkpoint."""

    step: int = 0
    skipped: int = 0  # of these steps, by early stops
    seconds: float = 0.0  # of training, over all runs
    pairs: int = 0  # that passed through the encoder
    losses: list[float] = field(default_factory=list)  # training loss, every `CHECK_STEPS` steps


@dataclass
class Best:
    """The weights of the lowest loss of held-out lists."""

    loss: float
    age: int  # checks since then
    values: list[Tensor]


class Trainer:
    """AdamW over lists of scored items."""

    def __init__(
        self,
        student: Student,
        loss: ListLoss,
        inputs: tuple[Any, Any],
        settings: Teaching,
        *,
        total_steps: int,
        checkpoint: Path | None,
    ) -> None:
        self._torch = torch = import_extra("torch", extra="models")
        self._student, self._loss, self._settings = student, loss, settings
        self._queries = len(inputs[0])
        self._inputs = inputs[0].join(inputs[1])
        self._total = total_steps
        self._check_steps = CHECK_STEPS * max(1, round(total_steps / HELD_OUT_CHECKS / CHECK_STEPS))
        self._checkpoint = checkpoint
        groups = [
            {"params": student.parameters, "lr": settings.learning_rate, "base": settings.learning_rate},
            {"params": loss.parameters, "lr": 0.01, "base": 0.01, "weight_decay": 0.0},
        ]
        fused = student.device.type == "cuda"
        self._optimizer = torch.optim.AdamW(groups, weight_decay=WEIGHT_DECAY, fused=fused)
        self.progress = Progress()
        self._best: Best | None = None

    def run(
        self,
        lists: ScoredLists,
        until_step: int,
        tick: Callable[[int], None] = lambda _: None,
        *,
        held_out: ScoredLists | None = None,
    ) -> None:
        """Train on these lists up to a step; `tick(step)` is called now and then.

        With held-out lists, the weights of their lowest loss are kept, and the rest of the steps is skipped when it has
        not fallen for `patience` checks.
        """
        settings, began, before = self._settings, time.perf_counter(), self.progress.seconds
        saved = began
        recent: list[Tensor] = []
        while self.progress.step < until_step and not self.is_out_of_time():
            step = self.progress.step
            rng = np.random.default_rng((settings.seed, 1, step))
            chosen = _lists_of_step(len(lists), settings.batch, step, settings.seed)
            batch = lists.take(chosen).sample(settings.items_per_step, best=settings.best_items, rng=rng)
            self._set_learning_rate()
            recent.append(self._step(batch))
            self.progress.step += 1
            self.progress.pairs += int(np.isfinite(batch.scores).sum())
            if self.progress.step % CHECK_STEPS == 0 or self.progress.step == until_step:
                self._note(recent)
                now = time.perf_counter()
                self.progress.seconds = before + now - began
                at_check = self.progress.step % self._check_steps == 0 or self.progress.step == until_step
                if held_out is not None and at_check and self._has_stopped_improving(held_out):
                    self.progress.skipped += until_step - self.progress.step
                    self.progress.step = until_step
                tick(self.progress.step)
                if now - saved > CHECKPOINT_SECONDS:
                    self.save()
                    saved = time.perf_counter()
        self.progress.seconds = before + time.perf_counter() - began
        self._restore_best()

    def is_out_of_time(self) -> bool:
        """Whether the time limit is reached."""
        return self.progress.seconds > (self._settings.time_limit or math.inf)

    def mean_loss(self, lists: ScoredLists) -> float:
        """The mean loss of these lists."""
        with self._torch.no_grad():
            return sum(float(self._losses(part).sum()) for part in self._parts(lists)) / len(lists)

    def _has_stopped_improving(self, held_out: ScoredLists) -> bool:
        """Compare the loss of held-out lists with the lowest one so far, and keep the weights if it is lower."""
        loss, best = self.mean_loss(held_out), self._best
        if best is None or loss < best.loss:
            self._best = Best(loss, 0, [value.detach().clone() for value in self._values()])
            return False
        best.age += 1
        return self._settings.patience is not None and best.age >= self._settings.patience

    def _restore_best(self) -> None:
        """Go back to the weights of the lowest loss of held-out lists."""
        if self._best is None:
            return
        with self._torch.no_grad():
            for value, best in zip(self._values(), self._best.values, strict=True):
                value.copy_(best)
        self._student.update_working_copy()
        self._best = None

    def _step(self, batch: ScoredLists) -> Tensor:
        """One step of AdamW; the mean loss, on the device."""
        torch = self._torch
        total: Tensor = torch.zeros((), device=self._student.device)
        self._optimizer.zero_grad(set_to_none=True)
        for part in self._parts(batch):
            loss = self._losses(part).sum() / len(batch)
            torch.autograd.backward(loss)
            total += loss.detach()
        self._student.take_gradients()
        torch.nn.utils.clip_grad_norm_(self._student.parameters, MAX_NORM)
        self._optimizer.step()
        self._student.update_working_copy()
        return total

    def _parts(self, lists: ScoredLists) -> Iterator[ScoredLists]:
        """Lists whose activations fit into memory together."""
        lengths = np.where(np.isfinite(lists.scores), self._inputs.lengths[self._queries + lists.rows], 0).sum(1)
        device = self._student.device.type
        for part in batches_in_order(lengths, STEP_TOKENS.get(device, STEP_TOKENS["cpu"])):
            yield lists.take(np.arange(part.start, part.stop))

    def _losses(self, lists: ScoredLists) -> Tensor:
        """(lists,) the loss of each; queries and items pass through the encoder together, each item once."""
        torch, device = self._torch, self._student.device
        rows, places = np.unique(lists.rows, return_inverse=True)
        numbers = np.concatenate([lists.queries.astype(np.int64), self._queries + rows])
        order = np.argsort(-self._inputs.lengths[numbers], kind="stable")  # equal lengths together, for a CPU
        place_of = np.empty(len(numbers), np.int64)
        place_of[order] = np.arange(len(numbers))
        wanted = np.concatenate([place_of[: len(lists)], place_of[len(lists) + places.ravel()]])
        vectors = self._student.encode(self._inputs, numbers[order])
        moved = vectors[torch.from_numpy(wanted).to(device, non_blocking=True)]
        scores = torch.from_numpy(lists.scores).to(device, non_blocking=True)
        try:
            return self._loss(moved[: len(lists)], moved[len(lists) :].view(*lists.rows.shape, -1), scores)
        except torch.linalg.LinAlgError as error:
            raise self._diverged() from error

    def _set_learning_rate(self) -> None:
        """Linear warm-up, then a cosine to zero at the last step or the time limit, whichever comes first."""
        done = self.progress.step / self._total
        rate = min(1.0, (self.progress.step + 1) / max(1, round(WARM_UP * self._total)))
        if self._settings.time_limit is not None:
            done = max(done, self.progress.seconds / self._settings.time_limit)
        rate *= 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
        for group in self._optimizer.param_groups:
            group["lr"] = group["base"] * rate

    def _note(self, recent: list[Tensor]) -> None:
        mean = float(self._torch.stack(recent).mean())
        recent.clear()
        if not math.isfinite(mean):
            raise self._diverged()
        self.progress.losses.append(mean)

    def _diverged(self) -> InputError:
        return InputError(
            f"The teaching diverged at step {self.progress.step}: NaN or infinity in the loss. Lower `learning_rate`."
        )

    def save(self) -> None:
        """Write weights, moments and progress to the checkpoint, if there is one."""
        if self._checkpoint is None:
            return
        progress = self.progress
        arrays: dict[str, NDArray[Any]] = {
            "progress": np.array([progress.step, progress.skipped, progress.seconds, progress.pairs], np.float64),
            "losses": np.array(progress.losses, np.float64),
        }
        if self._best is not None:
            arrays[f"{BEST}loss"] = np.array([self._best.loss, self._best.age], np.float64)
            arrays |= {f"{BEST}{number}": value.cpu().numpy() for number, value in enumerate(self._best.values)}
        for number, (value, moments) in enumerate(self._state()):
            arrays |= {f"{number}.{name}": one.detach().cpu().numpy() for name, one in moments.items()}
            arrays[f"{number}.value"] = value.detach().cpu().numpy()
        write_checked(self._checkpoint, arrays)

    def load(self) -> bool:
        """Continue from the checkpoint; False if there is none, or a damaged one."""
        if self._checkpoint is None or not self._checkpoint.exists():
            return False
        torch, arrays = self._torch, read_checked(self._checkpoint)
        if arrays is None:
            logger.warning("%s: damaged; the training begins again", self._checkpoint)
            return False
        step, skipped, seconds, pairs = arrays["progress"].tolist()
        self.progress = Progress(int(step), int(skipped), seconds, int(pairs), arrays["losses"].tolist())
        if f"{BEST}loss" in arrays:
            loss, age = arrays[f"{BEST}loss"].tolist()
            values = [
                torch.from_numpy(arrays[f"{BEST}{number}"]).to(value.device)
                for number, value in enumerate(self._values())
            ]
            self._best = Best(loss, int(age), values)
        with torch.no_grad():
            for number, value in enumerate(self._values()):
                value.copy_(torch.from_numpy(arrays[f"{number}.value"]))
                prefix = f"{number}."
                self._optimizer.state[value] = {
                    name.removeprefix(prefix): torch.from_numpy(array).to(value.device)
                    for name, array in arrays.items()
                    if name.startswith(prefix) and name != f"{number}.value"
                }
        self._student.update_working_copy()
        return True

    def _values(self) -> list[Tensor]:
        return [*self._student.parameters, *self._loss.parameters]

    def _state(self) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        for value in self._values():
            yield value, self._optimizer.state.get(value, {})


def _lists_of_step(count: int, size: int, step: int, seed: int) -> NDArray[np.int64]:
    """The lists of a step: each epoch is a new random order of all."""
    first = step * size
    epochs = range(first // count, (first + size - 1) // count + 1)
    order = np.concatenate([np.random.default_rng((seed, 2, epoch)).permutation(count) for epoch in epochs])
    return order[first % count :][:size]
