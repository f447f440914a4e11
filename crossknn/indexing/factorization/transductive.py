"""MF_trns: one free vector per train query and per item, fitted to the observed entries of G."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive
from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.indexing.factorization.trainer import (
    Learner,
    Report,
    Training,
    blocks,
    check_number,
    check_vectors,
    read_vectors,
    shuffled_batches,
    train,
)
from crossknn.indexing.score_matrix import Numbers, Pairs, SparseScores
from crossknn.types import Progress, Scores, Vectors

if TYPE_CHECKING:
    import torch

BETAS = (0.9, 0.999)  # torch's defaults for AdamW
EPSILON = 1e-8
METHODS = ("adamw", "als")
INITS = ("encoder", "random")
FORGOTTEN = 256  # steps after which a first moment is zero (0.9²⁵⁶ = 2e-12), not a slow denormal number
SYSTEM_NUMBERS = 1 << 21  # float64 numbers in the systems that ALS solves at once: 16 MiB


@dataclass(frozen=True)
class Fit:
    """Vectors whose inner products are estimates of the scores, and how the fit went."""

    query_vectors: Vectors  # (queries, dim)
    item_vectors: Vectors  # (items, dim)
    report: Report


@dataclass(frozen=True, kw_only=True)
class Transductive(Training):
    """MF_trns: vectors U, V that minimise the squared error of `u·v` on the observed entries (the paper's eq. 3).

    Scores are fitted as they come: normalize them first (`strategies.normalization`), so that they are on the scale
    of the vectors' inner products. An item that was never scored keeps its initial vector to the bit.

    method   "adamw", the paper's: torch's AdamW, each row updated only when it is needed, so that an epoch costs
             O(entries · dim) and not O(items · dim) per step
             "als": alternating least squares, items then queries, each vector the exact minimum of
             `Σ (s − u·v)² + ridge |v − v₀|²` given the other side; an epoch is one sweep over both
    init     "encoder": the dual encoder's vectors; "random": normal with length about 1
    dim      of random vectors; None with "encoder"
    ridge    "als": the pull towards v₀, the initial vector, or zero where that is random

    The rest is in `Training`; learning_rate, weight_decay and batch are AdamW's alone. From a random start the error
    on what was held out can rise or stand still for tens of epochs before it falls: give it more epochs and patience.

    Memory, besides the entries and the float32 result (4 · dim bytes per item, made last): while fitting, for each
    *scored* item 16 · dim bytes with "adamw" (vector, two moments, best epoch) and 8 · dim with "als" (vector, best
    epoch), 4 · dim less where `patience` is None. Initial vectors may be a float16 memory map: read by blocks.
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
        for name, value, known in (("method", self.method, METHODS), ("init", self.init, INITS)):
            if value not in known:
                raise InputError(f"{name} must be {' or '.join(map(repr, known))}. Got {value!r} instead.")
        check_number("ridge", self.ridge, positive=True)
        if self.init == "random" and self.dim is None:
            raise InputError("dim must be given where init is 'random'. Got None instead.")
        if self.init == "encoder" and self.dim is not None:
            raise InputError(f"dim comes from the vectors where init is 'encoder'. Got dim={self.dim}: leave it out.")
        if self.dim is not None:
            check_positive("dim", self.dim)

    def fit(
        self,
        entries: SparseScores,
        query_vectors: NDArray[Any] | None = None,
        item_vectors: NDArray[Any] | None = None,
        *,
        progress: Progress | None = None,
    ) -> Fit:
        """Vectors for all queries and items of `entries`.

        `query_vectors` (queries, dim) and `item_vectors` (items, dim) are where the fit starts; with random
        initialisation there are none.
        """
        torch = import_extra("torch", extra="models")
        fitted, held_out = self.split(entries)
        queries, items = self._start(entries.pairs, query_vectors, item_vectors)
        sides = (
            _Side(torch, queries, entries.pairs.queries, self.device),
            _Side(torch, items, entries.pairs.rows, self.device),
        )
        learner: Learner = (
            _AdamW(torch, sides, fitted, self) if self.method == "adamw" else _Als(torch, sides, fitted, self)
        )
        report = train(learner, fitted, held_out, self, progress)
        del learner  # and the moments with it, before the result is made
        return Fit(sides[0].result(), sides[1].result(), report)

    def _start(
        self, pairs: Pairs, query_vectors: NDArray[Any] | None, item_vectors: NDArray[Any] | None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Where the queries' and the items' vectors start."""
        if self.init == "random":
            if query_vectors is not None or item_vectors is not None:
                raise InputError("init is 'random', so no vectors can be given. Leave them out or use init='encoder'.")
            rng = np.random.default_rng((self.seed, 0))
            return _random_vectors(rng, pairs.n_queries, self.dim), _random_vectors(rng, pairs.n_items, self.dim)
        if query_vectors is None or item_vectors is None:
            raise InputError("init is 'encoder', so query_vectors and item_vectors must be given. Got None instead.")
        dim = check_vectors("query_vectors", query_vectors, pairs.n_queries)
        check_vectors("item_vectors", item_vectors, pairs.n_items, dim)
        return query_vectors, item_vectors


def solve_items(
    entries: SparseScores,
    query_vectors: NDArray[Any],
    item_vectors: NDArray[Any],
    *,
    ridge: float,
    device: str | None = None,
) -> Vectors:
    """(items, dim) the vectors of new items: the queries' stay as they are, `item_vectors` are where ALS begins.

    An item without entries keeps its vector.
    """
    torch = import_extra("torch", extra="models")
    dim = check_vectors("query_vectors", query_vectors, entries.pairs.n_queries)
    check_vectors("item_vectors", item_vectors, entries.pairs.n_items, dim)
    queries = _Side(torch, query_vectors, entries.pairs.queries, device)
    items = _Side(torch, item_vectors, entries.pairs.rows, device)
    _Als(torch, (queries, items), entries, Transductive(method="als", ridge=ridge)).solve_items()
    return items.result()


def _random_vectors(rng: np.random.Generator, count: int, dim: int | None) -> Vectors:
    vectors = rng.standard_normal((count, dim or 1), np.float32)
    vectors /= np.float32(math.sqrt(dim or 1))
    return vectors


class _Side:
    """The vectors of the queries, or of the items, that have entries: (seen, dim) float32 on the device."""

    def __init__(self, torch: Any, initial: NDArray[Any], numbers: Numbers, device: str | None) -> None:
        self._torch = torch
        self.initial = initial  # (all, dim), maybe a memory map
        self.seen = np.unique(numbers)  # numbers of the queries or rows of the items, ascending
        self.device = torch.device(device or "cpu")
        self.vectors: torch.Tensor = torch.empty((len(self.seen), initial.shape[1]), device=self.device)
        for block in blocks(len(self.seen)):
            self.vectors[block] = self.read_initial(block)
        self._kept: torch.Tensor | None = None

    def read_initial(self, positions: slice | NDArray[np.int64]) -> torch.Tensor:
        """(positions, dim) float32 on the device: where these vectors started."""
        tensor: torch.Tensor = self._torch.from_numpy(read_vectors(self.initial, self.seen[positions]))
        return tensor.to(self.device)

    def locate(self, numbers: Numbers) -> NDArray[np.int64]:
        """Positions in `vectors` of queries or items that have entries."""
        return np.searchsorted(self.seen, numbers)

    def keep(self) -> None:
        if self._kept is None:
            self._kept = self._torch.empty_like(self.vectors)
        self._kept.copy_(self.vectors)

    def go_back(self) -> None:
        if self._kept is not None:
            self.vectors.copy_(self._kept)

    def result(self) -> Vectors:
        """(all, dim) float32: learned where there were entries, initial elsewhere."""
        self._kept = None
        vectors = np.empty(self.initial.shape, np.float32)
        for block in blocks(len(vectors)):
            vectors[block] = self.initial[block]
        for block in blocks(len(self.seen)):
            vectors[self.seen[block]] = self.vectors[block].cpu().numpy()
        return vectors


class _Vectors:
    """What both methods do with the two sides."""

    def __init__(self, torch: Any, sides: tuple[_Side, _Side]) -> None:
        self._torch = torch
        self._sides = sides

    def estimate(self, pairs: Pairs) -> Scores:
        queries, items = self._sides
        left = queries.vectors[self._index(queries.locate(pairs.queries))]
        right = items.vectors[self._index(items.locate(pairs.rows))]
        estimates: Scores = (left * right).sum(1).cpu().numpy()
        return estimates

    def is_finite(self) -> bool:
        return all(
            math.isfinite(side.vectors[block].sum(dtype=self._torch.float64))
            for side in self._sides
            for block in blocks(len(side.vectors))
        )

    def keep(self) -> None:
        for side in self._sides:
            side.keep()

    def go_back(self) -> None:
        for side in self._sides:
            side.go_back()

    def _index(self, positions: NDArray[np.int64]) -> torch.Tensor:
        index: torch.Tensor = self._torch.from_numpy(positions).to(self._sides[0].device)
        return index


class _AdamW(_Vectors):
    """Mini-batches of shuffled entries."""

    def __init__(self, torch: Any, sides: tuple[_Side, _Side], fitted: SparseScores, settings: Transductive) -> None:
        super().__init__(torch, sides)
        self._batch = settings.batch
        self._rng = np.random.default_rng((settings.seed, 1))
        self._pairs = tuple(
            self._index(side.locate(numbers))
            for side, numbers in zip(sides, (fitted.pairs.queries, fitted.pairs.rows), strict=True)
        )
        self._scores = torch.tensor(fitted.scores, device=sides[0].device)
        self.steps = -(-len(fitted) // settings.batch)
        self._step = 0
        self._optimizers = [
            LateAdamW(
                side.vectors,
                learning_rate=settings.learning_rate,
                weight_decay=settings.weight_decay,
                steps=settings.epochs * self.steps,
            )
            for side in sides
        ]

    def run_epoch(self, tick: Callable[[], None]) -> None:
        for chosen in shuffled_batches(len(self._scores), self._batch, self._rng):
            self._step += 1
            self._fit_batch(self._index(chosen))
            tick()
        for optimizer in self._optimizers:
            optimizer.finish(self._step)

    def _fit_batch(self, chosen: torch.Tensor) -> None:
        """A step down the gradient of the batch's mean squared error."""
        torch = self._torch
        rows, places = zip(*(torch.unique(pair[chosen], return_inverse=True) for pair in self._pairs), strict=True)
        states = [optimizer.read(own, self._step - 1) for optimizer, own in zip(self._optimizers, rows, strict=True)]
        left, right = (state[0][place] for state, place in zip(states, places, strict=True))
        slope = ((left * right).sum(1) - self._scores[chosen]).mul_(2 / len(chosen))[:, None]
        for side, other in ((0, right), (1, left)):
            gradient = torch.zeros_like(states[side][0]).index_add_(0, places[side], slope * other)
            self._optimizers[side].write(rows[side], self._step, states[side], gradient)


State = tuple["torch.Tensor", "torch.Tensor", "torch.Tensor"]  # vectors and both moments of some rows


class LateAdamW:
    """torch's AdamW for the rows of a matrix of which a step has gradients for a few only.

    A row without a gradient still decays and coasts along its first moment. That is caught up when the row is next
    needed, in closed form. Let d = 1 − lr · weight_decay. While a row coasts, both moments shrink geometrically, so k
    steps after its last gradient it is at `dᵏ (x − lr · m/√v · Σⱼ rʲ c)`, j = 1 … k, with r = β₁/(√β₂ d) and c the
    bias correction of each step; those sums come from one table over all steps. Equal to torch's up to rounding.
    """

    def __init__(self, vectors: torch.Tensor, *, learning_rate: float, weight_decay: float, steps: int) -> None:
        self._torch = import_extra("torch", extra="models")
        self._vectors = vectors  # (rows, dim), changed in place
        self._first = self._torch.zeros_like(vectors)
        self._second = self._torch.zeros_like(vectors)
        self._last = self._torch.zeros(len(vectors), dtype=self._torch.int64, device=vectors.device)
        self._rate, self._shrink = learning_rate, 1 - learning_rate * weight_decay
        self._ratio = BETAS[0] / math.sqrt(BETAS[1]) / self._shrink
        self._coast = self._torch.tensor(_coast_table(self._ratio, steps), device=vectors.device)

    def read(self, rows: torch.Tensor, step: int) -> State:
        """Vectors and moments of different rows as they are after `step`; stores nothing."""
        vectors, first, second = self._vectors[rows], self._first[rows], self._second[rows]
        last = self._last[rows]
        gap = (step - last).double()
        length = self._coast[last] - self._ratio**gap * self._coast[step]
        correction = (1 - BETAS[1] ** last.double()).sqrt()
        slack = (EPSILON * correction).clamp_min(1e-30)
        vectors -= first / (second.sqrt() + self._column(slack)) * self._column(self._rate * length)
        vectors *= self._column(self._shrink**gap)
        first *= self._column(self._torch.where(gap > FORGOTTEN, 0.0, BETAS[0] ** gap))
        second *= self._column(BETAS[1] ** gap)
        return vectors, first, second

    def write(self, rows: torch.Tensor, step: int, state: State, gradient: torch.Tensor) -> None:
        """Take `step` with the gradient of rows that were read after the step before it; `state` is used up."""
        vectors, first, second = state
        first.mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
        second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        scale = second.sqrt().div_(math.sqrt(1 - BETAS[1] ** step)).add_(EPSILON)
        vectors.mul_(self._shrink).addcdiv_(first, scale, value=-self._rate / (1 - BETAS[0] ** step))
        self._store(rows, step, state)

    def finish(self, step: int) -> None:
        """Bring every row to where it is after `step`."""
        for block in blocks(len(self._vectors)):
            rows = self._torch.arange(block.start, block.stop, device=self._vectors.device)
            rows = rows[(self._last[rows] > 0) & (self._last[rows] < step)]  # a row without gradients never moves
            if len(rows):
                self._store(rows, step, self.read(rows, step))

    def _store(self, rows: torch.Tensor, step: int, state: State) -> None:
        for mine, new in zip((self._vectors, self._first, self._second), state, strict=True):
            mine[rows] = new
        self._last[rows] = step

    def _column(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self._vectors.dtype)[:, None]


def _coast_table(ratio: float, steps: int) -> NDArray[np.float64]:
    """S[t] = Σ ratioʲ c[t + j] over the steps after t; from t to t + k a row coasts S[t] − ratioᵏ S[t + k]."""
    step = np.arange(1, steps + 1)
    correction = np.sqrt(1 - BETAS[1] ** step) / (1 - BETAS[0] ** step)
    table = np.zeros(steps + 1)
    for t in range(steps - 1, -1, -1):
        table[t] = ratio * (correction[t] + table[t + 1])
    return table


class _Als(_Vectors):
    """Least squares for one side while the other stands still, in turn."""

    def __init__(self, torch: Any, sides: tuple[_Side, _Side], fitted: SparseScores, settings: Transductive) -> None:
        super().__init__(torch, sides)
        self._ridge = settings.ridge
        self._to_zero = settings.init == "random"
        queries, items = (
            side.locate(numbers) for side, numbers in zip(sides, (fitted.pairs.queries, fitted.pairs.rows), strict=True)
        )
        self._scores = fitted.scores
        self._of_queries = _Groups.make(queries, items, len(sides[0].seen))
        self._of_items = _Groups.make(items, queries, len(sides[1].seen))
        self.steps = 2

    def run_epoch(self, tick: Callable[[], None]) -> None:
        queries, items = self._sides
        self.solve_items()
        tick()
        self._solve_side(queries, items, self._of_queries)
        tick()

    def solve_items(self) -> None:
        """Move the items' vectors to their minimum, the queries' standing still."""
        queries, items = self._sides
        self._solve_side(items, queries, self._of_items)

    def _solve_side(self, side: _Side, other: _Side, groups: _Groups) -> None:
        """Move every vector of `side` that has entries to its minimum."""
        torch, dim = self._torch, side.vectors.shape[1]
        for members, count in groups.blocks(dim):
            prior = torch.zeros((len(members), dim), dtype=torch.float64, device=side.device)
            if not self._to_zero:
                prior += side.read_initial(members)
            solve = self._solve_dual if count < dim else self._solve_primal
            side.vectors[self._index(members)] = (prior + solve(members, count, prior, other, groups)).float()

    def _solve_dual(
        self, members: NDArray[np.int64], count: int, prior: torch.Tensor, other: _Side, groups: _Groups
    ) -> torch.Tensor:
        """Aᵀ (A Aᵀ + ridge I)⁻¹ (s − A v₀): as many unknowns as entries."""
        rows, left = self._read(groups.entries(members, slice(0, count)), prior, other, groups)
        kernel = rows @ rows.transpose(1, 2)
        return (rows.transpose(1, 2) @ self._solve(kernel, left))[:, :, 0]

    def _solve_primal(
        self, members: NDArray[np.int64], count: int, prior: torch.Tensor, other: _Side, groups: _Groups
    ) -> torch.Tensor:
        """(AᵀA + ridge I)⁻¹ Aᵀ (s − A v₀): as many unknowns as dimensions; A is read in parts."""
        dim = prior.shape[1]
        kernel = self._torch.zeros((len(members), dim, dim), dtype=prior.dtype, device=prior.device)
        right = self._torch.zeros((len(members), dim, 1), dtype=prior.dtype, device=prior.device)
        for part in blocks(count, max(1, SYSTEM_NUMBERS // (len(members) * dim))):
            rows, left = self._read(groups.entries(members, part), prior, other, groups)
            kernel += rows.transpose(1, 2) @ rows
            right += rows.transpose(1, 2) @ left
        return self._solve(kernel, right)[:, :, 0]

    def _read(
        self, entries: NDArray[np.int64], prior: torch.Tensor, other: _Side, groups: _Groups
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A (members, entries, dim), the other side's vectors, and what the prior leaves of the scores."""
        rows = other.vectors[self._index(groups.other[entries])].double()
        scores = self._torch.from_numpy(self._scores[entries]).to(prior.device)
        return rows, scores[:, :, None] - rows @ prior[:, :, None]

    def _solve(self, kernel: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        kernel.diagonal(dim1=1, dim2=2).add_(self._ridge)
        factor, failed = self._torch.linalg.cholesky_ex(kernel)  # torch.linalg.solve was seen to hang on a CPU
        if failed.any():
            raise InputError(f"ridge is too small for vectors this much alike. Got {self._ridge!r}: raise it.")
        solution: torch.Tensor = self._torch.cholesky_solve(right, factor)
        return solution


@dataclass(frozen=True)
class _Groups:
    """The entries of each row of one side, and the rows grouped by how many they have."""

    order: NDArray[np.int64]  # (entries,) sorted by row
    starts: NDArray[np.int64]  # (rows,) where a row's entries begin in `order`
    counts: NDArray[np.int64]  # (rows,)
    other: NDArray[np.int64]  # (entries,) the row on the other side

    @classmethod
    def make(cls, own: NDArray[np.int64], other: NDArray[np.int64], rows: int) -> _Groups:
        counts = np.bincount(own, minlength=rows)
        return cls(np.argsort(own, kind="stable"), np.cumsum(counts) - counts, counts, other)

    def blocks(self, dim: int) -> Iterator[tuple[NDArray[np.int64], int]]:
        """(rows, how many entries each has): a few rows with as many entries each; none without entries."""
        by_count = np.argsort(self.counts, kind="stable")
        values, firsts = np.unique(self.counts[by_count], return_index=True)
        for count, members in zip(values.tolist(), np.split(by_count, firsts[1:]), strict=True):
            size = max(1, SYSTEM_NUMBERS // (dim * max(1, min(count, dim))))
            for block in blocks(len(members), size) if count else ():
                yield members[block], count

    def entries(self, members: NDArray[np.int64], part: slice) -> NDArray[np.int64]:
        """(members, entries of the part): a part of the entries of each member."""
        return self.order[self.starts[members][:, None] + np.arange(part.start, part.stop)]
