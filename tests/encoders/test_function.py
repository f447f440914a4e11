import numpy as np
import pytest

from crossknn.encoders.function import function_encoder
from crossknn.errors import EncoderError, InputError


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
