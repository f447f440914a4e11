"""Encoder with an LRU cache of query vectors, for use by several threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from crossknn.encoders.base import check_vectors
from crossknn.types import Encoder, Vectors

CACHED_QUERIES = 4_096


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
