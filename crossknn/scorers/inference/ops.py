"""Operations of a transformer over concatenated sequences: torch's own, and fused ones on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, Final

import numpy as np

from crossknn._imports import import_extra
from crossknn.scorers.inference.token_store import Counts


@dataclass(frozen=True, slots=True)
class Layout:
    """The bounds of the sequences in a concatenated batch."""

    cu_seqlens: Any  # (sequences + 1,) int32 on the device: cumulative lengths, from 0
    lengths: Counts  # (sequences,)
    max_length: int

    @classmethod
    def of(cls, lengths: Counts, device: Any) -> Layout:
        """The layout of sequences of these lengths."""
        bounds = import_extra("torch", extra="models").from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
        return cls(bounds.int().to(device), lengths, int(lengths.max()))


@dataclass(frozen=True, slots=True)
class Ops:
    """Implementations of a layer's operations."""

    attention: Callable[[Any, Any, Any, Layout, Layout], Any]
    add_norm: Callable[[Any, Any, Any], Any]
    embed_norm: Callable[[Any, Any, Any, Any], Any]
    linear_activation: Callable[[Any, Any, Any], Any]


def grouped_attention(query: Any, key: Any, value: Any, query_layout: Layout, key_layout: Layout) -> Any:
    """(tokens, heads, head dim) scaled dot-product attention within each sequence, on any device.

    Adjacent sequences of equal length are one batch, so sequences should be sorted by length.
    """
    torch = import_extra("torch", extra="models")
    outputs = []
    for rows, columns, count in equal_lengths(query_layout.lengths, key_layout.lengths):
        states = (query[rows], key[columns], value[columns])
        sequences = (part.unflatten(0, (count, -1)).transpose(1, 2) for part in states)
        attended = torch.nn.functional.scaled_dot_product_attention(*sequences)
        outputs.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def flash_attention(query: Any, key: Any, value: Any, query_layout: Layout, key_layout: Layout) -> Any:
    """The same in half precision on a GPU, by torch's variable-length flash attention."""
    attention = import_extra("torch", extra="models").ops.aten._flash_attention_forward
    lengths = (query_layout.cu_seqlens, key_layout.cu_seqlens, query_layout.max_length, key_layout.max_length)
    return attention(query, key, value, *lengths, 0.0, False, False)[0]  # no dropout, not causal, no mask returned


def add_norm(states: Any, residual: Any, norm: Any) -> Any:
    """(rows, dim) LayerNorm of a residual sum."""
    return norm(states + residual)


def embed_norm(ids: Any, types: Any, positions: Any, embeddings: Any) -> Any:
    """(tokens, dim) LayerNorm of the summed embeddings."""
    return embeddings(input_ids=ids[None], token_type_ids=types[None], position_ids=positions[None])[0]


def linear_activation(states: Any, linear: Any, activation: Any) -> Any:
    """(rows, outputs) a linear layer and its activation."""
    return activation(linear(states))


def linear_gelu(states: Any, linear: Any, _: Any) -> Any:
    """The same for GELU on a GPU, fused into the matrix product by its tanh approximation.

    In half precision that differs from the exact GELU by less than rounding does.
    """
    addmm = import_extra("torch", extra="models")._addmm_activation
    return addmm(linear.bias, states, linear.weight.t(), use_gelu=True)


TORCH_OPS: Final = Ops(grouped_attention, add_norm, embed_norm, linear_activation)
FLASH_OPS: Final = Ops(flash_attention, add_norm, embed_norm, linear_activation)


@cache
def load_kernels() -> Any:
    """The module `triton_kernels`; None without Triton, which comes with torch on Linux."""
    try:
        return import_module("crossknn.scorers.inference.triton_kernels")
    except ImportError:
        return None


def triton_ops(config: Any) -> Ops | None:
    """The fused operations of `triton_kernels`; None without Triton."""
    kernels = load_kernels()
    if kernels is None:
        return None
    known_head_dim = config.hidden_size // config.num_attention_heads in kernels.TILES
    gelu = str(getattr(config, "hidden_act", "")).startswith("gelu")
    return Ops(
        attention=kernels.attention if known_head_dim else flash_attention,
        add_norm=kernels.add_norm,
        embed_norm=kernels.embed_norm,
        linear_activation=linear_gelu if gelu else linear_activation,
    )


def equal_lengths(query_lengths: Counts, key_lengths: Counts) -> Iterator[tuple[slice, slice, int]]:
    """(query tokens, key tokens, count) of each run of adjacent sequences with equal lengths on both sides."""
    differ = (query_lengths[1:] != query_lengths[:-1]) | (key_lengths[1:] != key_lengths[:-1])
    bounds = [0, *(np.flatnonzero(differ) + 1).tolist(), len(query_lengths)]
    row = column = 0
    for first, end in pairwise(bounds):
        rows, columns = (int(lengths[first]) * (end - first) for lengths in (query_lengths, key_lengths))
        yield slice(row, row + rows), slice(column, column + columns), end - first
        row, column = row + rows, column + columns
