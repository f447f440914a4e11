"""Vector search on tensors of one device, round after round: the inside view that strategies have of item vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from crossknn.types import Mask, Rows, VectorSearch
from crossknn.vectors.base import search_with_candidates

if TYPE_CHECKING:
    import torch
    from torch import Tensor


# Up to so many queries a strategy's tensors stay on the CPU. None: on an H200 the median search takes 0.9 of the time,
# but the slowest 1 in 100 half as long again (benchmarks/results/latency_h200.json).
FEW_QUERIES: Final = 0


class CandidateSearchResult(NamedTuple):
    """The result for all queries, on one device; rows and products are arbitrary in the padding."""

    rows: Tensor  # (queries, n) the rows of largest inner product that are not candidates
    best: Tensor  # (queries, n) their inner products; −∞ in the padding
    products: Tensor  # (queries, candidates) the inner products with the candidates


class DeviceCandidateSearch(Protocol):
    """A search for some queries with fixed candidates, repeated every round."""

    def search(self, queries: Tensor, n: int, *, exclude: Tensor, allowed: Mask | None) -> CandidateSearchResult:
        """The `n` best rows of each query that are neither candidates nor excluded, and the candidates' products.

        `exclude` is (queries, width), padded with the number of items.
        """


@runtime_checkable
class DeviceSearch(Protocol):
    """A vector search with tensors on its own device as arguments and results."""

    device: torch.device

    def with_candidates(self, rows: Tensor) -> DeviceCandidateSearch:
        """A search with these candidates per query, (queries, candidates), padded with the number of items."""

    def take_tensor(self, rows: Tensor) -> Tensor:
        """(…, dim) float32: the vectors of these rows."""


class HostSearchAdapter:
    """Any `VectorSearch` as a `DeviceSearch` on the CPU."""

    def __init__(self, items: VectorSearch) -> None:
        import torch

        self.items = items
        self.device = torch.device("cpu")

    def with_candidates(self, rows: Tensor) -> DeviceCandidateSearch:
        return _HostCandidateSearch(self.items, _without_padding(rows, len(self.items)))

    def take_tensor(self, rows: Tensor) -> Tensor:
        import torch

        vectors = torch.from_numpy(np.ascontiguousarray(self.items.take(rows.reshape(-1).numpy()), np.float32))
        return vectors.view(*rows.shape, self.items.dim)


class _HostCandidateSearch:
    def __init__(self, items: VectorSearch, candidates: list[Rows]) -> None:
        self._items, self._candidates = items, candidates

    def search(self, queries: Tensor, n: int, *, exclude: Tensor, allowed: Mask | None) -> CandidateSearchResult:
        import torch

        hidden = _without_padding(exclude, len(self._items))
        found, products = search_with_candidates(
            self._items, queries.numpy(), n, self._candidates, exclude=hidden, allowed=allowed
        )
        rows, best = pad_rows([one.rows for one in found], 0), pad_rows([one.estimates for one in found], -np.inf)
        return CandidateSearchResult(*(torch.from_numpy(array) for array in (rows, best, pad_rows(products, 0))))


class HostTensorAdapter:
    """A `DeviceSearch` whose arguments and results are on the CPU, wherever it searches.

    Few queries may be faster so: what a strategy does with the results of a scan are hundreds of small operations, many
    of which a CPU ends before it could have launched them on a GPU. `benchmarks/latency.py` compares both.
    """

    def __init__(self, search: DeviceSearch) -> None:
        import torch

        self.search = search
        self.device = torch.device("cpu")

    def with_candidates(self, rows: Tensor) -> DeviceCandidateSearch:
        device = self.search.device
        return _HostTensorCandidateSearch(self.search.with_candidates(rows.to(device)), device)

    def take_tensor(self, rows: Tensor) -> Tensor:
        return self.search.take_tensor(rows.to(self.search.device)).cpu()


class _HostTensorCandidateSearch:
    def __init__(self, search: DeviceCandidateSearch, device: torch.device) -> None:
        self._search, self._device = search, device

    def search(self, queries: Tensor, n: int, *, exclude: Tensor, allowed: Mask | None) -> CandidateSearchResult:
        queries, exclude = (tensor.to(self._device) for tensor in (queries, exclude))
        found = self._search.search(queries, n, exclude=exclude, allowed=allowed)
        return CandidateSearchResult(*(tensor.cpu() for tensor in found))


def as_device_search(items: VectorSearch, *, queries: int | None = None) -> DeviceSearch:
    """The search itself if it works on tensors, else an adapter; for few queries one whose tensors are on the CPU."""
    if not isinstance(items, DeviceSearch):
        return HostSearchAdapter(items)
    few = queries is not None and queries <= FEW_QUERIES
    return HostTensorAdapter(items) if few and items.device.type != "cpu" else items


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array on the device, without waiting: CUDA copies pageable memory to a staging buffer before this returns."""
    import torch

    return torch.from_numpy(array).to(device, non_blocking=device.type == "cuda")


def pad_rows(arrays: Sequence[NDArray[Any]], value: float) -> NDArray[Any]:
    """(arrays, max length), padded with `value`."""
    shape = len(arrays), max(map(len, arrays), default=0)
    padded = np.full(shape, value, dtype=arrays[0].dtype if len(arrays) else None)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return padded


def valid_mask(arrays: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
    """(arrays, max length), False where `pad_rows` pads."""
    lengths = np.array([len(array) for array in arrays], np.int64)
    return np.arange(lengths.max(initial=0)) < lengths[:, None]


def _without_padding(rows: Tensor, n_items: int) -> list[Rows]:
    return [mine[mine < n_items] for mine in rows.numpy()]
