"""Inner products with split float16 queries are as exact as in float32."""

import numpy as np
import pytest
import torch

from crossknn.vectors.exact import ExactSearch
from crossknn.vectors.half_products import can_multiply_halves, half_products, power_of_two

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def multiply(queries: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    powers = power_of_two(queries, queries.shape[1])
    return half_products(queries / powers, rows) * powers


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e6, 1e30])
def test_products_are_as_exact_as_in_float32(device: str, size: float) -> None:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(5, 96, generator=generator) * size
    queries[:, 3] *= 1e-4  # small values among large ones
    rows = torch.randn(200, 96, generator=generator).half()
    exact = (queries.double() @ rows.double().T).numpy()
    plain = (queries @ rows.float().T).numpy()
    halves = multiply(queries.to(device), rows.to(device)).cpu().numpy()
    assert np.abs(halves - exact).max() < 4 * np.abs(plain - exact).max()


def test_a_query_of_zeros() -> None:
    assert multiply(torch.zeros(2, 4), torch.ones(3, 4).half()).tolist() == [[0.0] * 3] * 2


def test_powers_of_two() -> None:
    queries = torch.tensor([[0.0, 1.0, 9.0], [-3.0, 0.1, 0.0], [1e-30, 0.0, 1e-29], [0.25, -0.75, 1e9]])
    powers = power_of_two(queries, 2)
    assert (powers.log2() % 1 == 0).all()
    largest = (queries / powers)[:, :2].abs().amax(1)
    assert ((largest <= 1) & (largest >= 0.5)).all()


def test_values_after_zeros_stay_finite() -> None:
    queries = torch.tensor([[0.0, 1e20], [1e-38, 1.0], [0.0, 0.0]])
    assert torch.isfinite(queries / power_of_two(queries, 1)).all()


def test_a_cpu_does_not_multiply_halves() -> None:
    assert not can_multiply_halves(torch.device("cpu"))


@pytest.mark.parametrize("device", DEVICES[1:])
def test_a_gpu_finds_what_a_cpu_finds(device: str) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(5000, 64)).astype(np.float16)
    queries = rng.normal(size=(7, 64)).astype(np.float32) * 100
    assert can_multiply_halves(torch.device(device))
    columns = rng.normal(size=(5000, 3)).astype(np.float16), rng.normal(size=(5000, 1)).astype(np.float32)
    wide = np.hstack([queries, rng.normal(size=(7, 4)).astype(np.float32)])
    for augment, vectors_of in ((lambda one: one, queries), (lambda one: one.with_columns(*columns), wide)):
        cpu, gpu = (augment(ExactSearch(vectors, device=which)).search(vectors_of, 50) for which in ("cpu", device))
        for one, other in zip(cpu, gpu, strict=True):
            assert one.rows.tolist() == other.rows.tolist()
            np.testing.assert_allclose(one.estimates, other.estimates, rtol=1e-5)
