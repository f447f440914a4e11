"""Exact top rows by inner product, in blocks, on a CPU or a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.optional import import_extra
from crossknn.types import Mask, Proposal, Rows, Scores, Vectors

if TYPE_CHECKING:
    import torch

BLOCK_ROWS = 65_536  # rows whose estimates are held at once, per query
BLOCK_QUERIES = 256
# Rows are widened to float32 in steps that fit the cache of a core (CPU) or fill the chip (GPU).
STEP_BYTES = {"cpu": 8 << 20, "cuda": 512 << 20}


class ExactSearch:
    """Exact search over `vectors` (items, dim) in float16, bfloat16 or float32.

    `vectors` is a numpy array, memory-mapped or not, or a torch tensor (the only way to bfloat16). On a
    CPU it is used where it lies and never copied; on a GPU it is moved there if it fits in half of
    the free memory and streamed block by block otherwise. Inner products are computed in float32
    whatever the storage, and extra memory does not grow with the number of items: at most
    256 queries × 65,536 rows of estimates and one step of widened rows at a time.
    """

    def __init__(self, vectors: NDArray[Any] | torch.Tensor, *, device: str | None = None) -> None:
        self._torch = import_extra("torch", extra="models")
        tensor = self._as_tensor(vectors)
        if tensor.ndim != 2 or not tensor.shape[1]:
            raise InputError(f"vectors must have shape (items, dim). Got {tuple(tensor.shape)} instead.")
        self.device = self._torch.device(device or "cpu")
        self.dim: int = tensor.shape[1]
        self._vectors: torch.Tensor = tensor.to(self.device) if self._fits(tensor) else tensor
        self._step = max(1, STEP_BYTES.get(self.device.type, STEP_BYTES["cpu"]) // (4 * self.dim))

    def __len__(self) -> int:
        return len(self._vectors)

    def take(self, rows: Rows) -> Vectors:
        index = self._torch.as_tensor(np.asarray(rows, np.int64)).to(self._vectors.device)
        return _to_numpy(self._vectors[index].float())

    def estimates(self, queries: NDArray[Any]) -> Scores:
        wanted = self._check_queries(queries)
        result = np.empty((len(wanted), len(self)), np.float32)
        for first in range(0, len(wanted), BLOCK_QUERIES):
            batch = wanted[first : first + BLOCK_QUERIES]
            for start, stop in self._blocks():
                result[first : first + len(batch), start:stop] = _to_numpy(self._products(batch, start, stop))
        return result

    def search(
        self,
        queries: NDArray[Any],
        n: int,
        *,
        exclude: Sequence[Rows] | None = None,
        allowed: Mask | None = None,
    ) -> list[Proposal]:
        wanted = self._check_queries(queries)
        if exclude is not None and len(exclude) != len(wanted):
            raise InputError(
                f"exclude must hold one array of rows per query ({len(wanted)}). Got {len(exclude)} instead."
            )
        if allowed is not None and len(allowed) != len(self):
            raise InputError(f"allowed must hold one value per item ({len(self)}). Got {len(allowed)} instead.")
        proposals: list[Proposal] = []
        for first in range(0, len(wanted), BLOCK_QUERIES):
            stop = first + BLOCK_QUERIES
            excluded = _as_pairs(exclude[first:stop]) if exclude is not None else None
            proposals += self._search_batch(wanted[first:stop], min(n, len(self)), excluded, allowed)
        return proposals

    def _search_batch(
        self, queries: torch.Tensor, n: int, excluded: tuple[Rows, Rows] | None, allowed: Mask | None
    ) -> list[Proposal]:
        torch = self._torch
        best = torch.empty((len(queries), 0), device=self.device)
        rows = torch.empty((len(queries), 0), dtype=torch.int64, device=self.device)
        for start, stop in self._blocks():
            if allowed is not None and not allowed[start:stop].any():
                continue
            products = self._products(queries, start, stop)
            self._mask(products, start, stop, excluded, allowed)
            block_best, block_rows = self._top(products, n)
            # Rows of earlier blocks are lower, so a stable sort keeps ties in row order.
            best, order = torch.cat([best, block_best], 1).sort(dim=1, descending=True, stable=True)
            rows = torch.cat([rows, block_rows + start], 1).gather(1, order)[:, :n]
            best = best[:, :n]
        return [_finite(r, b) for r, b in zip(_to_numpy(rows), _to_numpy(best), strict=True)]

    def _products(self, queries: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """(queries, stop - start) float32."""
        result: torch.Tensor = self._torch.empty((len(queries), stop - start), device=self.device)
        for first in range(start, stop, self._step):
            last = min(first + self._step, stop)
            step = self._vectors[first:last].to(self.device).float()
            result[:, first - start : last - start] = queries @ step.T
        return result

    def _mask(
        self, products: torch.Tensor, start: int, stop: int, excluded: tuple[Rows, Rows] | None, allowed: Mask | None
    ) -> None:
        """Set to −∞ what may not be found."""
        torch = self._torch
        if allowed is not None:
            hidden = torch.from_numpy(~np.asarray(allowed[start:stop], np.bool_)).to(self.device)
            products.masked_fill_(hidden, -torch.inf)
        if excluded is not None:
            queries, rows = excluded
            here = (rows >= start) & (rows < stop)
            index = (
                torch.from_numpy(queries[here]).to(self.device),
                torch.from_numpy(rows[here] - start).to(self.device),
            )
            products.index_put_(index, torch.tensor(-torch.inf, device=self.device))

    def _top(self, products: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The `n` largest of each line, largest first, ties to the lower row."""
        n = min(n, products.shape[1])
        if not n:
            return products[:, :0], self._torch.empty((len(products), 0), dtype=self._torch.int64, device=self.device)
        values, columns = products.topk(n, dim=1)
        if bool(self._torch.isnan(values[:, 0]).any()):
            raise InputError("the vectors or the query vectors hold NaN.")
        columns = columns.sort(dim=1).values  # row order, so that the stable sort below breaks ties by row
        values, order = products.gather(1, columns).sort(dim=1, descending=True, stable=True)
        columns = columns.gather(1, order)
        last = values[:, -1:]
        tied = ((products >= last).sum(1) > n) & self._torch.isfinite(last[:, 0])
        for line in self._torch.nonzero(tied)[:, 0].tolist():  # topk cut through equal values: sort them all
            line_values, line_columns = products[line].sort(descending=True, stable=True)
            values[line], columns[line] = line_values[:n], line_columns[:n]
        return values, columns

    def _blocks(self) -> Iterator[tuple[int, int]]:
        for start in range(0, len(self), BLOCK_ROWS):
            yield start, min(start + BLOCK_ROWS, len(self))

    def _check_queries(self, queries: NDArray[Any]) -> torch.Tensor:
        array = np.ascontiguousarray(queries, np.float32)
        if array.ndim != 2 or array.shape[1] != self.dim:
            raise InputError(f"query vectors must have shape (queries, {self.dim}). Got {array.shape} instead.")
        tensor: torch.Tensor = self._torch.tensor(array, device=self.device)
        return tensor

    def _as_tensor(self, vectors: NDArray[Any] | torch.Tensor) -> torch.Tensor:
        if isinstance(vectors, np.ndarray):
            if vectors.dtype not in (np.float16, np.float32, np.float64):
                raise InputError(f"vectors must be float16, bfloat16 or float32. Got {vectors.dtype} instead.")
            if vectors.dtype == np.float64:
                vectors = vectors.astype(np.float32)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*not writable.*")  # a read-only memory map: we never write
                vectors = self._torch.from_numpy(vectors)
        if not isinstance(vectors, self._torch.Tensor) or not vectors.is_floating_point():
            raise InputError(f"vectors must be a floating-point array or tensor. Got {type(vectors).__name__} instead.")
        detached: torch.Tensor = vectors.detach()
        return detached

    def _fits(self, tensor: torch.Tensor) -> bool:
        """Whether the vectors may live on the device; on a CPU they always do."""
        if self.device.type != "cuda" or tensor.is_cuda:
            return True
        free: int = self._torch.cuda.mem_get_info(self.device)[0]
        return tensor.numel() * tensor.element_size() < free // 2


def _as_pairs(exclude: Sequence[Rows]) -> tuple[Rows, Rows]:
    """The excluded rows as flat arrays of query positions and rows."""
    counts = [len(rows) for rows in exclude]
    queries = np.repeat(np.arange(len(exclude)), counts)
    return queries, np.concatenate([np.empty(0, np.int64), *exclude]).astype(np.int64)


def _finite(rows: Rows, estimates: Scores) -> Proposal:
    found = np.isfinite(estimates)
    return Proposal(rows[found], estimates[found])


def _to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.cpu().numpy()
    return array
