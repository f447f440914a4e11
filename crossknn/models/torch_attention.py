"""Choice of torch's scaled dot-product attention kernel on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from crossknn._imports import import_extra

_lock = Lock()
_users = 0  # threads that have cuDNN's attention disabled; torch has one switch for all


@contextmanager
def without_cudnn_attention(device: Any) -> Iterator[None]:
    """Disable cuDNN's attention, which plans anew for every shape: batches hardly ever repeat one.

    The last of several threads enables it again, unless the user had disabled it.
    """
    global _users
    backend = import_extra("torch", extra="models").backends.cuda
    if device.type != "cuda" or not hasattr(backend, "enable_cudnn_sdp"):
        yield
        return
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
