"""Exact top rows by inner product, in blocks, on a CPU or a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.types import EMPTY_PROPOSAL, Mask, Proposal, Rows, Scores, Vectors
from crossknn.vectors.base import check_limits
from crossknn.vectors.device import to_device
from crossknn.vectors.padding import pad_rows

if TYPE_CHECKING:
    import torch

    from crossknn.vectors.exact_candidates import ExactCandidateSearch
    from crossknn.vectors.row_blocks import Pairs

BLOCK_ROWS = 65_536  # rows whose estimates are held at once, per query
BLOCK_QUERIES = 256
BLOCK_VALUES = 1 << 26  # estimates that are held at once on a GPU, where few large blocks are faster
# Rows are widened to float32 in steps that fit the cache of a core (CPU) or fill the chip (GPU).
STEP_BYTES = {"cpu": 2 << 20, "cuda": 512 << 20}


class ExactSearch:
    """Exact search over `vectors` (items, dim) in float16, bfloat16 or float32.

    `vectors` is a numpy array, memory-mapped or not, or a torch tensor (the only way to bfloat16). On a
    CPU it is used where it lies and never copied; on a GPU it is moved there if it fits in half of
    the free memory and streamed block by block otherwise. Inner products are as exact as in float32
    whatever the storage, and extra memory does not grow with the number of items: at most
    256 queries × 65,536 rows of estimates (on a GPU 67 million estimates) and one step of widened rows at a time.
    """

    def __init__(self, vectors: NDArray[Any] | torch.Tensor, *, device: str | None = None) -> None:
        self._torch = import_extra("torch", extra="models")
        self.device = self._torch.device(device or "cpu")
        self._parts = [self._place(vectors)]
        self.dim: int = self._parts[0].shape[1]

    def beside(self, *columns: NDArray[Any]) -> ExactSearch:
        """The same search where every vector goes on with these columns, each (items, some); nothing is copied."""
        wider = copy(self)
        wider._parts = [*self._parts, *(self._place(part) for part in columns if part.shape[1])]
        wider.dim = sum(part.shape[1] for part in wider._parts)
        if any(len(part) != len(self) for part in wider._parts):
            raise InputError(f"columns beside the vectors must have a line for every item ({len(self)}).")
        return wider

    def __len__(self) -> int:
        return len(self._parts[0])

    def take(self, rows: Rows) -> Vectors:
        return _to_numpy(self.take_tensor(self._torch.as_tensor(np.asarray(rows, np.int64))))

    def estimates(self, queries: NDArray[Any]) -> Scores:
        wanted, unit = self._in_units(self._check_queries(queries))
        result = np.empty((len(wanted), len(self)), np.float32)
        for first in range(0, len(wanted), BLOCK_QUERIES):
            batch = wanted[first : first + BLOCK_QUERIES]
            for start, stop in self._blocks(BLOCK_ROWS):
                result[first : first + len(batch), start:stop] = _to_numpy(self._products(batch, start, stop))
        if unit is not None:
            result *= _to_numpy(unit)
        return result

    def search(
        self,
        queries: NDArray[Any],
        n: int,
        *,
        exclude: Sequence[Rows] | None = None,
        allowed: Mask | None = None,
    ) -> list[Proposal]:
        return self.search_with_candidates(queries, n, None, exclude=exclude, allowed=allowed)[0]

    def search_with_candidates(
        self,
        queries: NDArray[Any],
        n: int,
        apart: Sequence[Rows] | None,
        *,
        exclude: Sequence[Rows] | None = None,
        allowed: Mask | None = None,
    ) -> tuple[list[Proposal], list[Scores]]:
        """`search` among the rows that are not `apart`, and the inner products with those that are, in one pass."""
        wanted = self._check_queries(queries)
        check_limits(self, len(wanted), allowed=allowed, exclude=exclude, apart=apart)
        nothing = [EMPTY_PROPOSAL.rows] * len(wanted)
        known, hidden = (to_device(pad_rows(rows or nothing, len(self)), self.device) for rows in (apart, exclude))
        found = self.with_candidates(known).search(wanted, n, exclude=hidden, allowed=allowed)
        rows, best, products = (_to_numpy(tensor) for tensor in found)
        told = [line[: len(mine)] for line, mine in zip(products, apart or nothing, strict=True)]
        proposals = map(Proposal, rows, best) if np.isfinite(best).all() else map(_finite, rows, best)
        return list(proposals), told

    def with_candidates(self, rows: torch.Tensor) -> ExactCandidateSearch:
        """A search of as many queries, round after round, with these rows of each apart (`TensorSearch`)."""
        from crossknn.vectors.exact_candidates import ExactCandidateSearch  # imports torch

        return ExactCandidateSearch(self, rows)

    def take_tensor(self, rows: torch.Tensor) -> torch.Tensor:
        """(…, dim) float32 on the device: the vectors of these rows."""
        parts = [part[rows.to(part.device)].to(self.device) for part in self._parts]
        together: torch.Tensor = parts[0] if len(parts) == 1 else self._torch.cat(parts, -1)
        return together.float()

    def block_rows(self, queries: int) -> int:
        """How many rows are looked at together."""
        return BLOCK_ROWS if self.device.type == "cpu" else max(BLOCK_ROWS, BLOCK_VALUES // max(queries, 1))

    def find(
        self, queries: torch.Tensor, n: int, *, apart: Pairs, hidden: torch.Tensor, allowed: Mask | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The rows of the `n` largest products, those, −∞ where there are fewer, and the products of what is apart."""
        from crossknn.vectors.topk import stable_topk  # imports torch

        queries, unit = self._in_units(queries)
        told = self._torch.empty(len(queries) * apart.width, device=self.device)
        best, rows = (one.new_empty((len(queries), 0)) for one in (told, hidden))
        for start, stop in self._blocks(self.block_rows(len(queries))) if len(queries) else ():
            spots, places = apart.within(start)
            if allowed is not None and not allowed[start:stop].any() and not len(spots):
                continue
            products = self._products(queries, start, stop)
            if len(spots):
                told.index_copy_(0, places, products.view(-1).index_select(0, spots))
                products.view(-1).index_fill_(0, spots, -np.inf)
            if allowed is not None:
                barred = to_device(~np.asarray(allowed[start:stop], np.bool_), self.device)
                products.masked_fill_(barred, -np.inf)
            self._hide(products, hidden - start if start else hidden)
            block_best, columns = stable_topk(products, n)
            best, rows = self._join((best, rows), (block_best, columns + start if start else columns), n)
        products = told.view(len(queries), apart.width)
        return (rows, best, products) if unit is None else (rows, best * unit, products * unit)

    def _join(
        self, one: tuple[torch.Tensor, torch.Tensor], other: tuple[torch.Tensor, torch.Tensor], n: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The `n` best of two, and their rows; those of the second are higher."""
        if not one[0].shape[1]:
            return other
        best, rows = (self._torch.cat(both, 1) for both in zip(one, other, strict=True))
        best, order = best.sort(dim=1, descending=True, stable=True)  # stable, so that ties stay in row order
        return best[:, :n], rows.gather(1, order)[:, :n]

    def _hide(self, products: torch.Tensor, columns: torch.Tensor) -> None:
        """−∞ for these columns of each line. It is added, with 0 for what is outside, so that nobody need wait."""
        if not columns.shape[1]:
            return
        inside = columns.clamp(0, products.shape[1] - 1)
        added = products.new_zeros(columns.shape).masked_fill_(inside == columns, -np.inf)
        products.scatter_add_(1, inside, added)

    def _products(self, queries: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """(queries, stop - start) float32."""
        widths = [part.shape[1] for part in self._parts]
        first, *others = zip(self._parts, self._torch.split(queries, widths, 1), strict=True)
        result = self._halves(*first, start, stop)
        if result is None:
            result = self._torch.empty((len(queries), stop - start), device=self.device)
            self._multiply(*first, start, result, beta=0)
        for both in others:
            self._multiply(*both, start, result, beta=1)
        return result

    def _halves(self, part: torch.Tensor, queries: torch.Tensor, start: int, stop: int) -> torch.Tensor | None:
        """The products with a part in half precision where a GPU need not widen it; None where it has to."""
        if not self._in_halves(part):
            return None
        from crossknn.vectors.half_products import SplitQueries  # imports torch

        return SplitQueries(queries).products(part[start:stop])

    def _in_halves(self, part: torch.Tensor) -> bool:
        if not part.is_cuda or part.dtype != self._torch.float16:
            return False
        from crossknn.vectors.half_products import can_multiply_halves  # imports torch

        return can_multiply_halves(part.device)

    def _in_units(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Queries as `_products` wants them, and what it gives too little of; None is 1."""
        first = self._parts[0]
        if not len(queries) or not self._in_halves(first):
            return queries, None
        from crossknn.vectors.half_products import power_of_two  # imports torch

        unit = power_of_two(queries, first.shape[1])
        return queries / unit, unit

    def _multiply(self, part: torch.Tensor, queries: torch.Tensor, start: int, result: torch.Tensor, beta: int) -> None:
        """Write the products with rows of one part from `start` on to `result`, or add them to it."""
        size = max(1, STEP_BYTES.get(self.device.type, STEP_BYTES["cpu"]) // (4 * part.shape[1]))
        for first in range(0, result.shape[1], size):
            last = min(first + size, result.shape[1])
            step = part[start + first : start + last].to(self.device).float()
            result[:, first:last].addmm_(queries, step.T, beta=beta)

    def _blocks(self, size: int) -> Iterator[tuple[int, int]]:
        for start in range(0, len(self), size):
            yield start, min(start + size, len(self))

    def _check_queries(self, queries: NDArray[Any]) -> torch.Tensor:
        array = np.ascontiguousarray(queries, np.float32)
        if array.ndim != 2 or array.shape[1] != self.dim:
            raise InputError(f"query vectors must have shape (queries, {self.dim}). Got {array.shape} instead.")
        return to_device(array.copy(), self.device)

    def _place(self, vectors: NDArray[Any] | torch.Tensor) -> torch.Tensor:
        """The vectors where they are searched, or where they lie if they do not fit there."""
        tensor = self._as_tensor(vectors)
        if tensor.ndim != 2 or not tensor.shape[1]:
            raise InputError(f"vectors must have shape (items, dim). Got {tuple(tensor.shape)} instead.")
        return tensor.to(self.device) if self._fits(tensor) else tensor

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


def _finite(rows: Rows, estimates: Scores) -> Proposal:
    found = np.isfinite(estimates)
    return Proposal(rows[found], estimates[found])


def _to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.cpu().numpy()
    return array
