"""Searching among some rows while the inner products of the others are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np

from crossknn.lines import fill
from crossknn.types import ApartSearch, Mask, Proposal, Rows, Scores, Vectors, VectorSearch

if TYPE_CHECKING:
    import torch


class FoundApart(NamedTuple):
    """Of every query, on one device; lines are filled up with row 0, −∞ and 0.

    rows      (queries, n) those of the largest inner product among the rows that are not apart
    best      (queries, n) that product
    products  (queries, most) the inner product with each row that is apart
    """

    rows: torch.Tensor
    best: torch.Tensor
    products: torch.Tensor


class Apart(Protocol):
    """A search of some queries, round after round, with rows of each apart; tensors in, tensors out."""

    device: torch.device

    def search(self, queries: torch.Tensor, n: int, *, exclude: Sequence[Rows], allowed: Mask | None) -> FoundApart:
        """The `n` best rows of each query that are neither apart nor excluded, and its products with those apart."""

    def take(self, rows: torch.Tensor) -> torch.Tensor:
        """(…, dim) float32: the vectors of these rows."""


@runtime_checkable
class TensorSearch(Protocol):
    """A search that takes and gives tensors on a device of its own."""

    def set_apart(self, rows: Sequence[Rows]) -> Apart:
        """A search of as many queries, with these rows of each apart."""

    def take_tensor(self, rows: torch.Tensor) -> torch.Tensor:
        """(…, dim) float32: the vectors of these rows."""


def take_tensor(items: VectorSearch, rows: torch.Tensor) -> torch.Tensor:
    """(…, dim) float32: the vectors of these rows, where the items are, if they can be searched there."""
    import torch

    if isinstance(items, TensorSearch):
        return items.take_tensor(rows)
    vectors = torch.from_numpy(np.ascontiguousarray(items.take(rows.reshape(-1).numpy()), np.float32))
    return vectors.view(*rows.shape, items.dim)


def set_apart(items: VectorSearch, rows: Sequence[Rows]) -> Apart:
    """A search with these rows of each query apart: where the items are, if they can be searched there."""
    return items.set_apart(rows) if isinstance(items, TensorSearch) else PlainApart(items, rows)


class PlainApart:
    """Any search; what it takes and gives crosses over between tensors and arrays."""

    def __init__(self, items: VectorSearch, rows: Sequence[Rows]) -> None:
        import torch

        self.device = torch.device("cpu")
        self._items, self._rows = items, rows

    def search(self, queries: torch.Tensor, n: int, *, exclude: Sequence[Rows], allowed: Mask | None) -> FoundApart:
        import torch

        found, products = search_apart(self._items, queries.numpy(), n, self._rows, exclude=exclude, allowed=allowed)
        rows = fill([one.rows for one in found], 0)
        best = fill([one.estimates for one in found], -np.inf)
        return FoundApart(*(torch.from_numpy(array) for array in (rows, best, fill(products, 0))))

    def take(self, rows: torch.Tensor) -> torch.Tensor:
        return take_tensor(self._items, rows)


def search_apart(
    items: VectorSearch,
    queries: Vectors,
    n: int,
    apart: Sequence[Rows],
    *,
    exclude: Sequence[Rows],
    allowed: Mask | None,
) -> tuple[list[Proposal], list[Scores]]:
    """For each query the `n` rows of largest inner product among those not `apart`, and that of each row that is."""
    if isinstance(items, ApartSearch):
        return items.search_apart(queries, n, apart, exclude=exclude, allowed=allowed)
    both = [np.concatenate(rows) for rows in zip(apart, exclude, strict=True)]
    products = [items.take(rows) @ query for rows, query in zip(apart, queries, strict=True)]
    return items.search(queries, n, exclude=both, allowed=allowed), products
