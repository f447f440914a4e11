"""Inductive matrix factorization (MF_ind): gated MLPs that map the dual encoder's vectors to fitted ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

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
from crossknn.types import Progress, Scores, Vectors

if TYPE_CHECKING:
    import torch
    from torch import Tensor

INITIAL_GATE = -5.0  # the paper's w before training: σ(−5) = 0.7% MLP, 99.3% input vector
SIDES = ("queries", "items")
MAX_DEVICE_BYTES = 8 * 2**30  # of vectors that a GPU holds during training

Net = dict[str, "torch.Tensor"]  # w1 (2d, d), b1 (2d,), w2 (d, 2d), b2 (d,), skip (): the gate's logit w
State = dict[str, NDArray[np.float32]]  # the parameters of both nets, such as "queries.w1" or "items.skip"


@dataclass(frozen=True, kw_only=True)
class Inductive(Training):
    """MF_ind: `x ↦ σ(w)·(W₂ gelu(W₁ x + b₁) + b₂) + (1 − σ(w))·x`, d → 2d → d; a net for queries and one for items.

    The dual encoder is frozen. Normalize scores first (`crossknn.strategies.normalization`), so that they are on the
    scale of the vectors' inner products. The settings are those of `Training`, with torch's AdamW.

    Memory besides the entries: nothing per item on a CPU, which reads each batch from the (memory-mapped) vectors; a
    GPU holds up to 8 GiB of vectors. The nets have 8 · dim² parameters, four times that with gradients and moments.
    """

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"learning_rate": 0.001, "epochs": 20},  # HotpotQA
        "paper-large": {"learning_rate": 0.001, "epochs": 10},  # HotpotQA, 10K or 50K queries × 1K items
        "paper-scidocs": {"learning_rate": 0.005, "epochs": 20},
        "paper-scidocs-large": {"learning_rate": 0.005, "epochs": 10},
    }

    epochs: int = 20

    def fit(
        self,
        entries: SparseScores,
        query_vectors: NDArray[Any],
        item_vectors: NDArray[Any],
        *,
        progress: Progress | None = None,
    ) -> InductiveFit:
        """Train the nets on the dual encoder's vectors (queries, dim) and (items, dim)."""
        torch = import_extra("torch", extra="models")
        fitted, held_out = self.split(entries)
        dim = check_vectors("query_vectors", query_vectors, entries.pairs.n_queries)
        check_vectors("item_vectors", item_vectors, entries.pairs.n_items, dim)
        learner = _Nets(torch, (query_vectors, item_vectors), fitted, self)
        report = train(learner, fitted, held_out, self, progress)
        return InductiveFit(learner.state(), device=self.device, report=report)


class InductiveFit:
    """Both trained nets: vectors of any queries and items, whose inner products estimate the scores.

    Attributes:
        dim: Of the vectors.
        report: Training statistics; None if the nets were loaded.
    """

    def __init__(self, state: State, *, device: str | None = None, report: FitReport | None = None) -> None:
        self._torch = import_extra("torch", extra="models")
        self._device = self._torch.device(device or "cpu")
        self._state = {name: np.array(values, np.float32) for name, values in state.items()}
        self.dim = _check_state(self._state)
        self.report = report

    def state(self) -> State:
        """The parameters as float32 arrays, from which the nets can be made again."""
        return {name: values.copy() for name, values in self._state.items()}

    def encode_queries(self, vectors: NDArray[Any]) -> Vectors:
        """(queries, dim) float32 from the dual encoder's vectors of queries."""
        return self._encode("queries", vectors)

    def encode_items(self, vectors: NDArray[Any]) -> Vectors:
        """(items, dim) float32 from the dual encoder's vectors of items, which may be a memory map."""
        return self._encode("items", vectors)

    def _encode(self, side: str, vectors: NDArray[Any]) -> Vectors:
        check_vectors(f"vectors of {side}", vectors, len(vectors), self.dim)
        torch = self._torch
        net = {name: torch.from_numpy(self._state[f"{side}.{name}"]).to(self._device) for name in _shapes(self.dim)}
        result = np.empty((len(vectors), self.dim), np.float32)
        with torch.inference_mode():
            for batch in batches(len(vectors)):
                part = torch.from_numpy(read_vectors(vectors, batch)).to(self._device)
                result[batch] = transform(torch, net, part).cpu().numpy()
        return result


