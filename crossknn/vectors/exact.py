"""Exact top-k by inner product, block by block, on a CPU or a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from copy import copy
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.types import Mask, Proposal, Rows, Scores, Vectors
from crossknn.vectors.base import BaseSearch, Found, RowLists
from crossknn.vectors.device import CandidateSearchResult, pad_rows, to_device

if TYPE_CHECKING:
    from torch import Tensor

    # Of each block of items: flat positions in its products, (queries, block rows), and in a matrix (queries, width).
    Positions = list[tuple[Tensor, Tensor]]

BLOCK_ROWS: Final = 65_536  # rows whose inner products are held at once, per query,
BLOCK_PRODUCTS: Final = {"cpu": 1 << 22, "cuda": 1 << 26}  # or more, up to this many products: few blocks are faster
BLOCK_QUERIES: Final = 256
# Rows are converted to float32 in steps that fit the cache of a core (CPU) or fill the chip (GPU).
CONVERT_BYTES: Final = {"cpu": 2 << 20, "cuda": 512 << 20}


class ExactSearch(BaseSearch):
    """Exact search over vectors in float16, bfloat16 or float32.

    Inner products are as exact as in float32, whatever the storage. Memory does not grow with the number of items: at
    most 256 queries × 65,536 rows of products (on a GPU 67 million products) and one step of converted rows at a time.

    Args:
        vectors: (items, dim) numpy array, memory-mapped or not, or torch tensor (the only way to bfloat16). On a CPU
            it is never copied; on a GPU it is moved there if it fits in half of the free memory, else streamed block
            by block.
        device: A torch device such as "cuda". Default: "cpu".
    """

    def __init__(self, vectors: NDArray[Any] | Tensor, *, device: str | None = None) -> None:
        import_extra("torch", extra="models")
        import torch

        from crossknn.vectors.half_products import can_multiply_halves  # imports torch

        self.device = torch.device(device or "cpu")
        self._parts = [self._place(vectors)]  # side by side, (items, width) each
        self.dim: int = self._parts[0].shape[1]
        self._half_products = self._parts[0].dtype == torch.float16 and can_multiply_halves(self._parts[0].device)

    def with_columns(self, *columns: NDArray[Any]) -> ExactSearch:
        """The same search with columns, each (items, width), appended to every vector, without a copy."""
        self._check_columns(columns)
        augmented = copy(self)
        augmented._parts = [*self._parts, *(self._place(part) for part in columns if part.shape[1])]
        augmented.dim = sum(part.shape[1] for part in augmented._parts)
        return augmented

    def __len__(self) -> int:
        return len(self._parts[0])

    def take(self, rows: Rows) -> Vectors:
        import torch

        return self.take_tensor(torch.as_tensor(np.asarray(rows, np.int64))).numpy(force=True)

    def take_tensor(self, rows: Tensor) -> Tensor:
        """(…, dim) float32 on the device: the vectors of these rows."""
        import torch

        parts = [part[rows.to(part.device)].to(self.device) for part in self._parts]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, -1)).float()

    def estimates(self, queries: NDArray[Any]) -> Scores:
        vectors, scale = self._scale(to_device(self._check_queries(queries).copy(), self.device))
        result = np.empty((len(vectors), len(self)), np.float32)
        for first in range(0, len(vectors), BLOCK_QUERIES):
            batch = vectors[first : first + BLOCK_QUERIES]
            for start, stop in self._blocks(BLOCK_ROWS):
                result[first : first + len(batch), start:stop] = self._products(batch, start, stop).numpy(force=True)
        if scale is not None:
            result *= scale.numpy(force=True)
        return result

    def with_candidates(self, rows: Tensor) -> ExactCandidateSearch:
        """A search with these candidates per query, repeated every round (`DeviceSearch`)."""
        return ExactCandidateSearch(self, rows)

    def _search(self, queries: Vectors, n: int, candidates: RowLists, exclude: RowLists, allowed: Mask | None) -> Found:
        padded, hidden = (to_device(pad_rows(rows, len(self)), self.device) for rows in (candidates, exclude))
        vectors = to_device(queries.copy(), self.device)
        result = self.with_candidates(padded).search(vectors, n, exclude=hidden, allowed=allowed)
        rows, best, products = (tensor.numpy(force=True) for tensor in result)
        found = zip(rows, best, np.isfinite(best), strict=True)
        proposals = [Proposal(mine[finite], estimates[finite]) for mine, estimates, finite in found]
        return proposals, [mine[: len(own)] for mine, own in zip(products, candidates, strict=True)]

    def search_batch(
        self, queries: Tensor, n: int, candidates: Positions, *, width: int, exclude: Tensor, allowed: Mask | None
    ) -> CandidateSearchResult:
        """`DeviceCandidateSearch.search` for at most `BLOCK_QUERIES` queries with `width` candidates each."""
        import torch

        from crossknn.vectors.topk import stable_topk  # imports torch

        queries, scale = self._scale(queries)
        known = queries.new_empty(len(queries) * width)
        best, rows = queries.new_empty((len(queries), 0)), exclude.new_empty((len(queries), 0))
        blocks = self._blocks(self.block_rows(len(queries))) if len(queries) else ()
        for (start, stop), (sources, targets) in zip(blocks, candidates, strict=False):
            if allowed is not None and not allowed[start:stop].any() and not len(sources):
                continue
            products = self._products(queries, start, stop)
            if len(sources):
                known.index_copy_(0, targets, products.view(-1).index_select(0, sources))
                products.view(-1).index_fill_(0, sources, -np.inf)
            if allowed is not None:
                forbidden = to_device(~np.asarray(allowed[start:stop], np.bool_), self.device)
                products.masked_fill_(forbidden, -np.inf)
            _exclude_columns(products, exclude - start if start else exclude)
            block_best, columns = stable_topk(products, n)
            block_rows = columns + start if start else columns
            if not best.shape[1]:
                best, rows = block_best, block_rows
                continue
            best, order = torch.cat([best, block_best], 1).sort(dim=1, descending=True, stable=True)  # ties by row
            best, rows = best[:, :n], torch.cat([rows, block_rows], 1).gather(1, order)[:, :n]
        products = known.view(len(queries), width)
        if scale is None:
            return CandidateSearchResult(rows, best, products)
        return CandidateSearchResult(rows, best * scale, products * scale)

    def block_rows(self, queries: int) -> int:
        """How many rows are multiplied at once."""
        products = BLOCK_PRODUCTS.get(self.device.type, BLOCK_PRODUCTS["cpu"])
        return max(BLOCK_ROWS, products // max(queries, 1))

    def _blocks(self, size: int) -> Iterator[tuple[int, int]]:
        for start in range(0, len(self), size):
            yield start, min(start + size, len(self))

    def _scale(self, queries: Tensor) -> tuple[Tensor, Tensor | None]:
        """Queries as `_products` takes them, and the factor by which its results are too small; None for 1."""
        if not len(queries) or not self._half_products:
            return queries, None
        from crossknn.vectors.half_products import power_of_two  # imports torch

        scale = power_of_two(queries, self._parts[0].shape[1])
        return queries / scale, scale

    def _products(self, queries: Tensor, start: int, stop: int) -> Tensor:
        """(queries, stop - start) float32."""
        import torch

        widths = [part.shape[1] for part in self._parts]
        (part, mine), *others = zip(self._parts, torch.split(queries, widths, 1), strict=True)
        if self._half_products:
            from crossknn.vectors.half_products import half_products  # imports torch

            result = half_products(mine, part[start:stop])
        else:
            result = queries.new_empty((len(queries), stop - start))
            self._multiply(part, mine, start, result, beta=0)
        for part, mine in others:
            self._multiply(part, mine, start, result, beta=1)
        return result

    def _multiply(self, part: Tensor, queries: Tensor, start: int, result: Tensor, beta: int) -> None:
        """Write (beta 0) or add (beta 1) to `result` the products with the rows of one part from `start` on."""
        import torch

        on_cpu = self.device.type == "cpu"
        if on_cpu and not queries.any():  # as before the first scores, when only the bias has a weight
            if not beta:
                result.zero_()
            return
        fitting = max(1, CONVERT_BYTES.get(self.device.type, CONVERT_BYTES["cpu"]) // (4 * part.shape[1]))
        size = 1 << (
            fitting.bit_length() - 1
        )  # a power of two, so that shards, cut at whole blocks, have the same steps
        rows = part[start : start + result.shape[1]]
        # One buffer for all steps stays in the cache; on a GPU the allocator reuses memory, and rows may be elsewhere.
        buffer = queries.new_empty(rows[:size].shape) if on_cpu and rows.dtype != queries.dtype else None
        for step, products in zip(torch.split(rows, size), torch.split(result, size, 1), strict=True):
            wide = step.to(self.device).float() if buffer is None else buffer[: len(step)].copy_(step)
            products.addmm_(queries, wide.T, beta=beta)

    def _place(self, vectors: NDArray[Any] | Tensor) -> Tensor:
        """The vectors on the device, or left on the host if they do not fit."""
        tensor = _as_tensor(vectors)
        if tensor.ndim != 2 or not tensor.shape[1]:
            raise InputError(f"`vectors` must have shape (items, dim), got {tuple(tensor.shape)}.")
        return tensor.to(self.device) if self._fits(tensor) else tensor

    def _fits(self, tensor: Tensor) -> bool:
        if self.device.type != "cuda" or tensor.is_cuda:
            return True
        import torch

        free: int = torch.cuda.mem_get_info(self.device)[0]
        return tensor.numel() * tensor.element_size() < free // 2


class ExactCandidateSearch:
    """`ExactSearch` with fixed candidates per query, which are sorted by block once for all rounds."""

    def __init__(self, search: ExactSearch, rows: Tensor) -> None:
        import torch

        self._search = search
        self._width = rows.shape[1]
        self._batches = [
            _group_by_block(batch, len(search), search.block_rows(len(batch)))
            for batch in torch.split(rows.to(search.device), BLOCK_QUERIES)
        ]

    def search(self, queries: Tensor, n: int, *, exclude: Tensor, allowed: Mask | None) -> CandidateSearchResult:
        import torch

        split = (torch.split(tensor, BLOCK_QUERIES) for tensor in (queries, exclude))
        results = [
            self._search.search_batch(batch, n, candidates, width=self._width, exclude=hidden, allowed=allowed)
            for candidates, batch, hidden in zip(self._batches, *split, strict=True)
        ]
        return results[0] if len(results) == 1 else CandidateSearchResult(*map(torch.cat, zip(*results, strict=True)))


def _group_by_block(rows: Tensor, n_items: int, size: int) -> Positions:
    """Where the rows of each block of `size` items are; `rows` is (queries, width), padded with `n_items`."""
    import torch

    count = -(-n_items // size)
    if not rows.shape[1]:
        return [(rows.new_empty(0), rows.new_empty(0))] * count
    queries, columns = torch.nonzero(rows < n_items, as_tuple=True)
    flat = rows[queries, columns]
    block = flat // size
    widths = (n_items - block * size).clamp(max=size)
    positions = queries * widths + flat % size, queries * rows.shape[1] + columns
    if count < 2:
        return [positions]
    order = block.sort(stable=True).indices
    counts = block.bincount(minlength=count).tolist()
    return list(zip(*(torch.split(one[order], counts) for one in positions), strict=True))


def _exclude_columns(products: Tensor, columns: Tensor) -> None:
    """Make these columns of each row −∞, by adding it (0 for columns outside), without waiting for the device."""
    if not columns.shape[1]:
        return
    inside = columns.clamp(0, products.shape[1] - 1)
    added = products.new_zeros(columns.shape).masked_fill_(inside == columns, -np.inf)
    products.scatter_add_(1, inside, added)


def _as_tensor(vectors: NDArray[Any] | Tensor) -> Tensor:
    import torch

    if isinstance(vectors, np.ndarray):
        if vectors.dtype not in (np.float16, np.float32, np.float64):
            raise InputError(f"`vectors` must be float16, bfloat16 or float32, got {vectors.dtype}.")
        if vectors.dtype == np.float64:
            vectors = vectors.astype(np.float32)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable.*")  # a read-only memory map: we never write
            vectors = torch.from_numpy(vectors)
    if not isinstance(vectors, torch.Tensor) or not vectors.is_floating_point():
        raise InputError(f"`vectors` must be a floating-point array or tensor, got {type(vectors).__name__}.")
    return vectors.detach()
