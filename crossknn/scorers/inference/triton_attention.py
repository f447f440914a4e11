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
TILES = {32: (64, 32, 4, 3), 64: (64, 32, 4, 3), 128: (64, 32, 4, 3), 256: (64, 32, 4, 2)}
RELATIVE_TILES = {32: (64, 64, 4, 2), 64: (64, 64, 4, 2)}
FLOAT32_TILE = (32, 32, 4, 2)
PACKED_HEADS = 2  # that share their keys, in a tile of wide heads, whose keys are what takes the time
FAR: tl.constexpr = tl.constexpr(2**30)  # the place of a key that is none


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
    group = heads // key.shape[1]
    packed = PACKED_HEADS if dim >= 128 and group % PACKED_HEADS == 0 else 1
    rows = 16 if single else rows
    keys, values, starts, lengths = (key, value, key, key) if prefix is None else prefix
    strides = [part.stride(0) for part in (query, key, value, keys, values, out)]
    tiles = triton.cdiv(query_layout.max_length * packed, rows)
    grid = (tiles, heads // packed, len(query_layout.cu_seqlens) - 1)
    _attention[grid](
        query, key, value, out, query_layout.cu_seqlens, key_layout.cu_seqlens, keys, values, starts, lengths, *strides,
        (dim**-0.5 if scale is None else scale) * LOG2_E, -1 if window is None else window, group,
        dim=dim, packed=packed, tile_rows=rows, tile_columns=columns, causal=causal and not single,
        windowed=window is not None, prefixed=prefix is not None, num_warps=warps, num_stages=stages,
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
def _softmax_step(products, values, scale, running_max, sums, weighted_sum):  # type: ignore[no-untyped-def]
    """Add one tile of keys to an online softmax; `sums` of weights are by place in the tile."""
    new_max = tl.maximum(running_max, tl.max(products, 1) * scale)
    weights = tl.exp2(products * scale - new_max[:, None])
    rescale = tl.exp2(running_max - new_max)
    sums = sums * rescale[:, None] + weights
    weighted_sum = tl.dot(weights.to(values.dtype), values, weighted_sum * rescale[:, None], input_precision="ieee")
    return new_max, sums, weighted_sum


@triton.jit  # type: ignore[untyped-decorator]
def _whole_tiles(  # type: ignore[no-untyped-def]
    q, key, value, at, first, count, key_stride, value_stride, scale, running_max, sums, weighted_sum,
    tile_columns: tl.constexpr,
):  # fmt: skip
    """`count` keys from `first` on, a multiple of a tile, all of which every query attends to."""
    columns = first + tl.arange(0, tile_columns)
    keys = key + columns[None, :].to(tl.int64) * key_stride + at[:, None]
    values = value + columns[:, None].to(tl.int64) * value_stride + at[None, :]
    for _ in range(0, count, tile_columns):
        products = tl.dot(q, tl.load(keys), input_precision="ieee")
        running_max, sums, weighted_sum = _softmax_step(
            products, tl.load(values), scale, running_max, sums, weighted_sum
        )
        keys += tile_columns * key_stride
        values += tile_columns * value_stride
    return running_max, sums, weighted_sum


@triton.jit  # type: ignore[untyped-decorator]
def _masked_tiles(  # type: ignore[no-untyped-def]
    q, key, value, at, first, end, rows, window, key_stride, value_stride, scale, running_max, sums, weighted_sum,
    tile_columns: tl.constexpr, causal: tl.constexpr, windowed: tl.constexpr,
):  # fmt: skip
    """Keys `first` to `end`, of which each query attends to those that its row allows."""
    for column in range(first, end, tile_columns):
        columns = column + tl.arange(0, tile_columns)
        valid = columns < end
        distance = rows[:, None] - tl.where(valid, columns, FAR)[None, :]
        if windowed:
            reach = (distance if causal else distance + window).to(tl.uint32, bitcast=True)  # below 0: very large
            allowed = reach <= (window if causal else 2 * window)
        elif causal:
            allowed = distance >= 0
        else:
            allowed = valid[None, :]
        keys = key + columns[None, :].to(tl.int64) * key_stride + at[:, None]
        values = value + columns[:, None].to(tl.int64) * value_stride + at[None, :]
        products = tl.dot(q, tl.load(keys, valid[None, :], other=0.0), input_precision="ieee")
        products = tl.where(allowed, products, float("-inf"))
        tile_values = tl.load(values, valid[:, None], other=0.0)
        running_max, sums, weighted_sum = _softmax_step(products, tile_values, scale, running_max, sums, weighted_sum)
    return running_max, sums, weighted_sum


@triton.jit  # type: ignore[untyped-decorator]
def _attention(  # type: ignore[no-untyped-def]
    query, key, value, out, query_bounds, key_bounds, prefix_keys, prefix_values, prefix_starts, prefix_lengths,
    query_stride, key_stride, value_stride, prefix_key_stride, prefix_value_stride, out_stride, scale, window, group,
    dim: tl.constexpr, packed: tl.constexpr, tile_rows: tl.constexpr, tile_columns: tl.constexpr,
    causal: tl.constexpr, windowed: tl.constexpr, prefixed: tl.constexpr,
):  # fmt: skip
    """A tile holds the queries of `packed` heads, which share their keys."""
    sequence, first_head = tl.program_id(2), tl.program_id(1) * packed
    first, end = tl.load(query_bounds + sequence), tl.load(query_bounds + sequence + 1)
    tokens = tile_rows // packed
    start = first + tl.program_id(0) * tokens
    if start < end:
        number = tl.arange(0, tile_rows)
        rows = start + number // packed
        inside = rows[:, None] < end
        at = (first_head + number % packed)[:, None] * dim + tl.arange(0, dim)[None, :]
        key_at = first_head // group * dim + tl.arange(0, dim)
        q = tl.load(query + rows[:, None].to(tl.int64) * query_stride + at, inside, other=0.0)
        running_max = tl.full([tile_rows], -1e30, tl.float32)
        sums = tl.zeros([tile_rows, tile_columns], tl.float32)
        weighted_sum = tl.zeros([tile_rows, dim], tl.float32)
        key_first, key_end = tl.load(key_bounds + sequence), tl.load(key_bounds + sequence + 1)
        whole_first, whole_end = key_first, key_end  # every query of the tile attends to these
        if causal:
            whole_end = tl.minimum(whole_end, start + 1)
            key_end = tl.minimum(key_end, start + tokens)
        elif windowed:
            whole_end = tl.minimum(whole_end, start + window + 1)
            key_end = tl.minimum(key_end, start + tokens + window)
        if windowed:
            key_first = tl.maximum(key_first, start - window)
            before = tl.cdiv(tl.maximum(start + tokens - 1 - window - key_first, 0), tile_columns) * tile_columns
            whole_first = tl.minimum(key_first + before, key_end)
        whole = tl.maximum(whole_end - whole_first, 0) // tile_columns * tile_columns
        if prefixed:
            prefix_first = tl.load(prefix_starts + sequence)
            prefix_end = prefix_first + tl.load(prefix_lengths + sequence)
            prefix_whole = (prefix_end - prefix_first) // tile_columns * tile_columns
            running_max, sums, weighted_sum = _whole_tiles(
                q, prefix_keys, prefix_values, key_at, prefix_first, prefix_whole,
                prefix_key_stride, prefix_value_stride, scale, running_max, sums, weighted_sum, tile_columns,
            )  # fmt: skip
        running_max, sums, weighted_sum = _whole_tiles(
            q, key, value, key_at, whole_first, whole, key_stride, value_stride, scale,
            running_max, sums, weighted_sum, tile_columns,
        )  # fmt: skip
        if prefixed:
            running_max, sums, weighted_sum = _masked_tiles(
                q, prefix_keys, prefix_values, key_at, prefix_first + prefix_whole, prefix_end, rows, window,
                prefix_key_stride, prefix_value_stride, scale, running_max, sums, weighted_sum,
                tile_columns, False, False,
            )  # fmt: skip
        if windowed:
            running_max, sums, weighted_sum = _masked_tiles(
                q, key, value, key_at, key_first, whole_first, rows, window, key_stride, value_stride, scale,
                running_max, sums, weighted_sum, tile_columns, causal, windowed,
            )  # fmt: skip
        running_max, sums, weighted_sum = _masked_tiles(
            q, key, value, key_at, whole_first + whole, key_end, rows, window, key_stride, value_stride, scale,
            running_max, sums, weighted_sum, tile_columns, causal, windowed,
        )  # fmt: skip
        result = (weighted_sum / tl.sum(sums, 1)[:, None]).to(out.dtype.element_ty)
        tl.store(out + rows[:, None].to(tl.int64) * out_stride + at, result, inside)


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
        sums = tl.zeros([tile_rows, tile_columns], tl.float32)
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
            logits = tl.where(valid[None, :], logits, float("-inf"))
            values = value + (key_first + columns[:, None]).to(tl.int64) * value_stride + at[None, :]
            tile_values = tl.load(values, valid[:, None], other=0.0)
            running_max, sums, weighted_sum = _softmax_step(logits, tile_values, scale, running_max, sums, weighted_sum)
        result = (weighted_sum / tl.sum(sums, 1)[:, None]).to(out.dtype.element_ty)
        tl.store(out + (first + rows[:, None]).to(tl.int64) * out_stride + at[None, :], result, inside)
