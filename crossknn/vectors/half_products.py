"""Products of float32 queries with float16 rows on a GPU, as exact as in float32 and without widening the rows.

A query is split into two float16 numbers for each of its values, which together have float32's precision but for two
bits; a GPU multiplies float16 many times faster than float32, and adds up in float32.
"""

from __future__ import annotations

from functools import cache

import torch

REST = 2.0**11  # what the first float16 leaves is so much smaller than it
FAR = 2.0**-60  # values so much smaller than others count for nothing beside them


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


def power_of_two(queries: torch.Tensor, width: int) -> torch.Tensor:
    """(queries, 1) what each query is to be divided by so that none of its first `width` values is above 1.

    That rounds nothing. It is not so small that the values behind them would grow without bound.
    """
    most = torch.linalg.vector_norm(queries[:, :width], torch.inf, dim=1, keepdim=True)
    if width < queries.shape[1]:
        most = most.maximum(FAR * torch.linalg.vector_norm(queries, torch.inf, dim=1, keepdim=True))
    most = most.clamp_(min=torch.finfo(torch.float32).tiny)
    power: torch.Tensor = most / torch.frexp(most).mantissa
    return power


class SplitQueries:
    """(queries, dim) float32, with values up to 1, as pairs of float16."""

    def __init__(self, queries: torch.Tensor) -> None:
        first = queries.half()
        self._both = torch.cat([first, ((queries - first) * REST).half()])

    def products(self, rows: torch.Tensor) -> torch.Tensor:
        """(queries, rows) float32"""
        first, rest = self.multiply(self._both, rows.T).chunk(2)
        return first.add_(rest, alpha=1 / REST)

    @staticmethod
    def multiply(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """float32 of float16"""
        if one.is_cuda:
            product: torch.Tensor = torch.mm(one, other, out_dtype=torch.float32)
            return product
        return one.float() @ other.float()
