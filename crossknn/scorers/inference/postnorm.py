"""Padding-free BERT-like encoders, with a norm behind each residual sum: BERT, RoBERTa, XLM-RoBERTa, DeBERTa v2 and v3.

Weights, embeddings and head are the model's own; the layers between are computed here. Where the head reads the first
token only, as a classifier does, the last layer computes that token only: the others give keys and values.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np

from crossknn._imports import import_extra
from crossknn.scorers.inference.ops import TORCH_OPS, Layout, Ops, RelativePositions, TritonOps
from crossknn.scorers.inference.pairs import PairTemplate
from crossknn.scorers.inference.varlen import JoinedPairs, VarlenHead, VarlenModel, fuse_linears, head_rows

PROJECTIONS = (("query", "key", "value"), ("query_proj", "key_proj", "value_proj"))
LAYER_MODULES = ("attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "output.LayerNorm")


class PostNormModel(VarlenModel):
    """A padding-free BERT-like encoder; `base` is the model without its head."""

    def __init__(self, base: Any, head: VarlenHead, template: PairTemplate, ops: Ops) -> None:
        super().__init__(head, template, ops)
        self.capturable = isinstance(ops, TritonOps)
        check_architecture(base)
        self._embeddings = base.embeddings
        self._first_position = find_first_position(base)
        positions = [relative_positions(base.encoder, layer) for layer in base.encoder.layer]
        layers = list(zip(base.encoder.layer, positions, strict=True))
        cls_only = head.token == "cls"  # noqa: S105
        self._layers = [PostNormLayer(layer, positions=at) for layer, at in layers[: len(layers) - cls_only]]
        if cls_only:
            self._layers.append(PostNormLayer(layers[-1][0], positions=layers[-1][1], cls_only=True))

    @property
    def linears(self) -> list[Any]:
        return [linear for layer in self._layers for linear in layer.linears]

    def encode(self, pairs: JoinedPairs) -> Any:
        states = self.ops.embed_norm(pairs.ids, pairs.types, pairs.positions + self._first_position, self._embeddings)
        for layer in self._layers:
            states = layer(states, pairs.layout, self.ops)
        return states[head_rows(pairs.layout, "lasttoken")] if self.head.token == "lasttoken" else states  # noqa: S105


class PostNormLayer:
    """One layer over concatenated sequences; with `cls_only` the other tokens serve as keys and values only."""

    def __init__(self, layer: Any, *, positions: RelativePositions | None = None, cls_only: bool = False) -> None:
        self._positions = positions
        self._cls_only = cls_only
        attention = layer.attention.self
        self._heads = int(attention.num_attention_heads)
        query, key, value = projections(attention)
        self._projections = [query, fuse_linears(key, value)] if cls_only else [fuse_linears(query, key, value)]
        self._attention_output, self._attention_norm = layer.attention.output.dense, layer.attention.output.LayerNorm
        self._intermediate, self._activation = layer.intermediate.dense, layer.intermediate.intermediate_act_fn
        self._output, self._output_norm = layer.output.dense, layer.output.LayerNorm

    @property
    def linears(self) -> list[Any]:
        """The linear layers in use."""
        return [*self._projections, self._attention_output, self._intermediate, self._output]

    def __call__(self, states: Any, layout: Layout, ops: Ops) -> Any:
        """(tokens, dim), or (sequences, dim) with `cls_only`."""
        if not self._cls_only:
            query, key, value = self._split(self._projections[0](states), 3)
            return self._feed_forward(ops, self._attend(ops, query, key, value, layout, layout), states)
        cls = states[head_rows(layout, "cls")]
        (query,) = self._split(self._projections[0](cls), 1)
        key, value = self._split(self._projections[1](states), 2)
        return self._feed_forward(ops, self._attend(ops, query, key, value, layout.single(), layout), cls)

    def _attend(self, ops: Ops, query: Any, key: Any, value: Any, query_layout: Layout, key_layout: Layout) -> Any:
        if self._positions is None:
            return ops.attention(query, key, value, query_layout, key_layout)
        return ops.relative_attention(query, key, value, self._positions, query_layout, key_layout)

    def _split(self, states: Any, parts: int) -> Any:
        """Each part as (tokens, heads, head dim)."""
        return states.view(len(states), parts, self._heads, -1).unbind(1)

    def _feed_forward(self, ops: Ops, attended: Any, states: Any) -> Any:
        mixed = ops.add_norm(self._attention_output(attended.reshape(states.shape)), states, self._attention_norm)
        hidden = ops.linear_activation(mixed, self._intermediate, self._activation)
        return ops.add_norm(self._output(hidden), mixed, self._output_norm)


def projections(attention: Any) -> tuple[Any, Any, Any]:
    """The linear layers of query, key and value; `AttributeError` if there are none."""
    names = next((names for names in PROJECTIONS if hasattr(attention, names[0])), PROJECTIONS[0])
    query, key, value = (getattr(attention, name) for name in names)
    return query, key, value


def check_architecture(base: Any) -> None:
    """Raise `AttributeError` or `ValueError` unless the encoder's first layer is one of these, computed in float32."""
    config = base.config
    if getattr(config, "is_decoder", False) or getattr(config, "chunk_size_feed_forward", 0):
        raise ValueError("a decoder, or a feed-forward network in chunks")
    if getattr(base.encoder, "conv", None) is not None:
        raise ValueError("a convolution")
    for layer in base.encoder.layer:
        projections(layer.attention.self)
        for name in LAYER_MODULES:
            layer.get_submodule(name)
    torch = import_extra("torch", extra="models")
    first = copy.deepcopy(base.encoder.layer[0]).float()
    positions = relative_positions(base.encoder, first)
    states = torch.randn(20, config.hidden_size, generator=torch.Generator().manual_seed(0)).to(base.device)
    with torch.inference_mode():
        options = {}
        if positions is not None:
            ones = torch.ones(1, 1, 20, 20, device=base.device)
            options = {"attention_mask": ones, "rel_embeddings": base.encoder.get_rel_embedding().float()}
        expected = first(states[None], **options)
        expected = (expected[0] if isinstance(expected, tuple) else expected).view_as(states)
        layout = Layout.of(np.array([20]), base.device)
        found = PostNormLayer(first, positions=positions)(states, layout, TORCH_OPS)
    if not torch.allclose(found, expected, rtol=0, atol=1e-4 * float(expected.abs().max())):
        raise ValueError("a layer with other operations")


