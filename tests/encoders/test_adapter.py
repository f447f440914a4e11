"""Adapters: the formula, queries alone, saved and loaded, and an encoder with one is an encoder."""

import numpy as np
import pytest

from crossknn.encoders.adapter import AdaptedEncoder, Adapter, without_adapter
from crossknn.encoders.base import function_encoder
from crossknn.errors import InputError
from crossknn.testing import check_encoder

pytest.importorskip("torch")

DIM, HIDDEN = 6, 12


def vectors_of(texts: list[str]) -> np.ndarray:
    """Unit vectors that depend on the text alone."""
    rows = [np.random.default_rng(list(text.encode())).standard_normal(DIM) for text in texts]
    array = np.array(rows, np.float32).reshape(-1, DIM)
    return array / np.linalg.norm(array, axis=1, keepdims=True)


def make_network(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"w1": (HIDDEN, DIM), "b1": (HIDDEN,), "w2": (DIM, HIDDEN), "b2": (DIM,)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def make_adapter(*, items: bool = True, normalize: bool = True, seed: int = 0) -> Adapter:
    return Adapter(make_network(seed), make_network(seed + 1) if items else None, normalize, ENCODER.fingerprint)


ENCODER = function_encoder(vectors_of, fingerprint="of-texts")


@pytest.mark.parametrize("normalize", [True, False])
def test_a_network_adds_its_output_to_the_vector(normalize):
    import torch

    adapter, vectors = make_adapter(normalize=normalize), vectors_of(["a", "b", "c"])
    for network, found in (
        (adapter.queries, adapter.adapt_queries(vectors)),
        (adapter.items, adapter.adapt_items(vectors)),
    ):
        hidden = torch.nn.functional.gelu(torch.from_numpy(vectors @ network["w1"].T + network["b1"])).numpy()
        expected = vectors + hidden @ network["w2"].T + network["b2"]
        expected /= np.linalg.norm(expected, axis=1, keepdims=True) if normalize else 1
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_items_without_a_network_keep_their_vectors():
    vectors = vectors_of(["a", "b"]).astype(np.float16)
    assert make_adapter(items=False).adapt_items(vectors) is vectors
    assert make_adapter().adapt_items(vectors).dtype == np.float16


@pytest.mark.parametrize("items", [True, False])
def test_a_loaded_adapter_is_the_saved_one(items):
    adapter, vectors = make_adapter(items=items), vectors_of(["a", "b"])
    loaded = Adapter.load({**adapter.arrays(), "vectors": vectors}, adapter.facts)
    assert loaded.fingerprint == adapter.fingerprint
    np.testing.assert_array_equal(loaded.adapt_queries(vectors), adapter.adapt_queries(vectors))
    np.testing.assert_array_equal(loaded.adapt_items(vectors), adapter.adapt_items(vectors))


def test_every_adapter_has_a_fingerprint_of_its_own():
    adapters = [make_adapter(), make_adapter(seed=5), make_adapter(items=False), make_adapter(normalize=False)]
    assert len({adapter.fingerprint for adapter in adapters}) == len(adapters)


def test_an_encoder_with_an_adapter_is_an_encoder():
    adapted = AdaptedEncoder(ENCODER, make_adapter())
    check_encoder(adapted, ["rivers", "ice", "rivers and ice"])
    texts = ["rivers", "ice"]
    np.testing.assert_array_equal(adapted.encode_queries(texts), adapted.adapter.adapt_queries(vectors_of(texts)))
    np.testing.assert_array_equal(adapted.encode_items(texts), adapted.adapter.adapt_items(vectors_of(texts)))
    assert adapted.fingerprint != ENCODER.fingerprint
    assert without_adapter(adapted) is without_adapter(ENCODER) is ENCODER


def test_vectors_and_networks_of_other_shapes_are_refused():
    adapter = make_adapter()
    with pytest.raises(InputError, match="takes vectors of 6 dimensions"):
        adapter.adapt_queries(np.ones((2, 5), np.float32))
    damaged = {**adapter.arrays(), "adapter.items.b1": np.ones(3, np.float32)}
    with pytest.raises(InputError, match="shapes"):
        Adapter.load(damaged, adapter.facts)
