"""Padding-free inference of BERT-like cross-encoders: variable-length attention over concatenated pairs.

Weights, embeddings and head are the model's own; the layers between are computed here. The last one gives each pair's
[CLS] token only, which is all that the head reads (see cls_only.py).
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossknn._imports import import_extra
from crossknn.scorers.inference.cls_only import last_layer
from crossknn.scorers.inference.ops import FLASH_OPS, TORCH_OPS, Layout, Ops, triton_ops
from crossknn.scorers.inference.pairs import PairTemplate
from crossknn.scorers.inference.token_store import Counts

logger = logging.getLogger(__name__)

PROBE_LENGTHS = (30, 12, 7, 7, 1)


@dataclass(frozen=True, slots=True)
class VarlenBatch:
    """Pairs as spans of two token buffers; all but `lengths` is on the device."""

    queries: Any  # (tokens,) of all queries
    items: Any
    spans: Any  # (4, pairs): query start, query length, item start, item length
    lengths: Counts  # (pairs,) of whole pairs

    @property
    def tokens(self) -> int:
        """Tokens of the forward pass."""
        return int(self.lengths.sum())

    def take(self, rows: slice) -> VarlenBatch:
        """Some of the pairs."""
        return VarlenBatch(self.queries, self.items, self.spans[:, rows], self.lengths[rows])


class ConcatenatedModel:
    """A model over concatenated pairs; a subclass runs it."""

    def __init__(self, model: Any, template: PairTemplate, first_position: int) -> None:
        self._torch = import_extra("torch", extra="models")
        self._model = model
        self._template = template
        self._first_position = first_position

    def logits(self, batch: VarlenBatch) -> Any:
        """(pairs, labels)"""
        return self.run(*join_pairs(self._template, batch))

    def forward(self, encoded: Mapping[str, Any]) -> Any:
        """(1, labels) of a tokenizer's encoding of one pair."""
        (ids,) = encoded["input_ids"]
        types = encoded.get("token_type_ids")
        positions = self._torch.arange(len(ids), device=ids.device)
        layout = Layout.of(np.array([len(ids)]), ids.device)
        return self.run(ids, self._torch.zeros_like(ids) if types is None else types[0], positions, layout)

    @property
    def linears(self) -> list[Any]:
        """The linear layers in use, except the head's."""
        raise NotImplementedError

    def use_ops(self, ops: Ops) -> None:
        """Compute the layers with other operations, if they are computed here."""

    def run(self, ids: Any, types: Any, positions: Any, layout: Layout) -> Any:
        """(sequences, labels) of concatenated tokens (tokens,)."""
        raise NotImplementedError


class VarlenModel(ConcatenatedModel):
    """A padding-free BERT-like classifier; made by `make_varlen`."""

    def __init__(self, model: Any, template: PairTemplate, first_position: int, ops: Ops) -> None:
        super().__init__(model, template, first_position)
        self._base = getattr(model, model.base_model_prefix)
        self._embed_norm = ops.embed_norm
        *layers, last = self._base.encoder.layer
        self._layers = [*(VarlenLayer(layer, ops) for layer in layers), VarlenLayer(last, ops, cls_only=True)]

    @property
    def linears(self) -> list[Any]:
        return [linear for layer in self._layers for linear in layer.linears]

    def use_ops(self, ops: Ops) -> None:
        for layer in self._layers:
            layer.ops = ops

    def run(self, ids: Any, types: Any, positions: Any, layout: Layout) -> Any:
        states = self._embed_norm(ids, types, positions + self._first_position, self._base.embeddings)
        for layer in self._layers:
            states = layer(states, layout)
        pooler = getattr(self._base, "pooler", None)
        cls = states[:, None]
        return self._model.classifier(cls if pooler is None else pooler(cls))


