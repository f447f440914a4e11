"""Padding-free inference of any transformer whose attention can be replaced through transformers' interface.

The model's own layers run over the pairs of a batch as one long sequence, with positions that start anew for each of
them; only attention is computed here, within each pair. (Most rerankers have faster layers in postnorm.py and
prenorm.py.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from crossknn._imports import import_extra
from crossknn.scorers.inference.ops import Layout, Mask, Ops
from crossknn.scorers.inference.pairs import PairTemplate
from crossknn.scorers.inference.varlen import JoinedPairs, VarlenHead, VarlenModel, head_states

ATTENTION = "crossknn_varlen"  # its name in transformers
_running = threading.local()  # the operations and the layout of the batch that this thread runs


class PackedModel(VarlenModel):
    """A transformer with its own layers over concatenated pairs; its attention is replaced until `restore`."""

    def __init__(
        self, base: Any, head: VarlenHead, template: PairTemplate, ops: Ops, *, first_position: int = 0
    ) -> None:
        super().__init__(head, template, ops)
        restore = replace_attention(base)
        if restore is None:
            raise ValueError("attention that cannot be replaced")
        self._base = base
        self._first_position = first_position
        self._restore = restore

    @property
    def linears(self) -> list[Any]:
        linear = import_extra("torch", extra="models").nn.Linear
        return [module for module in self._base.modules() if isinstance(module, linear)]

    def restore(self) -> None:
        self._restore()

    def encode(self, pairs: JoinedPairs) -> Any:
        types = {} if self.template.first_type is None else {"token_type_ids": pairs.types[None]}
        positions = pairs.positions + self._first_position
        states = run_packed(self._base, self.ops, pairs.ids, positions, pairs.layout, **types)
        return head_states(self.head, states, pairs.layout)


def replace_attention(base: Any) -> Callable[[], None] | None:
    """Prepare a model for `run_packed`; the returned function undoes it. None if its attention cannot be replaced."""
    if not getattr(base, "_supports_attention_backend", False):
        return None
    transformers = import_extra("transformers", extra="models")
    transformers.AttentionInterface.register(ATTENTION, _attend)
    transformers.AttentionMaskInterface.register(ATTENTION, lambda *_, **__: None)  # it needs no mask
    usual = base.config._attn_implementation
    base.set_attn_implementation(ATTENTION)
    return partial(base.set_attn_implementation, usual)


def run_packed(base: Any, ops: Ops, ids: Any, positions: Any, layout: Layout, **inputs: Any) -> Any:
    """(tokens, dim) the states of concatenated sequences."""
    _running.ops, _running.layout = ops, layout
    return base(input_ids=ids[None], position_ids=positions[None], **inputs).last_hidden_state[0]


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
    mask = Mask(causal, None if sliding_window is None else sliding_window - 1, scaling)
    states = (part[0].transpose(0, 1).contiguous() for part in (query, key, value))  # (tokens, heads, head dim)
    return _running.ops.attention(*states, _running.layout, _running.layout, mask)[None], None
