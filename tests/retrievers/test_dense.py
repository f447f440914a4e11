import numpy as np
import pytest

from crossknn.encoders.base import function_encoder
from crossknn.errors import EncoderError, InputError
from crossknn.items.items import Items
from crossknn.retrievers.dense import Dense
from crossknn.vectors.exact import ExactSearch

ITEMS = Items(["north", "east", "south"])
POINTS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "up": (0.1, 2), "right": (3, 0)}


def encode(texts):
    return np.array([POINTS.get(text, (0, 0)) for text in texts], np.float32)


ENCODER = function_encoder(encode)


@pytest.mark.parametrize(
    "vectors", [None, encode(["north", "east", "south"]), ExactSearch(encode(["north", "east", "south"]))]
)
def test_largest_inner_product_first(vectors):
    up, right = Dense(ENCODER, vectors=vectors).fit(ITEMS).retrieve(["up", "right"], 3)
    assert up.rows.tolist() == [0, 1, 2]
    np.testing.assert_allclose(up.estimates, [2, 0.1, -2], rtol=1e-3)
    assert right.rows.tolist() == [1, 0, 2]  # north and south tie: the lower row first


def test_one_vector_per_item():
    with pytest.raises(InputError, match=r"one vector per item \(3\), got 2"):
        Dense(ENCODER, vectors=np.ones((2, 2), np.float32)).fit(ITEMS)


def test_dimensions_must_agree():
    with pytest.raises(InputError, match="vectors have 5 dimensions and the encoder's queries 2"):
        Dense(ENCODER, vectors=np.ones((3, 5), np.float32)).fit(ITEMS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"encoder": "all-MiniLM-L6-v2"}, "`encoder` must be an Encoder, got str"),
        ({"encoder": ENCODER, "vectors": np.ones(3)}, r"`vectors` must have shape \(items, dim\), got \(3,\)"),
        ({"encoder": ENCODER, "vectors": [[1, 2]]}, "`vectors` must be an array or a VectorSearch, got list"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        Dense(**arguments)


def test_a_broken_query_vector_names_the_query():
    class Broken:
        fingerprint = "broken"

        def encode_items(self, texts):
            return np.ones((len(texts), 2), np.float32)

        def encode_queries(self, texts):
            return np.array([[1, np.nan if text == "bad" else 1] for text in texts], np.float32).reshape(-1, 2)

    with pytest.raises(EncoderError, match="'bad' holds NaN"):
        Dense(Broken()).fit(ITEMS).retrieve(["good", "bad"], 1)