def transform(torch: Any, net: Net, vectors: Tensor) -> Tensor:
    """(n, dim): the gated MLP of (n, dim) vectors."""
    hidden = torch.nn.functional.gelu(vectors @ net["w1"].T + net["b1"])
    gate = torch.sigmoid(net["skip"])
    result: Tensor = gate * (hidden @ net["w2"].T + net["b2"]) + (1 - gate) * vectors
    return result


def make_net(torch: Any, dim: int, *, seed: int) -> Net:
    """An untrained net: torch's default initialization, and the gate at −5."""
    with torch.random.fork_rng(devices=[]):  # leaves the caller's random state alone
        torch.random.default_generator.manual_seed(seed)
        up, down = torch.nn.Linear(dim, 2 * dim), torch.nn.Linear(2 * dim, dim)
    parameters = {"w1": up.weight, "b1": up.bias, "w2": down.weight, "b2": down.bias}
    return {name: value.detach() for name, value in parameters.items()} | {"skip": torch.tensor(INITIAL_GATE)}


class _Nets(Learner):
    """Both nets in training: the learner of MF_ind."""

    def __init__(
        self, torch: Any, vectors: tuple[NDArray[Any], NDArray[Any]], fitted: SparseScores, settings: Inductive
    ) -> None:
        self._torch = torch
        self._vectors = vectors
        self._fitted = fitted
        self._batch = settings.batch
        self._rng = np.random.default_rng((settings.seed, 1))
        self._device = torch.device(settings.device or "cpu")
        self._nets = [
            {name: value.to(self._device).requires_grad_() for name, value in net.items()}
            for net in (make_net(torch, vectors[0].shape[1], seed=2 * settings.seed + side) for side in range(2))
        ]
        super().__init__(value for net in self._nets for value in net.values())
        on_gpu = self._device.type == "cuda"
        self._optimizer = torch.optim.AdamW(
            self.parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=on_gpu
        )
        self._on_device: list[torch.Tensor] | None = None
        if on_gpu and sum(side.nbytes for side in vectors) <= MAX_DEVICE_BYTES:
            self._copy_to_device()
        self.steps = -(-len(fitted) // settings.batch)

    def run_epoch(self, tick: Callable[[], None]) -> None:
        for chosen in shuffled_batches(len(self._fitted), self._batch, self._rng):
            pairs = self._fitted.pairs.take(chosen)
            scores = self._torch.from_numpy(self._fitted.scores[chosen]).to(self._device)
            self._optimizer.zero_grad()
            self._torch.nn.functional.mse_loss(self._products(pairs), scores).backward()
            self._optimizer.step()
            tick()

    def estimate(self, pairs: Pairs) -> Scores:
        with self._torch.inference_mode():
            estimates: Scores = self._products(pairs).cpu().numpy()
        return estimates

    def state(self) -> State:
        return {
            f"{side}.{name}": value.detach().cpu().numpy()
            for side, net in zip(SIDES, self._nets, strict=True)
            for name, value in net.items()
        }

    def _products(self, pairs: Pairs) -> torch.Tensor:
        left, right = self._encode(0, pairs.queries), self._encode(1, pairs.rows)
        return (left * right).sum(1)

    def _copy_to_device(self) -> None:
        """Hold all vectors on the device: copying those of each step would take longer than the step."""
        self._on_device = [self._torch.from_numpy(np.array(side)).to(self._device) for side in self._vectors]

    def _encode(self, side: int, numbers: Numbers) -> torch.Tensor:
        """(numbers, dim) the net's outputs; on a CPU each distinct vector is read and computed once."""
        if self._on_device is not None:
            rows = self._torch.from_numpy(numbers).to(self._device)
            return transform(self._torch, self._nets[side], self._on_device[side][rows].float())
        distinct, positions = np.unique(numbers, return_inverse=True)
        vectors = self._torch.from_numpy(read_vectors(self._vectors[side], distinct)).to(self._device)
        encoded = transform(self._torch, self._nets[side], vectors)
        return encoded[self._torch.from_numpy(positions).to(self._device)]


def _shapes(dim: int) -> dict[str, tuple[int, ...]]:
    return {"w1": (2 * dim, dim), "b1": (2 * dim,), "w2": (dim, 2 * dim), "b2": (dim,), "skip": ()}


def _check_state(state: State) -> int:
    """The dimension of the vectors."""
    dim = len(state["items.b2"]) if "items.b2" in state else 1
    expected = {f"{side}.{name}": shape for side in SIDES for name, shape in _shapes(dim).items()}
    found = {name: values.shape for name, values in state.items()}
    if found != expected:
        raise InputError(f"`state` must hold arrays of the shapes {expected}, got {found}.")
    return dim
