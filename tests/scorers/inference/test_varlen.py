"""Concatenated pairs have the scores of single pairs, whatever the architecture."""

import copy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from crossknn.scorers.cross_encoder import CrossEncoder
from crossknn.scorers.inference.heads import split_head
from crossknn.scorers.inference.ops import (
    ALL,
    TORCH_OPS,
    FlashOps,
    Layout,
    Mask,
    Norm,
    Prefix,
    RelativePositions,
    triton_ops,
)
from crossknn.scorers.inference.padding_free import make_varlen
from crossknn.scorers.inference.postnorm import PostNormModel, log_buckets
from crossknn.scorers.inference.prenorm import PreNormModel
from crossknn.scorers.inference.varlen import JoinedPairs, fill_up, one_sequence_each
from tests.scorers import tiny, tiny_rerankers

TOLERANCES = {torch.float32: {"rtol": 1e-4, "atol": 1e-4}, torch.bfloat16: {"rtol": 0.02, "atol": 0.02}}
LENGTHS = np.array([194, 64, 5, 5, 1, 225])
MASKS = [ALL, Mask(causal=True), Mask(window=30), Mask(causal=True, window=30, scale=0.2)]
DECODERS = {
    "qwen3": {"head_dim": 8},
    "qwen2": {},
    "llama": {},
    "gemma": {"head_dim": 8},
    "mistral": {"head_dim": 8, "sliding_window": 20},
}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def make_norm(dim: int, dtype: torch.dtype) -> torch.nn.LayerNorm:
    norm = torch.nn.LayerNorm(dim).to("cuda", dtype).requires_grad_(False)
    norm.weight.normal_()
    norm.bias.normal_()
    return norm


def save_decoder(folder: Path, model_type: str, **size: int) -> Path:
    tokenizer = tiny_rerankers.qwen_tokenizer()
    config = tiny_rerankers.config_of(model_type, tokenizer, num_labels=1, **{**DECODERS[model_type], **size})
    return tiny_rerankers.save(folder, config, tokenizer, auto="AutoModelForSequenceClassification")


@pytest.fixture(scope="module", params=DECODERS)
def decoder_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_decoder(tmp_path_factory.mktemp(request.param), request.param)


