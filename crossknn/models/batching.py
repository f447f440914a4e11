"""Batches of texts with a limit on their tokens, and the attention kernel for batches of ever new shapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossknn._imports import import_extra
from crossknn.types import Rows

_lock = Lock()
_users = 0  # threads that have cuDNN's attention disabled; torch has one switch for all


def length_buckets(lengths: NDArray[np.int64], batch_tokens: int) -> Iterator[Rows]:
    """Positions sorted by length, longest first, for padded models.

    rows × longest ≤ `batch_tokens`, or one row.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        rows = max(1, batch_tokens // max(1, int(lengths[order[start]])))
        yield order[start : start + rows]
        start += rows


def batches_in_order(lengths: NDArray[np.int64], batch_tokens: int) -> Iterator[slice]:
    """Batches in the order given, for padding-free models: `batch_tokens` in all at most, or one row."""
    ends = np.cumsum(lengths)
    start = 0
    while start < len(ends):
        previous = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, previous + batch_tokens, side="right")))
        yield slice(start, end)
        start = end


@contextmanager
def without_cudnn_attention(device: Any) -> Iterator[None]:
    """Disable cuDNN's attention, which plans anew for every shape: batches hardly ever repeat one.

    The last of several threads enables it again, unless the user had disabled it.
    """
    global _users
    if device.type != "cuda":
        yield
        return
    backend = import_extra("torch", extra="models").backends.cuda
    with _lock:
        disabled = bool(_users) or backend.cudnn_sdp_enabled()
        if disabled:
            backend.enable_cudnn_sdp(False)
            _users += 1
    try:
        yield
    finally:
        if disabled:
            with _lock:
                _users -= 1
                if not _users:
                    backend.enable_cudnn_sdp(True)
