"""An encoder for many threads, which keeps the vectors of the last queries."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from crossknn.encoders.base import check_vectors
from crossknn.types import Encoder, Vectors

KEPT = 4_096  # queries


class SharedEncoder:
    """`encoder`, called by one thread at a time; a query that came before is not encoded again."""

    def __init__(self, encoder: Encoder, *, kept: int = KEPT) -> None:
        self._encoder = encoder
        self._kept = kept
        self._known: OrderedDict[str, Vectors] = OrderedDict()  # the one asked for last at the end
        self._turn = threading.Lock()

    @property
    def fingerprint(self) -> str:
        return self._encoder.fingerprint

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        with self._turn:
            if not len(texts):
                return self._encoder.encode_queries(texts)
            missing = [text for text in dict.fromkeys(texts) if text not in self._known]
            found = check_vectors(self._encoder.encode_queries(missing), missing) if missing else ()
            self._known.update(zip(missing, found, strict=True))
            vectors = np.stack([self._known[text] for text in texts])
            for text in texts:
                self._known.move_to_end(text)
            while len(self._known) > self._kept:
                self._known.popitem(last=False)
        return vectors

    def encode_items(self, texts: Sequence[str]) -> Vectors:
        with self._turn:
            return self._encoder.encode_items(texts)
