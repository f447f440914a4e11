"""Scores in int8 are near those in float32, equal in any batch, and rejected where they would be wrong."""

import os
import pickle
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from crossknn.cli.options import Dtype, ScorerOptions
from crossknn.errors import InputError
from crossknn.example import wordnet as example
from crossknn.scorers.cross_encoder import CrossEncoder
from crossknn.scorers.emb_cross_encoder import EmbCrossEncoder
from crossknn.scorers.inference import int8, int8_ops
from crossknn.scorers.inference.int8 import check_int8
from crossknn.scorers.inference.int8_ops import BFLOAT16_ATTENTION
from crossknn.scorers.inference.ops import TORCH_OPS, Layout
from crossknn.testing import check_scorer
from tests.scorers import tiny

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _a_processor_with_int8(request: pytest.FixtureRequest) -> None:
    if "refused" in request.node.name:
        return
    try:
        check_int8(torch)
    except InputError as error:
        pytest.skip(str(error))


def example_pairs() -> tuple[list[str], list[str]]:
    senses = example.senses(40)
    asked = [query.text for query in example.queries("test", among=senses)][:3]
    return [query for query in asked for _ in senses.texts], list(senses.texts) * len(asked)


def test_the_embedded_model_scores_nearly_as_in_float32() -> None:
    queries, items = example_pairs()
    exact = CrossEncoder("embedded", device="cpu").score(queries, items)
    rounded = CrossEncoder("embedded", device="cpu", dtype="int8").score(queries, items)
    apart = np.abs(rounded - exact)
    assert 0 < apart.mean() < 0.05
    assert apart.max() < 0.25
    assert exact.std() > 1


def test_a_score_does_not_depend_on_its_batch() -> None:
    queries, items = example_pairs()
    together = CrossEncoder("embedded", device="cpu", dtype="int8").score(queries, items)
    alone = CrossEncoder("embedded", device="cpu", dtype="int8", batch_tokens=1).score(queries, items)
    np.testing.assert_allclose(alone, together, atol=0.02)  # the last bit of a float may move a value by a step


def test_scores_are_deterministic() -> None:
    queries, items = example_pairs()
    scorer = CrossEncoder("embedded", device="cpu", dtype="int8")
    np.testing.assert_array_equal(scorer.score(queries, items), scorer.score(queries, items))


def test_every_family(family_folder: Path) -> None:
    queries, items = tiny.pairs(count=20)
    scorer = CrossEncoder(family_folder, device="cpu", dtype="int8")
    expected = tiny.plain_logits(family_folder, queries, items)[:, 0]
    scores = scorer.score(queries, items)
    assert 0 < np.abs(scores - expected).max() < 0.3 * np.ptp(expected)
    check_scorer(scorer, [tiny.words(1, 4), ""], [tiny.words(3, 9), tiny.words(4, 90)])


def test_a_fingerprint_of_its_own(bert_folder: Path) -> None:
    scorer = CrossEncoder(bert_folder, device="cpu", dtype="int8")
    assert scorer.fingerprint != CrossEncoder(bert_folder, device="cpu").fingerprint
    again = pickle.loads(pickle.dumps(scorer))
    assert (again.dtype, again.fingerprint) == ("int8", scorer.fingerprint)


def test_an_emb_cross_encoder_saves_the_weights_it_was_given(encoder_folder: Path, tmp_path: Path) -> None:
    queries, items = tiny.pairs(count=12)
    exact = EmbCrossEncoder(encoder_folder, device="cpu").score(queries, items)
    scorer = EmbCrossEncoder(encoder_folder, device="cpu", dtype="int8")
    assert 0 < np.abs(scorer.score(queries, items) - exact).max() < 0.3 * np.ptp(exact)
    scorer.save(tmp_path)
    np.testing.assert_allclose(EmbCrossEncoder(tmp_path, device="cpu").score(queries, items), exact, atol=1e-5)


