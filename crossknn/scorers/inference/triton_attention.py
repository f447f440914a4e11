"""Variable-length attention on a GPU, in Triton: masks, shared prefixes, grouped heads, relative positions.

Each program computes one tile of one head's queries in one sequence, with an online softmax in powers of two. Tokens
of query, key and value may have any stride; the heads of a token are contiguous.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
# head dim: rows, columns, warps, stages
TILES = {32: (64, 32, 4, 3), 64: (64, 32, 4, 4), 128: (64, 32, 4, 3), 256: (64, 32, 4, 2)}
RELATIVE_TILES = {32: (64, 64, 4, 2), 64: (64, 64, 4, 2)}
FLOAT32_TILE = (32, 32, 4, 2)


def attention(
    query: Any,  # (query tokens, heads, head dim)
    key: Any,  # (key tokens, key heads, head dim), of which each serves as many of the heads
    value: Any,
    query_layout: Any,
    key_layout: Any,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    prefix: Any = None,
) -> Any:
    """(query tokens, heads, head dim) attention within each sequence, and to its prefix if there is one.

    With `causal` or `window`, queries and keys are the same tokens, or each sequence has one query, its last token.
    """
    tokens, heads, dim = query.shape
    out = torch.empty(tokens, heads, dim, dtype=query.dtype, device=query.device)
    rows, columns, warps, stages = _tile(TILES, query)
    single = query_layout.max_length == 1
    rows = 16 if single else rows
    keys, values, starts, lengths = (key, value, key, key) if prefix is None else prefix
    strides = [part.stride(0) for part in (query, key, value, keys, values, out)]
    grid = (triton.cdiv(query_layout.max_length, rows), heads, len(query_layout.cu_seqlens) - 1)
    _attention[grid](
        query, key, value, out, query_layout.cu_seqlens, key_layout.cu_seqlens, keys, values, starts, lengths, *strides,
        (dim**-0.5 if scale is None else scale) * LOG2_E, -1 if window is None else window, heads // key.shape[1],
        dim=dim, tile_rows=rows, tile_columns=columns, causal=causal and not single, windowed=window is not None,
        prefixed=prefix is not None, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def relative_attention(
    query: Any,
    key: Any,
    value: Any,
    to_position: Any,  # (heads, query tokens, buckets) products of queries with position keys, or None
    from_position: Any,  # (heads, key tokens, buckets) products of keys with position queries, or None
    table: Any,  # (2 longest + 1,) int32: the bucket of each distance, from the smallest
    query_layout: Any,
    key_layout: Any,
    scale: float,
) -> Any:
    """(query tokens, heads, head dim) attention with DeBERTa's content-to-position and position-to-content terms.

    Queries are all tokens, or the first of each sequence.
    """
    tokens, heads, dim = query.shape
    out = torch.empty(tokens, heads, dim, dtype=query.dtype, device=query.device)
    rows, columns, warps, stages = _tile(RELATIVE_TILES, query)
    rows = 16 if query_layout.max_length == 1 else rows
    strides = [part.stride(0) for part in (query, key, value, out)]
    buckets = (to_position if to_position is not None else from_position).shape[2]
    grid = (triton.cdiv(query_layout.max_length, rows), heads, len(query_layout.cu_seqlens) - 1)
    _relative_attention[grid](
        query, key, value, out, query_layout.cu_seqlens, key_layout.cu_seqlens,
        query if to_position is None else to_position, key if from_position is None else from_position,
        table, len(table) // 2, len(query), len(key), buckets, *strides, scale * LOG2_E,
        dim=dim, tile_rows=rows, tile_columns=columns, to_positions=to_position is not None,
        from_positions=from_position is not None, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


def _tile(tiles: Any, query: Any) -> tuple[int, int, int, int]:
    """Rows, columns, warps and stages for queries of this head dim and precision; `KeyError` for other head dims."""
    tile: tuple[int, int, int, int] = tiles[query.shape[2]]
    return FLOAT32_TILE if query.dtype == torch.float32 else tile


@triton.jit
def _softmax_step(logits, values, running_max, denominator, weighted_sum):  # type: ignore[no-untyped-def]
    """Add one tile of keys to an online softmax."""
    new_max = tl.maximum(running_max, tl.max(logits, 1))
    weights = tl.exp2(logits - new_max[:, None])
    rescale = tl.exp2(running_max - new_max)
    denominator = denominator * rescale + tl.sum(weights, 1)
    weighted_sum = tl.dot(weights.to(values.dtype), values, weighted_sum * rescale[:, None], input_precision="ieee")
    return new_max, denominator, weighted_sum


@triton.jit  # type: ignore[untyped-decorator]
def _whole_tiles(  # type: ignore[no-untyped-def]
    q, key, value, at, first, count, key_stride, value_stride, scale, running_max, denominator, weighted_sum,
    tile_columns: tl.constexpr,
):  # fmt: skip
    """`count` keys from `first` on, a multiple of a tile, all of which every query attends to."""
    columns = first + tl.arange(0, tile_columns)
    keys = key + columns[None, :].to(tl.int64) * key_stride + at[:, None]
    values = value + columns[:, None].to(tl.int64) * value_stride + at[None, :]
    for _ in range(0, count, tile_columns):
        logits = tl.dot(q, tl.load(keys), input_precision="ieee") * scale
        running_max, denominator, weighted_sum = _softmax_step(
            logits, tl.load(values), running_max, denominator, weighted_sum
        )
        keys += tile_columns * key_stride
        values += tile_columns * value_stride
    return running_max, denominator, weighted_sum


@triton.jit  # type: ignore[untyped-decorator]
def _attention(  # type: ignore[no-untyped-def]
    query, key, value, out, query_bounds, key_bounds, prefix_keys, prefix_values, prefix_starts, prefix_lengths,
    query_stride, key_stride, value_stride, prefix_key_stride, prefix_value_stride, out_stride, scale, window, group,
    dim: tl.constexpr, tile_rows: tl.constexpr, tile_columns: tl.constexpr, causal: tl.constexpr,
    windowed: tl.constexpr, prefixed: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(2), tl.program_id(1)
    first, end = tl.load(query_bounds + sequence), tl.load(query_bounds + sequence + 1)
    start = first + tl.program_id(0) * tile_rows
    if start < end:
        rows = start + tl.arange(0, tile_rows)
        at = head * dim + tl.arange(0, dim)
        key_at = head // group * dim + tl.arange(0, dim)
        q = tl.load(query + rows[:, None].to(tl.int64) * query_stride + at[None, :], rows[:, None] < end, other=0.0)
        running_max = tl.full([tile_rows], -1e30, tl.float32)
        denominator = tl.zeros([tile_rows], tl.float32)
        weighted_sum = tl.zeros([tile_rows, dim], tl.float32)
        if prefixed:
            prefix_first = tl.load(prefix_starts + sequence)
            prefix_count = tl.load(prefix_lengths + sequence)
            whole = prefix_count // tile_columns * tile_columns
            running_max, denominator, weighted_sum = _whole_tiles(
                q, prefix_keys, prefix_values, key_at, prefix_first, whole, prefix_key_stride, prefix_value_stride,
                scale, running_max, denominator, weighted_sum, tile_columns,
            )  # fmt: skip
            if whole < prefix_count:
                columns = prefix_first + whole + tl.arange(0, tile_columns)
                valid = columns < prefix_first + prefix_count
                at_keys = prefix_keys + columns[None, :].to(tl.int64) * prefix_key_stride + key_at[:, None]
                at_values = prefix_values + columns[:, None].to(tl.int64) * prefix_value_stride + key_at[None, :]
                logits = tl.dot(q, tl.load(at_keys, valid[None, :], other=0.0), input_precision="ieee") * scale
                logits = tl.where(valid[None, :], logits, -1e30)
                tile_values = tl.load(at_values, valid[:, None], other=0.0)
                running_max, denominator, weighted_sum = _softmax_step(
                    logits, tile_values, running_max, denominator, weighted_sum
                )
        key_first, key_end = tl.load(key_bounds + sequence), tl.load(key_bounds + sequence + 1)
        whole_end = key_end  # every query of the tile attends to all keys before it
        if causal:
            whole_end = start
            key_end = tl.minimum(key_end, start + tile_rows)
        if windowed:
            whole_end = key_first
            key_first = tl.maximum(key_first, start - window)
            key_end = tl.minimum(key_end, start + tile_rows + window)
        whole = tl.maximum(whole_end - key_first, 0) // tile_columns * tile_columns
        running_max, denominator, weighted_sum = _whole_tiles(
            q, key, value, key_at, key_first, whole, key_stride, value_stride, scale,
            running_max, denominator, weighted_sum, tile_columns,
        )  # fmt: skip
        for column in range(key_first + whole, key_end, tile_columns):
            columns = column + tl.arange(0, tile_columns)
            valid = columns < key_end
            distance = rows[:, None] - columns[None, :]
            allowed = valid[None, :] & (rows[:, None] >= 0)
            if causal:
                allowed = allowed & (distance >= 0)
            if windowed:
                allowed = allowed & (distance <= window) & (distance >= -window)
            keys = key + columns[None, :].to(tl.int64) * key_stride + key_at[:, None]
            values = value + columns[:, None].to(tl.int64) * value_stride + key_at[None, :]
            logits = tl.dot(q, tl.load(keys, valid[None, :], other=0.0), input_precision="ieee") * scale
            # A tile without any key for a row adds to its sums, which the next tile with one multiplies by 0.
            logits = tl.where(allowed, logits, -1e30)
            tile_values = tl.load(values, valid[:, None], other=0.0)
            running_max, denominator, weighted_sum = _softmax_step(
                logits, tile_values, running_max, denominator, weighted_sum
            )
        result = (weighted_sum / denominator[:, None]).to(out.dtype.element_ty)
        tl.store(out + rows[:, None].to(tl.int64) * out_stride + at[None, :], result, rows[:, None] < end)


@triton.jit  # type: ignore[untyped-decorator]
def _relative_attention(  # type: ignore[no-untyped-def]
    query, key, value, out, query_bounds, key_bounds, to_position, from_position, table, longest,
    query_tokens, key_tokens, buckets, query_stride, key_stride, value_stride, out_stride, scale,
    dim: tl.constexpr, tile_rows: tl.constexpr, tile_columns: tl.constexpr,
    to_positions: tl.constexpr, from_positions: tl.constexpr,
):  # fmt: skip
    """Products with positions are computed before; each pair of tokens adds those of its distance."""
    sequence, head = tl.program_id(2), tl.program_id(1)
    first, end = tl.load(query_bounds + sequence), tl.load(query_bounds + sequence + 1)
    offset = tl.program_id(0) * tile_rows
    if first + offset < end:
        rows = offset + tl.arange(0, tile_rows)  # positions in the sequence
        at = head * dim + tl.arange(0, dim)
        inside = rows[:, None] < end - first
        q = tl.load(query + (first + rows[:, None]).to(tl.int64) * query_stride + at[None, :], inside, other=0.0)
        key_first, key_end = tl.load(key_bounds + sequence), tl.load(key_bounds + sequence + 1)
        to_row = to_position + (head.to(tl.int64) * query_tokens + first + rows[:, None]) * buckets
        running_max = tl.full([tile_rows], -1e30, tl.float32)
        denominator = tl.zeros([tile_rows], tl.float32)
        weighted_sum = tl.zeros([tile_rows, dim], tl.float32)
        for column in range(0, key_end - key_first, tile_columns):
            columns = column + tl.arange(0, tile_columns)
            valid = columns < key_end - key_first
            keys = key + (key_first + columns[None, :]).to(tl.int64) * key_stride + at[:, None]
            logits = tl.dot(q, tl.load(keys, valid[None, :], other=0.0), input_precision="ieee")
            distance = rows[:, None] - columns[None, :]
            distance = tl.minimum(tl.maximum(distance, -longest), longest)
            bucket = tl.load(table + longest + distance)
            both = inside & valid[None, :]
            if to_positions:
                logits += tl.load(to_row + bucket, both, other=0.0).to(tl.float32)
            if from_positions:
                of_key = from_position + (head.to(tl.int64) * key_tokens + key_first + columns[None, :]) * buckets
                logits += tl.load(of_key + bucket, both, other=0.0).to(tl.float32)
            logits = tl.where(valid[None, :], logits * scale, -1e30)
            values = value + (key_first + columns[:, None]).to(tl.int64) * value_stride + at[None, :]
            tile_values = tl.load(values, valid[:, None], other=0.0)
            running_max, denominator, weighted_sum = _softmax_step(
                logits, tile_values, running_max, denominator, weighted_sum
            )
        result = (weighted_sum / denominator[:, None]).to(out.dtype.element_ty)
        tl.store(out + (first + rows[:, None]).to(tl.int64) * out_stride + at[None, :], result, inside)
