"""Concatenated pairs have the scores of single pairs."""

import copy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from crossknn.scorers.cross_encoder import CrossEncoder
from crossknn.scorers.inference.ops import (
    FLASH_OPS,
    TORCH_OPS,
    Layout,
    flash_attention,
    grouped_attention,
    triton_ops,
)
from crossknn.scorers.inference.pairs import TokenSpans, plan_passes
from crossknn.scorers.inference.token_store import Ragged
from crossknn.scorers.inference.varlen import VarlenBatch, VarlenModel, find_first_position, make_varlen
from tests.scorers import tiny

TOLERANCES = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.bfloat16: {"rtol": 0.01, "atol": 0.01}}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def open_model(folder: Path, **options) -> tuple[CrossEncoder, torch.nn.Module]:
    """A scorer, and its model as it was before a scorer changed it."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder).float().eval()
    return CrossEncoder(folder, device="cpu", **options), model


def make_batch(scorer: CrossEncoder, queries: list[str], items: list[str]) -> VarlenBatch:
    tokens = [
        Ragged.of(store._tokenize(texts)) for store, texts in ((scorer._queries, queries), (scorer._items, items))
    ]
    pairs = plan_passes(scorer.template, scorer.truncation, TokenSpans(*tokens)).spans
    bounds = (pairs.queries.starts, pairs.queries.lengths, pairs.items.starts, pairs.items.lengths)
    buffers = (pairs.queries.flat, pairs.items.flat, np.stack(bounds))
    return VarlenBatch(*map(torch.from_numpy, buffers), scorer.template.lengths(pairs))


def make_norm(dim: int, dtype: torch.dtype) -> torch.nn.LayerNorm:
    norm = torch.nn.LayerNorm(dim).to("cuda", dtype).requires_grad_(False)
    norm.weight.normal_()
    norm.bias.normal_()
    return norm


def test_logits_are_those_of_the_model(family_folder: Path) -> None:
    scorer, model = open_model(family_folder)
    first_position = find_first_position(model, scorer.template)
    if "deberta" in str(family_folder):
        assert first_position is None
        return
    assert first_position == (2 if "roberta" in str(family_folder) else 0)
    queries, items = tiny.pairs(count=30, max_words=25)  # nothing is cut
    varlen = VarlenModel(model, scorer.template, first_position, TORCH_OPS)
    batch = make_batch(scorer, queries, items)
    with torch.inference_mode():
        logits = varlen.logits(batch)
        half = varlen.logits(batch.take(slice(5, 17)))
    expected = tiny.plain_logits(family_folder, queries, items)
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(half.numpy(), expected[5:17], rtol=1e-4, atol=1e-5)


def test_empty_texts_alone(bert_folder: Path) -> None:
    scorer, model = open_model(bert_folder)
    varlen = VarlenModel(model, scorer.template, 0, TORCH_OPS)
    with torch.inference_mode():
        logits = varlen.logits(make_batch(scorer, ["", ""], ["", ""]))
    np.testing.assert_allclose(logits.numpy(), tiny.plain_logits(bert_folder, [""] * 2, [""] * 2), rtol=1e-4, atol=1e-5)


def test_a_layer_that_differs_is_noticed(bert_folder: Path) -> None:
    scorer, model = open_model(bert_folder)
    changed = copy.deepcopy(model)
    layer = changed.bert.encoder.layer[0]
    forward = layer.forward
    layer.forward = lambda states, *rest, **named: forward(states, *rest, **named) * 1.01
    assert find_first_position(changed, scorer.template) is None
    assert find_first_position(model, scorer.template) == 0


def test_weights_are_shared_with_the_model(bert_folder: Path) -> None:
    scorer, model = open_model(bert_folder)
    attention = model.bert.encoder.layer[0].attention.self
    before = attention.key.weight.clone()
    VarlenModel(model, scorer.template, 0, TORCH_OPS)
    storages = {getattr(attention, name).weight.untyped_storage().data_ptr() for name in ("query", "key", "value")}
    assert len(storages) == 1
    assert torch.equal(attention.key.weight, before)


def test_padding_free_on_a_cpu_in_float32_only(bert_folder: Path) -> None:
    scorer, model = open_model(bert_folder)
    assert make_varlen(model, scorer.template) is not None
    assert make_varlen(model.bfloat16(), scorer.template) is None  # a CPU has no attention for it that pays
    scorer.score(*tiny.pairs(count=20))
    assert (scorer.counts.padding, scorer._varlen is None) == (0, False)


def test_grouped_attention_of_equal_lengths() -> None:
    lengths = np.array([9, 4, 4, 4, 1, 1, 4])
    layout = Layout.of(lengths, "cpu")
    query, key, value = torch.randn(lengths.sum(), 3, 2, 8).unbind(1)
    whole, first = grouped_attention(query, key, value, layout, layout), np.cumsum(lengths) - lengths
    ones = Layout.of(np.ones_like(lengths), "cpu")
    of_first = grouped_attention(query[first], key, value, ones, layout)
    for at, (start, length) in enumerate(zip(first, lengths, strict=True)):
        asked, seen, said = (part[start : start + length].transpose(0, 1) for part in (query, key, value))
        expected = (torch.softmax(asked @ seen.transpose(1, 2) / 8**0.5, -1) @ said).transpose(0, 1)
        torch.testing.assert_close(whole[start : start + length], expected)
        torch.testing.assert_close(of_first[at], expected[0])


@needs_gpu
@pytest.mark.parametrize("dim", [32, 384, 768, 1000, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_add_and_layer_norm_on_a_gpu(dim: int, dtype: torch.dtype) -> None:
    from crossknn.scorers.inference.triton_kernels import add_norm

    norm = make_norm(dim, dtype)
    states, residual = torch.randn(2, 97, dim, device="cuda", dtype=dtype)
    actual = add_norm(states, residual, norm)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.float(), norm.float()(states.float() + residual.float()), **TOLERANCES[dtype])


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_embeddings_and_layer_norm_on_a_gpu(dtype: torch.dtype) -> None:
    from crossknn.scorers.inference.triton_kernels import embed_norm

    tables = [torch.nn.Embedding(count, 48).to("cuda", dtype) for count in (30, 2, 20)]
    names = ("word_embeddings", "token_type_embeddings", "position_embeddings")
    embeddings = SimpleNamespace(**dict(zip(names, tables, strict=True)), LayerNorm=make_norm(48, dtype))
    places = [torch.randint(0, len(table.weight), (97,), device="cuda") for table in tables]
    with torch.no_grad():
        actual = embed_norm(*places, embeddings)
        total = sum(table.weight[at].float() for table, at in zip(tables, places, strict=True))
        expected = embeddings.LayerNorm.float()(total)
    torch.testing.assert_close(actual.float(), expected, **TOLERANCES[dtype])


@needs_gpu
@pytest.mark.parametrize("dim", [32, 64, 128])
@pytest.mark.parametrize("fused", [False, True])
def test_variable_length_attention_on_a_gpu(dim: int, fused: bool) -> None:
    from crossknn.scorers.inference import triton_kernels

    layout = Layout.of(np.array([5, 1, 194, 64, 511, 225]), "cuda")
    query, key, value = torch.randn(1000, 3, 4, dim, device="cuda", dtype=torch.bfloat16).unbind(1)
    attend = triton_kernels.attention if fused else flash_attention
    expected = grouped_attention(query.float(), key.float(), value.float(), layout, layout)
    torch.testing.assert_close(attend(query, key, value, layout, layout).float(), expected, rtol=0.02, atol=0.02)
    first = Layout.of(np.ones(6, np.int64), "cuda")
    expected = grouped_attention(query[:6].float(), key.float(), value.float(), first, layout)
    torch.testing.assert_close(attend(query[:6], key, value, first, layout).float(), expected, rtol=0.02, atol=0.02)


@needs_gpu
@pytest.mark.parametrize("fused", [False, True])
def test_scores_on_a_gpu_are_those_of_float32(tmp_path: Path, fused: bool) -> None:
    """A model of real widths, whose scores half precision changes as little as a padded batch would."""
    folder = tiny.save_cross_encoder(tmp_path, "bert", hidden_size=128, intermediate_size=256, initializer_range=0.1)
    queries, items = tiny.pairs(count=40, max_words=25)
    expected = tiny.plain_logits(folder, queries, items)[:, 0]
    scorer = CrossEncoder(folder, device="cuda", dtype="bfloat16")
    assert scorer._varlen is not None
    model = scorer._pretrained.model
    ops = triton_ops(model.config) if fused else FLASH_OPS
    scorer._varlen = VarlenModel(model, scorer.template, 0, ops)
    varlen = scorer.score(queries, items)
    assert scorer.counts.padding == 0
    scorer._varlen = None
    padded = scorer.score(queries, items)
    assert np.abs(varlen - expected).mean() < 1.2 * np.abs(padded - expected).mean()


@needs_gpu
def test_families_on_a_gpu(family_folder: Path) -> None:
    scorer = CrossEncoder(family_folder, device="cuda", dtype="bfloat16")
    queries, items = tiny.pairs(count=40, max_words=25)
    scores = scorer.score(queries, items)
    assert np.corrcoef(scores, tiny.plain_logits(family_folder, queries, items)[:, 0])[0, 1] > 0.9
