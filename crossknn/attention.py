"""Which of torch's attention kernels a GPU uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from crossknn.optional import import_extra


@contextmanager
def attention_of_any_shape(device: Any) -> Iterator[None]:
    """Without cuDNN's attention, which plans anew for every shape: here hardly two batches have the same."""
    kernels = import_extra("torch", extra="models").backends.cuda
    if device.type != "cuda" or not hasattr(kernels, "enable_cudnn_sdp") or not kernels.cudnn_sdp_enabled():
        yield
        return
    kernels.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        kernels.enable_cudnn_sdp(True)
