"""Fused GPU kernels in Triton: norms with sums and embeddings, rotary positions, gates, variable-length attention."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

LOG2_E = 1.4426950408889634


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
    """(rows, dim) `norm(states + residual)` of contiguous tensors; the sum is kept in float32."""
    rows, dim = states.shape
    out = torch.empty_like(states)
    _add_norm[(rows,)](states, residual, norm.weight, norm.bias, out, dim, norm.eps, **_row(dim))
    return out


def attention(query: Any, key: Any, value: Any, query_layout: Any, key_layout: Any) -> Any:
    """(tokens, heads, head dim) scaled dot-product attention within each sequence.

    Tokens of query, key and value may have any stride; their heads are contiguous.
    """
    tokens, heads, dim = query.shape
    out = torch.empty(tokens, heads, dim, dtype=query.dtype, device=query.device)
    tile = 16 if query_layout.max_length == 1 else TILES[dim][0]
    grid = (triton.cdiv(query_layout.max_length, tile), heads, len(query_layout.cu_seqlens) - 1)
    strides = (query.stride(0), key.stride(0), value.stride(0), out.stride(0))
    _, columns, warps, stages = TILES[dim]
    _attention[grid](
        query, key, value, out, query_layout.cu_seqlens, key_layout.cu_seqlens, *strides, dim**-0.5 * LOG2_E,
        dim=dim, tile_rows=tile, tile_columns=columns, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def rotate(states: Any, cos: Any, sin: Any, norm: Any = None) -> None:
    """Rotary positions of (tokens, heads, head dim) states in place, after an RMSNorm over each head if there is one.

    `cos` and `sin` are (tokens, head dim), as transformers makes them: both halves of a head turn by the same angles.
    """
    tokens, heads, dim = states.shape
    weight, eps = (states, 0.0) if norm is None else (norm.weight, norm.variance_epsilon)
    _rotate[(tokens,)](
        states, cos, sin, weight, states.stride(0), cos.stride(0), heads, eps, half=dim // 2,
        width=triton.next_power_of_2(heads), normed=norm is not None, num_warps=4,
    )  # fmt: skip


def gated_activation(states: Any, activation: str) -> Any:
    """(rows, dim) `activation(first half) * second half` of (rows, 2 dim) states."""
    rows, dim = states.shape[0], states.shape[1] // 2
    out = torch.empty(rows, dim, dtype=states.dtype, device=states.device)
    block = next(block for block in (1024, 512, 256) if block == 256 or -dim % block <= dim // 8)  # little is padded
    _gate[(rows, triton.cdiv(dim, block))](states, out, dim, block=block, silu=activation == "silu", num_warps=4)
    return out


def window_attention(query: Any, key: Any, value: Any, layout: Any, window: int) -> Any:
    """(tokens, heads, head dim) attention of each token to those at most `window` tokens away in its sequence."""
    tokens, heads, dim = query.shape
    out = torch.empty(tokens, heads, dim, dtype=query.dtype, device=query.device)
    rows, columns, warps, stages = TILES[dim]
    grid = (triton.cdiv(layout.max_length, rows), heads, len(layout.cu_seqlens) - 1)
    strides = (query.stride(0), key.stride(0), value.stride(0), out.stride(0))
    _window_attention[grid](
        query, key, value, out, layout.cu_seqlens, *strides, dim**-0.5 * LOG2_E, window,
        dim=dim, tile_rows=rows, tile_columns=columns, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


TILES = {32: (64, 32, 4, 4), 64: (64, 64, 4, 3), 128: (64, 64, 4, 3)}  # head dim: rows, columns, warps, stages


def _row(dim: int) -> dict[str, int]:
    width = triton.next_power_of_2(dim)
    return {"width": width, "num_warps": 1 if width <= 512 else 4}


@triton.jit
def _layer_norm(total, weight, bias, out, dim, eps, columns, inside):  # type: ignore[no-untyped-def]
    centered = tl.where(inside, total - tl.sum(total, 0) / dim, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centered * centered, 0) / dim + eps)
    scaled = centered * scale * tl.load(weight + columns, inside, other=0.0).to(tl.float32)
    normed = scaled + tl.load(bias + columns, inside, other=0.0).to(tl.float32)
    tl.store(out + columns, normed.to(out.dtype.element_ty), inside)


@triton.jit  # type: ignore[untyped-decorator]
def _add_norm(states, residual, weight, bias, out, dim, eps, width: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64) * dim
    columns = tl.arange(0, width)
    inside = columns < dim
    total = tl.load(states + row + columns, inside, other=0.0).to(tl.float32)
    total += tl.load(residual + row + columns, inside, other=0.0).to(tl.float32)
    _layer_norm(total, weight, bias, out + row, dim, eps, columns, inside)


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
    _layer_norm(total, weight, bias, out + token.to(tl.int64) * dim, dim, eps, columns, inside)


@triton.jit  # type: ignore[untyped-decorator]
def _attention(  # type: ignore[no-untyped-def]
    query, key, value, out, query_bounds, key_bounds, query_stride, key_stride, value_stride, out_stride, scale,
    dim: tl.constexpr, tile_rows: tl.constexpr, tile_columns: tl.constexpr,
):  # fmt: skip
    """One tile of one head's queries over all keys: online softmax, in powers of two."""
    sequence, head = tl.program_id(2), tl.program_id(1)
    first, end = tl.load(query_bounds + sequence), tl.load(query_bounds + sequence + 1)
    rows = first + tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    if first + tl.program_id(0) * tile_rows < end:
        within = tl.arange(0, dim)
        at = head * dim + within
        q = tl.load(query + rows[:, None].to(tl.int64) * query_stride + at[None, :], rows[:, None] < end, other=0.0)
        key_first, key_end = tl.load(key_bounds + sequence), tl.load(key_bounds + sequence + 1)
        running_max = tl.full([tile_rows], -1e30, tl.float32)
        denominator = tl.zeros([tile_rows], tl.float32)
        weighted_sum = tl.zeros([tile_rows, dim], tl.float32)
        columns = key_first + tl.arange(0, tile_columns)
        keys = key + columns[None, :].to(tl.int64) * key_stride + at[:, None]
        values = value + columns[:, None].to(tl.int64) * value_stride + at[None, :]
        whole = (key_end - key_first) // tile_columns * tile_columns
        for _ in range(0, whole, tile_columns):
            logits = tl.dot(q, tl.load(keys)) * scale
            new_max = tl.maximum(running_max, tl.max(logits, 1))
            weights = tl.exp2(logits - new_max[:, None])
            rescale = tl.exp2(running_max - new_max)
            denominator = denominator * rescale + tl.sum(weights, 1)
            tile_values = tl.load(values)
            weighted_sum = tl.dot(weights.to(tile_values.dtype), tile_values, weighted_sum * rescale[:, None])
            running_max = new_max
            keys += tile_columns * key_stride
            values += tile_columns * value_stride
        if key_first + whole < key_end:
            valid = columns + whole < key_end
            logits = tl.dot(q, tl.load(keys, valid[None, :], other=0.0)) * scale
            logits = tl.where(valid[None, :], logits, -1e30)
            new_max = tl.maximum(running_max, tl.max(logits, 1))
            weights = tl.exp2(logits - new_max[:, None])
            rescale = tl.exp2(running_max - new_max)
            denominator = denominator * rescale + tl.sum(weights, 1)
            tile_values = tl.load(values, valid[:, None], other=0.0)
            weighted_sum = tl.dot(weights.to(tile_values.dtype), tile_values, weighted_sum * rescale[:, None])
        result = (weighted_sum / denominator[:, None]).to(out.dtype.element_ty)
        tl.store(out + rows[:, None].to(tl.int64) * out_stride + at[None, :], result, rows[:, None] < end)


