"""Products of float32 queries with float16 rows on a GPU, as exact as in float32 and without widening the rows.

A query is split into two float16 numbers for each of its values, which together have float32's precision but for two
bits; a GPU multiplies float16 many times faster than float32, and adds up in float32.
"""

from __future__ import annotations

from functools import cache

import torch

REST = 2.0**11  # what the first float16 leaves is so much smaller than it


@cache
def can_multiply_halves(device: torch.device) -> bool:
    """Whether torch can: it needs a GPU, and a product of float16 that is written in float32 (torch 2.8)."""
    if device.type != "cuda":
        return False
    try:
        one = torch.ones(16, 16, dtype=torch.float16, device=device)
        return bool(torch.mm(one, one, out_dtype=torch.float32)[0, 0] == 16)
    except (TypeError, RuntimeError):
        return False


class SplitQueries:
    """(queries, dim) float32 as pairs of float16."""

    def __init__(self, queries: torch.Tensor) -> None:
        largest = queries.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        self._scale = torch.exp2(torch.ceil(torch.log2(largest)))  # a power of two: nothing is rounded by it
        scaled = queries / self._scale
        first = scaled.half()
        self._both = torch.cat([first, ((scaled - first.float()) * REST).half()])

    def products(self, rows: torch.Tensor) -> torch.Tensor:
        """(queries, rows) float32"""
        both = self.multiply(self._both, rows.T)
        count = len(self._scale)
        return both[:count].add_(both[count:], alpha=1 / REST).mul_(self._scale)

    @staticmethod
    def multiply(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """float32 of float16"""
        if one.is_cuda:
            product: torch.Tensor = torch.mm(one, other, out_dtype=torch.float32)
            return product
        return one.float() @ other.float()
