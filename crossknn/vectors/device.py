"""Searching among some rows while the inner products of the others are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from crossknn.types import CandidateSearch, Mask, Proposal, Rows, Scores, Vectors, VectorSearch
from crossknn.vectors.padding import pad_rows

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class CandidateSearchResult(NamedTuple):
    """Of every query, on one device.

    rows      (queries, n) those of the largest inner product among the rows that are not apart; any behind the last
    best      (queries, n) that product; −∞ behind the last
    products  (queries, most) the inner product with each row that is apart; any behind the last
    """

    rows: Tensor
    best: Tensor
    products: Tensor


class DeviceCandidateSearch(Protocol):
    """A search of some queries, round after round, with rows of each apart; tensors in, tensors out."""

    def search(self, queries: Tensor, n: int, *, exclude: Tensor, allowed: Mask | None) -> CandidateSearchResult:
        """The `n` best rows of each query that are neither apart nor excluded, and its products with those apart.

        `exclude` is (queries, some), with lines that are filled up with the number of items.
        """


@runtime_checkable
class DeviceSearch(VectorSearch, Protocol):
    """A search that takes and gives tensors on a device of its own."""

    device: torch.device

    def with_candidates(self, rows: Tensor) -> DeviceCandidateSearch:
        """A search of as many queries, with these rows of each apart, (queries, most), filled up like `exclude`."""

    def take_tensor(self, rows: Tensor) -> Tensor:
        """(…, dim) float32: the vectors of these rows."""


class HostSearchAdapter:
    """Any search as one of tensors: what it takes and gives crosses over to arrays."""

    def __init__(self, items: VectorSearch) -> None:
        import torch

        self.items = items
        self.device = torch.device("cpu")

    def with_candidates(self, rows: Tensor) -> DeviceCandidateSearch:
        return _PlainApart(self.items, _as_lists(rows, len(self.items)))

    def take_tensor(self, rows: Tensor) -> Tensor:
        import torch

        vectors = torch.from_numpy(np.ascontiguousarray(self.items.take(rows.reshape(-1).numpy()), np.float32))
        return vectors.view(*rows.shape, self.items.dim)


def as_device_search(items: VectorSearch) -> DeviceSearch | HostSearchAdapter:
    """The same search where items are, if it can be asked there."""
    return items if isinstance(items, DeviceSearch) else HostSearchAdapter(items)


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array on the device. Nobody waits for it to arrive: a GPU has taken a copy of its own before this ends."""
    import torch

    return torch.from_numpy(array).to(device, non_blocking=device.type == "cuda")


class _PlainApart:
    def __init__(self, items: VectorSearch, rows: list[Rows]) -> None:
        self._items, self._rows = items, rows

    def search(self, queries: Tensor, n: int, *, exclude: Tensor, allowed: Mask | None) -> CandidateSearchResult:
        import torch

        hidden = _as_lists(exclude, len(self._items))
        found, products = search_with_candidates(
            self._items, queries.numpy(), n, self._rows, exclude=hidden, allowed=allowed
        )
        rows, best = pad_rows([one.rows for one in found], 0), pad_rows([one.estimates for one in found], -np.inf)
        return CandidateSearchResult(*(torch.from_numpy(array) for array in (rows, best, pad_rows(products, 0))))


def _as_lists(rows: Tensor, items: int) -> list[Rows]:
    return [line[line < items] for line in rows.numpy()]


def search_with_candidates(
    items: VectorSearch,
    queries: Vectors,
    n: int,
    apart: Sequence[Rows],
    *,
    exclude: Sequence[Rows],
    allowed: Mask | None,
) -> tuple[list[Proposal], list[Scores]]:
    """For each query the `n` rows of largest inner product among those not `apart`, and that of each row that is."""
    if isinstance(items, CandidateSearch):
        return items.search_with_candidates(queries, n, apart, exclude=exclude, allowed=allowed)
    both = [np.concatenate(rows) for rows in zip(apart, exclude, strict=True)]
    products = [items.take(rows) @ query for rows, query in zip(apart, queries, strict=True)]
    return items.search(queries, n, exclude=both, allowed=allowed), products
