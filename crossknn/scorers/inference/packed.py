"""Padding-free inference of any transformer whose attention can be replaced: ModernBERT, decoders, modular encoders.

The pairs of a batch are one long sequence, with positions that start anew for each of them. The model's own layers run
over it; only attention is computed here, within each pair. (BERT-like classifiers have faster layers in varlen.py.)
"""

from __future__ import annotations

import threading
from typing import Any

from crossknn._imports import import_extra
from crossknn.scorers.inference.fused_modules import fuse_modules
from crossknn.scorers.inference.heads import Head
from crossknn.scorers.inference.ops import Layout, equal_lengths, load_kernels
from crossknn.scorers.inference.pairs import PairTemplate
from crossknn.scorers.inference.varlen import ConcatenatedModel, agrees, probe_rows

ATTENTION = "crossknn_varlen"  # its name in transformers
_running = threading.local()  # the layout of the batch that this thread runs


class PackedModel(ConcatenatedModel):
    """A transformer without its head, and the head, over concatenated pairs; made by `make_packed`."""

    def __init__(self, model: Any, head: Head, template: PairTemplate, first_position: int) -> None:
        super().__init__(model, template, first_position)
        self._head = head

    @property
    def linears(self) -> list[Any]:
        return [module for module in self._model.modules() if isinstance(module, self._torch.nn.Linear)]

    def run(self, ids: Any, types: Any, positions: Any, layout: Layout) -> Any:
        inputs = {"input_ids": ids[None], "position_ids": positions[None] + self._first_position}
        if self._template.first_type is not None:
            inputs["token_type_ids"] = types[None]
        _running.layout = layout
        states = self._model(**inputs).last_hidden_state[0]
        return self._head.packed_logits(states, layout)


def make_packed(model: Any, head: Head, template: PairTemplate) -> PackedModel | None:
    """A padding-free version of the model; None if its attention cannot be replaced, or its logits would change.

    It runs in half precision on a GPU and in float32 on a CPU. The model's attention is replaced for good.
    """
    torch = import_extra("torch", extra="models")
    half = model.dtype in (torch.float16, torch.bfloat16)
    if not getattr(model, "_supports_attention_backend", False) or half != (model.device.type == "cuda"):
        return None
    rows = probe_rows(model)
    expected = _expected_logits(torch, model, head, rows)
    usual = model.config._attn_implementation
    _register()
    model.set_attn_implementation(ATTENTION)
    padding = getattr(model.config, "pad_token_id", None) or 0
    for first_position in (0, padding + 1):  # RoBERTa's positions follow the padding id
        packed = PackedModel(model, head, template, first_position)
        if agrees(packed, rows, expected, tolerance=0.05 if half else 1e-4):
            undo = fuse_modules(model, _flash_running) if half else None
            if undo is not None and not agrees(packed, rows, expected, tolerance=0.05):
                undo()
            return packed
    model.set_attn_implementation(usual)
    return None


def _register() -> None:
    """Make the attention known to transformers; it needs no mask."""
    transformers = import_extra("transformers", extra="models")
    transformers.AttentionInterface.register(ATTENTION, _attend)
    transformers.AttentionMaskInterface.register(ATTENTION, lambda *_, **__: None)


def _attend(
    module: Any,
    query: Any,  # (1, heads, tokens, head dim)
    key: Any,  # maybe fewer heads
    value: Any,
    _mask: Any,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[Any, None]:
    """Attention within each sequence, in the form that transformers calls it."""
    if softcap is not None:
        raise NotImplementedError("attention with capped logits")
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))  # (tokens, heads, head dim)
    window = None if sliding_window is None else sliding_window - 1
    attention = _flash if query.is_cuda else _grouped
    return attention(query, key, value, _running.layout, scaling, window, causal)[None], None


def _flash(
    query: Any, key: Any, value: Any, layout: Layout, scale: float | None, window: int | None, causal: bool
) -> Any:
    """By torch's variable-length flash attention, in half precision on a GPU; windows by a kernel of our own."""
    kernels, dim = load_kernels(), query.shape[-1]
    if window is not None and not causal and kernels and dim in kernels.TILES and scale in (None, dim**-0.5):
        return kernels.window_attention(query, key, value, layout, window)
    attention = import_extra("torch", extra="models").ops.aten._flash_attention_forward
    bounds = (layout.cu_seqlens, layout.cu_seqlens, layout.max_length, layout.max_length)
    options: dict[str, Any] = {"scale": scale}
    if window is not None:
        options |= {"window_size_left": window, "window_size_right": 0 if causal else window}
    return attention(query, key, value, *bounds, 0.0, causal, False, **options)[0]


def _flash_running(query: Any, key: Any, value: Any, scale: float | None, window: int | None, causal: bool) -> Any:
    return _flash(query, key, value, _running.layout, scale, window, causal)


def _grouped(
    query: Any, key: Any, value: Any, layout: Layout, scale: float | None, window: int | None, causal: bool
) -> Any:
    """On any device; adjacent sequences of equal length are one batch, so sequences should be sorted by length."""
    torch = import_extra("torch", extra="models")
    outputs = []
    for tokens, _, count in equal_lengths(layout.lengths, layout.lengths):
        length = (tokens.stop - tokens.start) // count
        sequences = (part[tokens].unflatten(0, (count, length)).transpose(1, 2) for part in (query, key, value))
        mask = None
        if window is not None and window < length - 1:
            distance = torch.arange(length, device=query.device)
            distance = distance[:, None] - distance[None, :]
            mask = (distance.abs() <= window) & ((distance >= 0) if causal else True)
        attended = torch.nn.functional.scaled_dot_product_attention(
            *sequences, attn_mask=mask, is_causal=causal and mask is None, scale=scale, enable_gqa=True
        )
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def _expected_logits(torch: Any, model: Any, head: Head, rows: list[Any]) -> Any:
    """The logits of one sequence at a time, by the model's own attention."""
    with torch.inference_mode():
        states = [model(input_ids=row[None]).last_hidden_state for row in rows]
        lengths = [torch.tensor([len(row)], device=model.device) for row in rows]
        return torch.cat([head.padded_logits(one, length) for one, length in zip(states, lengths, strict=True)])
