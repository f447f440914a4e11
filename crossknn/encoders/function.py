"""Any function from texts to vectors as an encoder."""

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
    """An encoder that calls `encode` with a list of texts and takes (texts, dim) numbers back.

    `encode_items`, where given, is called for items instead. Name what the functions compute with
    `fingerprint`, and change the name when their vectors change: stored vectors are checked by it.
    Without a name the encoder serves searches, but its vectors are not written to a file.
    """
    return _FunctionEncoder(encode, encode_items or encode, fingerprint)


class _FunctionEncoder:
    def __init__(self, encode_queries: Encode, encode_items: Encode, fingerprint: str | None) -> None:
        if not callable(encode_queries) or not callable(encode_items):
            raise InputError("encode must be a function that takes a list of texts and returns their vectors.")
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
            if self._dim is None:  # only a vector can tell its dimension
                self._call(encode, ["dimension"])
            return np.empty((0, self._dim or 0), np.float32)
        vectors = check_vectors(encode(list(texts)), texts, dim=self._dim)
        self._dim = vectors.shape[1]
        return vectors
