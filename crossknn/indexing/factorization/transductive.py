"""Transductive matrix factorization (MF_trns): one free vector per train query and item, by AdamW or ALS."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_choice, check_number, check_positive, invalid
from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.indexing.factorization.trainer import (
    FitReport,
    Learner,
    Training,
    batches,
    check_vectors,
    read_vectors,
    shuffled_batches,
    train,
)
from crossknn.indexing.score_matrix import Numbers, Pairs, SparseScores
from crossknn.types import Progress, Rows, Scores, Vectors

if TYPE_CHECKING:
    import torch

BETAS = (0.9, 0.999)  # torch's defaults for AdamW
EPSILON = 1e-8
MOMENT_LIFETIME = 256  # steps after which a first moment counts as zero (0.9²⁵⁶ = 2e-12): denormal numbers are slow
SYSTEM_NUMBERS = 1 << 21  # float64 numbers in the linear systems that ALS solves together: 16 MiB


@dataclass(frozen=True)
class TransductiveFit:
    """Vectors whose inner products estimate the scores."""

    query_vectors: Vectors  # (queries, dim)
    item_vectors: Vectors  # (items, dim)
    report: FitReport


@dataclass(frozen=True, kw_only=True)
class Transductive(Training):
    """MF_trns: matrices U and V that minimize the squared error of `u·v` on the observed entries (the paper's eq. 3).

    Normalize scores first (`crossknn.strategies.normalization`), so that they are on the scale of the vectors' inner
    products. An item that was never scored keeps its initial vector to the bit. From a random start the held-out
    error can rise or stall for tens of epochs before it falls: allow more epochs and patience. The other settings are
    those of `Training`, of which `learning_rate`, `weight_decay` and `batch` concern AdamW only.

    Memory besides the entries and the float32 result (4 · dim bytes per item, allocated last): for each *scored* item
    16 · dim bytes with "adamw" (vector, two moments, checkpoint) and 8 · dim with "als" (vector, checkpoint), 4 · dim
    less without `patience`. Initial vectors may be a float16 memory map.

    Args:
        method: "adamw" is the paper's: torch's AdamW with lazy updates of sparse rows, so that an epoch costs
            O(entries · dim) instead of O(items · dim) per step. "als" is alternating least squares, items then
            queries: each vector becomes the minimum of `Σ (s − u·v)² + ridge |v − v₀|²` given the other side; an
            epoch is one sweep over both.
        init: "encoder" starts from the dual encoder's vectors, "random" from Gaussian ones of length about 1.
        dim: Of random vectors; None with "encoder".
        ridge: ALS: the pull toward v₀, the initial vector (zero with "random").
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"learning_rate": 0.001, "epochs": 10},  # HotpotQA
        "paper-large": {"learning_rate": 0.001, "epochs": 4},  # HotpotQA, 10K or 50K queries × 1K items
        "paper-scidocs": {"learning_rate": 0.005, "epochs": 10},
        "paper-scidocs-large": {"learning_rate": 0.005, "epochs": 4},
        "paper-zeshel": {"learning_rate": 0.001, "epochs": 20},  # YuGiOh, Star Trek
    }

    method: str = "adamw"
    init: str = "encoder"
    dim: int | None = None
    ridge: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("method", self.method, ("adamw", "als"))
        check_choice("init", self.init, ("encoder", "random"))
        check_number("ridge", self.ridge)
        if self.init == "encoder" and self.dim is not None:
            raise invalid("dim", "None with init='encoder', whose vectors have a dimension", self.dim)
        if self.init == "random":
            check_positive("dim", self.dim)

    def fit(
        self,
        entries: SparseScores,
        query_vectors: NDArray[Any] | None = None,
        item_vectors: NDArray[Any] | None = None,
        *,
        progress: Progress | None = None,
    ) -> TransductiveFit:
        """Fit all queries and items, from initial vectors (queries, dim) and (items, dim) unless init is "random"."""
        fitted, held_out = self.split(entries)
        sides = _make_sides(entries.pairs, *self._initialize(entries.pairs, query_vectors, item_vectors), self.device)
        learner: Learner = _AdamW(sides, fitted, self) if self.method == "adamw" else _Als(sides, fitted, self)
        report = train(learner, fitted, held_out, self, progress)
        del learner  # frees moments and checkpoint before the result is allocated
        return TransductiveFit(sides[0].result(), sides[1].result(), report)

    def _initialize(
        self, pairs: Pairs, query_vectors: NDArray[Any] | None, item_vectors: NDArray[Any] | None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        if self.init == "random":
            if query_vectors is not None or item_vectors is not None:
                raise InputError("init='random' takes no vectors. Leave them out or use init='encoder'.")
            rng, dim = np.random.default_rng((self.seed, 0)), self.dim or 1
            queries, items = (
                rng.standard_normal((count, dim), np.float32) for count in (pairs.n_queries, pairs.n_items)
            )
            queries /= np.float32(math.sqrt(dim))
            items /= np.float32(math.sqrt(dim))
            return queries, items
        if query_vectors is None or item_vectors is None:
            raise InputError("init='encoder' requires `query_vectors` and `item_vectors`.")
        return query_vectors, item_vectors


def solve_items(
    entries: SparseScores, query_vectors: NDArray[Any], item_vectors: NDArray[Any], *, ridge: float
) -> Vectors:
    """(items, dim) vectors of new items by one ALS half-sweep with fixed queries, pulled toward `item_vectors`.

    An item without entries keeps its vector.
    """
    sides = _make_sides(entries.pairs, query_vectors, item_vectors, None)
    _LeastSquares(sides, 1, entries, Transductive(method="als", ridge=ridge)).solve()
    return sides[1].result()


def _make_sides(
    pairs: Pairs, query_vectors: NDArray[Any], item_vectors: NDArray[Any], device: str | None
) -> tuple[_Side, _Side]:
    dim = check_vectors("query_vectors", query_vectors, pairs.n_queries)
    check_vectors("item_vectors", item_vectors, pairs.n_items, dim)
    return _Side(query_vectors, pairs.queries, device), _Side(item_vectors, pairs.rows, device)


class _Side:
    """The factor matrix of the queries or of the items: rows with entries, (seen, dim) float32 on the device."""

    def __init__(self, initial: NDArray[Any], numbers: Numbers, device: str | None) -> None:
        self._torch = import_extra("torch", extra="models")
        self.initial = initial  # (all, dim), maybe a memory map
        self.seen = np.unique(numbers)  # queries or items that have entries, ascending
        self.device = self._torch.device(device or "cpu")
        self.vectors: torch.Tensor = self._torch.empty((len(self.seen), initial.shape[1]), device=self.device)
        for batch in batches(len(self.seen)):
            self.vectors[batch] = self.read_initial(batch)

    def read_initial(self, positions: slice | Rows) -> torch.Tensor:
        """(positions, dim) float32 on the device: the initial vectors."""
        return self.to_device(read_vectors(self.initial, self.seen[positions]))

    def locate(self, numbers: Numbers) -> Rows:
        """Positions in `vectors` of queries or items that have entries."""
        return np.searchsorted(self.seen, numbers)

    def to_device(self, array: NDArray[Any]) -> torch.Tensor:
        tensor: torch.Tensor = self._torch.from_numpy(array).to(self.device)
        return tensor

    def result(self) -> Vectors:
        """(all, dim) float32: fitted rows, and initial ones of rows without entries."""
        vectors = np.empty(self.initial.shape, np.float32)
        for batch in batches(len(vectors)):
            vectors[batch] = self.initial[batch]
        for batch in batches(len(self.seen)):
            vectors[self.seen[batch]] = self.vectors[batch].cpu().numpy()
        return vectors


class _FreeVectors(Learner):
    """Both factor matrices in training."""

    def __init__(self, sides: tuple[_Side, _Side]) -> None:
        super().__init__(side.vectors for side in sides)
        self._sides = sides

    def estimate(self, pairs: Pairs) -> Scores:
        left, right = (
            side.vectors[positions] for side, positions in zip(self._sides, self._locate(pairs), strict=True)
        )
        estimates: Scores = (left * right).sum(1).cpu().numpy()
        return estimates

    def _locate(self, pairs: Pairs) -> list[torch.Tensor]:
        """(pairs,) positions of the queries, and of the items."""
        numbers = zip(self._sides, (pairs.queries, pairs.rows), strict=True)
        return [side.to_device(side.locate(own)) for side, own in numbers]


class _AdamW(_FreeVectors):
    """Mini-batches of shuffled entries."""

    def __init__(self, sides: tuple[_Side, _Side], fitted: SparseScores, settings: Transductive) -> None:
        super().__init__(sides)
        self._torch = import_extra("torch", extra="models")
        self._entries = self._locate(fitted.pairs)
        self._targets = self._torch.tensor(fitted.scores, device=sides[0].device)
        self._batch, self._rng = settings.batch, np.random.default_rng((settings.seed, 1))
        self.steps = -(-len(fitted) // settings.batch)
        self._step = 0
        self._optimizers = [
            LazyAdamW(
                side.vectors,
                learning_rate=settings.learning_rate,
                weight_decay=settings.weight_decay,
                steps=settings.epochs * self.steps,
            )
            for side in sides
        ]

    def run_epoch(self, tick: Callable[[], None]) -> None:
        for chosen in shuffled_batches(len(self._targets), self._batch, self._rng):
            self._step += 1
            self._fit_batch(self._sides[0].to_device(chosen))
            tick()
        for optimizer in self._optimizers:
            optimizer.finish(self._step)

    def _fit_batch(self, chosen: torch.Tensor) -> None:
        """One step on the gradient of the batch's mean squared error."""
        torch = self._torch
        rows, inverse = zip(*(torch.unique(entry[chosen], return_inverse=True) for entry in self._entries), strict=True)
        states = [optimizer.read(own, self._step - 1) for optimizer, own in zip(self._optimizers, rows, strict=True)]
        left, right = (state[0][own] for state, own in zip(states, inverse, strict=True))
        slope = ((left * right).sum(1) - self._targets[chosen]).mul_(2 / len(chosen))[:, None]
        for side, other in ((0, right), (1, left)):
            gradient = torch.zeros_like(states[side][0]).index_add_(0, inverse[side], slope * other)
            self._optimizers[side].write(rows[side], self._step, states[side], gradient)


RowState = tuple["torch.Tensor", "torch.Tensor", "torch.Tensor"]  # vectors, first and second moments of some rows


class LazyAdamW:
    """torch's AdamW with lazy updates, for a matrix of which each step has gradients for a few rows only.

    A row without a gradient still decays and coasts along its first moment. These updates are applied in closed form
    when the row is next needed. Let d = 1 − lr · weight_decay. While a row coasts, both moments shrink geometrically,
    so k steps after its last gradient it is at `dᵏ (x − lr · m/√v · Σⱼ rʲ c)`, j = 1 … k, with r = β₁/(√β₂ d) and c
    the bias correction of each step; the sums come from one table over all `steps`. Equal to torch's up to rounding.
    """

    def __init__(self, vectors: torch.Tensor, *, learning_rate: float, weight_decay: float, steps: int) -> None:
        self._torch = import_extra("torch", extra="models")
        self._vectors = vectors  # (rows, dim), updated in place
        self._first = self._torch.zeros_like(vectors)
        self._second = self._torch.zeros_like(vectors)
        self._last_step = self._torch.zeros(len(vectors), dtype=self._torch.int64, device=vectors.device)
        self._rate, self._decay = learning_rate, 1 - learning_rate * weight_decay
        self._ratio = BETAS[0] / math.sqrt(BETAS[1]) / self._decay
        self._coasting = self._torch.tensor(_coasting_sums(self._ratio, steps), device=vectors.device)

    def read(self, rows: torch.Tensor, step: int) -> RowState:
        """Copies of the vectors and moments of distinct rows as they are after `step`."""
        vectors, first, second = self._vectors[rows], self._first[rows], self._second[rows]
        last = self._last_step[rows]
        gap = (step - last).double()
        length = self._coasting[last] - self._ratio**gap * self._coasting[step]
        correction = (1 - BETAS[1] ** last.double()).sqrt()
        epsilon = (EPSILON * correction).clamp_min(1e-30)
        vectors -= first / (second.sqrt() + self._column(epsilon)) * self._column(self._rate * length)
        vectors *= self._column(self._decay**gap)
        first *= self._column(self._torch.where(gap > MOMENT_LIFETIME, 0.0, BETAS[0] ** gap))
        second *= self._column(BETAS[1] ** gap)
        return vectors, first, second

    def write(self, rows: torch.Tensor, step: int, state: RowState, gradient: torch.Tensor) -> None:
        """Take `step` with the gradient of rows whose `state` was read after the previous step; changes `state`."""
        vectors, first, second = state
        first.mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
        second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        scale = second.sqrt().div_(math.sqrt(1 - BETAS[1] ** step)).add_(EPSILON)
        vectors.mul_(self._decay).addcdiv_(first, scale, value=-self._rate / (1 - BETAS[0] ** step))
        self._store(rows, step, state)

    def finish(self, step: int) -> None:
        """Bring every row up to date after `step`."""
        for batch in batches(len(self._vectors)):
            rows = self._torch.arange(batch.start, batch.stop, device=self._vectors.device)
            rows = rows[(self._last_step[rows] > 0) & (self._last_step[rows] < step)]  # without gradients, no decay
            if len(rows):
                self._store(rows, step, self.read(rows, step))

    def _store(self, rows: torch.Tensor, step: int, state: RowState) -> None:
        for matrix, values in zip((self._vectors, self._first, self._second), state, strict=True):
            matrix[rows] = values
        self._last_step[rows] = step

    def _column(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self._vectors.dtype)[:, None]


def _coasting_sums(ratio: float, steps: int) -> NDArray[np.float64]:
    """S[t] = Σ ratioʲ c[t + j] over the steps after t; from t to t + k a row coasts S[t] − ratioᵏ S[t + k]."""
    step = np.arange(1, steps + 1)
    correction = np.sqrt(1 - BETAS[1] ** step) / (1 - BETAS[0] ** step)
    sums = np.zeros(steps + 1)
    for t in range(steps - 1, -1, -1):
        sums[t] = ratio * (correction[t] + sums[t + 1])
    return sums


class _Als(_FreeVectors):
    """Alternating least squares, items then queries."""

    steps = 2  # per epoch: one for each side

    def __init__(self, sides: tuple[_Side, _Side], fitted: SparseScores, settings: Transductive) -> None:
        super().__init__(sides)
        self._halves = [_LeastSquares(sides, which, fitted, settings) for which in (1, 0)]

    def run_epoch(self, tick: Callable[[], None]) -> None:
        for half in self._halves:
            half.solve()
            tick()


class _LeastSquares:
    """Half of an ALS sweep: the best vectors of one side (0: queries, 1: items), those of the other being fixed."""

    def __init__(self, sides: tuple[_Side, _Side], which: int, entries: SparseScores, settings: Transductive) -> None:
        self._torch = import_extra("torch", extra="models")
        self._own, self._other, self._settings = sides[which], sides[1 - which], settings
        numbers = entries.pairs.queries, entries.pairs.rows
        rows = self._own.locate(numbers[which])
        order = np.argsort(rows, kind="stable")
        self._others = self._other.locate(numbers[1 - which][order])  # (entries,) positions, sorted by own row
        self._scores = entries.scores[order]
        self._counts = np.bincount(rows, minlength=len(self._own.seen))  # (rows,) of entries
        self._starts = np.cumsum(self._counts) - self._counts  # (rows,) the first of a row's entries

    def solve(self) -> None:
        torch, own, dim = self._torch, self._own, self._own.vectors.shape[1]
        for members, count in self._batches(dim):
            prior = torch.zeros((len(members), dim), dtype=torch.float64, device=own.device)
            if self._settings.init == "encoder":
                prior += own.read_initial(members)
            solve = self._solve_dual if count < dim else self._solve_primal
            own.vectors[own.to_device(members)] = (prior + solve(members, count, prior)).float()

    def _batches(self, dim: int) -> Iterator[tuple[Rows, int]]:
        """(rows, entries per row): batches of rows with the same number of entries, at least one."""
        by_count = np.argsort(self._counts, kind="stable")
        values, firsts = np.unique(self._counts[by_count], return_index=True)
        for count, members in zip(values.tolist(), np.split(by_count, firsts[1:]), strict=True):
            size = max(1, SYSTEM_NUMBERS // (dim * max(1, min(count, dim))))
            for batch in batches(len(members), size) if count else ():
                yield members[batch], count

    def _solve_dual(self, members: Rows, count: int, prior: torch.Tensor) -> torch.Tensor:
        """Aᵀ (A Aᵀ + ridge I)⁻¹ (s − A v₀): as many unknowns as entries."""
        rows, residuals = self._read(members, slice(0, count), prior)
        kernel = rows @ rows.transpose(1, 2)
        return (rows.transpose(1, 2) @ self._solve(kernel, residuals))[:, :, 0]

    def _solve_primal(self, members: Rows, count: int, prior: torch.Tensor) -> torch.Tensor:
        """(AᵀA + ridge I)⁻¹ Aᵀ (s − A v₀): as many unknowns as dimensions; A is read in parts."""
        dim = prior.shape[1]
        kernel = self._torch.zeros((len(members), dim, dim), dtype=prior.dtype, device=prior.device)
        right = self._torch.zeros((len(members), dim, 1), dtype=prior.dtype, device=prior.device)
        for part in batches(count, max(1, SYSTEM_NUMBERS // (len(members) * dim))):
            rows, residuals = self._read(members, part, prior)
            kernel += rows.transpose(1, 2) @ rows
            right += rows.transpose(1, 2) @ residuals
        return self._solve(kernel, right)[:, :, 0]

    def _read(self, members: Rows, part: slice, prior: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A (members, entries, dim), the other side's vectors, and the residuals s − A v₀, of a part."""
        entries = self._starts[members][:, None] + np.arange(part.start, part.stop)
        rows = self._other.vectors[self._other.to_device(self._others[entries])].double()
        return rows, self._other.to_device(self._scores[entries])[:, :, None] - rows @ prior[:, :, None]

    def _solve(self, kernel: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        ridge = self._settings.ridge
        kernel.diagonal(dim1=1, dim2=2).add_(ridge)
        factor, failed = self._torch.linalg.cholesky_ex(kernel)  # torch.linalg.solve was seen to hang on a CPU
        if failed.any():
            raise invalid("ridge", "larger for vectors this similar: a system is singular", ridge)
        solution: torch.Tensor = self._torch.cholesky_solve(right, factor)
        return solution
