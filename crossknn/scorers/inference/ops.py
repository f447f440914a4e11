"""The steps of a transformer over tokens that lie end to end: as torch has them, and in one pass over memory each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any, Final

import numpy as np

from crossknn._imports import import_extra
from crossknn.scorers.inference.token_store import Counts


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each sequence is among tokens that lie end to end."""

    starts: Any  # (sequences + 1,) int32, on the device
    lengths: Counts  # (sequences,)
    longest: int

    @classmethod
    def of(cls, lengths: Counts, device: Any) -> Layout:
        """Of sequences of these lengths."""
        bounds = import_extra("torch", extra="models").from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
        return cls(bounds.int().to(device), lengths, int(lengths.max()))


@dataclass(frozen=True, slots=True)
class Steps:
    """How the parts of a model are computed."""

    attend: Callable[[Any, Any, Any, Layout, Layout], Any]
    add_norm: Callable[[Any, Any, Any], Any]
    embed_norm: Callable[[Any, Any, Any, Any], Any]
    widen: Callable[[Any, Any, Any], Any]


def attend_alike(query: Any, key: Any, value: Any, asking: Layout, seen: Layout) -> Any:
    """(tokens, heads, dim of a head): each sequence of `asking` looks at its own of `seen`; on any device.

    Neighbours of equal lengths are done at once, so sequences had better be sorted by length.
    """
    torch = import_extra("torch", extra="models")
    parts = []
    for rows, columns, count in _runs(asking.lengths, seen.lengths):
        states = (query[rows], key[columns], value[columns])
        sequences = (part.unflatten(0, (count, -1)).transpose(1, 2) for part in states)
        attended = torch.nn.functional.scaled_dot_product_attention(*sequences)
        parts.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(parts)


def attend_at_once(query: Any, key: Any, value: Any, asking: Layout, seen: Layout) -> Any:
    """The same in half precision on a GPU, by torch's kernel for sequences of different lengths."""
    attention = import_extra("torch", extra="models").ops.aten._flash_attention_forward
    lengths = (asking.starts, seen.starts, asking.longest, seen.longest)
    return attention(query, key, value, *lengths, 0.0, False, False)[0]  # no dropout, not causal, no mask back


def add_norm(states: Any, residual: Any, norm: Any) -> Any:
    """(rows, dim)"""
    return norm(states + residual)


def embed_norm(ids: Any, types: Any, positions: Any, embeddings: Any) -> Any:
    """(tokens, dim)"""
    return embeddings(input_ids=ids[None], token_type_ids=types[None], position_ids=positions[None])[0]


def widen(states: Any, linear: Any, activate: Any) -> Any:
    """(rows, wide)"""
    return activate(linear(states))


def widen_with_gelu(states: Any, linear: Any, _: Any) -> Any:
    """The same for GELU on a GPU, by its tanh formula: the product applies it before it writes.

    In half precision that formula differs from the exact one by less than rounding does.
    """
    multiply = import_extra("torch", extra="models")._addmm_activation
    return multiply(linear.bias, states, linear.weight.t(), use_gelu=True)


PLAIN_STEPS: Final = Steps(attend_alike, add_norm, embed_norm, widen)
GPU_STEPS: Final = Steps(attend_at_once, add_norm, embed_norm, widen)


def fused_steps(config: Any) -> Steps | None:
    """Those of kernels.py; None without Triton, which comes with torch on Linux."""
    try:
        kernels = import_module("crossknn.scorers.inference.triton_kernels")
    except ImportError:
        return None
    of_known_width = config.hidden_size // config.num_attention_heads in kernels.TILES
    gelu = str(getattr(config, "hidden_act", "")).startswith("gelu")
    return Steps(
        attend=kernels.attend if of_known_width else attend_at_once,
        add_norm=kernels.add_norm,
        embed_norm=kernels.embed_norm,
        widen=widen_with_gelu if gelu else widen,
    )


def _runs(asking: Counts, seen: Counts) -> Iterator[tuple[slice, slice, int]]:
    """(rows, columns, how many) of neighbours that have equal lengths on both sides."""
    differ = (asking[1:] != asking[:-1]) | (seen[1:] != seen[:-1])
    bounds = [0, *(np.flatnonzero(differ) + 1).tolist(), len(asking)]
    row = column = 0
    for first, end in pairwise(bounds):
        rows, columns = (int(lengths[first]) * (end - first) for lengths in (asking, seen))
        yield slice(row, row + rows), slice(column, column + columns), end - first
        row, column = row + rows, column + columns
