"""What all encoders share: checks of their vectors, encoders from functions, and a cache of query vectors."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from crossknn.errors import EncoderError, InputError
from crossknn.models.fingerprints import function_fingerprint
from crossknn.types import Encoder, Vectors

CACHED_QUERIES = 4_096

Encode = Callable[[list[str]], Any]


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


class CachedEncoder:
    """Wraps an encoder: it is called by one thread at a time, and recent queries are not encoded again.

    Args:
        encoder: The encoder to wrap.
        max_queries: Number of query vectors to keep. The queries of the last call are always kept.
    """

    def __init__(self, encoder: Encoder, *, max_queries: int = CACHED_QUERIES) -> None:
        self._encoder = encoder
        self._max_queries = max_queries
        self._vectors: OrderedDict[str, Vectors] = OrderedDict()  # most recently used last
        self._lock = threading.Lock()

    @property
    def fingerprint(self) -> str:
        return self._encoder.fingerprint

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        with self._lock:
            if not len(texts):
                return self._encoder.encode_queries(texts)
            unique = dict.fromkeys(texts)
            missing = [text for text in unique if text not in self._vectors]
            encoded = check_vectors(self._encoder.encode_queries(missing), missing) if missing else ()
            self._vectors.update(zip(missing, encoded, strict=True))
            for text in unique:
                self._vectors.move_to_end(text)
            while len(self._vectors) > max(self._max_queries, len(unique)):
                self._vectors.popitem(last=False)
            return np.stack([self._vectors[text] for text in texts])

    def encode_items(self, texts: Sequence[str]) -> Vectors:
        with self._lock:
            return self._encoder.encode_items(texts)
