"""Padding-free transformers with rotary positions and a norm before each sublayer: ModernBERT, Llama, Qwen, Gemma.

Weights, embeddings and head are the model's own; the layers between are computed here. Where the head reads one token
of each pair only, the last layer computes that token only: the others give keys and values.

In a decoder the tokens of a pair see those before them only. Whatever comes before the item (prompt, instruction and
query) therefore has the same keys and values in all pairs of a query: they are computed once and kept for later calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crossknn._imports import import_extra
from crossknn.scorers.inference.ops import Mask, Norm, Ops, Prefix, TritonOps
from crossknn.scorers.inference.pairs import PairTemplate
from crossknn.scorers.inference.prefix_cache import PrefixCache, SharedPrefixes, find_prefixes
from crossknn.scorers.inference.varlen import (
    JoinedPairs,
    VarlenBatch,
    VarlenHead,
    VarlenModel,
    fuse_linears,
    head_rows,
    head_states,
    join_tokens,
    one_sequence_each,
)

Prefixes = Sequence[Prefix | None]  # of each layer
PREFIX_BYTES = 256 * 2**20  # of kept keys and values on a CPU; on a GPU
PREFIX_SHARE = 1 / 20  # of its memory


@dataclass(frozen=True, slots=True)
class Block:
    """The parts of one layer."""

    attention_norm: Norm | None  # None: attention reads the states as they are
    project: Any  # linear, to queries, keys and values
    heads: int
    key_heads: int
    head_dim: int
    head_norms: tuple[Norm, Norm] | None  # of each head's query and key
    attention_output: Any
    feed_norm: Norm
    widen: Any  # linear, to both halves of a gated activation
    activation: Any
    narrow: Any
    mask: Mask
    rotary: tuple[str, ...]  # further arguments of the model's rotary positions

    @property
    def linears(self) -> list[Any]:
        """The linear layers in use."""
        return [self.project, self.attention_output, self.widen, self.narrow]


class PreNormModel(VarlenModel):
    """A padding-free decoder or ModernBERT; `base` is the model without its head."""

    def __init__(
        self, base: Any, head: VarlenHead, template: PairTemplate, ops: Ops, *, embedding_scale: float = 1.0
    ) -> None:
        super().__init__(head, template, ops)
        self._embed = getattr(base, "embeddings", None) or base.embed_tokens
        weight = base.get_input_embeddings().weight
        self._embedding_scale = float(weight.new_tensor(embedding_scale))  # rounded as in the model
        self._rotary = base.rotary_emb
        self._blocks = [read_block(layer, base.config, at) for at, layer in enumerate(base.layers)]
        later = [block.attention_norm for block in self._blocks[1:] if block.attention_norm is not None]
        self._next_norms = [*later, _norm(base.final_norm if hasattr(base, "final_norm") else base.norm)]
        self._single_row = head.token is not None and self._blocks[-1].mask.window is None
        self._prefixes = PrefixCache(max_tokens=prefix_tokens(self._blocks))
        self.shares_queries = (
            all(one.mask.causal and one.mask.window is None for one in self._blocks)
            and head.token == "lasttoken"  # noqa: S105
            and not template.item_first
        )
        self.capturable = isinstance(ops, TritonOps) and not self.shares_queries

    @property
    def linears(self) -> list[Any]:
        return [linear for block in self._blocks for linear in block.linears]

    def logits(self, batch: VarlenBatch) -> Any:
        rest = batch.spans.items.lengths + len(self.template.suffix)
        if not self.shares_queries or not rest.all():
            return super().logits(batch)
        prefixes = self._look_up(batch)
        if prefixes is None:
            return super().logits(batch)
        nothing = np.zeros_like(rest)
        bounds = np.stack([nothing, nothing, batch.spans.items.starts, batch.spans.items.lengths])
        items_only = replace(self.template, prefix=(), middle=())
        tokens = batch.on_device
        pairs = join_tokens(items_only, (tokens.items, tokens.items), tokens.copy(bounds), rest)
        before = tokens.copy(prefixes.lengths)
        counts = pairs.layout.cu_seqlens.diff().long()
        torch = import_extra("torch", extra="models")
        shift = torch.repeat_interleave(before.long(), counts, output_size=int(rest.sum()))
        pairs = replace(pairs, positions=pairs.positions + shift)
        starts = tokens.copy(prefixes.starts)
        layers = [Prefix(keys, values, starts, before) for keys, values in prefixes.states.unbind(0)]
        return self.head.logits(self._run(pairs, layers), pairs)

    def encode(self, pairs: JoinedPairs) -> Any:
        return self._run(pairs, [None] * len(self._blocks))

    def keys_and_values(self, pairs: JoinedPairs) -> Any:
        """(layers, 2, tokens, key heads, head dim)"""
        kept: list[Any] = []
        self._run(pairs, [None] * len(self._blocks), kept)
        return import_extra("torch", extra="models").stack(kept)

    def clear(self) -> None:
        self._prefixes.clear()

    def _look_up(self, batch: VarlenBatch) -> SharedPrefixes | None:
        """The keys and values of what comes before the items; those that are not kept are computed."""

        def compute(rows: list[Any]) -> Any:
            return self.keys_and_values(one_sequence_each([batch.on_device.copy(row) for row in rows]))

        return find_prefixes(self._prefixes, self.template, batch.spans.queries, compute)

    def _run(self, pairs: JoinedPairs, prefixes: Prefixes, kept: list[Any] | None = None) -> Any:
        """The states that the head reads; with `kept`, which gets each layer's keys and values, nothing else."""
        ops, layout, last = self.ops, pairs.layout, self._blocks[-1]
        states = self._embed(pairs.ids[None])[0]
        if self._embedding_scale != 1:
            states = states * self._embedding_scale
        angles = self._angles(states, pairs.positions)
        first = self._blocks[0].attention_norm
        normed = states if first is None else first.module(states)
        for block, next_norm, prefix in zip(self._blocks, self._next_norms, prefixes, strict=True):
            query, key, value = self._project(block, normed, angles[block.rotary])
            if kept is not None:
                kept.append(import_extra("torch", extra="models").stack([key, value]))
                if block is last:
                    return None
            query_layout = layout
            if block is last and self._single_row:
                rows = head_rows(layout, str(self.head.token))
                query, states, query_layout = query[rows], states[rows], layout.single()
            attended = ops.attention(query, key, value, query_layout, layout, block.mask, prefix)
            states, normed = ops.add_then_norm(states, block.attention_output(attended.flatten(1)), block.feed_norm)
            hidden = ops.gated(block.widen(normed), block.activation)
            states, normed = ops.add_then_norm(states, block.narrow(hidden), next_norm)
        return normed if self._single_row else head_states(self.head, normed, layout)

    def _angles(self, states: Any, positions: Any) -> dict[tuple[str, ...], list[Any]]:
        """(tokens, head dim) cosine and sine of the rotary positions, for each kind of layer."""
        kinds = {block.rotary for block in self._blocks}
        return {kind: [part[0] for part in self._rotary(states[None], positions[None], *kind)] for kind in kinds}

    def _project(self, block: Block, normed: Any, angles: list[Any]) -> Any:
        """Queries, keys and values as (tokens, heads, head dim), with rotary positions."""
        projected = block.project(normed).unflatten(1, (-1, block.head_dim))
        both, value = projected.split([block.heads + block.key_heads, block.key_heads], 1)
        both = self.ops.rotate(both, angles[0], angles[1], block.heads, block.head_norms)
        return *both.split([block.heads, block.key_heads], 1), value


