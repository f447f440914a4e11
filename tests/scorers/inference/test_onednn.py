"""Linear layers by oneDNN give what torch gives."""

import pytest
import torch

from crossknn.scorers.inference import onednn


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 24), (97, 24), (1, 33, 24), (0, 24)])
def test_products(monkeypatch, bias, shape):
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch has no oneDNN here")
    monkeypatch.setattr(onednn, "mkl_is_slow", lambda: True)
    linear, inputs = torch.nn.Linear(24, 40, bias=bias), torch.randn(shape)
    with torch.inference_mode():
        expected = linear(inputs)
        onednn.use_onednn([linear])
        torch.testing.assert_close(linear(inputs), expected, rtol=1e-5, atol=1e-5)


def test_other_processors_keep_mkl(monkeypatch):
    monkeypatch.setattr(onednn, "mkl_is_slow", lambda: False)
    linear = torch.nn.Linear(3, 3)
    onednn.use_onednn([linear])
    assert "forward" not in vars(linear)


def test_the_vendor_is_a_line_of_text():
    assert "\n" not in onednn.processor_vendor()
