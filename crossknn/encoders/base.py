"""What vectors must be, wherever they come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from crossknn.errors import EncoderError
from crossknn.types import Vectors


def check_vectors(vectors: Any, texts: Sequence[str], *, dim: int | None = None) -> Vectors:
    """`vectors` as (texts, dim) float32, or `EncoderError` naming the first text that has no good vector."""
    if hasattr(vectors, "detach"):  # a tensor; on a GPU or in bfloat16 it does not turn into an array by itself
        vectors = vectors.detach().float().cpu().numpy()
    try:
        array = np.asarray(vectors, np.float32)
    except (TypeError, ValueError) as error:
        raise EncoderError(f"an encoder must return one array of numbers, (texts, dim): {error}") from error
    if array.ndim != 2 or len(array) != len(texts) or not array.shape[1]:
        raise EncoderError(f"an encoder must return shape ({len(texts)}, dim) for {_say(texts)}. Got {array.shape}.")
    if dim is not None and array.shape[1] != dim:
        raise EncoderError(f"an encoder must return {dim} dimensions for {_say(texts)}. Got {array.shape[1]}.")
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        bad = texts[int(np.argmin(finite))]
        raise EncoderError(f"an encoder must return finite vectors. That of {_short(bad)} holds NaN or infinity.")
    return array


def _say(texts: Sequence[str]) -> str:
    return f"{len(texts)} texts from {_short(texts[0])} on" if len(texts) else "no texts"


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "…")
