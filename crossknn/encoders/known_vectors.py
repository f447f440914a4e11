"""Vectors of items that were made before, such as a store's, checked against the encoder that is to have made them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from crossknn.encoders.base import check_vectors
from crossknn.errors import InputError
from crossknn.types import Encoder

if TYPE_CHECKING:
    from crossknn.items.items import Items

COMPARED_ITEMS: Final = 16
HINT: Final = "Give the encoder that made them."
MIN_COSINE: Final = 0.5  # of the median item: vectors of two models have about 0, those of other parts of a text more


def check_known_vectors(
    vectors: NDArray[Any], items: Items, encoder: Encoder, *, name: str = "`item_vectors`", hint: str = HINT
) -> NDArray[Any]:
    """The vectors, if there is one for each item and the encoder makes such vectors; a few items are encoded to see.

    Args:
        name: What error messages call the vectors.
        hint: What they say is to be done about those of another model.
    """
    if getattr(vectors, "ndim", 0) != 2 or vectors.dtype.kind != "f":
        raise InputError(f"{name} must be an array of numbers, (items, dim).")
    if len(vectors) != len(items):
        raise InputError(f"{name} must have one row for each of the {len(items):,} items, got {len(vectors):,} rows.")
    rows = np.linspace(0, len(items) - 1, min(COMPARED_ITEMS, len(items))).astype(np.int64)
    texts = items.texts_of(rows)
    made = check_vectors(encoder.encode_items(texts), texts)
    if made.shape[1] != vectors.shape[1]:
        raise InputError(
            f"{name} must have the {made.shape[1]} dimensions of the encoder's vectors, got {vectors.shape[1]}. {hint}"
        )
    cosine = _median_cosine(made, np.asarray(vectors[rows], np.float32))
    if cosine < MIN_COSINE:
        raise InputError(
            f"{name} must be those of the encoder, but their cosine with what it makes of the same texts is "
            f"{cosine:.2f}. {hint}"
        )
    return vectors


def _median_cosine(one: NDArray[Any], other: NDArray[Any]) -> float:
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(np.median(np.einsum("ij,ij->i", one, other) / np.maximum(lengths, 1e-12)))
