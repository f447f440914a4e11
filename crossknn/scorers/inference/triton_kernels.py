"""Steps of a transformer's layer in one pass over a GPU's memory each; importing this needs Triton."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

LOG2_E = 1.4426950408889634


def embed_norm(ids: Any, types: Any, positions: Any, embeddings: Any) -> Any:
    """(tokens, dim) the norm of the sum of a token's, a type's and a position's row."""
    tables = (embeddings.word_embeddings, embeddings.token_type_embeddings, embeddings.position_embeddings)
    words, type_rows, position_rows = (table.weight for table in tables)
    norm, dim = embeddings.LayerNorm, words.shape[1]
    out = torch.empty(len(ids), dim, dtype=words.dtype, device=words.device)
    _embed_norm[(len(ids),)](
        ids, types, positions, words, type_rows, position_rows, norm.weight, norm.bias, out, dim, norm.eps, **_row(dim)
    )
    return out


def add_norm(states: Any, residual: Any, norm: Any) -> Any:
    """(rows, dim) `norm(states + residual)` of contiguous ones; a sum is not rounded before it is normed."""
    rows, dim = states.shape
    out = torch.empty_like(states)
    _add_norm[(rows,)](states, residual, norm.weight, norm.bias, out, dim, norm.eps, **_row(dim))
    return out


def attend(query: Any, key: Any, value: Any, asking: Any, seen: Any) -> Any:
    """(tokens, heads, dim of a head): each sequence of `asking` looks at its own of `seen`, both `Layout`s.

    Tokens of query, key and value may lie any distance apart; their heads are side by side.
    """
    tokens, heads, dim = query.shape
    out = torch.empty(tokens, heads, dim, dtype=query.dtype, device=query.device)
    tile = 16 if asking.longest == 1 else TILES[dim][0]
    grid = (triton.cdiv(asking.longest, tile), heads, len(asking.starts) - 1)
    strides = (query.stride(0), key.stride(0), value.stride(0), out.stride(0))
    _, columns, warps, stages = TILES[dim]
    _attend[grid](
        query, key, value, out, asking.starts, seen.starts, *strides, dim**-0.5 * LOG2_E,
        dim=dim, tile_rows=tile, tile_columns=columns, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


TILES = {32: (64, 32, 4, 4), 64: (64, 64, 4, 3), 128: (64, 64, 4, 3)}  # by dim: rows, columns, warps, stages


def _row(dim: int) -> dict[str, int]:
    width = triton.next_power_of_2(dim)
    return {"width": width, "num_warps": 1 if width <= 512 else 4}


@triton.jit
def _norm(total, weight, bias, out, dim, eps, columns, inside):  # type: ignore[no-untyped-def]
    centred = tl.where(inside, total - tl.sum(total, 0) / dim, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / dim + eps)
    scaled = centred * scale * tl.load(weight + columns, inside, other=0.0).to(tl.float32)
    normed = scaled + tl.load(bias + columns, inside, other=0.0).to(tl.float32)
    tl.store(out + columns, normed.to(out.dtype.element_ty), inside)


@triton.jit  # type: ignore[untyped-decorator]
def _add_norm(states, residual, weight, bias, out, dim, eps, width: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64) * dim
    columns = tl.arange(0, width)
    inside = columns < dim
    total = tl.load(states + row + columns, inside, other=0.0).to(tl.float32)
    total += tl.load(residual + row + columns, inside, other=0.0).to(tl.float32)
    _norm(total, weight, bias, out + row, dim, eps, columns, inside)


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
    _norm(total, weight, bias, out + token.to(tl.int64) * dim, dim, eps, columns, inside)


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    query, key, value, out, asking, seen, query_step, key_step, value_step, out_step, scale,
    dim: tl.constexpr, tile_rows: tl.constexpr, tile_columns: tl.constexpr,
):  # fmt: skip
    """One tile of one head's queries, over all keys: softmax with a running maximum, in powers of two."""
    sequence, head = tl.program_id(2), tl.program_id(1)
    first, end = tl.load(asking + sequence), tl.load(asking + sequence + 1)
    rows = first + tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    if first + tl.program_id(0) * tile_rows < end:
        within = tl.arange(0, dim)
        at = head * dim + within
        asked = tl.load(query + rows[:, None].to(tl.int64) * query_step + at[None, :], rows[:, None] < end, other=0.0)
        key_first, key_end = tl.load(seen + sequence), tl.load(seen + sequence + 1)
        largest = tl.full([tile_rows], -1e30, tl.float32)
        weights = tl.zeros([tile_rows], tl.float32)
        total = tl.zeros([tile_rows, dim], tl.float32)
        columns = key_first + tl.arange(0, tile_columns)
        keys = key + columns[None, :].to(tl.int64) * key_step + at[:, None]
        values = value + columns[:, None].to(tl.int64) * value_step + at[None, :]
        whole = (key_end - key_first) // tile_columns * tile_columns
        for _ in range(0, whole, tile_columns):
            products = tl.dot(asked, tl.load(keys)) * scale
            above = tl.maximum(largest, tl.max(products, 1))
            shares = tl.exp2(products - above[:, None])
            fade = tl.exp2(largest - above)
            weights = weights * fade + tl.sum(shares, 1)
            seen_values = tl.load(values)
            total = tl.dot(shares.to(seen_values.dtype), seen_values, total * fade[:, None])
            largest = above
            keys += tile_columns * key_step
            values += tile_columns * value_step
        if key_first + whole < key_end:
            left = columns + whole < key_end
            products = tl.dot(asked, tl.load(keys, left[None, :], other=0.0)) * scale
            products = tl.where(left[None, :], products, -1e30)
            above = tl.maximum(largest, tl.max(products, 1))
            shares = tl.exp2(products - above[:, None])
            fade = tl.exp2(largest - above)
            weights = weights * fade + tl.sum(shares, 1)
            seen_values = tl.load(values, left[:, None], other=0.0)
            total = tl.dot(shares.to(seen_values.dtype), seen_values, total * fade[:, None])
        result = (total / weights[:, None]).to(out.dtype.element_ty)
        tl.store(out + rows[:, None].to(tl.int64) * out_step + at[None, :], result, rows[:, None] < end)
