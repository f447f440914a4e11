"""Checks of the vectors that encoders return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from crossknn.errors import EncoderError
from crossknn.types import Vectors


def check_vectors(vectors: Any, texts: Sequence[str], *, dim: int | None = None) -> Vectors:
    """`vectors` as (texts, dim) float32, or `EncoderError` naming the first text without a valid vector."""
    if hasattr(vectors, "detach"):  # a tensor, whose device or dtype numpy may not know
        vectors = vectors.detach().float().cpu().numpy()
    try:
        array = np.asarray(vectors, np.float32)
    except (TypeError, ValueError) as error:
        raise EncoderError(f"An encoder must return one array of numbers, (texts, dim): {error}") from error
    batch = f"{len(texts)} texts, the first {_shorten(texts[0])}" if len(texts) else "no texts"
    if array.ndim != 2 or len(array) != len(texts) or not array.shape[1]:
        raise EncoderError(f"An encoder must return shape ({len(texts)}, dim) for {batch}, got {array.shape}.")
    if dim is not None and array.shape[1] != dim:
        raise EncoderError(f"An encoder must return {dim} dimensions for {batch}, got {array.shape[1]}.")
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        text = _shorten(texts[int(np.argmin(finite))])
        raise EncoderError(f"An encoder must return finite vectors, but that of {text} holds NaN or infinity.")
    return array


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "…")
