"""Inner products of float32 queries with float16 rows on a GPU's tensor cores, as exact as in float32.

A query is split into two float16 vectors, which together have float32's precision but for two bits. A GPU multiplies
float16 many times faster than float32, accumulates in float32, and need not convert the rows.
"""

from __future__ import annotations

from functools import cache

import torch

RESIDUAL_SCALE = 2.0**11  # float16 rounds to 11 significant bits: the residual is smaller by this factor
NEGLIGIBLE = 2.0**-60  # values smaller than others by this factor do not count


@cache
def can_multiply_halves(device: torch.device) -> bool:
    """Whether torch multiplies float16 with a float32 result there: on a GPU, from torch 2.8 on."""
    if device.type != "cuda":
        return False
    try:
        ones = torch.ones(16, 16, dtype=torch.float16, device=device)
        return bool(torch.mm(ones, ones, out_dtype=torch.float32)[0, 0] == 16)
    except (TypeError, RuntimeError):
        return False


def power_of_two(queries: torch.Tensor, width: int) -> torch.Tensor:
    """(queries, 1) scale by which to divide each query, so that its first `width` values are at most 1.

    A power of two, so that nothing is rounded; bounded below, so that the remaining values do not overflow.
    """
    largest = torch.linalg.vector_norm(queries[:, :width], torch.inf, dim=1, keepdim=True)
    if width < queries.shape[1]:
        largest = largest.maximum(NEGLIGIBLE * torch.linalg.vector_norm(queries, torch.inf, dim=1, keepdim=True))
    largest = largest.clamp_(min=torch.finfo(torch.float32).tiny)
    power: torch.Tensor = largest / torch.frexp(largest).mantissa
    return power


def half_products(queries: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """(queries, rows) float32 products of float32 queries with values up to 1 and float16 rows."""
    rounded = queries.half()
    halves = torch.cat([rounded, ((queries - rounded) * RESIDUAL_SCALE).half()])
    if halves.is_cuda:
        products: torch.Tensor = torch.mm(halves, rows.T, out_dtype=torch.float32)
    else:
        products = halves.float() @ rows.T.float()
    main, residual = products.chunk(2)
    return main.add_(residual, alpha=1 / RESIDUAL_SCALE)