def join_pairs(template: PairTemplate, batch: VarlenBatch) -> tuple[Any, Any, Any, Layout]:
    """(ids, types, positions, layout) of the pairs, joined as the template says."""
    torch = import_extra("torch", extra="models")
    first_tokens, second_tokens = batch.queries, batch.items
    query_from, query_lengths, item_from, item_lengths = batch.spans
    first_from, first_lengths, second_from = query_from, query_lengths, item_from
    if template.item_first:
        first_tokens, second_tokens = second_tokens, first_tokens
        first_from, first_lengths, second_from = item_from, item_lengths, query_from
    lengths = query_lengths + item_lengths + template.specials
    ends = torch.cumsum(lengths, 0)
    starts = ends - lengths
    tokens = batch.tokens
    pair = torch.repeat_interleave(lengths, output_size=tokens)  # a known size avoids a synchronization
    positions = torch.arange(tokens, device=pair.device) - starts[pair]
    middle_at = starts + len(template.prefix) + first_lengths
    second_at = middle_at + len(template.middle)
    into_first = positions + (first_from - len(template.prefix))[pair]
    into_second = positions + (second_from + starts - second_at)[pair]
    in_second = positions >= (second_at - starts)[pair]
    ids = torch.where(in_second, _take(second_tokens, into_second), _take(first_tokens, into_first))
    suffix_at = ends - len(template.suffix)
    for special, at in ((template.prefix, starts), (template.middle, middle_at), (template.suffix, suffix_at)):
        for shift, token in enumerate(special):
            ids.index_fill_(0, at + shift, token)  # an assignment would synchronize
    types = template.token_types(positions, query_lengths[pair], item_lengths[pair])
    cu_seqlens = torch.nn.functional.pad(ends, (1, 0)).int()
    return ids, types, positions, Layout(cu_seqlens, batch.lengths, int(batch.lengths.max()))


class VarlenLayer:
    """One layer over concatenated sequences; with `cls_only` the other tokens serve as keys and values only."""

    def __init__(self, layer: Any, ops: Ops, *, cls_only: bool = False) -> None:
        self._torch = import_extra("torch", extra="models")
        self.ops = ops
        self._cls_only = cls_only
        attention = layer.attention.self
        self._heads = int(attention.num_attention_heads)
        if cls_only:
            self._projections = [attention.query, fuse_linears(self._torch, attention.key, attention.value)]
        else:
            self._projections = [fuse_linears(self._torch, attention.query, attention.key, attention.value)]
        self._attention_output, self._attention_norm = layer.attention.output.dense, layer.attention.output.LayerNorm
        self._intermediate, self._activation = layer.intermediate.dense, layer.intermediate.intermediate_act_fn
        self._output, self._output_norm = layer.output.dense, layer.output.LayerNorm

    @property
    def linears(self) -> list[Any]:
        """The linear layers in use."""
        return [*self._projections, self._attention_output, self._intermediate, self._output]

    def __call__(self, states: Any, layout: Layout) -> Any:
        """(tokens, dim), or (sequences, dim) with `cls_only`."""
        if not self._cls_only:
            query, key, value = self._split(self._projections[0](states), 3)
            return self._feed_forward(self.ops.attention(query, key, value, layout, layout), states)
        cls = states[layout.cu_seqlens[:-1].long()]
        (query,) = self._split(self._projections[0](cls), 1)
        key, value = self._split(self._projections[1](states), 2)
        ones = self._torch.arange(len(layout.cu_seqlens), dtype=self._torch.int32, device=states.device)
        cls_layout = Layout(ones, np.ones_like(layout.lengths), 1)
        return self._feed_forward(self.ops.attention(query, key, value, cls_layout, layout), cls)

    def _split(self, states: Any, parts: int) -> Any:
        """Each part as (tokens, heads, head dim)."""
        return states.view(len(states), parts, self._heads, -1).unbind(1)

    def _feed_forward(self, attended: Any, states: Any) -> Any:
        ops = self.ops
        mixed = ops.add_norm(self._attention_output(attended.reshape(states.shape)), states, self._attention_norm)
        hidden = ops.linear_activation(mixed, self._intermediate, self._activation)
        return ops.add_norm(self._output(hidden), mixed, self._output_norm)


