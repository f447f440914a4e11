"""An encoder from a function of texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from crossknn.encoders.base import check_vectors
from crossknn.errors import InputError
from crossknn.models.fingerprints import function_fingerprint
from crossknn.types import Encoder, Vectors

Encode = Callable[[list[str]], Any]


def function_encoder(encode: Encode, *, encode_items: Encode | None = None, fingerprint: str | None = None) -> Encoder:
    """An encoder that calls functions.

    Args:
        encode: Returns (texts, dim) numbers for a list of texts.
        encode_items: Likewise, for items. Default: `encode`.
        fingerprint: A name for what the functions compute, to be changed when their vectors change: stored vectors
            are identified by it. Without it, vectors are not stored in files.
    """
    return _FunctionEncoder(encode, encode_items or encode, fingerprint)


class _FunctionEncoder:
    def __init__(self, encode_queries: Encode, encode_items: Encode, fingerprint: str | None) -> None:
        if not callable(encode_queries) or not callable(encode_items):
            raise InputError("`encode` must be a function that takes a list of texts and returns their vectors.")
        self.fingerprint = function_fingerprint(fingerprint)
        self._encode_queries = encode_queries
        self._encode_items = encode_items
        self._dim: int | None = None

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        return self._call(self._encode_queries, texts)

    def encode_items(self, texts: Sequence[str]) -> Vectors:
        return self._call(self._encode_items, texts)

    def _call(self, encode: Encode, texts: Sequence[str]) -> Vectors:
        if not len(texts):
            if self._dim is None:  # encode any text to find the dimension
                self._call(encode, ["dimension"])
            return np.empty((0, self._dim or 0), np.float32)
        vectors = check_vectors(encode(list(texts)), texts, dim=self._dim)
        self._dim = vectors.shape[1]
        return vectors
