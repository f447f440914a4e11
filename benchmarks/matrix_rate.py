"""The floor of scoring on a GPU: the matrix products of a model, at the rate that the card does a large one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

SIZE = 8192  # of the square matrices whose product gives the rate


def matrix_rate(device: str, dtype: torch.dtype) -> float:
    """Floating-point operations per second of one large product of random numbers, the best of ten."""
    one, other = torch.randn(2, SIZE, SIZE, device=device, dtype=dtype)
    return 2 * SIZE**3 / min(device_seconds(lambda: one @ other) for _ in range(10))


def matrix_work(config: Any, lengths: Iterable[int]) -> float:
    """Floating-point operations in all matrix products of a BERT over sequences of these lengths, unpadded."""
    hidden, wide = config.hidden_size, config.intermediate_size
    per_token = 2 * (4 * hidden**2 + 2 * hidden * wide)
    return float(config.num_hidden_layers * sum(n * per_token + 4 * n**2 * hidden for n in lengths))


def device_seconds(run: Callable[[], object]) -> float:
    """What the device takes, by its own clock."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    before.record()
    run()
    after.record()
    torch.cuda.synchronize()
    return before.elapsed_time(after) / 1000