def make_varlen(model: Any, template: PairTemplate) -> VarlenModel | None:
    """A padding-free version of the model; None if its architecture differs or its device would not gain.

    The architecture is decided by the model's modules and then by its logits in float32, for sequences of several
    lengths; whether fused operations can be used, by its logits as it is.
    """
    torch = import_extra("torch", extra="models")
    half = model.dtype in (torch.float16, torch.bfloat16)
    if last_layer(model) is None or half != (model.device.type == "cuda"):
        return None
    first_position = find_first_position(model, template)
    if first_position is None:
        return None
    if not half:
        return VarlenModel(model, template, first_position, TORCH_OPS)
    for ops in (triton_ops(model.config), FLASH_OPS):
        if ops is not None:
            varlen = VarlenModel(model, template, first_position, ops)
            if _agrees_with(varlen, model, tolerance=0.05):
                return varlen
    return None


def find_first_position(model: Any, template: PairTemplate) -> int | None:
    """The position of the first token; None if float32 logits differ from the model's for every candidate."""
    reference = copy.deepcopy(model).float()
    padding = getattr(model.config, "pad_token_id", None) or 0
    for first_position in (0, padding + 1):  # RoBERTa's positions follow the padding id
        try:
            varlen = VarlenModel(reference, template, first_position, TORCH_OPS)
        except (AttributeError, TypeError):
            return None
        if _agrees_with(varlen, reference, tolerance=1e-4):
            return first_position
    return None


def fuse_linears(torch: Any, *linears: Any) -> Any:
    """One linear layer with the outputs of all, which become views of its weight."""
    fused = torch.nn.Linear(linears[0].in_features, sum(one.out_features for one in linears), device="meta")
    with torch.no_grad():
        weight = torch.cat([one.weight for one in linears])
        bias = torch.cat([torch.zeros_like(one.weight[:, 0]) if one.bias is None else one.bias for one in linears])
    fused.weight, fused.bias = (torch.nn.Parameter(part, requires_grad=False) for part in (weight, bias))
    for linear, part in zip(linears, weight.split([one.out_features for one in linears]), strict=True):
        linear.weight.data = part
    return fused


def _take(buffer: Any, positions: Any) -> Any:
    """The tokens at these positions; those outside, which are never read, give any."""
    return buffer[positions.clamp(0, max(0, len(buffer) - 1))] if len(buffer) else positions.new_zeros(len(positions))


def probe_rows(model: Any) -> list[Any]:
    """Sequences of random tokens, to compare models with."""
    torch = import_extra("torch", extra="models")
    generator = torch.Generator().manual_seed(0)
    limit = (getattr(model.config, "max_position_embeddings", None) or 512) - 4
    high = int(model.get_input_embeddings().num_embeddings)
    lengths = [min(length, limit) for length in PROBE_LENGTHS]
    return [torch.randint(min(3, high - 1), high, (n,), generator=generator).to(model.device) for n in lengths]


def agrees(concatenated: ConcatenatedModel, rows: list[Any], expected: Any, *, tolerance: float) -> bool:
    """Whether the logits of these sequences are the expected ones, up to a fraction of the largest."""
    torch = import_extra("torch", extra="models")
    ids, positions = torch.cat(rows), torch.cat([torch.arange(len(row), device=row.device) for row in rows])
    layout = Layout.of(np.array([len(row) for row in rows]), ids.device)
    try:
        with torch.inference_mode():
            found = concatenated.run(ids, torch.zeros_like(ids), positions, layout)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, NotImplementedError) as error:
        logger.debug("Padding-free inference failed: %s", error)
        return False
    if found.shape != expected.shape or not bool(expected.isfinite().all()):
        return False
    return bool(torch.allclose(found, expected, rtol=0, atol=tolerance * max(float(expected.abs().max()), 0.1)))


def _agrees_with(varlen: VarlenModel, model: Any, *, tolerance: float) -> bool:
    """Whether the logits are the model's own for one sequence at a time."""
    torch = import_extra("torch", extra="models")
    rows = probe_rows(model)
    with torch.inference_mode():
        expected = torch.cat([model(input_ids=row[None]).logits for row in rows])
    return agrees(varlen, rows, expected, tolerance=tolerance)
