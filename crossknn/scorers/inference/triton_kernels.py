"""Fused operations on the rows of a transformer's states, on a GPU, in Triton: sums, norms, rotary positions, gates."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

GATE_ELEMENTS = 2048  # of one program


def embed_norm(ids: Any, types: Any, positions: Any, embeddings: Any) -> Any:
    """(tokens, dim) LayerNorm of the sum of token, type and position embeddings."""
    tables = (embeddings.word_embeddings, embeddings.token_type_embeddings, embeddings.position_embeddings)
    words, type_rows, position_rows = (table.weight for table in tables)
    norm, dim = embeddings.LayerNorm, words.shape[1]
    out = torch.empty(len(ids), dim, dtype=words.dtype, device=words.device)
    _embed_norm[(len(ids),)](
        ids, types, positions, words, type_rows, position_rows, norm.weight, norm.bias, out, dim, norm.eps, **_row(dim)
    )  # fmt: skip
    return out


def add_norm(states: Any, residual: Any, norm: Any) -> Any:
    """(rows, dim) `norm(states + residual)` of contiguous tensors, for a LayerNorm; the sum is kept in float32."""
    out = torch.empty_like(states)
    _launch_add_norm(states, residual, norm.weight, norm.bias, norm.eps, out, keep=False, rms=False)
    return out


def add_then_norm(states: Any, delta: Any, weight: Any, bias: Any, eps: float, *, rms: bool) -> Any:
    """(rows, dim) the norm of `states + delta`, which also becomes the value of `states`."""
    out = torch.empty_like(states)
    _launch_add_norm(states, delta, weight, bias, eps, out, keep=True, rms=rms)
    return out


def rotate(states: Any, cos: Any, sin: Any, query_heads: int, weights: Any, eps: float) -> None:
    """Rotary positions of (tokens, heads, head dim) queries and keys in place, after an RMSNorm of each head if any.

    `cos` and `sin` are (tokens, head dim), as transformers makes them: both halves of a head turn by the same angles.
    `weights` are those of the norms of queries and of keys, or None.
    """
    tokens, heads, dim = states.shape
    query_weight, key_weight = weights or (states, states)
    _rotate[(tokens,)](
        states, cos, sin, query_weight, key_weight, states.stride(0), cos.stride(0), heads, query_heads, eps,
        half=dim // 2, width=triton.next_power_of_2(heads), normed=weights is not None, num_warps=4,
    )  # fmt: skip


def gated_activation(states: Any, activation: str) -> Any:
    """(rows, dim) `activation(first half) * second half` of (rows, 2 dim) states: "silu", "gelu" or "gelu_tanh"."""
    rows, dim = states.shape[0], states.shape[1] // 2
    out = torch.empty(rows, dim, dtype=states.dtype, device=states.device)
    run = next(run for run in (8, 4, 2, 1) if dim % run == 0)  # adjacent elements of one row
    runs = rows * dim // run
    block = GATE_ELEMENTS // run
    _gate[(triton.cdiv(runs, block),)](
        states, out, runs, runs_per_row=dim // run, run=run, block=block, kind=activation, num_warps=4
    )
    return out


def _row(dim: int) -> dict[str, int]:
    width = triton.next_power_of_2(dim)
    return {"width": width, "num_warps": 1 if width <= 512 else 4}


def _launch_add_norm(
    states: Any, residual: Any, weight: Any, bias: Any, eps: float, out: Any, *, keep: bool, rms: bool
) -> None:
    rows, dim = states.shape
    _add_norm[(rows,)](
        states, residual, weight, weight if bias is None else bias, out, dim, eps,
        keep=keep, rms=rms, biased=bias is not None, **_row(dim),
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _norm_row(  # type: ignore[no-untyped-def]
    total, weight, bias, out, dim, eps, columns, inside, rms: tl.constexpr, biased: tl.constexpr
):
    """Store the LayerNorm of a row, or its RMSNorm."""
    if not rms:
        total = tl.where(inside, total - tl.sum(total, 0) / dim, 0.0)
    scale = 1 / tl.sqrt(tl.sum(total * total, 0) / dim + eps)
    normed = total * scale * tl.load(weight + columns, inside, other=0.0).to(tl.float32)
    if biased:
        normed += tl.load(bias + columns, inside, other=0.0).to(tl.float32)
    tl.store(out + columns, normed.to(out.dtype.element_ty), inside)


@triton.jit  # type: ignore[untyped-decorator]
def _add_norm(  # type: ignore[no-untyped-def]
    states, residual, weight, bias, out, dim, eps,
    width: tl.constexpr, keep: tl.constexpr, rms: tl.constexpr, biased: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * dim
    columns = tl.arange(0, width)
    inside = columns < dim
    total = tl.load(states + row + columns, inside, other=0.0).to(tl.float32)
    total += tl.load(residual + row + columns, inside, other=0.0).to(tl.float32)
    if keep:
        kept = total.to(states.dtype.element_ty)
        tl.store(states + row + columns, kept, inside)
    _norm_row(total, weight, bias, out + row, dim, eps, columns, inside, rms, biased)


@triton.jit  # type: ignore[untyped-decorator]
def _embed_norm(  # type: ignore[no-untyped-def]
    ids, types, positions, words, type_rows, position_rows, weight, bias, out, dim, eps, width: tl.constexpr
):
    token = tl.program_id(0)
    columns = tl.arange(0, width)
    inside = columns < dim
    total = tl.load(words + tl.load(ids + token).to(tl.int64) * dim + columns, inside, other=0.0).to(tl.float32)
    total += tl.load(type_rows + tl.load(types + token).to(tl.int64) * dim + columns, inside, other=0.0).to(tl.float32)
    at = tl.load(positions + token).to(tl.int64) * dim
    total += tl.load(position_rows + at + columns, inside, other=0.0).to(tl.float32)
    _norm_row(total, weight, bias, out + token.to(tl.int64) * dim, dim, eps, columns, inside, False, True)


@triton.jit  # type: ignore[untyped-decorator]
def _rotate(  # type: ignore[no-untyped-def]
    states, cos, sin, query_weight, key_weight, stride, angle_stride, heads, query_heads, eps,
    half: tl.constexpr, width: tl.constexpr, normed: tl.constexpr,
):  # fmt: skip
    """All heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    head, column = tl.arange(0, width)[:, None], tl.arange(0, half)[None, :]
    inside = head < heads
    at = states + token * stride + head * (2 * half) + column
    first = tl.load(at, inside, other=0.0).to(tl.float32)
    second = tl.load(at + half, inside, other=0.0).to(tl.float32)
    if normed:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        scale = (1 / tl.sqrt(squares / (2 * half) + eps))[:, None]
        weight = tl.where(head < query_heads, tl.load(query_weight + column), tl.load(key_weight + column))
        first = first * scale * weight.to(tl.float32)
        weight = tl.where(
            head < query_heads, tl.load(query_weight + half + column), tl.load(key_weight + half + column)
        )
        second = second * scale * weight.to(tl.float32)
    angle = token * angle_stride + column
    c, s = tl.load(cos + angle).to(tl.float32), tl.load(sin + angle).to(tl.float32)
    tl.store(at, (first * c - second * s).to(states.dtype.element_ty), inside)
    tl.store(at + half, (second * c + first * s).to(states.dtype.element_ty), inside)


@triton.jit  # type: ignore[untyped-decorator]
def _gate(  # type: ignore[no-untyped-def]
    states, out, runs, runs_per_row: tl.constexpr, run: tl.constexpr, block: tl.constexpr, kind: tl.constexpr
):
    """A block of short runs of elements, so that rows of any size leave no thread idle."""
    number = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = (number < runs)[:, None]
    row, place = number // runs_per_row, number % runs_per_row
    element = tl.arange(0, run)[None, :]
    at = states + ((2 * row * runs_per_row + place) * run)[:, None] + element
    x = tl.load(at, inside, other=0.0).to(tl.float32)
    gate = tl.load(at + runs_per_row * run, inside, other=0.0).to(tl.float32)
    if kind == "silu":
        activated = x * tl.sigmoid(x)
    elif kind == "gelu":
        activated = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    else:
        activated = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    tl.store(out + (number * run)[:, None] + element, (activated * gate).to(out.dtype.element_ty), inside)