def read_block(layer: Any, config: Any, at: int) -> Block:
    """The parts of a layer; `AttributeError` or `ValueError` for an architecture of another kind."""
    _check_architecture(layer, config)
    if hasattr(layer, "attn_norm"):  # ModernBERT
        attention, norms, rotary = layer.attn, (layer.attn_norm, layer.mlp_norm), [layer.attention_type]
        project, output, widths = attention.Wqkv, attention.Wo, [attention.Wqkv.out_features // 3] * 3
        widen, activation, narrow = layer.mlp.Wi, layer.mlp.act, layer.mlp.Wo
    else:
        attention, norms, rotary = layer.self_attn, (layer.input_layernorm, layer.post_attention_layernorm), []
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        project, output, widths = fuse_linears(*parts), attention.o_proj, [part.out_features for part in parts]
        widen, activation = fuse_linears(layer.mlp.gate_proj, layer.mlp.up_proj), layer.mlp.act_fn
        narrow = layer.mlp.down_proj
    if widths[1] != widths[2] or widen.out_features != 2 * narrow.in_features:
        raise ValueError("values or gates of another size")
    dim = int(attention.head_dim)
    window = getattr(attention if hasattr(attention, "sliding_window") else config, "sliding_window", None)
    mask = Mask(
        bool(attention.is_causal), None if window is None else int(window) - 1, getattr(attention, "scaling", None)
    )
    head_norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    return Block(
        attention_norm=None if at == 0 and type(norms[0]).__name__ == "Identity" else _norm(norms[0]),
        project=project,
        heads=widths[0] // dim,
        key_heads=widths[1] // dim,
        head_dim=dim,
        head_norms=None if head_norms == [None, None] else (_norm(head_norms[0]), _norm(head_norms[1])),
        attention_output=output,
        feed_norm=_norm(norms[1]),
        widen=widen,
        activation=activation,
        narrow=narrow,
        mask=mask,
        rotary=tuple(rotary),
    )


def prefix_tokens(blocks: Sequence[Block]) -> int:
    """Tokens whose keys and values are kept at most."""
    weight = blocks[0].project.weight
    limit = PREFIX_BYTES
    if weight.device.type == "cuda":
        memory = import_extra("torch", extra="models").cuda.get_device_properties(weight.device).total_memory
        limit = int(PREFIX_SHARE * memory)
    per_token = sum(2 * block.key_heads * block.head_dim for block in blocks) * int(weight.element_size())
    return limit // per_token


def embedding_scales(base: Any) -> list[float]:
    """What token embeddings may be multiplied by: Gemma's are, in the embeddings or in the model by version."""
    return [1.0, float(base.config.hidden_size) ** 0.5] if base.config.model_type == "gemma" else [1.0]


def _check_architecture(layer: Any, config: Any) -> None:
    if getattr(config, "attn_logit_softcapping", None):
        raise ValueError("attention with capped logits")
    if hasattr(layer, "pre_feedforward_layernorm") or hasattr(layer, "residual_multiplier"):
        raise ValueError("other norms or scaled residuals")


def _norm(module: Any) -> Norm:
    norm = Norm.of(module)
    if norm is None:
        raise ValueError(f"a norm of another kind: {type(module).__name__}")
    return norm