@triton.jit  # type: ignore[untyped-decorator]
def _rotate(  # type: ignore[no-untyped-def]
    states, cos, sin, weight, stride, angle_stride, heads, eps,
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
        first = first * scale * tl.load(weight + column).to(tl.float32)
        second = second * scale * tl.load(weight + half + column).to(tl.float32)
    angle = token * angle_stride + column
    c, s = tl.load(cos + angle).to(tl.float32), tl.load(sin + angle).to(tl.float32)
    tl.store(at, (first * c - second * s).to(states.dtype.element_ty), inside)
    tl.store(at + half, (second * c + first * s).to(states.dtype.element_ty), inside)


@triton.jit  # type: ignore[untyped-decorator]
def _gate(states, out, dim, block: tl.constexpr, silu: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * block + tl.arange(0, block)
    inside = column < dim
    x = tl.load(states + row * 2 * dim + column, inside, other=0.0).to(tl.float32)
    gate = tl.load(states + row * 2 * dim + dim + column, inside, other=0.0).to(tl.float32)
    activated = x * tl.sigmoid(x) if silu else 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    tl.store(out + row * dim + column, (activated * gate).to(out.dtype.element_ty), inside)


@triton.jit  # type: ignore[untyped-decorator]
def _window_attention(  # type: ignore[no-untyped-def]
    query, key, value, out, bounds, query_stride, key_stride, value_stride, out_stride, scale, window,
    dim: tl.constexpr, tile_rows: tl.constexpr, tile_columns: tl.constexpr,
):  # fmt: skip
    """One tile of one head's queries over the keys within reach: online softmax, in powers of two."""
    sequence, head = tl.program_id(2), tl.program_id(1)
    first, end = tl.load(bounds + sequence), tl.load(bounds + sequence + 1)
    start = first + tl.program_id(0) * tile_rows
    if start < end:
        rows = start + tl.arange(0, tile_rows)
        at = head * dim + tl.arange(0, dim)
        q = tl.load(query + rows[:, None].to(tl.int64) * query_stride + at[None, :], rows[:, None] < end, other=0.0)
        running_max = tl.full([tile_rows], -1e30, tl.float32)
        denominator = tl.zeros([tile_rows], tl.float32)
        weighted_sum = tl.zeros([tile_rows, dim], tl.float32)
        lowest, highest = tl.maximum(first, start - window), tl.minimum(end, start + tile_rows + window)
        for column in range(lowest, highest, tile_columns):
            columns = column + tl.arange(0, tile_columns)
            valid = columns < highest
            keys = key + columns[None, :].to(tl.int64) * key_stride + at[:, None]
            logits = tl.dot(q, tl.load(keys, valid[None, :], other=0.0)) * scale
            distance = rows[:, None] - columns[None, :]
            near = (distance <= window) & (distance >= -window) & valid[None, :]
            logits = tl.where(near, logits, -1e30)
            new_max = tl.maximum(running_max, tl.max(logits, 1))
            weights = tl.where(near, tl.exp2(logits - new_max[:, None]), 0.0)
            rescale = tl.exp2(running_max - new_max)
            denominator = denominator * rescale + tl.sum(weights, 1)
            values = value + columns[:, None].to(tl.int64) * value_stride + at[None, :]
            tile_values = tl.load(values, valid[:, None], other=0.0)
            weighted_sum = tl.dot(weights.to(tile_values.dtype), tile_values, weighted_sum * rescale[:, None])
            running_max = new_max
        result = (weighted_sum / denominator[:, None]).to(out.dtype.element_ty)
        tl.store(out + rows[:, None].to(tl.int64) * out_stride + at[None, :], result, rows[:, None] < end)