def find_first_position(base: Any) -> int:
    """The position of the first token in the model's own numbering; `ValueError` if it is none of the usual ones."""
    torch = import_extra("torch", extra="models")
    padding = getattr(base.config, "pad_token_id", None) or 0
    ids = torch.arange(padding + 1, padding + 6, device=base.device)[None] % base.config.vocab_size
    types = torch.zeros_like(ids)
    with torch.inference_mode():
        expected = base.embeddings(input_ids=ids, token_type_ids=types)
        for first in (0, padding + 1):  # RoBERTa's positions follow the padding id
            positions = torch.arange(first, first + 5, device=base.device)[None]
            if torch.equal(base.embeddings(input_ids=ids, token_type_ids=types, position_ids=positions), expected):
                return first
    raise ValueError("positions of another kind")


def relative_positions(encoder: Any, layer: Any) -> RelativePositions | None:
    """DeBERTa's relative positions in a layer, in the precision of its weights; None for other models."""
    attention = layer.attention.self
    kinds = getattr(attention, "pos_att_type", None)
    if kinds is None:
        return None
    if not attention.relative_attention or not set(kinds) <= {"c2p", "p2c"} or not kinds:
        raise ValueError("relative positions of another kind")
    query, key, _ = projections(attention)
    if not attention.share_att_key:
        query, key = getattr(attention, "pos_query_proj", None), getattr(attention, "pos_key_proj", None)
    torch = import_extra("torch", extra="models")
    span, heads = int(attention.pos_ebd_size), int(attention.num_attention_heads)
    with torch.inference_mode():
        embeddings = encoder.get_rel_embedding()[: 2 * span].to(layer.output.dense.weight.dtype)
        keys = key(embeddings).unflatten(1, (heads, -1)) if "c2p" in kinds else None
        queries = query(embeddings).unflatten(1, (heads, -1)) if "p2c" in kinds else None
    buckets, longest = int(attention.position_buckets), int(attention.max_relative_positions)
    table = (log_buckets(buckets, longest, embeddings.device) + span).clamp(0, 2 * span - 1).int()
    dim = int(embeddings.shape[1]) // heads
    return RelativePositions(keys, queries, table, 1 / math.sqrt(dim * (1 + len(set(kinds)))))


def log_buckets(buckets: int, longest: int, device: Any) -> Any:
    """(4 longest + 1,) the bucket of each distance from -2 longest to 2 longest, beyond which all have the last one.

    Up to half of `buckets` each distance has its own; farther ones share buckets on a logarithmic scale. Logarithms are
    computed on the model's device, as the model does: a rounding error may change the bucket of a distance.
    """
    torch = import_extra("torch", extra="models")
    distance = torch.arange(-2 * longest, 2 * longest + 1, device=device)
    if buckets <= 0:
        return distance
    middle = buckets // 2
    far = distance.abs().clamp(min=middle)
    steps = torch.log(far / middle) / torch.log(torch.tensor((longest - 1) / middle)) * (middle - 1)
    return torch.where(distance.abs() <= middle, distance, (torch.ceil(steps) + middle) * distance.sign()).long()
