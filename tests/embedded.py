"""Marks what needs the weights of the embedded cross-encoder."""

import pytest

from crossknn.models import has_embedded_cross_encoder

needs_embedded = pytest.mark.skipif(
    not has_embedded_cross_encoder(), reason="the weights of the embedded cross-encoder are not in this checkout"
)
