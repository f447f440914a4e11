"""Which of torch's attention kernels a GPU uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from crossknn._imports import import_extra

_lock = Lock()
_inside = 0  # how many threads go without cuDNN's attention; torch has one switch for all


@contextmanager
def attention_of_any_shape(device: Any) -> Iterator[None]:
    """Without cuDNN's attention, which plans anew for every shape: here hardly two batches have the same."""
    kernels = import_extra("torch", extra="models").backends.cuda
    if device.type != "cuda" or not hasattr(kernels, "enable_cudnn_sdp") or not _enter(kernels):
        yield
        return
    try:
        yield
    finally:
        _leave(kernels)


def _enter(kernels: Any) -> bool:
    """Switch it off, if it is on or this was done by another thread."""
    global _inside
    with _lock:
        if not _inside and not kernels.cudnn_sdp_enabled():
            return False
        kernels.enable_cudnn_sdp(False)
        _inside += 1
        return True


def _leave(kernels: Any) -> None:
    """The last one switches it on again."""
    global _inside
    with _lock:
        _inside -= 1
        if not _inside:
            kernels.enable_cudnn_sdp(True)
