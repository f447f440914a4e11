"""Vectors are checked, functions and tables are encoders that keep the contract, and recent queries are cached."""

import numpy as np
import pytest

from crossknn.encoders.base import CachedEncoder, function_encoder
from crossknn.encoders.precomputed import PrecomputedEncoder
from crossknn.errors import EncoderError, InputError
from crossknn.testing import check_encoder

TEXTS = ["a river", "", "bread and water", "a star"]


def letters(texts):
    return [[len(text), text.count("a"), 1] for text in texts]


MAKERS = {
    "function": lambda: function_encoder(letters),
    "function-two-sided": lambda: function_encoder(letters, encode_items=lambda texts: -np.array(letters(texts))),
    "precomputed": lambda: PrecomputedEncoder(queries=dict(zip(TEXTS, letters(TEXTS), strict=True))),
    "precomputed-two-sided": lambda: PrecomputedEncoder(
        queries=(TEXTS, np.ones((4, 2))), items=(TEXTS, np.eye(4, 2, dtype=np.float16))
    ),
}


@pytest.fixture(params=MAKERS)
def encoder(request):
    return MAKERS[request.param]()


def test_contract(encoder):
    check_encoder(encoder, TEXTS)


def test_dimension_is_known_without_texts(encoder):
    assert encoder.encode_queries([]).shape == (0, encoder.encode_queries(TEXTS).shape[1])


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([[1.0, 2.0]], r"shape \(2, dim\) for 2 texts.*'good', got \(1, 2\)"),
        ([1.0, 2.0], r"got \(2,\)"),
        (np.empty((2, 0)), r"got \(2, 0\)"),
        ([[1.0, 2.0], [np.nan, 0.0]], "that of 'bad' holds NaN or infinity"),
        ([[1.0, 2.0], [np.inf, 0.0]], "that of 'bad' holds NaN or infinity"),
        ([[1.0, 2.0], [1.0]], "must return one array of numbers"),
        (None, "must return"),
    ],
)
def test_bad_vectors_are_named(returned, message):
    encoder = function_encoder(lambda texts: returned)
    with pytest.raises(EncoderError, match=message):
        encoder.encode_queries(["good", "bad"])


def test_dimension_may_not_change():
    encoder = function_encoder(lambda texts: np.ones((len(texts), len(texts))))
    encoder.encode_queries(["a"])
    with pytest.raises(EncoderError, match=r"must return 1 dimensions for 2 texts, .*, got 2"):
        encoder.encode_queries(["a", "b"])


def test_fingerprint_is_the_users_or_new():
    def encode(texts):
        return np.ones((len(texts), 1))

    assert (
        function_encoder(encode, fingerprint="v1").fingerprint == function_encoder(encode, fingerprint="v1").fingerprint
    )
    assert function_encoder(encode).fingerprint != function_encoder(encode).fingerprint
    with pytest.raises(InputError, match="fingerprint"):
        function_encoder(encode, fingerprint="")


def test_encode_must_be_callable():
    with pytest.raises(InputError, match="`encode` must be a function"):
        function_encoder("all-MiniLM-L6-v2")


def test_tensors_are_accepted():
    torch = pytest.importorskip("torch")
    encoder = function_encoder(lambda texts: torch.ones((len(texts), 2), dtype=torch.bfloat16, requires_grad=True))
    assert encoder.encode_queries(["a"]).tolist() == [[1, 1]]


QUERIES = [f"query {number}" for number in range(8)]
VECTORS = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


class Counting(PrecomputedEncoder):
    def __init__(self):
        super().__init__(queries=(QUERIES, VECTORS))
        self.encoded = []

    def encode_queries(self, texts):
        self.encoded.extend(texts)
        return super().encode_queries(texts)


def test_recent_queries_are_not_encoded_again():
    encoder = Counting()
    cached = CachedEncoder(encoder, max_queries=4)
    assert cached.fingerprint == encoder.fingerprint
    for chosen in ([0, 1, 0], [1, 2, 3], [0]):
        np.testing.assert_array_equal(cached.encode_queries([QUERIES[one] for one in chosen]), VECTORS[chosen])
    assert encoder.encoded == QUERIES[:4]
    cached.encode_queries(QUERIES[4:5])  # evicts query 1, the least recently used
    cached.encode_queries([QUERIES[2], QUERIES[1]])
    assert encoder.encoded == [*QUERIES[:5], QUERIES[1]]


def test_the_queries_of_one_call_are_kept_even_if_they_are_many():
    encoder = Counting()
    cached = CachedEncoder(encoder, max_queries=2)
    for _ in range(2):
        np.testing.assert_array_equal(cached.encode_queries(QUERIES), VECTORS)
    assert encoder.encoded == QUERIES


def test_no_queries_have_the_right_shape_and_bad_vectors_are_an_error():
    assert CachedEncoder(Counting()).encode_queries([]).shape == (0, 3)

    class Broken(Counting):
        def encode_queries(self, texts):
            return np.full((len(texts), 3), np.nan)

    with pytest.raises(EncoderError, match="finite"):
        CachedEncoder(Broken()).encode_queries(QUERIES)
