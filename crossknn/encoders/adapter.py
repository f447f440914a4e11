"""Adapter: small residual networks over the vectors of a frozen encoder, for queries and items or for queries alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict

import numpy as np
from numpy.typing import NDArray

from crossknn._imports import import_extra
from crossknn.encoders.base import check_vectors
from crossknn.errors import InputError
from crossknn.storage.json_values import read_as
from crossknn.storage.safetensors import check_array
from crossknn.types import Encoder, Vectors

if TYPE_CHECKING:
    from torch import Tensor

QUERIES, ITEMS, PREFIX = "queries", "items", "adapter."  # of the names of arrays on disk, never to change
BATCH: Final = 16_384  # vectors that pass through a network together

Network = Mapping[str, NDArray[np.float32]]  # w1 (hidden, dim), b1 (hidden,), w2 (dim, hidden), b2 (dim,)


class TaughtFacts(TypedDict):
    """What an index says about its adapter or its encoder, besides arrays and files."""

    normalize: bool
    base: str


def apply_network(network: Mapping[str, Tensor], vectors: Tensor, *, normalize: bool) -> Tensor:
    """`x + W₂ gelu(W₁ x + b₁) + b₂` of (n, dim) vectors x, scaled to length 1 if asked for."""
    functional = import_extra("torch", extra="models").nn.functional
    hidden = functional.gelu(functional.linear(vectors, network["w1"], network["b1"]))
    result: Tensor = vectors + functional.linear(hidden, network["w2"], network["b2"])
    return functional.normalize(result) if normalize else result


@dataclass(frozen=True, eq=False)
class Adapter:
    """Networks that map the vectors of a frozen encoder to better ones of the same dimension.

    Attributes:
        queries: The network of queries.
        items: The network of items; None where items keep the encoder's vectors.
        normalize: Whether its vectors have length 1.
        base: Fingerprint of the encoder whose vectors it takes.
    """

    queries: Network
    items: Network | None
    normalize: bool
    base: str

    @cached_property
    def fingerprint(self) -> str:
        """Of the encoder with this adapter."""
        digest = blake2b(str(self.normalize).encode(), digest_size=8)
        for name, array in sorted(self.arrays().items()):
            digest.update(name.encode() + np.ascontiguousarray(array, np.float32).tobytes())
        return f"{self.base}+adapter:{digest.hexdigest()}"

    def adapt_queries(self, vectors: NDArray[Any]) -> Vectors:
        """(queries, dim) float32 from the encoder's vectors."""
        return self._apply(self.queries, vectors)

    def adapt_items(self, vectors: NDArray[Any], *, device: str | None = None) -> NDArray[Any]:
        """(items, dim) from the encoder's vectors, in their precision; these vectors where only queries are adapted."""
        return vectors if self.items is None else self._apply(self.items, vectors, device).astype(vectors.dtype)

    def _apply(self, network: Network, vectors: NDArray[Any], device: str | None = None) -> Vectors:
        torch = import_extra("torch", extra="models")
        dim = len(network["b2"])
        if vectors.ndim != 2 or vectors.shape[1] != dim:
            raise InputError(f"the adapter takes vectors of {dim} dimensions, got shape {vectors.shape}.")
        moved = {name: torch.from_numpy(np.array(array)).to(device or "cpu") for name, array in network.items()}
        result: Vectors = np.empty(vectors.shape, np.float32)
        with torch.inference_mode():
            for start in range(0, len(vectors), BATCH):
                batch = torch.from_numpy(np.array(vectors[start : start + BATCH], np.float32)).to(device or "cpu")
                adapted = apply_network(moved, batch, normalize=self.normalize)
                result[start : start + BATCH] = adapted.cpu().numpy()
        return result

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """The arrays that an index saves."""
        sides = {QUERIES: self.queries, ITEMS: self.items or {}}
        return {f"{PREFIX}{side}.{name}": array for side, network in sides.items() for name, array in network.items()}

    @property
    def facts(self) -> dict[str, Any]:
        """What `load` needs besides the arrays."""
        return {"normalize": self.normalize, "base": self.base}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> Self:
        """The adapter that `arrays` and `facts` were saved from."""
        networks: dict[str, dict[str, NDArray[np.float32]]] = {QUERIES: {}, ITEMS: {}}
        for name, array in arrays.items():
            if name.startswith(PREFIX):
                side, parameter = name.removeprefix(PREFIX).split(".")
                networks[side][parameter] = np.asarray(array, np.float32)
        for network in networks.values():
            _check_network(network)
        facts = read_as(TaughtFacts, facts, "adapter")
        return cls(networks[QUERIES], networks[ITEMS] or None, facts["normalize"], facts["base"])


class AdaptedEncoder:
    """An encoder with an adapter over its vectors."""

    def __init__(self, encoder: Encoder, adapter: Adapter) -> None:
        self.encoder = encoder
        self.adapter = adapter

    @property
    def fingerprint(self) -> str:
        return self.adapter.fingerprint

    @property
    def at_once(self) -> int:
        """Texts that it is best called with."""
        return int(getattr(self.encoder, "at_once", 256))

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        return self.adapter.adapt_queries(check_vectors(self.encoder.encode_queries(texts), texts))

    def encode_items(self, texts: Sequence[str]) -> Vectors:
        vectors: Vectors = self.adapter.adapt_items(check_vectors(self.encoder.encode_items(texts), texts))
        return vectors


def without_adapter(encoder: Encoder) -> Encoder:
    """The encoder whose vectors an adapter takes, or this one."""
    return encoder.encoder if isinstance(encoder, AdaptedEncoder) else encoder


def _check_network(network: Network) -> None:
    if not network:
        return
    check_array("w1", network["w1"], (None, None), np.floating)
    hidden, dim = network["w1"].shape
    expected = {"w1": (hidden, dim), "b1": (hidden,), "w2": (dim, hidden), "b2": (dim,)}
    found = {name: array.shape for name, array in network.items()}
    if found != expected:
        raise InputError(f"the networks of an adapter must have the shapes {expected}, got {found}.")
