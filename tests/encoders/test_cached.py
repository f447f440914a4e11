"""The query-vector cache: what is encoded, what is evicted, and errors."""

import numpy as np
import pytest

from crossknn.encoders.cached import CachedEncoder
from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.errors import EncoderError

TEXTS = [f"query {number}" for number in range(8)]
VECTORS = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


class Counting(PrecomputedEncoder):
    def __init__(self):
        super().__init__(queries=(TEXTS, VECTORS))
        self.encoded = []

    def encode_queries(self, texts):
        self.encoded.extend(texts)
        return super().encode_queries(texts)


def test_recent_queries_are_not_encoded_again():
    encoder = Counting()
    cached = CachedEncoder(encoder, max_queries=4)
    assert cached.fingerprint == encoder.fingerprint
    for chosen in ([0, 1, 0], [1, 2, 3], [0]):
        np.testing.assert_array_equal(cached.encode_queries([TEXTS[one] for one in chosen]), VECTORS[chosen])
    assert encoder.encoded == TEXTS[:4]
    cached.encode_queries(TEXTS[4:5])  # evicts query 1, the least recently used
    cached.encode_queries([TEXTS[2], TEXTS[1]])
    assert encoder.encoded == [*TEXTS[:5], TEXTS[1]]


def test_the_queries_of_one_call_are_kept_even_if_they_are_many():
    encoder = Counting()
    cached = CachedEncoder(encoder, max_queries=2)
    for _ in range(2):
        np.testing.assert_array_equal(cached.encode_queries(TEXTS), VECTORS)
    assert encoder.encoded == TEXTS


def test_no_queries_have_the_right_shape_and_bad_vectors_are_an_error():
    assert CachedEncoder(Counting()).encode_queries([]).shape == (0, 3)

    class Broken(Counting):
        def encode_queries(self, texts):
            return np.full((len(texts), 3), np.nan)

    with pytest.raises(EncoderError, match="finite"):
        CachedEncoder(Broken()).encode_queries(TEXTS)