@pytest.mark.parametrize("product", [int8.OneDnnProduct, int8.FbgemmProduct])
@pytest.mark.parametrize("activation", [torch.nn.Identity(), torch.nn.GELU()])
def test_outlier_channels_and_tokens_cost_no_precision(
    activation: torch.nn.Module, product: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    if product is int8.OneDnnProduct and not int8.onednn_runs(torch):
        pytest.skip("oneDNN does not run here")
    monkeypatch.setattr(int8, "product_class", lambda _: product)
    generator = torch.Generator().manual_seed(0)
    inputs = activation(torch.randn(200, 64, generator=generator))
    weight, bias = torch.randn(32, 64, generator=generator), torch.randn(32, generator=generator)
    inputs[150] = 50 * inputs[150].abs()
    inputs[5] = 0
    if isinstance(activation, torch.nn.Identity):
        inputs[:, 7] += 100
    exact = inputs @ weight.T + bias
    rounded = int8.int8_linear(torch, weight, bias, inputs[:100])(inputs)
    error = (rounded - exact).norm(dim=1) / (exact - weight @ inputs.mean(0)).norm(dim=1)
    assert error.max() < 0.05


def test_values_below_the_calibrated_minimum_are_clamped() -> None:
    weight, calibration = torch.ones(2, 4), torch.rand(50, 4, generator=torch.Generator().manual_seed(0))
    linear = int8.int8_linear(torch, weight, torch.zeros(2), calibration)
    outputs = linear(torch.tensor([[1.0, 1.0, 1.0, -5.0]]))
    torch.testing.assert_close(outputs, torch.full((1, 2), 3 + float(calibration.min())), atol=0.05, rtol=0)


def test_nan_stays_in_its_token_and_in_its_channel() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, weight = torch.randn(20, 64, generator=generator), torch.randn(32, 64, generator=generator)
    broken = inputs.clone()
    broken[3, 5] = torch.nan
    linear = int8.int8_linear(torch, weight, torch.zeros(32), inputs)
    assert linear(broken).isnan().nonzero()[:, 0].unique().tolist() == [3]
    product = int8.product_class(torch)(torch, weight.index_fill(0, torch.tensor([7]), torch.nan))
    assert product(inputs.clone(), zero=0).isnan().nonzero()[:, 1].unique().tolist() == [7]


@pytest.mark.parametrize("logit", [1.0, 200.0, -200.0])
def test_attention_in_bfloat16(logit: float) -> None:
    """A constant added to all logits of a query changes nothing, even where exponentials leave the range."""
    if not int8.onednn_runs(torch):
        pytest.skip("oneDNN does not run here")
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 19, 2, 16, generator=generator)
    query[..., 0], key[..., 0] = 4 * logit, 1.0
    layout = Layout.of(np.array([7, 6, 6]), "cpu")
    found = BFLOAT16_ATTENTION.attention(query, key, value, layout, layout)
    torch.testing.assert_close(found, TORCH_OPS.attention(query, key, value, layout, layout), atol=0.03, rtol=0)
    value[8] = torch.nan
    unknown = BFLOAT16_ATTENTION.attention(query, key, value, layout, layout).isnan().flatten(1).any(1)
    assert unknown.nonzero().flatten().tolist() == list(range(7, 13))


def test_a_machine_that_forbids_amx_uses_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> None:
        raise InputError("would kill this process")

    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(int8, "check_half_precision", refuse)
    for cached in (int8.onednn_runs, int8.product_class):
        monkeypatch.setattr(int8, cached.__name__, cached.__wrapped__)
    monkeypatch.setattr(int8_ops, "onednn_runs", int8.onednn_runs)
    assert int8.product_class(torch) is int8.FbgemmProduct
    assert int8_ops.int8_ops() is TORCH_OPS
    queries, items = example_pairs()
    exact = CrossEncoder("embedded", device="cpu").score(queries, items)
    assert np.abs(CrossEncoder("embedded", device="cpu", dtype="int8").score(queries, items) - exact).max() < 0.25


def test_the_command_line_opens_int8() -> None:
    scorer = ScorerOptions("embedded", device="cpu", dtype=Dtype.int8).load_scorer()
    assert isinstance(scorer, CrossEncoder)
    assert scorer.dtype == "int8"


def test_a_gpu_is_refused() -> None:
    with pytest.raises(InputError, match="'int8' runs on a CPU only, got the device 'cuda'"):
        CrossEncoder("embedded", device="cuda", dtype="int8")


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="int8 is for x86 processors")
def test_a_processor_whose_sums_overflow_is_refused() -> None:
    code = "import torch; from crossknn.scorers.inference.int8 import check_int8; check_int8(torch)"
    older = {**os.environ, "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    ended = subprocess.run([sys.executable, "-c", code], env=older, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "'int8' needs a processor with AVX-512 VNNI" in ended.stderr
