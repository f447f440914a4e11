"""An adapter in training: networks over the frozen vectors of an encoder, for queries and items, or queries alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from crossknn._imports import import_extra
from crossknn.encoders.adapter import AdaptedEncoder, Adapter, Network, apply_network, without_adapter
from crossknn.encoders.base import check_vectors
from crossknn.indexing.factorization.trainer import batches
from crossknn.indexing.teaching.student import QUERY
from crossknn.types import Encoder, Rows

if TYPE_CHECKING:
    from torch import Tensor

HIDDEN_PER_DIM: Final = 2  # as in MF_ind
ENCODED_TEXTS: Final = 1_024  # of queries, together
ENCODED_VECTORS: Final = 65_536  # without gradients
MAX_LENGTH_ERROR: Final = 0.01  # of vectors that count as normalized


@dataclass(frozen=True)
class FrozenVectors:
    """The encoder's vectors of texts, and which of them are queries."""

    vectors: Tensor  # (texts, dim), of queries first
    queries: int
    lengths: NDArray[np.int64]  # (texts,) ones: what a text takes of a batch

    def __len__(self) -> int:
        return len(self.lengths)

    def join(self, other: Self) -> Self:
        """These queries and the other's items."""
        torch = import_extra("torch", extra="models")
        vectors = torch.cat([self.vectors, other.vectors.to(self.vectors.dtype)])
        return type(self)(vectors, self.queries, np.concatenate([self.lengths, other.lengths]))


class AdapterStudent:
    """Residual networks in training, which start as the identity, or where an adapter was before.

    Args:
        encoder: The frozen encoder, or one with an adapter to train further.
        item_vectors: (items, dim) its vectors of all items; with an adapter those without it.
        for_items: Whether items have a network, too.
    """

    def __init__(
        self,
        encoder: Encoder,
        item_vectors: NDArray[Any],
        *,
        for_items: bool = True,
        device: str | None = None,
        seed: int = 0,
    ) -> None:
        self._torch = torch = import_extra("torch", extra="models")
        self.device = torch.device(device or "cpu")
        before = encoder.adapter if isinstance(encoder, AdaptedEncoder) else None
        self._encoder = without_adapter(encoder)
        self._item_vectors = item_vectors
        self._normalize = _are_normalized(item_vectors) if before is None else before.normalize
        sides = [None if before is None else before.queries, None if before is None else before.items]
        self._networks = [
            self._start(item_vectors.shape[1], 2 * seed + side, sides[side]) for side in range(2 if for_items else 1)
        ]
        self.parameters: list[Tensor] = [value for network in self._networks for value in network.values()]

    def _start(self, dim: int, seed: int, before: Network | None) -> dict[str, Tensor]:
        """The parameters of a network; without one from before that of the identity, with random features."""
        torch = self._torch
        if before is None:
            generator = torch.Generator().manual_seed(seed)
            up = torch.randn((HIDDEN_PER_DIM * dim, dim), generator=generator) / dim**0.5
            down = torch.zeros((dim, HIDDEN_PER_DIM * dim))
            made = {"w1": up, "b1": torch.zeros(len(up)), "w2": down, "b2": torch.zeros(dim)}
        else:
            made = {name: torch.from_numpy(np.array(array)) for name, array in before.items()}
        return {name: value.to(self.device).requires_grad_() for name, value in made.items()}

    def read(self, side: str, texts: Sequence[str]) -> FrozenVectors:
        """The encoder's vectors of queries, or those of all items."""
        if side == QUERY:
            parts = [texts[batch] for batch in batches(len(texts), ENCODED_TEXTS)]
            dim = self._item_vectors.shape[1]
            found = [check_vectors(self._encoder.encode_queries(part), part, dim=dim) for part in parts]
            array: NDArray[Any] = np.concatenate([np.empty((0, dim), np.float32), *found])
        else:
            array = np.array(self._item_vectors)
        if self.device.type == "cuda":
            array = array.astype(np.float16)
        vectors = self._torch.from_numpy(array).to(self.device)
        return FrozenVectors(vectors, len(texts) if side == QUERY else 0, np.ones(len(array), np.int64))

    def encode(self, inputs: FrozenVectors, numbers: Rows) -> Tensor:
        """(numbers, dim) float32 adapted vectors, with gradients unless they are disabled."""
        torch = self._torch
        vectors: Tensor = inputs.vectors[torch.from_numpy(numbers).to(self.device)].float()
        is_query = numbers < inputs.queries
        for network, chosen in zip(self._networks, (is_query, ~is_query), strict=False):  # items may have none
            places = torch.from_numpy(np.flatnonzero(chosen)).to(self.device)
            if len(places):
                adapted = apply_network(network, vectors[places], normalize=self._normalize)
                vectors = vectors.index_copy(0, places, adapted)
        return vectors

    def encode_all(self, inputs: FrozenVectors, numbers: Rows | None = None) -> Tensor:
        """(texts, dim) adapted vectors without gradients, in half precision on a GPU."""
        numbers = np.arange(len(inputs)) if numbers is None else numbers
        half = self._torch.float16 if self.device.type == "cuda" else self._torch.float32
        with self._torch.no_grad():
            parts = [self.encode(inputs, numbers[part]).to(half) for part in batches(len(numbers), ENCODED_VECTORS)]
        joined: Tensor = self._torch.cat(parts)
        return joined

    def take_gradients(self) -> None:
        """Nothing: the gradients are where the optimizer looks for them."""

    def update_working_copy(self) -> None:
        """Nothing: the networks compute with the weights that the optimizer changes."""

    def finish(self, _folder: Path) -> AdaptedEncoder:
        """The encoder with the adapter as it is now; nothing is written to the folder."""
        networks = [
            {name: value.detach().cpu().numpy().copy() for name, value in network.items()} for network in self._networks
        ]
        items = networks[1] if len(networks) == 2 else None
        adapter = Adapter(networks[0], items, self._normalize, self._encoder.fingerprint)
        return AdaptedEncoder(self._encoder, adapter)


def _are_normalized(vectors: NDArray[Any]) -> bool:
    """Whether the first thousand vectors have length 1."""
    lengths = np.linalg.norm(np.asarray(vectors[:1_000], np.float32), axis=1)
    return bool(np.abs(lengths - 1).max(initial=0) < MAX_LENGTH_ERROR)
