"""Operations of a model in int8 on a CPU: attention in bfloat16."""

from __future__ import annotations

import math
from typing import Any, Final

from crossknn._imports import import_extra
from crossknn.scorers.inference.int8 import onednn_runs
from crossknn.scorers.inference.ops import ALL, TORCH_OPS, Layout, Mask, Ops, Prefix, equal_sequences

LARGEST_SUM = 1e37  # of exponentials; near the end of bfloat16's range


def int8_ops() -> Ops:
    """The fastest operations for a model whose linear layers are quantized."""
    torch = import_extra("torch", extra="models")
    has_bfloat16 = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    if not has_bfloat16() or not onednn_runs(torch):
        return TORCH_OPS
    return BFLOAT16_ATTENTION


class Bfloat16AttentionOps(Ops):
    """In float32, but for attention."""

    def attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        query_layout: Layout,
        key_layout: Layout,
        mask: Mask = ALL,
        prefix: Prefix | None = None,
    ) -> Any:
        """With products in bfloat16, if there is no mask.

        The largest logit is not subtracted before the exponential, which would take two more passes over the weights;
        where their sum leaves the range of bfloat16, which is that of float32, attention is computed in float32.
        """
        if mask != ALL or prefix is not None:
            return super().attention(query, key, value, query_layout, key_layout, mask, prefix)
        torch = import_extra("torch", extra="models")
        outputs = torch.empty(query.shape, dtype=query.dtype)
        for rows, columns, sequences in equal_sequences(query_layout, key_layout):
            count = sequences.stop - sequences.start
            states = (query[rows], key[columns], value[columns], outputs[rows])
            *parts, target = (part.unflatten(0, (count, -1)).transpose(1, 2) for part in states)
            attended = _exponential_attention(torch, *parts)
            target.copy_(torch.nn.functional.scaled_dot_product_attention(*parts) if attended is None else attended)
        return outputs


BFLOAT16_ATTENTION: Final = Bfloat16AttentionOps()


def _exponential_attention(torch: Any, query: Any, key: Any, value: Any) -> Any:
    """(sequences, heads, tokens, head dim) in bfloat16; None where a sum leaves its range."""
    half = {"dtype": torch.bfloat16, "memory_format": torch.contiguous_format}
    queries, keys, values = (part.to(**half).flatten(0, 1) for part in (query, key, value))
    queries.mul_(math.log2(math.e) / math.sqrt(query.shape[-1]))
    weights = torch.bmm(queries, keys.transpose(1, 2)).exp2_()
    sums = weights.sum(-1, keepdim=True)
    smallest, largest = torch.aminmax(sums)
    if not 1 / LARGEST_SUM < float(smallest) <= float(largest) < LARGEST_SUM:  # or NaN
        return None
    return torch.bmm(weights, values).div_(sums).view(query.shape)