def prompt_logits(folder: Path, scorer: CrossEncoder, queries: list[str], items: list[str]) -> np.ndarray:
    """By transformers, one prompt at a time."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = ["".join(scorer.prompt.render(query, item)) for query, item in zip(queries, items, strict=True)]
    with torch.inference_mode():
        rows = [tokenizer(text, add_special_tokens=False, return_tensors="pt") for text in texts]
        return torch.cat([model(input_ids=row["input_ids"]).logits[:, 0] for row in rows]).numpy()


def test_encoders_run_padding_free(family_folder: Path) -> None:
    scorer = CrossEncoder(family_folder, device="cpu")
    assert isinstance(scorer._varlen, PostNormModel)
    queries, items = tiny.pairs(count=30, max_words=25)
    scores = scorer.score(queries, items)
    np.testing.assert_allclose(scores, tiny.plain_logits(family_folder, queries, items)[:, 0], rtol=1e-4, atol=2e-5)
    assert scorer.counts.padding == 0
    np.testing.assert_allclose(scorer.score([""], [""]), tiny.plain_logits(family_folder, [""], [""])[:, 0], atol=1e-5)


def test_decoders_run_padding_free_and_share_queries(decoder_folder: Path) -> None:
    scorer = CrossEncoder(decoder_folder, device="cpu")
    assert isinstance(scorer._varlen, PreNormModel)
    assert scorer._varlen.shares_queries == ("mistral" not in str(decoder_folder))  # whose attention has a window
    queries, items = tiny.pairs(count=30, max_words=12)
    queries = [queries[at // 5] for at in range(30)]
    expected = prompt_logits(decoder_folder, scorer, queries, items)
    np.testing.assert_allclose(scorer.score(queries, items), expected, rtol=1e-4, atol=1e-4)
    again = scorer.score(queries[::-1], items[::-1])[::-1]  # with what is kept of the queries
    np.testing.assert_allclose(again, expected, rtol=1e-4, atol=1e-4)


def test_what_is_kept_of_queries_is_bounded(tmp_path: Path) -> None:
    scorer = CrossEncoder(save_decoder(tmp_path, "qwen3"), device="cpu")
    queries, items = tiny.pairs(count=20, max_words=12)
    queries = [queries[at // 4] for at in range(20)]
    expected = scorer.score(queries, items)
    cache = scorer._varlen._prefixes
    kept, cache._max_tokens = cache.tokens, 100
    np.testing.assert_allclose(scorer.score(queries[:8], items[:8]), expected[:8], atol=1e-5)
    scorer.score([tiny.words(1, 9)] * 2, [tiny.words(2, 9), tiny.words(3, 9)])
    assert 0 < cache.tokens <= 100 < kept
    np.testing.assert_allclose(scorer.score(queries, items), expected, atol=1e-5)


def test_queries_with_one_pair_each_are_not_kept(tmp_path: Path) -> None:
    folder = save_decoder(tmp_path, "qwen3")
    scorer = CrossEncoder(folder, device="cpu")
    queries, items = tiny.pairs(count=12, max_words=12)
    np.testing.assert_allclose(scorer.score(queries, items), prompt_logits(folder, scorer, queries, items), atol=1e-4)
    assert scorer._varlen._prefixes.tokens == 0


def test_a_layer_that_differs_is_noticed(bert_folder: Path) -> None:
    scorer = CrossEncoder(bert_folder, device="cpu")
    changed = copy.deepcopy(scorer._pretrained)
    layer = changed.model.bert.encoder.layer[1]
    forward = layer.forward
    layer.forward = lambda states, *rest, **named: forward(states, *rest, **named) * 1.01
    for opened, differs in ((scorer._pretrained, False), (changed, True)):
        base, head = split_head(opened, scorer._folder, [])
        assert isinstance(make_varlen(base, head, scorer.template), PostNormModel) != differs


def test_weights_are_shared_with_the_model(bert_folder: Path) -> None:
    attention = CrossEncoder(bert_folder, device="cpu")._pretrained.model.bert.encoder.layer[0].attention.self
    storages = {getattr(attention, name).weight.untyped_storage().data_ptr() for name in ("query", "key", "value")}
    assert len(storages) == 1


def states(dtype: torch.dtype, device: str, tokens: int, heads: int, key_heads: int, dim: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(tokens, heads, dim), (tokens, key_heads, dim), (tokens, key_heads, dim)]
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def plain_attention(query, key, value, start, mask):
    """One sequence, in float64; `start` keys come before it."""
    query, key, value = (part.double().transpose(0, 1) for part in (query, key, value))
    key, value = (part.repeat_interleave(len(query) // len(part), 0) for part in (key, value))
    logits = query @ key.transpose(1, 2) * (mask.scale or query.shape[-1] ** -0.5)
    distance = torch.arange(start, start + query.shape[1])[:, None] - torch.arange(key.shape[1])
    distance = distance.to(query.device)
    if mask.causal:
        logits = logits.masked_fill(distance < 0, -torch.inf)
    if mask.window is not None:
        logits = logits.masked_fill(distance.abs() > mask.window, -torch.inf)
    return (logits.softmax(-1) @ value).transpose(0, 1)


def check_attention(ops, dtype, device, dim, mask, *, prefixed=False):
    layout = Layout.of(LENGTHS, device)
    query, key, value = states(dtype, device, LENGTHS.sum(), 4, 2, dim)
    prefix, before = None, [(0, 0)] * len(LENGTHS)
    if prefixed:
        _, keys, values = states(dtype, device, 150, 4, 2, dim)
        before = [(0, 70), (0, 70), (0, 70), (70, 80), (70, 80), (70, 80)]
        starts, lengths = torch.tensor(before, dtype=torch.int32, device=device).T.contiguous()
        prefix = Prefix(keys, values, starts, lengths)
    found = ops.attention(query, key, value, layout, layout, mask, prefix)
    last = layout.cu_seqlens[1:].long() - 1
    found_last = None
    if mask.window is None:
        found_last = ops.attention(query[last], key, value, layout.single(), layout, mask, prefix)
    for at, (start, length) in enumerate(zip(np.cumsum(LENGTHS) - LENGTHS, LENGTHS, strict=True)):
        rows, (first, count) = slice(start, start + length), before[at]
        own = [key[rows], value[rows]]
        if prefixed:
            own = [
                torch.cat([part[first : first + count], mine]) for part, mine in zip((keys, values), own, strict=True)
            ]
        expected = plain_attention(query[rows], *own, count, mask)
        torch.testing.assert_close(found[rows].double(), expected, **TOLERANCES[dtype])
        if found_last is not None:
            torch.testing.assert_close(found_last[at].double(), expected[-1], **TOLERANCES[dtype])


@pytest.mark.parametrize("mask", MASKS)
def test_attention(mask):
    check_attention(TORCH_OPS, torch.float32, "cpu", 8, mask)


@pytest.mark.parametrize("mask", [ALL, Mask(causal=True)])
def test_attention_to_a_prefix(mask):
    check_attention(TORCH_OPS, torch.float32, "cpu", 8, mask, prefixed=True)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [32, 64, 128, 256])
@pytest.mark.parametrize("mask", MASKS)
def test_attention_on_a_gpu(dtype, dim, mask):
    check_attention(triton_ops(), dtype, "cuda", dim, mask)


@needs_gpu
@pytest.mark.parametrize("mask", MASKS[:2])
def test_flash_attention_on_a_gpu(mask):
    check_attention(FlashOps(), torch.bfloat16, "cuda", 64, mask)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [64, 128])
def test_attention_to_a_prefix_on_a_gpu(dtype, dim):
    check_attention(triton_ops(), dtype, "cuda", dim, Mask(causal=True), prefixed=True)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("terms", ["both", "keys", "queries"])
@pytest.mark.parametrize("dim", [32, 64])
def test_relative_attention_on_a_gpu(dtype, terms, dim):
    query, key, value = states(dtype, "cuda", LENGTHS.sum(), 4, 4, dim)
    keys, queries, _ = states(dtype, "cuda", 64, 4, 4, dim)
    table = (log_buckets(32, 128, "cuda") + 32).clamp(0, 63).int()
    keys, queries = None if terms == "queries" else keys, None if terms == "keys" else queries
    layout = Layout.of(LENGTHS, "cuda")
    exact = RelativePositions(*(None if part is None else part.double() for part in (keys, queries)), table, 0.1)
    expected = TORCH_OPS.relative_attention(query.double(), key.double(), value.double(), exact, layout, layout)
    positions = RelativePositions(keys, queries, table, 0.1)
    found = triton_ops().relative_attention(query, key, value, positions, layout, layout)
    torch.testing.assert_close(found.double(), expected, **TOLERANCES[dtype])
    first = layout.cu_seqlens[:-1].long()
    found = triton_ops().relative_attention(query[first], key, value, positions, layout.single(), layout)
    torch.testing.assert_close(found.double(), expected[first], **TOLERANCES[dtype])


@needs_gpu
@pytest.mark.parametrize("dim", [32, 384, 768, 1000, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_sums_and_norms_on_a_gpu(dim, dtype):
    norm = make_norm(dim, dtype)
    some, residual = torch.randn(2, 97, dim, device="cuda", dtype=dtype)
    expected = norm.double()(some.double() + residual.double())
    norm.to(dtype)
    torch.testing.assert_close(triton_ops().add_norm(some, residual, norm).double(), expected, **TOLERANCES[dtype])
    total, normed = triton_ops().add_then_norm(some.clone(), residual, Norm.of(norm))
    torch.testing.assert_close(normed.double(), expected, **TOLERANCES[dtype])
    torch.testing.assert_close(total, some + residual)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_embeddings_and_layer_norm_on_a_gpu(dtype):
    tables = [torch.nn.Embedding(count, 48).to("cuda", dtype) for count in (30, 2, 20)]
    names = ("word_embeddings", "token_type_embeddings", "position_embeddings")
    embeddings = SimpleNamespace(**dict(zip(names, tables, strict=True)), LayerNorm=make_norm(48, dtype))
    places = [torch.randint(0, len(table.weight), (97,), device="cuda") for table in tables]
    with torch.no_grad():
        actual = triton_ops().embed_norm(*places, embeddings)
        total = sum(table.weight[at].float() for table, at in zip(tables, places, strict=True))
        expected = embeddings.LayerNorm.float()(total)
    torch.testing.assert_close(actual.float(), expected, **TOLERANCES[dtype])


@needs_gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [10, 40])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_encoders_on_a_gpu(tmp_path: Path, family: str, dtype: str, size: int) -> None:
    """The third call runs a CUDA graph, which the second one captured."""
    folder = tiny.save_cross_encoder(tmp_path, family, hidden_size=128, intermediate_size=256, initializer_range=0.1)
    queries, items = tiny.pairs(count=size, max_words=25)
    scorer = CrossEncoder(folder, device="cuda", dtype=dtype)
    assert scorer._varlen is not None
    calls = [scorer.score(queries, items) for _ in range(3)]
    expected = tiny.plain_logits(folder, queries, items, device="cuda")[:, 0]
    for scores in calls:
        if dtype == "float32":
            np.testing.assert_allclose(scores, expected, atol=1e-3)
        assert np.corrcoef(scores, expected)[0, 1] > 0.98
    assert scorer._graphs._graphs
    others = scorer.score(queries[::-1], items[::-1])[::-1]
    np.testing.assert_allclose(others, calls[2], atol=0.05 * np.abs(expected).max())


@needs_gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", DECODERS)
def test_decoders_on_a_gpu(tmp_path: Path, model_type: str, dtype: str) -> None:
    size = {"hidden_size": 128, **({"head_dim": 32} if "head_dim" in DECODERS[model_type] else {})}
    folder = save_decoder(tmp_path, model_type, **size, initializer_range=0.1)
    scorer = CrossEncoder(folder, device="cuda", dtype=dtype)
    assert isinstance(scorer._varlen, PreNormModel)
    queries, items = tiny.pairs(count=40, max_words=12)
    queries = [queries[at // 8] for at in range(40)]
    expected = prompt_logits(folder, scorer, queries, items)
    for _ in range(2):
        scores = scorer.score(queries, items)
        if dtype == "float32":
            np.testing.assert_allclose(scores, expected, atol=2e-3)
        assert np.corrcoef(scores, expected)[0, 1] > 0.98


@pytest.mark.parametrize("family", ["bert", "deberta-v2"])
def test_tokens_that_fill_a_batch_up_change_no_logit(tmp_path: Path, family: str) -> None:
    model = CrossEncoder(tiny.save_cross_encoder(tmp_path, family))._varlen
    assert model is not None
    pairs = one_sequence_each([torch.tensor(row) for row in ([1, 4, 2], [1, 5, 6, 7, 2], [1, 2])])
    filled = fill_up(pairs, sequences=False)
    assert len(filled.ids) == filled.layout.cu_seqlens[-1] == sum(filled.layout.lengths) > len(pairs.ids)
    assert filled.layout.max_length == 5 >= filled.layout.lengths.max()
    with torch.inference_mode():
        torch.testing.assert_close(model.run(filled)[:3], model.run(pairs), atol=1e-5, rtol=0)


def test_batches_are_filled_up_to_few_shapes() -> None:
    shapes = set()
    for count, size in ((count, size) for count in range(60, 64) for size in range(3_900, 4_000, 7)):
        lengths = np.diff(np.linspace(0, size, count + 1).astype(np.int64))
        layout = Layout.of(lengths, "cpu")
        ids = torch.zeros(size, dtype=torch.int32)
        filled = fill_up(JoinedPairs(ids, ids, ids, layout))
        bounds = filled.layout.cu_seqlens.tolist()
        assert bounds[: count + 1] == layout.cu_seqlens.tolist()
        assert bounds == np.concatenate([[0], np.cumsum(filled.layout.lengths)]).tolist()
        assert bounds[-1] == len(filled.ids) > size
        shapes.add((len(filled.ids), len(bounds)))
    assert len(shapes) <= 8
