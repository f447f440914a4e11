"""Vectors that were made before are compared with what the encoder makes."""

import numpy as np
import pytest

from crossknn.encoders.base import function_encoder
from crossknn.encoders.known_vectors import check_known_vectors
from crossknn.errors import InputError
from crossknn.items.items import Items

RNG = np.random.default_rng(0)
VECTORS = {f"text {row}": RNG.normal(size=12) for row in range(50)}
ITEMS = Items([*VECTORS])
ENCODER = function_encoder(lambda texts: np.array([VECTORS[text] for text in texts]))
MADE = np.array([*VECTORS.values()], np.float32)


@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_vectors_of_the_encoder_of_any_length_and_precision(scale):
    check_known_vectors((scale * MADE).astype(np.float16), ITEMS, ENCODER)
    mixed = MADE + 0.5 * RNG.normal(size=MADE.shape)  # of texts that are not quite the same
    check_known_vectors(mixed.astype(np.float32), ITEMS, ENCODER)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (MADE[:-1], "`item_vectors` must have one row for each of the 50 items, got 49 rows"),
        (MADE[:, :8], "must have the 12 dimensions of the encoder's vectors, got 8. Give the encoder that made them"),
        (MADE[::-1], "must be those of the encoder, but their cosine .* is -?0"),
        (MADE[0], "must be an array of numbers"),
        (MADE.astype(int), "must be an array of numbers"),
    ],
)
def test_other_vectors_are_refused(vectors, message):
    with pytest.raises(InputError, match=message):
        check_known_vectors(vectors, ITEMS, ENCODER)
