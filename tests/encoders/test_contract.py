"""Every encoder is held to the one contract."""

import numpy as np
import pytest

from crossknn.encoders.function import function_encoder
from crossknn.encoders.precomputed import PrecomputedEncoder
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
